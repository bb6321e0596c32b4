// Questions about several tags as a front end: key "ask", settings [ask].
#pragma once

#include "frontend/ask/server.h"
#include "frontend/turn_front_end.h"

namespace dthrottle {

class AskFrontEnd final : public TurnFrontEnd<AskServer, &Settings::ask, &ProcessCounts::ask> {
 public:
  explicit AskFrontEnd(FrontEndHost& host) : TurnFrontEnd(host) {}

  std::string_view key() const override { return "ask"; }
  std::string_view doing() const override { return "answering questions"; }
  void Start() override;
  void Count(ProcessCounts& counts) const override;
};

}    // namespace dthrottle
