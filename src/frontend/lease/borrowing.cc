#include "frontend/lease/borrowing.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "frontend/lease/lines.h"
#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr Duration kAskEvery = std::chrono::milliseconds(900);    // at most: the next tick may

}    // namespace

Borrowing::Borrowing(uv_loop_t* loop, lease::LeaseServer& server, Log& log, std::vector<std::string> addresses)
    : server_(server), log_(log), parent_(loop, std::move(addresses)) {}

void Borrowing::AskIfDue(BootInstant now) {
  if (parent_.busy() || now < ask_at_ || server_.NextAsk() > now) return;
  std::vector<lease::ParentRequest> requests = server_.AskParent(now);
  if (requests.empty()) return;
  ask_at_ = now + kAskEvery;
  ++asks_;
  std::string lines;
  for (const lease::ParentRequest& request : requests) lines += ParentLine(server_.id(), request, now);
  const std::size_t count = requests.size();
  parent_.Ask(std::move(lines), count,
              [this, now, asked = std::move(requests)](const auto& answers) { Hear(asked, now, answers); });
}

void Borrowing::Hear(const std::vector<lease::ParentRequest>& asked, BootInstant at,
                     const Result<std::vector<std::string>>& answers) {
  const BootInstant now = BootNow();
  std::string trouble = answers ? std::string() : answers.error().message;
  for (std::size_t i = 0; answers && i < asked.size(); ++i) {
    if (const auto grant = ReadParentAnswer((*answers)[i], at)) {
      if (!server_.HearParent(asked[i].resource, *grant, now)) {
        trouble = fmt::format("{} grants {} under a smaller token than the lease that is held, and is not heard until "
                              "that has ended",
                              parent_.address(), asked[i].resource);
      }
      heard_ = now;
    } else {
      trouble = fmt::format("{} {} for {}", parent_.address(), grant.error().message, asked[i].resource);
    }
  }
  if (!answers) server_.AskParentAgain(now);
  failures_ += !trouble.empty();
  if (trouble == trouble_) return;
  if (trouble.empty()) {
    log_.Notice("leases: the parent {} grants", parent_.address());
  } else {
    log_.Warning("leases: the parent {}", trouble);
  }
  trouble_ = std::move(trouble);
}

void Borrowing::AddTo(LeaseStatus& status) const {
  status.parent = parent_.address();
  status.parent_trouble = trouble_;
  if (heard_) status.parent_heard = status.now - *heard_;
}

void Borrowing::AddTo(LeaseCounts& counts) const {
  counts.parent_asks = asks_;
  counts.parent_failures = failures_;
}

}    // namespace dthrottle
