// The admin socket as a front end: key "admin", settings [admin]. Its connections end with the program.
#pragma once

#include <unistd.h>

#include "frontend/admin/server.h"
#include "frontend/frontend.h"

namespace dthrottle {

class AdminFrontEnd final : public StreamFrontEnd<AdminServer> {
 public:
  explicit AdminFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "admin"; }
  std::string_view doing() const override { return "taking commands"; }
  Room room() const override { return {{64, 2}}; }
  void Start() override { server_.emplace(host_.loop, host_.admin); }
  bool MakeRoom(const std::function<bool(int fd)>& may_go) override { return server_->EndIdle(may_go); }
  void TakeUp(const HandedConnection& connection) override { ::close(connection.fd); }
  void Hold(Handover&) override {}
  void Release() override {}
  bool drains_last() const override { return true; }    // it takes commands to the end

 private:
  FrontEndHost& host_;
};

}    // namespace dthrottle
