#include "io/peer_settings.h"

#include <fmt/format.h>

#include <utility>

#include "io/process.h"

namespace dthrottle {

namespace {

struct HostKeys {
  KeyPair own;
  AuthorizedKeys others;
};

// REQUIRES: there are keys.
Result<HostKeys> ReadKeys(const KeySettings& keys, SecretOwner of) {
  auto own = ReadKeyFile(keys.key_file, of);
  if (!own) return Fail(fmt::format("{}.key_file: {}", keys.section, own.error().message));
  auto others = ReadAuthorizedKeys(keys.authorized_keys);
  if (!others) return Fail(fmt::format("{}.authorized_keys: {}", keys.section, others.error().message));
  return HostKeys{std::move(*own), std::move(*others)};
}

Result<void> CheckSection(const KeySettings& keys) {
  if (keys.key_file.empty()) return {};
  const auto read = ReadKeys(keys, CheckedOwner());
  return read ? Result<void>() : Fail(read.error().message);
}

}    // namespace

std::string NameOfHost(const Settings& settings) {
  return settings.peers.name.empty() ? NameOfMachine() : settings.peers.name;
}

PeerCeilings CeilingsOf(const Settings& settings) {
  const auto& peers = settings.peers;
  return {peers.max_frames, peers.max_entries, peers.max_hits, peers.max_new_tags};
}

PeerThread::Options CommonOptions(const Settings& settings, std::uint64_t seed) {
  const auto& peers = settings.peers;
  PeerThread::Options options;
  options.resolver.every = peers.resolve_interval;
  options.resolver.servers = peers.name_servers;
  options.seed = seed;
  options.exchange.name = NameOfHost(settings);
  options.exchange.version = DTHROTTLE_VERSION;
  options.exchange.ring_bytes = peers.history;
  options.exchange.ceilings = CeilingsOf(settings);
  return options;
}

Result<void> CheckKeys(const Settings& settings) {
  const auto& peers = settings.peers;
  const auto& sites = settings.sites;
  if (peers.enabled()) {
    if (auto good = CheckSection({"peers", peers.key_file, peers.authorized_keys}); !good) return good;
  }
  return sites.enabled() ? CheckSection({"sites", sites.key_file, sites.authorized_keys}) : Result<void>();
}

Result<void> TakeKeys(const KeySettings& keys, PeerThread::Options& options, Log& log) {
  if (keys.key_file.empty()) return {};
  auto read = ReadKeys(keys, SecretOwner::kThisUser);
  if (!read) return Fail(read.error().message);
  options.keys = std::move(read->own);
  options.authorized = std::move(read->others);
  for (const std::string& complaint : options.authorized.complaints) {
    log.Say(LogLevel::kWarning, fmt::format("{}.authorized_keys: {}", keys.section, complaint));
  }
  return {};
}

std::optional<AuthorizedKeys> ReloadKeys(const KeySettings& keys, PeerThread& thread,
                                         std::vector<std::string>& problems) {
  if (keys.authorized_keys.empty()) return AuthorizedKeys();
  auto read = ReadAuthorizedKeys(keys.authorized_keys);
  if (!read) {
    problems.push_back(
        fmt::format("{}.authorized_keys: warning: {}; the keys stay as they were", keys.section, read.error().message));
    return std::nullopt;
  }
  for (const std::string& complaint : read->complaints) {
    problems.push_back(fmt::format("{}.authorized_keys: {}", keys.section, complaint));
  }
  thread.ReloadKeys(*read);
  return std::move(*read);
}

}    // namespace dthrottle
