// Pages of workers as front ends: key "page" beside the socket for queries, "page-questions" beside that for questions.
// Settings [page]. Pages go with the process, so an upgrade takes them back, and workers fetch others.
#pragma once

#include <memory>
#include <vector>

#include "frontend/frontend.h"
#include "frontend/page/server.h"

namespace dthrottle {

class PageFrontEnd final : public FrontEnd {
 public:
  explicit PageFrontEnd(FrontEndHost& host) : host_(host) {}

  // Appends one for each socket.
  static void AddBoth(FrontEndHost& host, std::vector<std::unique_ptr<FrontEnd>>& all);

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

// A second door to the same pages.
class QuestionPageFrontEnd final : public FrontEnd {
 public:
  // `pages` must outlive this object.
  explicit QuestionPageFrontEnd(PageFrontEnd& pages) : pages_(pages) {}

  std::string_view key() const override { return "page-questions"; }
  std::string_view doing() const override { return "giving pages to workers that ask about several tags"; }
  Room room() const override { return pages_.room(); }
  FrontEnd* rests_on() const override { return &pages_; }
  void Start() override {}
  void Take(int fd) override { pages_.Take(fd); }
  void TakeUp(const HandedConnection& connection) override { pages_.TakeUp(connection); }
  std::size_t connections() const override { return 0; }    // they are those of `pages`
  void Count(ProcessCounts& counts) const override { CountSockets(0, counts.page); }
  void Hold(Handover&) override {}
  void Release() override {}
  void Drain(std::function<void()> done) override { done(); }
  void Close() override {}

 private:
  PageFrontEnd& pages_;
};

}    // namespace dthrottle
