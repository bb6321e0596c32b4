// HAProxy as a front end: key "spop", settings [spop].
#pragma once

#include "frontend/spop/server.h"
#include "frontend/turn_front_end.h"

namespace dthrottle {

class SpopFrontEnd final : public TurnFrontEnd<SpopServer, &Settings::spop, &ProcessCounts::spop> {
 public:
  explicit SpopFrontEnd(FrontEndHost& host) : TurnFrontEnd(host) {}

  std::string_view key() const override { return "spop"; }
  std::string_view doing() const override { return "answering HAProxy"; }
  void Start() override;
};

}    // namespace dthrottle
