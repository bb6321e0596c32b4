// Questions about several tags as a front end: key "ask", settings [ask].
#pragma once

#include "frontend/ask/server.h"
#include "frontend/frontend.h"

namespace dthrottle {

class AskFrontEnd final : public StreamFrontEnd<AskServer> {
 public:
  explicit AskFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "ask"; }
  std::string_view doing() const override { return "answering questions"; }
  Room room() const override;
  void Start() override;
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  FrontEndHost& host_;
};

}    // namespace dthrottle
