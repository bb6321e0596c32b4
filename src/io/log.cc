#include "io/log.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <string>

#include "io/clock.h"

namespace dthrottle {

namespace {

std::string Prefix(LogLevel level, bool for_journal) {
  if (for_journal) return fmt::format("<{}>", static_cast<int>(level));
  constexpr std::string_view kNames[] = {"", "", "", "error", "warning", "notice", "info", "debug"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S%z", &local);
  return fmt::format("{} {}: ", stamp, kNames[static_cast<int>(level)]);
}

}    // namespace

Log::Log(LogLevel level) : level_(level), for_journal_(std::getenv("JOURNAL_STREAM") != nullptr) {}

void Log::Say(LogLevel level, std::string_view text) const {
  if (level > level_) return;
  const std::string line = fmt::format("{}{}\n", Prefix(level, for_journal_), text);
  // The reader may be gone or slow; a log that cannot be written is no reason to stop.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::uint64_t Log::suppressed() const {
  const std::lock_guard lock(mutex_);
  return suppressed_;
}

void Log::Write(LogLevel level, fmt::string_view format, fmt::format_args args) {
  static const Shape kPace = Shape::From(10, 1);
  if (level > level_) return;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    Pace& pace = paces_[format.data()];
    if (!pace.bucket.Take(kPace, 1, Now())) {
      ++pace.held_back;
      ++suppressed_;
      return;
    }
    text = fmt::vformat(format, args);
    if (pace.held_back > 0) text += fmt::format(" ({} more like this held back)", pace.held_back);
    pace.held_back = 0;
  }
  Say(level, text);
}

}    // namespace dthrottle
