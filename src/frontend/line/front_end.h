// Query lines as a front end: key "query", settings [query]. The only one with threads of its own: query.threads of
// them answer, the first on the main loop.
#pragma once

#include <memory>
#include <vector>

#include "frontend/frontend.h"

namespace dthrottle {

class LineFrontEnd final : public FrontEnd {
 public:
  explicit LineFrontEnd(FrontEndHost& host);
  ~LineFrontEnd() override;

  std::string_view key() const override { return "query"; }
  std::string_view doing() const override { return "answering queries"; }
  Room room() const override;
  void Start() override;
  void Take(int fd) override;
  void TakeUp(const HandedConnection& connection) override;
  std::size_t connections() const override;
  void Hold(Handover& handover) override;
  void Release() override;
  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;
  bool Beat() override;
  void Drain(std::function<void()> done) override;
  void Close() override;

 private:
  struct Worker;
  struct Held;

  Worker& LeastBusy();

  FrontEndHost& host_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<Held> held_;    // from Hold to Release
};

}    // namespace dthrottle
