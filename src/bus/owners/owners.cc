#include "bus/owners/owners.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/siphash.h"

namespace dthrottle {
namespace {

// All hosts of a fleet have to find the same owners, so the keys are fixed.
constexpr SipKey kTagKey{0x6f776e6572732e74, 0x6167732e00000001}, kHostKey{0x6f776e6572732e68, 0x6f7374732e000001};

// Bijective, and every bit of the result depends on every bit of `x` (the finalizer of MurmurHash3).
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}

}    // namespace

Owners::Owners(std::vector<std::string> names, std::uint64_t number, std::vector<std::string> before)
    : before_(std::move(before)) {
  DT_CHECK(!names.empty() && names.size() <= kMost && number >= kFirst && number <= kNumberMost);
  std::sort(before_.begin(), before_.end());
  std::sort(names.begin(), names.end());
  std::string all;
  for (std::string& name : names) {
    DT_CHECK(owners_.empty() || owners_.back().name != name);
    all += name + '\n';
    const std::uint64_t hash = SipHash<2, 4>(kHostKey, name);
    owners_.push_back({std::move(name), hash});
  }
  epoch_ = number << kDigestBits | (SipHash<2, 4>(kHostKey, all) & ((1u << kDigestBits) - 1));
}

std::vector<std::string> Owners::names() const {
  std::vector<std::string> names;
  for (const Owner& owner : owners_) names.push_back(owner.name);
  return names;
}

std::optional<std::size_t> Owners::Find(std::string_view name) const {
  const auto it = std::find_if(owners_.begin(), owners_.end(), [&](const Owner& owner) { return owner.name == name; });
  return it == owners_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(it - owners_.begin()));
}

std::size_t Owners::Of(const Tag& tag) const {
  const std::uint64_t hash = SipHash<1, 3>(kTagKey, tag.is_digest ? tag.bytes.substr(0, kDigestBytes) : tag.bytes);
  const auto highest = std::max_element(owners_.begin(), owners_.end(), [&](const Owner& a, const Owner& b) {
    return Mix(hash ^ a.hash) < Mix(hash ^ b.hash);
  });
  return static_cast<std::size_t>(highest - owners_.begin());
}

Entries Owners::PartOf(std::size_t owner, const Entries& all) const {
  Entries part;
  for (const Entry& e : all.list()) {
    if (const Tag tag = all.tag(e); Of(tag) == owner) part.Add(tag, e.value, 0);
  }
  return part;
}

}    // namespace dthrottle
