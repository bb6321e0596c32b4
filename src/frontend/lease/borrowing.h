// Borrows for a lease server from its parent, a server nearer to the root, what lease clients ask it for.
#pragma once

#include <uv.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "admin/snapshot.h"
#include "base/result.h"
#include "base/time.h"
#include "frontend/lease/parent.h"
#include "io/log.h"
#include "lease/server.h"

namespace dthrottle {

class Borrowing {
 public:
  // All must outlive it. `addresses` as in LeaseParent.
  Borrowing(uv_loop_t* loop, lease::LeaseServer& server, Log& log, std::vector<std::string> addresses);

  // To be called often: asks for all that the server wants to ask for by now, unless that has just been done.
  void AskIfDue(BootInstant now);

  // REQUIRES: status.now is set.
  void AddTo(LeaseStatus& status) const;
  void AddTo(LeaseCounts& counts) const;

  void Close() { parent_.Close(); }

 private:
  void Hear(const std::vector<lease::ParentRequest>& asked, BootInstant at,
            const Result<std::vector<std::string>>& answers);

  lease::LeaseServer& server_;
  Log& log_;
  LeaseParent parent_;
  BootInstant ask_at_{};                // when the parent may be asked again
  std::optional<BootInstant> heard_;    // when it answered last
  std::string trouble_;
  std::uint64_t asks_ = 0, failures_ = 0;
};

}    // namespace dthrottle
