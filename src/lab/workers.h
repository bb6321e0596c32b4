// The workers of one host that decide by themselves what they have asked before (protocol/page.md): the shipped
// entries, and pages that are memory of the simulator. A query that a page does not decide is asked, and the tag noted.
//
// They live as long as their daemon. What a worker still decides in the second after its daemon was killed is left out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "limiter/worker_entries.h"

namespace dthrottle::lab {

class SimWorkers {
 public:
  // `entries`: of each page, a power of two, at least DTHROTTLE_PAGE_WAYS. The limiter outlives this object.
  SimWorkers(Limiter& limiter, std::size_t workers, std::uint32_t entries, Prng& prng);
  // Tokens that workers have are lost with it, as with a daemon that is killed.
  ~SimWorkers();

  std::size_t size() const { return workers_.size(); }

  // What the worker decides by itself: whether the query is served. None: it asks the daemon.
  std::optional<bool> Decide(std::size_t worker, std::string_view tag, Instant now);
  // The daemon has answered.
  void Answered(std::size_t worker, std::string_view tag, bool refused, Instant now);

  // Brings the pages up to date when it is time. Returns when that is again; Instant::max(): they say nothing.
  Instant Look(Instant now);

  std::uint64_t decided() const { return decided_; }    // by workers themselves, ever

 private:
  struct Worker;

  std::vector<std::unique_ptr<Worker>> workers_;
  Instant look_at_ = Instant::max(), settle_at_ = Instant::max();
  std::uint64_t decided_ = 0;
};

}    // namespace dthrottle::lab
