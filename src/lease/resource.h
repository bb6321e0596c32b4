// How a resource is leased out: templates from the settings, and which of them a resource has.
//
// Source: Doorman "Root server configuration", "Algorithms". A resource is looked for by its exact name first, then by
// the globs in their order. Departure: a resource without a template gets no lease unless the operator says so, where
// the document contradicts itself ("honor whatever request" against "not present in the response"): a typing error must
// not be unlimited.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/names.h"
#include "base/result.h"
#include "base/time.h"
#include "lease/lease.h"
#include "rule/glob.h"

namespace dthrottle::lease {

enum class Algorithm : std::uint8_t { kNone, kStatic, kProportionalShare, kProportionalScaling, kFairShare, kPriorityBand };
DT_NAMES(Algorithm, "none", "static", "proportional_share", "proportional_scaling", "fair_share", "priority_band")

// What becomes of a request for a resource that no template is for.
enum class Unknown : std::uint8_t { kRefuse, kHonour };
DT_NAMES(Unknown, "refuse", "honour")

// Where the capacity of a root resource comes from.
enum class Source : std::uint8_t {
  kSettings,    // ResourceTemplate::capacity
  kCapacity,    // this host's share by consensus, told with LeaseServer::SetHeld
};
DT_NAMES(Source, "settings", "capacity")

inline constexpr double kUnlimited = -1;        // a safe capacity
inline constexpr double kCapacityMax = 1e15;    // of anything; doubles are exact to 1/8 there
inline constexpr std::uint64_t kClientsMax = 1'000'000'000;    // behind a server, in one band

struct ResourceTemplate {
  std::string identifier_glob;
  double capacity = 0;    // units of the resource; for kStatic: of each client
  Algorithm algorithm = Algorithm::kFairShare;
  Source source = Source::kSettings;
  Duration lease_length = std::chrono::seconds(60);
  Duration refresh_interval = std::chrono::seconds(16);    // at the root
  double decay_factor = 0.5;                               // of it, with each level further
  std::optional<Duration> learning_mode_duration{};        // none: lease_length
  std::optional<double> safe_capacity{};                   // none: capacity / clients; kUnlimited: unlimited
  bool strict = false;                                     // capacity moves only after it has come back
  std::string description{};

  Duration learning() const { return learning_mode_duration.value_or(lease_length); }
};

// Levels are counted from the root, which is 0.
inline constexpr std::uint32_t kLevelMax = 8;

// What clients of a server of this level wait between two requests.
Duration RefreshInterval(const ResourceTemplate& how, std::uint32_t level);

// A new lease: never longer than the server's own, which ends at `own_expiry`, and refreshed at least a second before
// it ends (or half way, where that is later than a second).
Lease MakeLease(const ResourceTemplate& how, std::uint32_t level, double capacity,
                std::optional<BootInstant> own_expiry, BootInstant now);

// Makes a resource safe while its stored capacity cannot be read: each client gets up to the safe capacity. A resource
// without one stays as it is: its safe capacity would be an equal part of its capacity anyway.
ResourceTemplate SafeOf(ResourceTemplate how);

// Finds the template of a resource.
class Templates {
 public:
  // Fails on a glob that is none.
  static Result<Templates> Make(std::vector<ResourceTemplate> list, Unknown unknown = Unknown::kRefuse);

  // nullptr: there is none. Valid as long as this object.
  const ResourceTemplate* Find(std::string_view resource) const;
  // Whether it is the one by which unknown resources are honoured.
  bool IsUnknown(const ResourceTemplate* how) const { return unknown_ && how == &*unknown_; }
  const std::vector<ResourceTemplate>& list() const { return list_; }

 private:
  std::vector<ResourceTemplate> list_;
  std::vector<Glob> globs_;
  std::unordered_map<std::string, std::size_t> exact_;    // the first of each
  std::optional<ResourceTemplate> unknown_;               // none: they are refused
};

}    // namespace dthrottle::lease
