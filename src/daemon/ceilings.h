// How many connections each socket may have, so that a crowd at one of them leaves descriptors to the others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/frontend.h"

namespace dthrottle {

struct Settings;

struct Ceilings {
  struct Room {
    std::uint32_t all = 0;
    std::uint32_t unix_socket = 0;    // for this socket alone; 0: it shares `all`
  };

  std::map<const FrontEnd*, Room> rooms;    // of those that have one of their own
  std::uint32_t peers = 0;
  // Sockets that have fewer places than the settings allow, for want of descriptors: "resp has 700 of 3000".
  std::vector<std::string> cut;

  const Room& Of(const FrontEnd& front) const { return rooms.at(Owner(front)); }

  // The front end whose room this one uses.
  static const FrontEnd* Owner(const FrontEnd& front) {
    return front.has_room() ? &front : front.rests_on();
  }
};

// Divides `limit` descriptors; `in_use` are taken already and some more are kept for files.
Ceilings DivideDescriptors(const std::vector<std::unique_ptr<FrontEnd>>& front_ends, const Settings& settings,
                           std::uint64_t limit, std::uint64_t in_use);

// Descriptors that this process has open.
std::uint64_t OpenDescriptors();

}    // namespace dthrottle
