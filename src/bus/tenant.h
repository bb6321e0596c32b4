// A protocol of its own on the connections between hosts. Frames that begin with its stem are its; the thread of the
// connections calls it, and keeps no other protocol waiting for it.
#pragma once

#include <span>
#include <string_view>

#include "bus/exchange.h"

namespace dthrottle {

class Tenant {
 public:
  // The first three bytes of its frames, of any version.
  virtual std::string_view stem() const = 0;

  // A frame, which may be anything. Answers go by `route` if it is not empty, otherwise by `link`.
  virtual void OnFrame(LinkId link, const Route& route, std::string_view frame, Transport& wire, Instant now) = 0;

  // Says what is due; `peers` are links to hosts that hear. Returns when to be called next at the latest.
  virtual Instant Tick(std::span<const LinkId> peers, Transport& wire, Instant now) = 0;

 protected:
  ~Tenant() = default;
};

}    // namespace dthrottle
