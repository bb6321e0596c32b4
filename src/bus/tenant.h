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

  struct Said {
    LinkId link;            // answers go by `route` if it is not empty, otherwise by this
    const Route& route;
    std::string_view from;    // the sender, on whichever connection where it proves its name
    std::string_view frame;
  };
  // A frame, which may be anything. False: some of it was not looked at, because the sender says too much.
  virtual bool OnFrame(const Said& said, Transport& wire, Instant now) = 0;

  // Says what is due; `peers` are links to hosts that hear. Returns when to be called next at the latest.
  virtual Instant Tick(std::span<const LinkId> peers, Transport& wire, Instant now) = 0;

 protected:
  ~Tenant() = default;
};

}    // namespace dthrottle
