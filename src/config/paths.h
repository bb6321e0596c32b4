// The files and the Unix sockets that the daemon makes. The one list of them, for the check of a file.
#pragma once

#include <string>
#include <vector>

#include "config/settings.h"

namespace dthrottle {

class Findings;

struct OwnPath {
  std::string key;     // "section.key"
  std::string name;    // for people: the key, and what stands behind its value
  std::string path;    // without "." and double slashes
};

// Every path that the settings give the daemon to write to, whether it does so under these rules or not.
std::vector<OwnPath> OwnPaths(const Settings& settings);

// No two are one.
void CheckPaths(Findings& findings);

}    // namespace dthrottle
