#include "io/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

#include "io/signals.h"

namespace dthrottle {
namespace {

constexpr auto kQuietFor = std::chrono::seconds(2);
constexpr auto kBetween = std::chrono::milliseconds(500);

volatile std::sig_atomic_t interrupted = 0;

void Interrupt(bool heed) {
  struct sigaction action {};
  if (heed) {
    action.sa_handler = [](int) { interrupted = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  } else {
    action.sa_handler = SIG_DFL;
  }
  sigaction(SIGINT, &action, nullptr);
}

}    // namespace

Progress::Progress(std::string program) : program_(std::move(program)) {
  interrupted = 0;
  Interrupt(true);
  if (::isatty(STDERR_FILENO) != 1) return;
  const SignalsBlocked blocked;
  shower_ = std::thread([this] { Show(); });
}

Progress::~Progress() {
  Interrupt(false);
  if (!shower_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  shower_.join();
}

bool Progress::stopped() {
  return interrupted != 0;
}

bool Progress::At(std::string_view what, std::optional<double> part) {
  const std::lock_guard lock(mutex_);
  what_ = what;
  part_ = part;
  return !stopped();
}

void Progress::Rest() {
  const std::lock_guard lock(mutex_);
  what_.clear();
  if (std::exchange(shown_, false)) fmt::print(stderr, "\r\033[K");
}

void Progress::Show() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kQuietFor, [this] { return over_; })) return;
  do {
    if (what_.empty()) continue;
    shown_ = true;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    const std::string percent = part_ ? fmt::format(", {:.0f} %", 100 * *part_) : "";
    fmt::print(stderr, "\r{}: {}{}, {} s\033[K", program_, what_, percent, seconds.count());
  } while (!changed_.wait_for(lock, kBetween, [this] { return over_; }));
  if (shown_) fmt::print(stderr, "\r\033[K");
}

}    // namespace dthrottle
