// Redis clients as a front end: key "resp", settings [resp].
#pragma once

#include "frontend/resp/server.h"
#include "frontend/turn_front_end.h"
#include "io/files.h"
#include "io/idle_work.h"
#include "io/spare_work.h"
#include "limiter/brought.h"

namespace dthrottle {

class RespFrontEnd final : public TurnFrontEnd<RespServer, &Settings::resp, &ProcessCounts::resp> {
 public:
  explicit RespFrontEnd(FrontEndHost& host) : TurnFrontEnd(host) {}

  std::string_view key() const override { return "resp"; }
  std::string_view doing() const override { return "answering clients of Redis"; }
  void Start() override;
  void Count(ProcessCounts& counts) const override;
  void Close() override;

 private:
  void OpenBroughtLimits();

  std::optional<MappedRegion> region_;
  IdleWork claiming_;                         // the rest of the region
  std::unique_ptr<BroughtLimits> brought_;    // null: clients bring no limits, the rules decide
  std::optional<SpareWork> walking_;          // while its table is not put right to the end
};

}    // namespace dthrottle
