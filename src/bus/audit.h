// What a peer has told against what was heard of it, over all of its lives. In each welcome a peer says what it had
// told before its present life began, and how many hits it has published in this one. The difference to what has come
// is lost: by kill -9, or because the peer no longer had it.
#pragma once

#include <cstdint>
#include <optional>

#include "bus/account.h"

namespace dthrottle {

class Audit {
 public:
  // Follows a life of the peer, before which it had told `before`. `hits`: of that life, and not to be heard again;
  // none: not known, until Check.
  void Begin(const Told& before, std::optional<std::uint64_t> hits) {
    before_ = before;
    heard_.reset();
    if (hits) heard_ = before.hits + *hits;
  }

  bool known() const { return heard_.has_value(); }

  void Heard(std::uint64_t hits) {
    if (heard_) *heard_ += hits;
  }

  // Nothing is missing of the first `hits` hits of this life but what is lost: returns how many those are.
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

  static void Fields(auto& state, auto& self) { state(self.before_, self.heard_); }

 private:
  std::uint64_t Catch(std::uint64_t told) {
    const std::uint64_t lost = heard_ && told > *heard_ ? told - *heard_ : 0;
    heard_ = told;
    return lost;
  }

  Told before_;
  std::optional<std::uint64_t> heard_;    // hits, of all lives, or known to be lost
};

}    // namespace dthrottle
