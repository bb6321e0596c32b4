// What a peer has told against what was heard of it, over all of its lives. In each welcome a peer says what it had
// told before its present life began, and how many hits it has published in this one. The difference to what has come
// is lost: by kill -9, or because the peer no longer had it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bus/account.h"

namespace dthrottle {

class Audit {
 public:
  // Follows a life of the peer from frame `next`, before which life it had told `before`. `hits`: of the frames below
  // `next`; none: not known, until Learn.
  void Begin(const Told& before, std::uint64_t next, std::optional<std::uint64_t> hits) {
    before_ = before;
    learned_at_ = 0;
    forgotten_ = next - 1;
    latest_.clear();
    heard_.reset();
    if (hits) heard_ = before.hits + *hits;
  }

  bool known() const { return heard_.has_value(); }

  // Frames up to that one have so many hits of this life, frames that are still to come included. Later frames may have
  // come before this; if more of them came than are kept, the audit stays unknown.
  void Learn(std::uint64_t sequence, std::uint64_t hits) {
    if (sequence < forgotten_) return;
    learned_at_ = sequence;
    heard_ = before_.hits + hits;
    for (const auto& [later, its] : std::exchange(latest_, {})) Heard(later, its);
  }

  void Heard(std::uint64_t sequence, std::uint64_t hits) {
    if (heard_) {
      if (sequence > learned_at_) *heard_ += hits;
      return;
    }
    latest_.emplace_back(sequence, hits);
    if (latest_.size() <= kLatestMax) return;
    forgotten_ = std::max(forgotten_, latest_.front().first);
    latest_.erase(latest_.begin());
  }

  // All of the first `hits` hits of this life have come or are lost. Returns how many are lost.
  std::uint64_t Check(std::uint64_t hits) { return Catch(before_.hits + hits); }

  struct Lost {
    std::uint64_t frames = 0, hits = 0;
  };
  // That life is over, and every sequence below `next` was heard or missed; another began after `before`. Returns what
  // was lost in between. Nothing is known of it where the peer has begun to count anew.
  Lost End(const Told& before, std::uint64_t next) {
    if (before.account == 0 || before.account != before_.account || before.frames < before_.frames) return {};
    const std::uint64_t frames = before.frames - before_.frames, heard = next - 1;
    return {frames > heard ? frames - heard : 0, Catch(before.hits)};
  }

  static void Fields(auto& state, auto& self) {
    state(self.before_, self.learned_at_, self.forgotten_, self.latest_, self.heard_);
  }

 private:
  std::uint64_t Catch(std::uint64_t told) {
    const std::uint64_t lost = heard_ && told > *heard_ ? told - *heard_ : 0;
    heard_ = told;
    return lost;
  }

  static constexpr std::size_t kLatestMax = 64;

  Told before_;
  std::uint64_t learned_at_ = 0, forgotten_ = 0;                    // sequences
  std::vector<std::pair<std::uint64_t, std::uint64_t>> latest_;    // sequences and hits of frames, until it is known
  std::optional<std::uint64_t> heard_;    // hits, of all lives, or known to be lost
};

}    // namespace dthrottle
