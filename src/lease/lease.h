// What lease clients and lease servers say to each other, without a wire: requests, claims, grants.
//
// A lease is capacity until an instant. Its holder asks again every refresh interval, long before that instant, and
// gets a new lease; so a lost server costs nobody anything until leases run out. Source: Doorman "Lease",
// "Requesting capacity", "The GetServerCapacity RPC".
//
// Words: a *lease client* asks for itself, a *lease server* for its own clients together. A server's *parent* is the
// server that it gets its capacity from itself; the root has none (the document calls that direction "lower level").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace dthrottle::lease {

// Grows with every change of masters: the fencing token. 0: none, as from software that knows no tokens.
using Epoch = std::uint64_t;

struct Lease {
  double capacity = 0;    // units of the resource; >= 0
  BootInstant expiry{};
  Duration refresh_interval{};

  static void Fields(auto& state, auto& self) { state(self.capacity, self.expiry, self.refresh_interval); }
};

// A lease as its holder remembers it: `has` in a request.
struct Claim {
  double capacity = 0;
  BootInstant expiry{};
  Epoch epoch = 0;    // of the grant that it came with
};

// What a client asks of one resource. Views have to live as long as the call.
struct ResourceRequest {
  std::string_view resource;
  std::int64_t priority = 0;
  double wants = 0;    // units of the resource; finite, >= 0
  std::optional<Claim> has{};
  // Beyond what it wants, an equal part of what nobody wants. And it may not know yet what it wants: then what it wanted
  // for the lease that it has, or without one an equal part of everything.
  bool spare = false, unknown = false;
};

// What all clients of one priority want together (the document's PriorityBandAggregate).
struct Band {
  std::int64_t priority = 0;
  std::uint64_t clients = 0;
  double wants = 0;

  friend bool operator==(const Band&, const Band&) = default;
  static void Fields(auto& state, auto& self) { state(self.priority, self.clients, self.wants); }
};

// What a server asks of one resource for everybody behind it.
struct ServerResourceRequest {
  std::string_view resource;
  double outstanding = 0;    // what it has leased out
  std::span<const Band> wants{};
  std::optional<Claim> has{};
  bool learning = false;    // it has not heard of all its clients yet
};

// The same with its own storage: what LeaseServer::AskParent returns.
struct ParentRequest {
  std::string resource;
  double outstanding = 0;
  std::vector<Band> wants;
  std::optional<Claim> has;
  bool learning = false;
};

// The answer for one resource, in the place of its request.
struct Grant {
  enum class Outcome : std::uint8_t {
    kLeased,
    kTooSoon,       // within the minimum interval: nothing has changed, and `lease` is the one it has
    kNoTemplate,    // no settings for the resource; leave it out of the answer
    kFull,          // a bound on clients or resources is reached
    kInvalid,       // a name or a number that cannot be
  };

  Outcome outcome{};
  Lease lease{};
  // What a server may divide among its clients, at most lease.capacity. Less than that only where the resource is
  // strict and the server has more leased out than its share; what is above it it may only wait to get back.
  double share = 0;
  double safe_capacity = 0;    // for when no server answers; negative: unlimited
  bool learning = false;
  Duration learns_for{};    // until it knows what its predecessor has leased out
  Epoch epoch = 0;          // of the server: a holder drops grants of a smaller one than it has seen

  bool leased() const { return outcome == Outcome::kLeased; }
};

}    // namespace dthrottle::lease
