#include "io/run.h"

#include <fmt/format.h>
#include <uv.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/child.h"

namespace dthrottle {

Result<TemporaryFolder> TemporaryFolder::Make() {
  const char* parent = std::getenv("TMPDIR");
  std::string path = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/dthrottle-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return Fail(fmt::format("{}: {}", path, std::strerror(errno)));
  return TemporaryFolder(path);
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
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
  uv_loop_t loop;
  DT_CHECK(uv_loop_init(&loop) == 0);
  ChildOutcome outcome;
  {
    const Child child(&loop, wanted, [&outcome](ChildOutcome said) { outcome = std::move(said); });
    uv_run(&loop, UV_RUN_DEFAULT);
  }
  DT_CHECK(uv_loop_close(&loop) == 0);
  if (outcome.error == UV_ENOENT) return Fail(fmt::format("{} is not installed (package {})", command[0], package));
  if (!outcome.status) return Fail(fmt::format("{}: {}", command[0], outcome.said));
  return Finished{*outcome.status, std::move(outcome.said)};
}

}    // namespace dthrottle
