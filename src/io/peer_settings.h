// What a thread between hosts takes from the settings, whether it talks within a site or between sites.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "bus/peer_ceilings.h"
#include "config/settings.h"
#include "io/keys.h"
#include "io/log.h"
#include "io/peer_thread.h"

namespace dthrottle {

// What the others call this host.
std::string NameOfHost(const Settings& settings);
PeerCeilings CeilingsOf(const Settings& settings);

// Everything that does not depend on whom the thread talks to.
PeerThread::Options CommonOptions(const Settings& settings, std::uint64_t seed);

// The settings of keys in a section, which complaints name. Empty paths: there are no keys.
struct KeySettings {
  const char* section;
  const std::string &key_file, &authorized_keys;
};
// Whether a start can read the keys of all sections, for --check, which root may run for the daemon's user.
Result<void> CheckKeys(const Settings& settings);
// Reads the keys into the options. Files that are passed over are logged.
Result<void> TakeKeys(const KeySettings& keys, PeerThread::Options& options, Log& log);
// Reads the public keys again, for the thread, and adds a line for each complaint. None: the directory is no good, and
// the keys stay as they were.
std::optional<AuthorizedKeys> ReloadKeys(const KeySettings& keys, PeerThread& thread,
                                         std::vector<std::string>& problems);

}    // namespace dthrottle
