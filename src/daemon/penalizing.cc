#include "daemon/penalizing.h"

#include <string>

#include "base/state.h"
#include "io/clock.h"
#include "limiter/inspect.h"

namespace dthrottle {

namespace {

constexpr std::uint32_t kVersion = 1;

struct KeptPenalty {
  std::string tag;
  bool is_digest = false;
  Instant until{};

  static void Fields(auto& state, auto& self) {
    state(self.tag, self.is_digest, self.until);
    state.Check(self.tag.size() <= kTagBytesMax);
  }
};

struct Kept {
  std::vector<KeptPenalty> penalties;

  static void Fields(auto& state, auto& self) { state(self.penalties); }
};

}    // namespace

Penalizing::Penalizing(Limiter& limiter, std::string_view left) : limiter_(limiter) {
  Kept kept;
  if (!ReadState(left, kVersion, kept)) return;
  const Instant now = Now();
  for (const KeptPenalty& its : kept.penalties) {
    if (its.until > now) Penalize(limiter_, {{its.tag, its.is_digest}}, its.until, now);
  }
}

void Penalizing::Keep(std::vector<HandedSection>& sections) const {
  const Instant now = Now();
  Kept kept;
  for (const PenalizedTag& its : Penalized(limiter_, now)) {
    kept.penalties.push_back({its.tag, its.is_digest, now + its.left});
  }
  if (!kept.penalties.empty()) sections.push_back({kSection, -1, WriteState(kVersion, kept)});
}

}    // namespace dthrottle
