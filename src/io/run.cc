#include "io/run.h"

#include <fmt/format.h>
#include <uv.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "io/child.h"
#include "io/signals.h"
#include "io/timer.h"

namespace dthrottle {

namespace {

// Runs a child to its end. A SIGINT that waits because of a TemporaryFolder ends the child, also if that has had none.
class Runner {
 public:
  Runner(uv_loop_t* loop, const ChildCommand& command) : loop_(loop), look_(loop, [this] { Look(); }) {
    look_.StartEvery(std::chrono::milliseconds(100));
    child_.emplace(loop_, command, [this](ChildOutcome said) { End(std::move(said)); });
  }

  ChildOutcome Finish() {
    uv_run(loop_, UV_RUN_DEFAULT);
    child_.reset();
    return std::move(outcome_);
  }

 private:
  void Look() {
    sigset_t waiting;
    if (sigpending(&waiting) != 0 || sigismember(&waiting, SIGINT) != 1) return;
    child_.reset();
    ChildOutcome ended;
    ended.said = "it was interrupted";
    End(std::move(ended));
  }

  void End(ChildOutcome said) {
    outcome_ = std::move(said);
    look_.Close();
  }

  uv_loop_t* loop_;
  Timer look_;
  std::optional<Child> child_;
  ChildOutcome outcome_;
};

}    // namespace

Result<TemporaryFolder> TemporaryFolder::Make() {
  const char* parent = std::getenv("TMPDIR");
  std::string path = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/dthrottle-XXXXXX";
  sigset_t interrupt, before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  if (::mkdtemp(path.data()) != nullptr) return TemporaryFolder(path, before);
  const int reason = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return Fail(fmt::format("{}: {}", path, std::strerror(reason)));
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), before_(other.before_) {}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Result<Finished> Run(const std::vector<std::string>& command, const std::filesystem::path& folder,
                     std::chrono::milliseconds patience, std::string_view package) {
  // Threads that wait for each other on a busy host take longer than one.
  const ChildCommand wanted{.program = command[0],
                            .args = command,
                            .patience = std::max<Duration>(patience, std::chrono::milliseconds(1)),
                            .descriptors = {},
                            .folder = folder,
                            .variables = {"OMP_NUM_THREADS=1"},
                            .errors_too = true};
  HearOfChildren();
  uv_loop_t loop;
  DT_CHECK(uv_loop_init(&loop) == 0);
  const ChildOutcome outcome = Runner(&loop, wanted).Finish();
  DT_CHECK(uv_loop_close(&loop) == 0);
  if (outcome.error == UV_ENOENT) return Fail(fmt::format("{} is not installed (package {})", command[0], package));
  if (!outcome.status) return Fail(fmt::format("{}: {}", command[0], outcome.said));
  return Finished{*outcome.status, std::move(outcome.said)};
}

}    // namespace dthrottle
