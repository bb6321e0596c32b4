// Messages for the operator on standard error: a line each, with a priority that journald understands where it is the
// reader, and a time stamp where it is not. Each message text may come ten times at once and then once a second; what
// is held back is counted and said. Never a line for a query.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "bucket/bucket.h"

namespace dthrottle {

// The values are syslog's.
enum class LogLevel { kError = 3, kWarning = 4, kNotice = 5, kInfo = 6, kDebug = 7 };

class Log {
 public:
  explicit Log(LogLevel level);

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
  void Say(LogLevel level, std::string_view text) const;

  std::uint64_t suppressed() const;

 private:
  // How often one message text has come.
  struct Pace {
    Bucket bucket;
    std::uint64_t held_back = 0;
  };

  void Write(LogLevel level, fmt::string_view format, fmt::format_args args);

  const LogLevel level_;
  const bool for_journal_;
  mutable std::mutex mutex_;
  std::unordered_map<const char*, Pace> paces_;    // by the address of the format: one for each place that logs
  std::uint64_t suppressed_ = 0;
};

}    // namespace dthrottle
