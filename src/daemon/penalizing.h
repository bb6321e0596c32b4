// Penalties as a part of the daemon: they outlive an upgrade, and an orderly end of the process.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/clock.h"
#include "io/part.h"
#include "limiter/kept_penalties.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Penalizing final : public Part {
 public:
  static constexpr const char* kSection = "penalties";

  // `left` is what the program before has left. The limiter must outlive it.
  Penalizing(Limiter& limiter, std::string_view left) : limiter_(limiter) { RestorePenalties(limiter_, left, Now()); }

  void Keep(std::vector<HandedSection>& sections) const override {
    std::string kept = KeepPenalties(limiter_, Now());
    if (!kept.empty()) sections.push_back({kSection, -1, std::move(kept)});
  }

 private:
  Limiter& limiter_;
};

}    // namespace dthrottle
