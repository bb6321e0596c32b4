// A part of the daemon: what it is asked to do while it runs. The daemon keeps its parts in a list. They start in the
// order of that list and close in the opposite order; a part that the settings do not want is not in it.
#pragma once

#include <cerrno>
#include <functional>
#include <string>
#include <sysexits.h>
#include <vector>

#include "io/handover.h"

namespace dthrottle {

struct ProcessCounts;

// A reason not to start, with the exit code that says so (sysexits.h).
struct StartFailure {
  int exit_code;
  std::string message;
};

// The exit code for an errno.
inline int ExitCode(int code) {
  switch (code) {
    case EADDRINUSE:
    case EEXIST:
    case EWOULDBLOCK:
      return EX_UNAVAILABLE;
    case EACCES:
    case EPERM:
      return EX_NOPERM;
    default:
      return EX_OSERR;
  }
}

class Part {
 public:
  Part() = default;
  virtual ~Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // Follows settings that a reload has put in force, and adds a line for each that it cannot follow.
  virtual void Reload(std::vector<std::string>& /*problems*/) {}

  // Sets or adds to what this part counts. A part is asked after the parts that started before it.
  virtual void Count(ProcessCounts& /*counts*/) const {}

  // Adds what the next program, or the next start after an orderly end, goes on with.
  virtual void Keep(std::vector<HandedSection>& /*sections*/) const {}

  // Tells other hosts that this one is away for a moment, then calls `done`: an upgrade is near.
  virtual void Leave(std::function<void()> done) { done(); }

  // The upgrade has failed after Leave.
  virtual void Return() {}

  // Closes what it has on the loop, which must run once more.
  virtual void Close() {}
};

}    // namespace dthrottle
