#include "io/log.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>

#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr int kPatienceMs = 500;

// Device and inode of what the journal reads are in the variable: systemd.exec(5). Children of a service have that too,
// whatever they write to.
bool IsJournal(int fd) {
  const char* const journal = std::getenv("JOURNAL_STREAM");
  struct stat its {};
  return journal != nullptr && ::fstat(fd, &its) == 0 && fmt::format("{}:{}", its.st_dev, its.st_ino) == journal;
}

std::string Prefix(LogLevel level, bool for_journal) {
  if (for_journal) return fmt::format("<{}>", static_cast<int>(level));
  constexpr std::string_view kNames[] = {"", "", "", "error", "warning", "notice", "info"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S%z", &local);
  return fmt::format("{} {}: ", stamp, kNames[static_cast<int>(level)]);
}

}    // namespace

// A pipe that can be written takes PIPE_BUF bytes at once, a socket more, and a terminal one: lines there are rare.
Log::Log(int fd) : fd_(fd), for_journal_(IsJournal(fd_)), piece_bytes_(::isatty(fd_) == 1 ? 1 : PIPE_BUF) {}

void Log::Say(LogLevel level, std::string_view text) {
  const std::lock_guard lock(mutex_);
  Put(level, text);
}

void Log::WaitForRoom() {
  const std::lock_guard lock(mutex_);
  patience_ms_ = kPatienceMs;
}

// The reader may be gone or slow; a log that cannot be written is no reason to stop.
bool Log::Put(LogLevel level, std::string_view text) {
  bool good = Push() && unsaid_.empty();
  if (good) {
    const std::string lost = lost_ > 0 ? fmt::format(" ({} lines before this one are lost)", lost_) : "";
    unsaid_ = fmt::format("{}{}{}\n", Prefix(level, for_journal_), text, lost);
    const std::size_t whole = unsaid_.size();
    good = Push() && unsaid_.size() < whole;
    if (!good) unsaid_.clear();
  }
  suppressed_ += !good;
  lost_ = good ? 0 : lost_ + 1;
  return good;
}

// Writes as much of what is unsaid as there is room for. False: it cannot be written.
bool Log::Push() {
  pollfd reader{fd_, POLLOUT, 0};
  while (!unsaid_.empty() && ::poll(&reader, 1, patience_ms_) > 0) {
    const ssize_t n = ::write(fd_, unsaid_.data(), std::min(unsaid_.size(), piece_bytes_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return false;
    unsaid_.erase(0, static_cast<std::size_t>(n));
  }
  return true;
}

std::uint64_t Log::suppressed() const {
  const std::lock_guard lock(mutex_);
  return suppressed_;
}

void Log::Write(LogLevel level, fmt::string_view format, fmt::format_args args) {
  static const Shape kPace = Shape::From(10, 1);
  const std::lock_guard lock(mutex_);
  Pace& pace = paces_[format.data()];
  if (!pace.bucket.Take(kPace, 1, Now())) {
    ++pace.held_back;
    ++suppressed_;
    return;
  }
  std::string text = fmt::vformat(format, args);
  if (pace.held_back > 0) text += fmt::format(" ({} more like this held back)", pace.held_back);
  if (Put(level, text)) pace.held_back = 0;
}

}    // namespace dthrottle
