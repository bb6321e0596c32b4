#include "daemon/peer_options.h"

#include <sysexits.h>
#include <utility>

#include "carrier/list.h"
#include "daemon/dividing_options.h"
#include "io/files.h"
#include "io/peer_settings.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// None: every host hears every other.
std::shared_ptr<const Owners> OwnersOfTags(const Settings& settings, const OwnerAddresses* list) {
  const auto& peers = settings.peers;
  if (list != nullptr) return list->owners;
  return peers.spread == PeerSpread::kOwners ? std::make_shared<const Owners>(peers.owners) : nullptr;
}

}    // namespace

std::vector<std::string> Called(const Settings& settings, const OwnerAddresses* list) {
  if (list == nullptr) return settings.peers.called();
  return settings.peers.transport == PeerTransport::kNats ? list->owners->names() : list->Connect();
}

tl::expected<PeerThread::Options, StartFailure> MakePeerOptions(const Settings& settings, Limiter& limiter, Log& log,
                                                                const OwnerAddresses* list, std::uint64_t seed) {
  if (auto good = CheckCarrier(settings); !good) {
    return tl::unexpected(StartFailure{EX_UNAVAILABLE, good.error().message});
  }
  const auto& peers = settings.peers;
  if (auto usable = CheckIncarnation(settings.table.file); !usable) {
    return tl::unexpected(StartFailure{EX_UNAVAILABLE, usable.error().message});
  }
  PeerThread::Options options = CommonOptions(settings, seed);
  if (auto taken = TakeKeys({"peers", peers.key_file, peers.authorized_keys}, options, log); !taken) {
    return tl::unexpected(StartFailure{EX_UNAVAILABLE, taken.error().message});
  }
  options.bind = peers.bind;
  options.connect = Called(settings, list);
  options.exchange.incarnation =
      NextIncarnation(settings.table.file, std::chrono::microseconds(1), std::uint64_t{1} << 62);
  options.exchange.period = peers.period;
  options.exchange.account = limiter.ways().Get<Debits>().account();
  options.exchange.owners = OwnersOfTags(settings, list);
  options.exchange.owners_registered = list != nullptr;
  options.exchange.identities_proven = options.keys.has_value() || peers.transport == PeerTransport::kNats;
  options.carrier = CarrierOf(settings);
  options.exchange.table_bytes = settings.table.memory;
  options.exchange.fresh_table = !limiter.discarded().empty();
  auto capacity = MakeCapacityOptions(settings, limiter.rules(), options.authorized, options.exchange.name);
  if (!capacity) return tl::unexpected(capacity.error());
  options.capacity = std::move(*capacity);
  return options;
}

}    // namespace dthrottle
