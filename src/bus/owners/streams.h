// The streams of reports that this host publishes. Where everybody hears everything it is one. Where owners have the
// tags it is one for each owner, with numbers, a ring and repairs of its own: what the limiter hands over is cut by
// owner, and what this host owns itself goes to nobody.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "bus/owners/owners.h"
#include "bus/publishing.h"

namespace dthrottle {

class Streams {
 public:
  explicit Streams(ExchangeCore& core);

  // As Publishing::FromLimiter.
  void FromLimiter(ToPeers& item, Instant now);
  void Flush(Instant now);

  // The one that a host of that name hears.
  Publishing& For(std::string_view host);
  const Publishing& For(std::string_view host) const { return const_cast<Streams*>(this)->For(host); }

  struct Sizes {
    std::uint64_t frames = 0, bytes = 0, subscribers = 0;    // of all
  };
  Sizes sizes() const;

  // Over a restart, with the same owners. REQUIRES: Flush() has been called.
  static void Fields(auto& state, auto& self) {
    for (auto& stream : self.streams_) state(*stream);
  }

 private:
  ExchangeCore& core_;
  std::vector<std::unique_ptr<Publishing>> streams_;    // by owner, and behind them one for hosts that own nothing
  std::vector<Entries> parts_;                          // of what is being cut, by owner
};

}    // namespace dthrottle
