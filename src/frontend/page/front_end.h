// Pages of workers as a front end: key "page", settings [page]. Pages go with the process, so an upgrade takes them
// back, and workers fetch others.
#pragma once

#include "frontend/frontend.h"
#include "frontend/page/server.h"

namespace dthrottle {

class PageFrontEnd final : public FrontEnd {
 public:
  explicit PageFrontEnd(FrontEndHost& host) : host_(host) {}

  std::string_view key() const override { return "page"; }
  std::string_view doing() const override { return "giving pages to workers"; }
  Room room() const override;
  void Start() override;
  void Take(int fd) override { server_->Take(fd); }
  void TakeUp(const HandedConnection& connection) override { server_->Take(connection.fd); }
  std::size_t connections() const override { return server_->connections(); }
  void Count(ProcessCounts& counts) const override;
  void Keep(std::vector<HandedSection>& sections) const override { sections.push_back({kSection, -1, "recalled"}); }
  void Hold(Handover&) override { server_->Recall(); }
  void Release() override {}
  void Drain(std::function<void()> done) override;
  void Close() override { server_->Close(); }

 private:
  static constexpr const char* kSection = "pages";    // of one that has taken its pages back

  FrontEndHost& host_;
  std::optional<PageServer> server_;    // from Start on
};

}    // namespace dthrottle
