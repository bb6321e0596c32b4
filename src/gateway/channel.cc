#include "gateway/channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace dthrottle {

namespace {

constexpr std::size_t kLinesUnderWay = 256;    // 0.2 to 0.4 ms of the daemon's time

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}    // namespace

Channel::Channel(int fd) : fd_(fd) {
  writer_ = std::thread([this] { Write(); });
  reader_ = std::thread([this] { Read(); });
}

Channel::~Channel() {
  ::shutdown(fd_, SHUT_RDWR);
  OnGone();
  writer_.join();
  reader_.join();
  ::close(fd_);
}

Channel::Taken Channel::Send(CallLines lines, Done done) {
  std::unique_lock lock(mutex_);
  if (gone_) return Taken::kGone;
  ++counts_.calls;
  tell_ = true;
  const bool too_many = calls_ >= calls_max_;
  if (too_many) {
    ++counts_.refused;
  } else {
    if (lines.count == 0) ++counts_.invalid;
    ++calls_;
    waiting_.push_back({std::move(lines), {}, std::move(done)});
  }
  if (MayWrite()) WriteOnce(lock);
  return too_many ? Taken::kTooMany : Taken::kYes;
}

void Channel::AwaitBounds() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return bounded_ || gone_; });
}

// ---- Writing ----

void Channel::Write() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return gone_ || MayWrite(); });
    if (gone_) return;
    WriteOnce(lock);
  }
}

// Lines that come meanwhile are the writing thread's.
void Channel::WriteOnce(std::unique_lock<std::mutex>& lock) {
  writing_ = true;
  const std::string bytes = TakeLines();
  lock.unlock();
  if (!WriteAll(fd_, bytes)) ::shutdown(fd_, SHUT_RDWR);    // which the reading thread notices
  lock.lock();
  writing_ = false;
  if (gone_ || MayWrite()) changed_.notify_all();
}

// One call goes alone, however many lines it has.
bool Channel::MayWrite() const {
  return !writing_ && !gone_ && (tell_ || !waiting_.empty()) && lines_under_way_ < kLinesUnderWay;
}

// The counts come first, so that a call has been counted when its client hears of it.
std::string Channel::TakeLines() {
  std::string bytes = fmt::format("count {} {} {}\n", counts_.calls, counts_.refused, counts_.invalid);
  counts_ = {};
  tell_ = false;
  sent_.push_back({{"", 1}, {}, nullptr});
  ++lines_under_way_;
  while (!waiting_.empty() && lines_under_way_ < kLinesUnderWay) {
    Call call = std::move(waiting_.front());
    waiting_.pop_front();
    bytes += std::exchange(call.lines.text, {});
    lines_under_way_ += call.lines.count;
    sent_.push_back(std::move(call));
  }
  return bytes;
}

// ---- Reading ----

void Channel::Read() {
  std::string line;
  char bytes[16 * 1024];
  while (true) {
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return OnGone();
    std::string_view got(bytes, static_cast<std::size_t>(n));
    for (std::size_t lf; (lf = got.find('\n')) != got.npos; got.remove_prefix(lf + 1)) {
      line += got.substr(0, lf);
      OnAnswer(line);
      line.clear();
    }
    line += got;
  }
}

// A line answers the oldest call. A call without lines ends when it becomes the oldest.
void Channel::OnAnswer(std::string_view line) {
  std::vector<Call> ended;
  {
    const std::lock_guard lock(mutex_);
    if (sent_.empty()) return;
    --lines_under_way_;
    sent_.front().answers.emplace_back(line);
    while (!sent_.empty() && sent_.front().answers.size() == sent_.front().lines.count) {
      sent_.front().done == nullptr ? TakeBounds(sent_.front().answers.front()) : void(--calls_);
      ended.push_back(std::move(sent_.front()));
      sent_.pop_front();
    }
    if (MayWrite()) changed_.notify_all();
  }
  for (const Call& call : ended) {
    if (call.done != nullptr) call.done(&call.answers);
  }
}

// "bounds CALLS FURTHER", the answer to counts.
void Channel::TakeBounds(const std::string& line) {
  unsigned calls = 0, further = 0;
  if (std::sscanf(line.c_str(), "bounds %u %u", &calls, &further) != 2) return;
  if (!std::exchange(bounded_, true)) changed_.notify_all();
  calls_max_ = calls;
  further_.store(further, std::memory_order_relaxed);
}

void Channel::OnGone() {
  std::deque<Call> sent, waiting;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    sent.swap(sent_);
    waiting.swap(waiting_);
    changed_.notify_all();
  }
  for (std::deque<Call>* calls : {&sent, &waiting}) {
    for (const Call& call : *calls) {
      if (call.done != nullptr) call.done(nullptr);
    }
  }
}

}    // namespace dthrottle
