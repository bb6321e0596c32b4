// What a lease server knows of one resource, and which numbers it takes from others. The files of LeaseServer share it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "lease/server.h"

namespace dthrottle::lease {

inline bool IsAmount(double amount) {
  return amount >= 0 && amount <= kCapacityMax;    // NaN is neither
}

inline bool IsValid(const std::optional<Claim>& claim, std::span<const Band> wants, double outstanding) {
  return !wants.empty() && wants.size() <= Store::kBandsMax && IsAmount(outstanding) &&
         (!claim.has_value() || IsAmount(claim->capacity)) &&
         std::all_of(wants.begin(), wants.end(),
                     [](const Band& band) { return band.clients <= kClientsMax && IsAmount(band.wants); });
}

struct LeaseServer::Resource {
  std::string name;
  const ResourceTemplate* how;    // null: there is none, and the resource is put aside
  Store store;
  std::optional<Lease> held{};    // where capacity does not come from the template
  double share = 0;               // of it, to divide
  double safe = 0;                // what to go on with when it has ended
  Epoch epoch = 0;                // of who granted it
  BootInstant ask{};              // the parent, next
  BootInstant learns_until{};
};

// What there is to hand out.
struct LeaseServer::Held {
  double capacity = 0;
  double share = 0;                       // to divide; the rest, if any, is to come back
  std::optional<BootInstant> expiry{};    // none: it does not expire
  bool any = false;
  bool safe = false;    // not a lease, but what is left to a server that hears nothing from its parent
};

}    // namespace dthrottle::lease
