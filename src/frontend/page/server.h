// Workers that have a page, on one loop: a connection each. A worker tells here what it has asked for, and the limiter
// says what its page says of it. While no page says anything there is nothing to do and no timer runs.
#pragma once

#include <uv.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "admin/snapshot.h"
#include "base/prng.h"
#include "limiter/worker_entries.h"
#include "io/log.h"
#include "io/timer.h"
#include "limiter/lending.h"

namespace dthrottle {

class PageServer {
 public:
  struct Options {
    std::uint32_t entries;          // of a page; rounded up to a power of two, and to a set at least
    std::size_t tag_bytes_max;
    Instant strays = Instant::min();    // as Lending::Enable
  };

  // Uses lane 0 of the limiter on its thread. What it refers to must outlive it.
  PageServer(uv_loop_t* loop, Limiter& limiter, const Options& options, Log& log);
  // REQUIRES: Close() was called, and the loop has run since.
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // Gives a page to the worker at the other end of a connected socket, which becomes this object's.
  void Take(int fd);

  // Takes back every page and ends every connection.
  void Recall();

  void Close();

  std::size_t connections() const { return workers_.size(); }
  PageCounts counts() const;

 private:
  struct Worker;

  void OnReadable(Worker& worker);
  bool Hear(Worker& worker, Instant now);
  void StartTimer(Duration after);
  void OnTimer();
  bool Look(Instant now);
  void Settle(Instant now);
  void End(Worker& worker);
  void RecallLeaving(Instant now, std::size_t most);
  void Forget(Worker& worker);

  uv_loop_t* const loop_;
  Lending lending_;
  const std::size_t tag_bytes_max_;
  const std::uint32_t entries_;
  Log& log_;
  Timer timer_;
  std::vector<Worker*> workers_;
  std::deque<Worker*> leaving_;     // whose connection has ended, and whose entries are taken away
  std::size_t next_ = 0;            // worker whose entries are looked at first
  std::size_t to_look_at_ = 0;      // workers, in this round
  std::size_t next_settled_ = 0;    // and settled first
  Instant look_at_{};
  PageCounts ended_;        // of connections that have ended, and what counts for all
};

}    // namespace dthrottle
