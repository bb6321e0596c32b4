// A front end whose connections are those of one TurnServer.
#pragma once

#include <string>
#include <vector>

#include "admin/admin.h"
#include "frontend/frontend.h"

namespace dthrottle {

// `kSection`: its settings, a member of Settings. `kCounts`: where its counts go, a member of ProcessCounts.
template <class Server, auto kSection, auto kCounts>
class TurnFrontEnd : public StreamFrontEnd<Server> {
 public:
  FrontEnd::Room room() const override { return {{section().max_connections, 4}}; }
  void Reload(std::vector<std::string>&) override { server_->set_idle_timeout(section().idle_timeout); }

  void Count(ProcessCounts& counts) const override {
    counts.*kCounts = server_->turn().counts();
    this->CountSockets(server_->counts().accepted.Read(), counts.*kCounts);
    counts.idle_closed += server_->counts().idle_closed.Read();
    counts.stalled += server_->counts().stalled.Read();
    counts.over_long += server_->turn().over_long();
  }

 protected:
  explicit TurnFrontEnd(FrontEndHost& host) : host_(host) {}

  const Settings& settings() const { return host_.admin.settings(); }
  const auto& section() const { return settings().*kSection; }

  using StreamFrontEnd<Server>::server_;
  FrontEndHost& host_;
};

}    // namespace dthrottle
