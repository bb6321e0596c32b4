// One stream for each Envoy: a report comes, its buckets' lines go to the daemon, and assignments go back.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "gateway/quota_messages.h"
#include "gateway/services.h"
#include "gateway/tag.h"
#include "gateway/unary.h"
#include "rate_limit_quota.grpc.pb.h"

namespace dthrottle {

namespace {

using envoy::service::rate_limit_quota::v3::RateLimitQuotaService;

constexpr std::size_t kNameBytesMax = 200;    // of an Envoy's; the number behind it has room then

// The names of Envoys that are connected. An Envoy that comes back is the same lease client as before, so it does not
// wait for what it had itself; one with the name of another one is told apart by a number.
class Names {
 public:
  std::string Take(const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (unsigned i = 0;; ++i) {
      std::string numbered = fmt::format("{}#{}", name, i);
      if (taken_.insert(numbered).second) return numbered;
    }
  }
  void GiveBack(const std::string& name) {
    const std::lock_guard lock(mutex_);
    taken_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> taken_;
};

std::string NameOf(const grpc::CallbackServerContext& context) {
  for (const char* key : {"dthrottle-client", "x-forwarded-for"}) {
    const auto found = context.client_metadata().find(key);
    if (found == context.client_metadata().end()) continue;
    TagMaker name({found->second.data(), found->second.size()});
    return std::move(name).Make(kNameBytesMax);
  }
  return "envoy";
}

// One thing is under way at a time: a read, lines to the daemon, or a write. So threads take turns,
// and the next report is read when this one has been answered.
class Stream final : public grpc::ServerBidiReactor<RateLimitQuotaUsageReports, RateLimitQuotaResponse>,
                     public std::enable_shared_from_this<Stream> {
 public:
  Stream(Channel& channel, Names& names, std::string name, std::atomic<std::size_t>& bytes)
      : channel_(channel), names_(names), name_(std::move(name)), buckets_(name_, &bytes) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&reports_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status());
    const bool taken = buckets_.Take(reports_, Now());
    reports_ = {};    // clearing it would keep its memory
    if (!taken) return Finish({grpc::StatusCode::INVALID_ARGUMENT, "domain must not be empty"});
    GoOn();
  }

  void OnWriteDone(bool ok) override {
    response_ = {};
    if (!ok) return Finish(grpc::Status());
    GoOn();
  }

  void OnDone() override {
    names_.GiveBack(name_);
    const std::shared_ptr<Stream> last = std::move(self_);
  }

 private:
  static Instant Now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

  void GoOn() {
    if (!buckets_.pending()) return StartRead(&reports_);
    CallLines lines = buckets_.Ask();
    if (lines.count == 0) return Answered(nullptr);    // all of them are known, or to be abandoned
    const auto taken = channel_.Send(std::move(lines), [stream = shared_from_this()](const LineAnswers* answers) {
      answers == nullptr ? stream->Finish(Leaving()) : stream->Answered(answers);
    });
    if (taken == Channel::Taken::kGone) return Finish(Leaving());
    if (taken == Channel::Taken::kTooMany) return Answered(nullptr);
  }

  // Null: the daemon was not asked.
  void Answered(const LineAnswers* answers) {
    buckets_.Answered(answers, response_);
    response_.bucket_action().empty() ? GoOn() : StartWrite(&response_);
  }

  Channel& channel_;
  Names& names_;
  const std::string name_;
  std::shared_ptr<Stream> self_;    // until OnDone

  QuotaBuckets buckets_;
  RateLimitQuotaUsageReports reports_;
  RateLimitQuotaResponse response_;
};

class QuotaService final : public RateLimitQuotaService::CallbackService {
 public:
  explicit QuotaService(Channel& channel) : channel_(channel) {}

  grpc::ServerBidiReactor<RateLimitQuotaUsageReports, RateLimitQuotaResponse>* StreamRateLimitQuotas(
      grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<Stream>(channel_, names_, names_.Take(NameOf(*context)), bytes_);
    stream->Start();
    return stream.get();
  }

 private:
  Channel& channel_;
  Names names_;
  std::atomic<std::size_t> bytes_ = 0;    // of memory, for the buckets of all streams
};

}    // namespace

std::unique_ptr<grpc::Service> MakeQuotaService(Channel& channel) {
  return std::make_unique<QuotaService>(channel);
}

}    // namespace dthrottle
