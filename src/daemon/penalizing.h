// Penalties as a part of the daemon: they outlive an upgrade, and an orderly end of the process.
#pragma once

#include <string_view>
#include <vector>

#include "io/part.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Penalizing final : public Part {
 public:
  static constexpr const char* kSection = "penalties";

  // `left` is what the program before has left. The limiter must outlive it.
  Penalizing(Limiter& limiter, std::string_view left);

  void Keep(std::vector<HandedSection>& sections) const override;

 private:
  Limiter& limiter_;
};

}    // namespace dthrottle
