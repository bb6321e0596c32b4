// Messages for the operator on standard error: a line each, with a priority that journald understands where it is the
// reader, and a time stamp where it is not. Each message text may come ten times at once and then once a second; what
// is held back is counted and said. Never a line for a query.
//
// Nobody waits for the reader of the log: a line for which there is no room is lost whole, which is counted and said too.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "bucket/bucket.h"

namespace dthrottle {

// The values are syslog's.
enum class LogLevel { kError = 3, kWarning = 4, kNotice = 5, kInfo = 6 };

class Log {
 public:
  // `fd` may be a pipe, a socket, a terminal or a file.
  explicit Log(int fd = STDERR_FILENO);

  template <class... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kError, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void Warning(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kWarning, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void Notice(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kNotice, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void Info(fmt::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kInfo, format, fmt::make_format_args(args...));
  }

  // One line that is never held back: for lists that are bounded and asked for.
  void Say(LogLevel level, std::string_view text);

  // From now on each line waits half a second for room, at most: for the last ones, when nobody is answered any more.
  void WaitForRoom();

  // Lines that were held back or lost.
  std::uint64_t suppressed() const;

 private:
  // How often one message text has come.
  struct Pace {
    Bucket bucket;
    std::uint64_t held_back = 0;
  };

  void Write(LogLevel level, fmt::string_view format, fmt::format_args args);
  // REQUIRES of these two: mutex_ is held.
  bool Put(LogLevel level, std::string_view text);    // false: the line is lost
  bool Push();

  const int fd_;
  const bool for_journal_;
  const std::size_t piece_bytes_;    // that one write can have without waiting, where there is room
  mutable std::mutex mutex_;
  std::unordered_map<const char*, Pace> paces_;    // by the address of the format: one for each place that logs
  std::uint64_t suppressed_ = 0;
  std::uint64_t lost_ = 0;    // lines, since the last one that had room
  std::string unsaid_;        // the rest of that one
  int patience_ms_ = 0;
};

}    // namespace dthrottle
