// HTTP as a front end: key "http", settings admin.http*.
#pragma once

#include <optional>

#include "frontend/frontend.h"
#include "frontend/http/server.h"
#include "io/timer.h"

namespace dthrottle {

class HttpFrontEnd final : public StreamFrontEnd<HttpServer> {
 public:
  explicit HttpFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "http"; }
  std::string_view doing() const override { return "answering HTTP"; }
  Room room() const override;
  void Start() override;
  void Count(ProcessCounts& counts) const override;
  void Stop() override { server_->Stop(); }
  bool drains_last() const override { return true; }    // /healthz says that the daemon leaves
  void Close() override;

 private:
  FrontEndHost& host_;
  std::optional<Timer> timer_;    // for the history
};

}    // namespace dthrottle
