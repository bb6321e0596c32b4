// Redis clients as a front end: key "resp", settings [resp].
#pragma once

#include "frontend/frontend.h"
#include "frontend/resp/server.h"
#include "io/files.h"
#include "limiter/brought.h"

namespace dthrottle {

class RespFrontEnd final : public StreamFrontEnd<RespServer> {
 public:
  explicit RespFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "resp"; }
  std::string_view doing() const override { return "answering clients of Redis"; }
  Room room() const override;
  void Start() override;
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;

 private:
  void OpenBroughtLimits();

  FrontEndHost& host_;
  std::optional<MappedRegion> region_;
  std::unique_ptr<BroughtLimits> brought_;    // null: clients bring no limits, the rules decide
};

}    // namespace dthrottle
