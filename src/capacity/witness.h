// A witness says who is alive, and never takes back that somebody is dead.
//
// A host has its lease from a majority of witnesses. A witness that calls a life over has waited until whatever it
// granted is past, on any clock, and grants that life nothing more. Two majorities share a witness, so what a majority
// calls over is over. The same with generations: a witness grants only for the generation that it promised last, and
// that number only grows, over its restarts too: promises and dead lives are saved before they are said.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace dthrottle {

class Witness {
 public:
  enum class Answer { kNothing, kGrant, kDead };

  // What has to be kept over a restart.
  struct Saved {
    std::uint64_t promised = 0;
    std::uint64_t reserve = 0;                                 // parts of this host, of the generation it was in
    std::map<std::string, std::uint64_t, std::less<>> dead;    // lives up to this one, of the promised generation

    static void Fields(auto& state, auto& self) { state(self.promised, self.reserve, self.dead); }
  };
  static std::string Encode(const Saved& saved);
  static std::optional<Saved> Decode(std::string_view bytes);
  // Whether a file that begins so, by its first 4 KiB or fewer, is what Encode makes.
  static bool IsSaved(std::string_view head);

  // Has granted nothing since `now`, but an earlier life of it may have just before.
  Witness(Saved saved, BootInstant now) : saved_(std::move(saved)), since_(now) {}

  // How long after a grant nobody can hold it any more.
  void SetPatience(Duration patience) { patience_ = patience; }

  const Saved& saved() const { return saved_; }
  std::uint64_t promised() const { return saved_.promised; }

  Answer OnBeat(std::string_view host, std::uint64_t generation, std::uint64_t life, std::uint64_t binding,
                BootInstant now);

  // Whether the life is over, for good from now on, and under which binding it was heard last; 0: it does not know.
  // Says nothing about a life that it never heard: a liar could name one that the host has yet to live.
  // `changed`: save before it is said.
  std::optional<std::uint64_t> OnFence(std::string_view host, std::uint64_t generation, std::uint64_t life,
                                       bool& changed, BootInstant now);

  // No lease from it is left.
  bool Lapsed(std::string_view host, BootInstant now) const;

  // Grants for no other from now on. REQUIRES: generation > promised(). Save before it is said.
  void Promise(std::uint64_t generation);
  // It knows the bindings of the generation only if it was there from its beginning.
  void SetWhole(bool whole) { whole_ = whole; }
  void SetReserve(std::uint64_t parts) { saved_.reserve = parts; }

  // It has heard nothing for a while, and gives everybody the time that it takes to be heard.
  void Resume(BootInstant now) { since_ = now; }

  static void Fields(auto& state, auto& self) { state(self.saved_, self.whole_, self.seen_); }

 private:
  struct Seen {
    std::uint64_t life = 0, binding = 0;
    std::uint64_t former_life = 0, former_binding = 0;
    std::optional<BootInstant> granted;

    static void Fields(auto& state, auto& self) {
      state(self.life, self.binding, self.former_life, self.former_binding, self.granted);
    }
  };

  Saved saved_;
  BootInstant since_;
  Duration patience_{};
  bool whole_ = false;
  std::map<std::string, Seen, std::less<>> seen_;
};

}    // namespace dthrottle
