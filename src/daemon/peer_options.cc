#include "daemon/peer_options.h"

#include <fmt/format.h>

#include <utility>

#include "carrier/list.h"
#include "daemon/dividing_options.h"
#include "io/files.h"
#include "io/keys.h"
#include "io/process.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// None: there are no keys.
Result<std::optional<KeyPair>> ReadKeys(const Settings& settings, Log& log, AuthorizedKeys& authorized) {
  if (settings.peers.key_file.empty()) return std::nullopt;
  auto keys = ReadKeyFile(settings.peers.key_file);
  if (!keys) return Fail("peers.key_file: " + keys.error().message);
  auto others = ReadAuthorizedKeys(settings.peers.authorized_keys);
  if (!others) return Fail("peers.authorized_keys: " + others.error().message);
  authorized = std::move(*others);
  for (const std::string& complaint : authorized.complaints) {
    log.Say(LogLevel::kWarning, "peers.authorized_keys: " + complaint);
  }
  return std::move(*keys);
}

// None: every host hears every other.
std::shared_ptr<const Owners> OwnersOfTags(const Settings& settings, const OwnerAddresses* list) {
  const auto& peers = settings.peers;
  if (list != nullptr) return list->owners;
  return peers.spread == PeerSpread::kOwners ? std::make_shared<const Owners>(peers.owners) : nullptr;
}

}    // namespace

std::string NameOfHost(const Settings& settings) {
  return settings.peers.name.empty() ? NameOfMachine() : settings.peers.name;
}

PeerCeilings CeilingsOf(const Settings& settings) {
  const auto& peers = settings.peers;
  return {peers.max_frames, peers.max_entries, peers.max_hits, peers.max_new_tags};
}

std::vector<std::string> Called(const Settings& settings, const OwnerAddresses* list) {
  if (list == nullptr) return settings.peers.called();
  return settings.peers.transport == PeerTransport::kNats ? list->owners->names() : list->Connect();
}

Result<PeerThread::Options> MakePeerOptions(const Settings& settings, Limiter& limiter, Log& log,
                                            const OwnerAddresses* list, std::uint64_t seed) {
  if (auto good = CheckCarrier(settings); !good) return Fail(good.error().message);
  const auto& peers = settings.peers;
  PeerThread::Options options;
  if (auto usable = CheckIncarnation(settings.table.file); !usable) return Fail(usable.error().message);
  auto keys = ReadKeys(settings, log, options.authorized);
  if (!keys) return Fail(keys.error().message);
  options.keys = std::move(*keys);
  options.bind = peers.bind;
  options.connect = Called(settings, list);
  options.resolver.every = peers.resolve_interval;
  options.resolver.servers = peers.name_servers;
  options.seed = seed;
  options.exchange.name = NameOfHost(settings);
  options.exchange.incarnation =
      NextIncarnation(settings.table.file, std::chrono::microseconds(1), std::uint64_t{1} << 62);
  options.exchange.version = DTHROTTLE_VERSION;
  options.exchange.period = peers.period;
  options.exchange.ring_bytes = peers.history;
  options.exchange.ceilings = CeilingsOf(settings);
  options.exchange.account = limiter.ways().Get<Debits>().account();
  options.exchange.owners = OwnersOfTags(settings, list);
  options.exchange.owners_registered = list != nullptr;
  options.exchange.identities_proven = options.keys.has_value() || peers.transport == PeerTransport::kNats;
  options.carrier = CarrierOf(settings);
  options.exchange.fresh_table = !limiter.discarded().empty();
  auto capacity = MakeCapacityOptions(settings, limiter.rules(), options.authorized, options.exchange.name);
  if (!capacity) return Fail(capacity.error().message);
  options.capacity = std::move(*capacity);
  return options;
}

}    // namespace dthrottle
