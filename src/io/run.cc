#include "io/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "io/files.h"

namespace dthrottle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOutputBytesMax = 4096;
constexpr std::size_t kOutputBytesRead = std::size_t{16} << 20;
constexpr auto kNap = std::chrono::milliseconds(2);    // the programs run for tens of milliseconds and more

// What posix_spawn wants, with an end.
struct Actions {
  Actions() { posix_spawn_file_actions_init(&actions); }
  ~Actions() { posix_spawn_file_actions_destroy(&actions); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;

  posix_spawn_file_actions_t actions;
};

// Our environment but for OMP_NUM_THREADS: threads that wait for each other on a busy host take longer than one.
std::vector<std::string> Environment() {
  std::vector<std::string> all{"OMP_NUM_THREADS=1"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("OMP_NUM_THREADS=")) all.emplace_back(*entry);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Its wait status, unless it is not done in time; then it is ended.
std::optional<int> Await(pid_t pid, std::chrono::milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  int status = 0;
  for (;;) {
    const pid_t done = ::waitpid(pid, &status, WNOHANG);
    if (done == pid) return status;
    if (done < 0 && errno != EINTR) return std::nullopt;
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kNap);
  }
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return std::nullopt;
}

}    // namespace

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
  const std::string output = folder / "output";
  std::vector<std::string> words = command, environment = Environment();
  Actions spawn;
  posix_spawn_file_actions_addchdir_np(&spawn.actions, folder.c_str());
  posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&spawn.actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&spawn.actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, words[0].c_str(), &spawn.actions, nullptr, Pointers(words).data(),
                                   Pointers(environment).data());
  if (error == ENOENT) return Fail(fmt::format("{} is not installed (package {})", words[0], package));
  if (error != 0) return Fail(fmt::format("{}: {}", words[0], std::strerror(error)));
  const std::optional<int> status = Await(pid, patience);
  if (!status) return Fail(fmt::format("{} was not done after {} s", words[0], patience.count() / 1000));
  if (!WIFEXITED(*status)) return Fail(fmt::format("{} died of signal {}", words[0], WTERMSIG(*status)));
  Finished finished{WEXITSTATUS(*status), ReadFile(output, kOutputBytesRead).value_or("")};
  if (finished.output.size() > kOutputBytesMax) finished.output.erase(0, finished.output.size() - kOutputBytesMax);
  return finished;
}

}    // namespace dthrottle
