// The table [[resource]] of the settings.
#include <unordered_map>
#include "base/tag.h"

#include <algorithm>

#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"
#include "rule/glob.h"

namespace dthrottle {

namespace {

using lease::kCapacityMax;
using lease::kUnlimited;

Key<double> SafeCapacity() {
  Key<double> key =
      Number<double>("safe_capacity", "", 0, kCapacityMax, Itself<double>,
                     "What a client in safe mode may use when no server answers; 0 is nothing and -1 everything. "
                     "Without it an equal part of the capacity for each client that the server knows.");
  key.allowed += ", or -1";
  key.set = [set = key.set](double& units, const Value& value) {
    const bool unlimited = NumberIn(value) == kUnlimited;
    if (unlimited) units = kUnlimited;
    return unlimited || set(units, value);
  };
  return key;
}

}    // namespace

const std::vector<Key<lease::ResourceTemplate>>& ResourceKeys() {
  using namespace std::chrono_literals;
  using R = lease::ResourceTemplate;
  constexpr Duration kLongest = 24h;
  static const std::vector<Key<R>> keys = {
      Text<R>("identifier_glob", "", "a glob of 1 to 255 bytes: * ? [a-z] [!a-z] \\x", MEMBER(R, identifier_glob),
              "The names of the resources, as a glob over the whole name.",
              [](const std::string& text) {
                return !text.empty() && text.size() <= kTagBytesMax && Glob::Compile(text).has_value();
              }),
      Number<R>("capacity", "", 0, kCapacityMax, MEMBER(R, capacity),
                "How much there is, in whatever unit clients and the resource agree on, such as queries a second or "
                "open transactions. With \"static\", how much there is for each client."),
      Choice<R, lease::Algorithm>(
          "algorithm", "\"fair_share\"", MEMBER(R, algorithm),
          "How it is divided where more is wanted than there is: \"none\", everybody gets what he wants all the same; "
          "\"static\", everybody gets up to *capacity*; \"proportional_share\", an equal share, and of what others "
          "leave of theirs a part in proportion to what is wanted beyond it; \"proportional_scaling\", the same part "
          "of what is wanted for everybody; \"fair_share\", an equal share, and equal shares of what others leave "
          "until nothing is left; \"priority_band\", the same among those of the highest priority, then of what they "
          "leave among those of the next one, and so on."),
      Choice<R, lease::Source>(
          "source", "\"settings\"", MEMBER(R, source),
          "Where the capacity of a root server comes from: \"settings\", *capacity*; \"capacity\", this host's part of "
          "it, as it has that part of the tag with the resource's name under a rule with share = \"capacity\". Then "
          "every host leases out its own part and needs no master, and parts follow what is wanted."),
      DurationKey<R>("lease_length", "\"60s\"", 2s, kLongest, MEMBER(R, lease_length),
                     "How long a lease lasts unless it is refreshed; less where the server's own lease ends before."),
      DurationKey<R>("refresh_interval", "\"16s\"", 1s, kLongest, MEMBER(R, refresh_interval),
                     "How often clients of the root are to refresh it. Shorter than *lease_length*."),
      Number<R>("decay_factor", "0.5", 0.01, 1, MEMBER(R, decay_factor),
                "By what that interval is multiplied with every level of the server tree further from the root."),
      Optional<R>(
          MEMBER(R, learning_mode_duration),
          Allowing("a duration such as \"60s\" from 0s to 24h",
                   DurationKey<Duration>("learning_mode_duration", "", 0s, kLongest, Itself<Duration>,
                                         "How long a new master gives everybody what he has, and nothing to others, "
                                         "because it does not know the leases that are out. Without it *lease_length*; "
                                         "a shorter time relies on clients that refresh in time. A reload can make it "
                                         "shorter, and longer for the next master only. For a resource that a reload "
                                         "adds it begins with the mastership as well, and is at most the longest that "
                                         "any resource had then."))),
      Optional<R>(MEMBER(R, safe_capacity), SafeCapacity()),
      Flag<R>("strict", "false", MEMBER(R, strict),
              "With *true* capacity moves from one server to another only after it has come back from the clients of "
              "the first: never is more leased out than there is, and it takes some refresh intervals more to follow "
              "the demand."),
      Text<R>("description", "\"\"", "text without control characters", MEMBER(R, description), "For people.",
              NoControls),
  };
  return keys;
}

namespace {

// A resource that gets its capacity by consensus.
void CheckParts(Findings& f, const lease::ResourceTemplate& r, Findings::Place place) {
  const Settings& s = f.settings();
  const auto wrong = [&](std::string_view what) {
    f.Error(place, fmt::format("resource {}: source = \"capacity\": {}", Quote(r.identifier_glob), what));
  };
  if (s.lease.elector != LeaseElector::kNone) {
    wrong(fmt::format("lease.elector = \"{}\": must be \"none\", since every host leases out its own part",
                      Name(s.lease.elector)));
  }
  if (!s.lease.parent.empty()) wrong("lease.parent: must be [], since capacity would come from both");
  if (r.algorithm == lease::Algorithm::kNone || r.algorithm == lease::Algorithm::kStatic) {
    wrong(fmt::format("algorithm = \"{}\": must be one that keeps to the capacity", Name(r.algorithm)));
  }
  const bool divided =
      std::any_of(s.rules.begin(), s.rules.end(), [](const Rule& rule) { return rule.share == Share::kCapacity; });
  if (!divided && !f.wrong("rule")) {
    wrong("needs a [[rule]] with share = \"capacity\" for the tag of that name, whose parts hosts agree on");
  }
}

}    // namespace

void CheckResources(Findings& f) {
  const Settings& s = f.settings();
  if (f.wrong("lease") || f.wrong("resource")) return;
  std::unordered_map<std::string_view, std::size_t> by_glob;
  for (std::size_t i = 0; i < s.resources.size(); ++i) {
    const lease::ResourceTemplate& r = s.resources[i];
    const auto place = f.resources[i];
    const auto [other, is_new] = by_glob.emplace(r.identifier_glob, i);
    if (!is_new) {
      f.Error(place, fmt::format("resource.identifier_glob = {}: must be unique, and line {} has it",
                                 Quote(r.identifier_glob), f.resources[other->second].line));
    }
    if (r.refresh_interval >= r.lease_length) {
      f.Error(place, fmt::format("resource {}: refresh_interval = \"{}\": must be shorter than lease_length = \"{}\"",
                                 Quote(r.identifier_glob), FormatDuration(r.refresh_interval),
                                 FormatDuration(r.lease_length)));
    }
    // Doorman's own five seconds against a refresh interval of four drop every second refresh.
    const Duration shortest = lease::RefreshInterval(r, s.lease.level);
    if (s.lease.min_request_interval * 2 > shortest) {
      f.Error(place, fmt::format("resource {}: refresh_interval = \"{}\" is \"{}\" on lease.level = {}: must be at "
                                 "least twice lease.min_request_interval = \"{}\", or refreshes would be turned away",
                                 Quote(r.identifier_glob), FormatDuration(r.refresh_interval), FormatDuration(shortest),
                                 s.lease.level, FormatDuration(s.lease.min_request_interval)));
    }
    if (r.source == lease::Source::kCapacity) CheckParts(f, r, place);
    if (r.learning() < r.lease_length) {
      f.Warn(place,
             fmt::format("resource {}: learning_mode_duration = \"{}\" is shorter than lease_length = \"{}\": after a "
                         "change of masters more can be leased out than there is",
                         Quote(r.identifier_glob), FormatDuration(r.learning()), FormatDuration(r.lease_length)));
    }
  }
}

}    // namespace dthrottle
