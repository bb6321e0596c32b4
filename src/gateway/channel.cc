#include "gateway/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "gateway/corks.h"

namespace dthrottle {

namespace {

constexpr std::size_t kLinesUnderWay = 256;    // 0.2 to 0.4 ms of the daemon's time
constexpr std::size_t kFinishedTogether = 32;    // calls: 0.3 ms
constexpr timeval kPatience = {0, 1000};       // of a thread that is not this object's; the kernel makes it whole ticks

// Writes as much as there is room for, and drops it from `bytes`. False: the socket is broken.
bool WriteSome(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}    // namespace

Channel::Channel(int fd) : fd_(fd) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  helper_ = std::thread([this] { Help(); });
}

Channel::~Channel() {
  ::shutdown(fd_, SHUT_RDWR);
  OnGone();
  helper_.join();
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
  WriteIfIdle(lock);
  if (lines_under_way_ > 0 && !followed_) Follow(lock);
  return too_many ? Taken::kTooMany : Taken::kYes;
}

void Channel::AwaitBounds() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return bounded_ || gone_; });
}

// ---- Writing ----

// One call goes alone, however many lines it has. What has no room waits for helper_. While this thread is without the
// lock, answers may come, and then it goes on.
void Channel::WriteIfIdle(std::unique_lock<std::mutex>& lock) {
  while (!writing_ && !gone_ && lines_under_way_ == 0 && (tell_ || !waiting_.empty())) {
    writing_ = true;
    const std::string bytes = TakeLines();
    lock.unlock();
    std::string_view rest = bytes;
    const bool good = WriteSome(fd_, rest);
    if (!good) ::shutdown(fd_, SHUT_RDWR);    // which the one that reads notices
    lock.lock();
    writing_ = !rest.empty();
    rest_ = rest;
  }
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

// A thread that has a call to send reads until nothing is under way, also what others write meanwhile.
void Channel::Follow(std::unique_lock<std::mutex>& lock) {
  followed_ = true;
  while (lines_under_way_ > 0) {
    if (rest_.empty() && Receive(lock, 0) == Received::kSome) continue;
    helped_ = true;
    return changed_.notify_all();
  }
  followed_ = false;
}

// The thread of this object: reads and writes when it has been handed over to.
void Channel::Help() {
  std::unique_lock lock(mutex_);
  WriteIfIdle(lock);    // asks for the bounds
  followed_ = helped_ = true;
  while (true) {
    changed_.wait(lock, [this] { return gone_ || helped_; });
    if (gone_) return;
    while (lines_under_way_ > 0) {
      if (HelpOn(lock)) continue;
      lock.unlock();
      return OnGone();
    }
    followed_ = helped_ = false;
  }
}

// Waits for what may be done next, and does it. False: the daemon is gone.
bool Channel::HelpOn(std::unique_lock<std::mutex>& lock) {
  pollfd polled = {fd_, static_cast<short>(rest_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  lock.unlock();
  ::poll(&polled, 1, -1);
  lock.lock();
  if ((polled.revents & POLLOUT) != 0) {
    std::string_view rest = rest_;
    if (!WriteSome(fd_, rest)) return false;
    rest_ = std::string(rest);
    writing_ = !rest_.empty();
  }
  return Receive(lock, MSG_DONTWAIT) != Received::kEnd;
}

// Takes what has been answered, and finishes those calls.
Channel::Received Channel::Receive(std::unique_lock<std::mutex>& lock, int flags) {
  char bytes[16 * 1024];
  lock.unlock();
  const ssize_t n = ::recv(fd_, bytes, sizeof bytes, flags);
  const bool nothing = n < 0 && (errno == EINTR || errno == EAGAIN);
  lock.lock();
  if (n <= 0) return nothing ? Received::kNothing : Received::kEnd;
  const std::vector<Call> ended = TakeAnswers(std::string_view(bytes, static_cast<std::size_t>(n)));
  WriteIfIdle(lock);    // first, so that the daemon has work while the calls are finished
  lock.unlock();
  FinishAll(ended);
  lock.lock();
  return Received::kSome;
}

// Few enough at a time that the first of them hardly waits for the last.
void Channel::FinishAll(const std::vector<Call>& ended) {
  Corks corks;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (i % kFinishedTogether == 0) corks.LetGo();
    if (ended.size() > 1) corks.Hold(ended[i].lines.connection);
    ended[i].done(&ended[i].answers);
  }
}

std::vector<Channel::Call> Channel::TakeAnswers(std::string_view bytes) {
  std::vector<Call> ended;
  for (std::size_t lf; (lf = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(lf + 1)) {
    unfinished_ += bytes.substr(0, lf);
    OnAnswer(unfinished_, ended);
    unfinished_.clear();
  }
  unfinished_ += bytes;
  return ended;
}

// A line answers the oldest call. A call without lines ends when it becomes the oldest.
void Channel::OnAnswer(std::string_view line, std::vector<Call>& ended) {
  if (sent_.empty()) return;
  --lines_under_way_;
  sent_.front().answers.emplace_back(line);
  for (; !sent_.empty() && sent_.front().answers.size() == sent_.front().lines.count; sent_.pop_front()) {
    Call& call = sent_.front();
    if (call.done == nullptr) {
      TakeBounds(call.answers.front());
    } else {
      --calls_;
      ended.push_back(std::move(call));
    }
  }
}

// "bounds CALLS FURTHER" and perhaps one more, the answer to counts.
void Channel::TakeBounds(const std::string& line) {
  unsigned calls = 0, further = 0, last = 0;
  if (std::sscanf(line.c_str(), "bounds %u %u %u", &calls, &further, &last) < 2) return;
  if (!std::exchange(bounded_, true)) changed_.notify_all();
  calls_max_ = calls;
  further_[0].store(further, std::memory_order_relaxed);
  further_[1].store(last, std::memory_order_relaxed);
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
