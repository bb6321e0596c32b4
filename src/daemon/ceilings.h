// How many connections each socket may have, so that the crowd at one of them leaves descriptors to the others.
#pragma once

#include <cstdint>
#include <string_view>

#include "config/settings.h"
#include "io/places.h"

namespace dthrottle {

struct Ceilings {
  std::uint32_t query = 0, admin = 0, http = 0, http_unix = 0, resp = 0, lease = 0, peers = 0;
  bool cut = false;    // some are lower than the settings allow, for want of descriptors

  // The ceiling of the listening socket "query.tcp", "http.unix" and so on.
  std::uint32_t Of(std::string_view key) const;
};

// Divides `limit` descriptors, of which `in_use` are taken already and some more are kept for files.
Ceilings DivideDescriptors(const Settings& settings, std::uint64_t limit, std::uint64_t in_use);

// Descriptors that this process has open.
std::uint64_t OpenDescriptors();

}    // namespace dthrottle
