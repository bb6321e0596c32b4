// Which owners of tags cannot say what all hosts do. An owner answers every report, so one that has not answered for
// two periods is away. One in a new life, which may be this host, has heard all hosts after four periods only.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/time.h"
#include "bus/owners/owners.h"

namespace dthrottle {

struct SilentOwners {
  std::shared_ptr<const Owners> owners;
  std::optional<std::size_t> here;    // this host
  std::bitset<Owners::kMost> silent;

  // The part of places of a tag that this host may take, of `most` for so many hosts; none: the owner knows.
  std::optional<std::uint32_t> Part(const Tag& tag, std::uint32_t most, std::size_t hosts) const {
    const std::size_t owner = owners->Of(tag);
    if (!silent[owner]) return std::nullopt;
    if (owner == here) return 1;    // nor does it know how many hosts there are
    return static_cast<std::uint32_t>(std::max<std::size_t>(most / hosts, 1));
  }

  bool operator==(const SilentOwners&) const = default;
};

class OwnersHeard {
 public:
  static Duration Patience(Duration period) { return std::max<Duration>(2 * period, std::chrono::seconds(1)); }
  // How long what an owner says of other hosts is believed: until it is known to be silent.
  static Duration Belief(Duration period) { return Patience(period) + 2 * period; }

  // These are the owners from now on; null: none are. `here`: this host, if it is one of them.
  void Change(std::shared_ptr<const Owners> owners, std::optional<std::size_t> here) {
    owners_ = std::move(owners);
    here_ = here;
    each_.fill({});
    if (here) each_[*here].began = Instant::max();
  }

  // Whether it is another life than before.
  bool Heard(std::size_t owner, std::uint64_t life, Instant now) {
    Each& its = each_[owner];
    const bool another = its.life != 0 && its.life != life;
    if (another) its.began = now;
    its.life = life;
    its.heard = now;
    return another;
  }

  // Returns who is silent at the end of a period; null: nobody is.
  std::shared_ptr<const SilentOwners> Silent(Duration period, Instant now) {
    if (owners_ == nullptr) return nullptr;
    SilentOwners result{owners_, here_, {}};
    for (std::size_t owner = 0; owner < owners_->size(); ++owner) {
      Each& its = each_[owner];
      its.heard = owner == here_ ? now : std::min(its.heard, now);
      if (its.began) its.began = std::min(*its.began, now);
      const bool away = now - its.heard > Patience(period), begins = its.began && now < *its.began + Belief(period);
      result.silent[owner] = away || begins;
    }
    return result.silent.any() ? std::make_shared<const SilentOwners>(std::move(result)) : nullptr;
  }

 private:
  struct Each {
    Instant heard = Instant::max();    // it is given the time to answer once
    std::uint64_t life = 0;
    std::optional<Instant> began{};    // the life, where it does not know all hosts at first
  };

  std::shared_ptr<const Owners> owners_;
  std::optional<std::size_t> here_;
  std::array<Each, Owners::kMost> each_{};
};

}    // namespace dthrottle
