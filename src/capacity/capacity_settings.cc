#include "capacity/capacity_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/host_name.h"
#include "base/siphash.h"
#include "base/tag.h"

namespace dthrottle {
namespace {

constexpr int kLeaseIntervalsMin = 4;
constexpr SipKey kKeyHigh{0x6474687274746c31, 0x6361706163697479}, kKeyLow{0x6474687274746c32, 0x6361706163697479};

}    // namespace

std::uint64_t NameNumber(std::string_view name) {
  return SipHash<2, 4>(kKeyHigh, name);
}

Duration PatienceOf(const CapacitySettings& s) {
  const double factor = 1 + 3 * s.drift_max;
  return Duration(static_cast<Duration::rep>(static_cast<double>(s.lease.count()) * factor)) +
         std::chrono::milliseconds(1);
}

Parts ReserveParts(const CapacitySettings& s) {
  return static_cast<Parts>(s.reserve * static_cast<double>(kWhole) / static_cast<double>(s.members.size()));
}

std::uint64_t DigestOf(const CapacitySettings& s) {
  std::string text = fmt::format("{} {} {} {}", s.digest, ReserveParts(s), s.lease.count(), s.indicator->name());
  for (const std::string& name : s.members) (text += ' ') += name;
  std::set<std::tuple<std::uint32_t, std::uint32_t, double>> links;    // in whatever order they were written
  for (const WeightedLink& link : s.graph.links())
    links.emplace(std::min(link.a, link.b), std::max(link.a, link.b), link.weight);
  for (const auto& [a, b, weight] : links) text += fmt::format(" {}-{}:{}", a, b, weight);
  return std::max<std::uint64_t>(SipHash<2, 4>(kKeyLow, text), 1);
}

std::vector<std::string> WitnessesOf(const std::vector<std::string>& members) {
  const std::size_t count = std::min(members.size(), kWitnessesMax);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(members[i * members.size() / count]);
  return names;
}

CapacityKey CapacityKeyOf(std::uint64_t rule, std::string_view tag, bool is_digest) {
  DT_CHECK(tag.size() <= kTagBytesMax);
  std::array<char, sizeof(rule) + 1 + kTagBytesMax> bytes;
  std::memcpy(bytes.data(), &rule, sizeof(rule));
  bytes[sizeof(rule)] = is_digest ? 1 : 0;
  std::ranges::copy(tag, bytes.begin() + sizeof(rule) + 1);
  const std::string_view all(bytes.data(), sizeof(rule) + 1 + tag.size());
  return {SipHash<2, 4>(kKeyHigh, all), SipHash<2, 4>(kKeyLow, all)};
}

Result<void> CheckCapacitySettings(const CapacitySettings& s, std::string_view name) {
  if (s.members.empty() || s.members.size() > kMembersMax) {
    return Fail(fmt::format("{} members; 1 to {} are allowed", s.members.size(), kMembersMax));
  }
  for (std::size_t i = 0; i < s.members.size(); ++i) {
    if (!IsHostName(s.members[i])) return Fail(fmt::format("\"{}\" is no host name", s.members[i]));
    if (i > 0 && s.members[i] <= s.members[i - 1]) {
      return Fail(fmt::format("members have to ascend, and \"{}\" does not", s.members[i]));
    }
  }
  if (!std::ranges::binary_search(s.members, name)) return Fail(fmt::format("\"{}\" is not among the members", name));
  if (s.graph.size() != s.members.size()) return Fail("the graph has another number of nodes than members");
  if (!s.graph.Connected()) return Fail("the graph of neighbours is not connected");
  if (s.graph.DegreeMax() > kDegreeMax) {
    return Fail(fmt::format("a host has {} neighbours; at most {} are allowed", s.graph.DegreeMax(), kDegreeMax));
  }
  if (!(s.reserve >= 0 && s.reserve <= 1)) return Fail("the reserve has to be from 0 to 1 of an equal share");
  if (s.interval <= Duration()) return Fail("the interval has to be above 0");
  if (s.lease < kLeaseIntervalsMin * s.interval) {
    return Fail(fmt::format("the lease has to last at least {} intervals", kLeaseIntervalsMin));
  }
  if (!(s.drift_max >= 0 && s.drift_max <= 0.3)) return Fail("clocks may drift by 0 to 0.3");
  if (s.gain && !(*s.gain > 0 && std::isfinite(*s.gain))) return Fail("the gain has to be above 0");
  if (s.indicator == nullptr || s.tags_max == 0) return Fail("an indicator and room for a tag are needed");
  return {};
}

}    // namespace dthrottle
