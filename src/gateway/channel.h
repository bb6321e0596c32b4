// The way to the daemon: lines of calls out, their answers in, over one socket (lease.md "The gateway").
//
// Calls come from any thread, which writes their lines if no others are under way. Lines that come meanwhile wait for the
// answers and then go together, so a busy gateway makes few system calls, and wakes the daemon seldom. The thread that
// has written also reads the answers, which come in the order of the lines, writes what waited, and finishes the calls:
// a thread of gRPC that finishes a call wakes no other one for it. So a call costs a quarter less than where another thread
// reads.
//
// A thread of this class takes over what does not go at once: answers that take longer than a millisecond, as those of a
// daemon that hangs, and lines for which the socket has no room. No more lines are under way than the daemon answers in a
// fraction of a millisecond, since queries wait meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gateway/call_lines.h"

namespace dthrottle {

class Channel {
 public:
  // Begins to write and read on a connected blocking socket, which becomes this object's.
  explicit Channel(int fd);
  // REQUIRES: no call is under way.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // How a call ends: `answers` are as many as its lines, or null where the daemon is gone. On any thread that sends,
  // perhaps before Send of this call returns, or on this object's.
  using Done = std::function<void(const LineAnswers* answers)>;

  enum class Taken {
    kYes,
    kTooMany,    // calls wait (its setting max_calls)
    kGone,       // the daemon is
  };
  // Sends the call, or says why not: then `done` is not called. A call is counted in either case. One without lines was
  // found invalid: it ends once the daemon has counted it.
  Taken Send(CallLines lines, Done done);

  // Returns when the daemon has told its bounds, or is gone.
  void AwaitBounds();
  // Bounds behind the first have a meaning of the service's own. 0: the daemon tells no such one.
  std::uint32_t further(std::size_t which = 0) const { return further_[which].load(std::memory_order_relaxed); }

 private:
  struct Call {
    CallLines lines;
    LineAnswers answers;
    Done done;
  };
  struct Counts {
    std::uint64_t calls = 0, refused = 0, invalid = 0;
  };

  enum class Received { kSome, kNothing, kEnd };

  void WriteIfIdle(std::unique_lock<std::mutex>& lock);
  std::string TakeLines();
  void Follow(std::unique_lock<std::mutex>& lock);
  void Help();
  bool HelpOn(std::unique_lock<std::mutex>& lock);
  Received Receive(std::unique_lock<std::mutex>& lock, int flags);
  static void FinishAll(const std::vector<Call>& ended);
  std::vector<Call> TakeAnswers(std::string_view bytes);
  void OnAnswer(std::string_view line, std::vector<Call>& ended);
  void TakeBounds(const std::string& line);
  void OnGone();

  const int fd_;
  std::array<std::atomic<std::uint32_t>, 2> further_{};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by it:
  std::deque<Call> waiting_, sent_;
  Counts counts_;           // since the last line that told them
  bool tell_ = true;        // them, though nothing else may have to be said
  std::size_t calls_ = 0;    // in waiting_ and sent_
  std::size_t lines_under_way_ = 0;
  std::size_t calls_max_ = 1000;
  bool writing_ = false;     // a thread does, without the lock, or there is a rest
  std::string rest_;         // of what it wrote, for which there was no room
  bool followed_ = false;    // a thread reads, without the lock
  bool helped_ = false;      // it is helper_
  bool bounded_ = false;     // the daemon has told its bounds
  bool gone_ = false;
  std::string unfinished_;    // answer

  std::thread helper_;
};

}    // namespace dthrottle
