// How far a program is, for what takes more than two seconds, and Ctrl-C as the wish to end with what is done.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace dthrottle {

// Keeps one line on a terminal's standard error up to date, and leaves nothing elsewhere. While it lives the first
// SIGINT only raises a flag, and the second ends the process. One at a time.
class Progress {
 public:
  explicit Progress(std::string program);
  ~Progress();    // takes the line away

  // Says what the program is at, and which part of it is done, 0 to 1; none: nobody knows. False after Ctrl-C.
  bool At(std::string_view what, std::optional<double> part = std::nullopt);
  // Takes the line away until the program is at something again, because it prints.
  void Rest();
  static bool stopped();

 private:
  void Show();    // the thread: twice a second, from the third second on

  const std::string program_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;    // empty: nothing is shown
  std::optional<double> part_;
  bool over_ = false, shown_ = false;
  std::thread shower_;    // none without a terminal
};

}    // namespace dthrottle
