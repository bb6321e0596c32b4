// HAProxy as a front end: key "spop", settings [spop].
#pragma once

#include "frontend/frontend.h"
#include "frontend/spop/server.h"

namespace dthrottle {

class SpopFrontEnd final : public StreamFrontEnd<SpopServer> {
 public:
  explicit SpopFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "spop"; }
  std::string_view doing() const override { return "answering HAProxy"; }
  Room room() const override;
  void Start() override;
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  FrontEndHost& host_;
};

}    // namespace dthrottle
