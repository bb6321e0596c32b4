#include "frontend/page/front_end.h"

#include "admin/admin.h"
#include "io/clock.h"

namespace dthrottle {

void PageFrontEnd::AddBoth(FrontEndHost& host, std::vector<std::unique_ptr<FrontEnd>>& all) {
  auto pages = std::make_unique<PageFrontEnd>(host);
  all.push_back(std::make_unique<QuestionPageFrontEnd>(*pages));
  all.push_back(std::move(pages));
}

FrontEnd::Room PageFrontEnd::room() const {
  const auto& section = host_.admin.settings().page;
  return {{section.entries > 0 ? section.max_connections : 0, 4}};
}

void PageFrontEnd::Start() {
  const Settings& settings = host_.admin.settings();
  Limiter& limiter = host_.admin.limiter();
  const bool none_out = !host_.handed.Take(kSection).bytes.empty() || !limiter.discarded().empty();
  server_.emplace(host_.loop, limiter,
                  PageServer::Options{.entries = settings.page.entries,
                                      .tag_bytes_max = settings.query.max_tag_bytes,
                                      .strays = none_out ? Instant::min() : Now() + Loan::kLast},
                  host_.log);
}

void PageFrontEnd::Count(ProcessCounts& counts) const {
  counts.page = server_->counts();
  CountSockets(0, counts.page);
}

void PageFrontEnd::Drain(std::function<void()> done) {
  server_->Recall();
  done();
}

}    // namespace dthrottle
