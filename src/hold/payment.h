// What a tag has paid for something that may come back: a hold, or a wait.
#pragma once

#include <cstdint>
#include <optional>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

struct Payment {
  Query query;
  Instant at{};    // a quota gets back nothing of a period that is over
  // Names the tags that were charged with it (ChargedMark). Where rules charge others by now, these get nothing back.
  // None: those that are charged with it when it comes back.
  std::optional<std::uint16_t> with{};
  // In mode shadow a question passes though a tag has not what it costs. Such a tag has paid nothing, and nothing is
  // settled with it: this one, and a bit for each of the tags that were charged with it, in order.
  bool unpaid = false;
  std::uint8_t with_unpaid = 0;
};

}    // namespace dthrottle
