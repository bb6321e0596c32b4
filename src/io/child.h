// Another program beside a loop: run to its end in the time that it is given, or for as long as it lives.
#pragma once

#include <uv.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace dthrottle {

struct ChildCommand {
  std::string program;
  std::vector<std::string> args;    // the first is its name
  Duration patience{};              // it is killed after so long; zero: it may live for ever
  std::vector<int> descriptors;     // that become its 3, 4, ...
  std::string folder = {};          // where it runs; empty: here
  // Names with values, "NAME=VALUE", that it has instead of ours.
  std::vector<std::string> variables = {};
  bool errors_too = false;    // what it writes to standard error is said as well
};

struct ChildOutcome {
  bool succeeded = false;            // it ran, and left with 0
  std::optional<int> status = {};    // that it left with; none: it did not run, or was killed
  int error = 0;                     // of libuv; below 0: it could not be started
  // What it wrote to standard output, at most kChildOutputMax bytes, or why it did not run. For a program that may
  // live for ever, which writes to standard error only: how it ended.
  std::string said = {};
};

inline constexpr std::size_t kChildOutputMax = 4096;

class Child {
 public:
  // `done` is called once from the loop, and this object may be destroyed there.
  Child(uv_loop_t* loop, const ChildCommand& command, std::function<void(ChildOutcome)> done);
  // Goes on with a process that the program before this one started in the same process, and that may live for ever.
  Child(uv_loop_t* loop, int pid, std::function<void(ChildOutcome)> done);
  // Kills it, if it still runs; `done` is not called then. The loop must run once more.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const;    // 0: it could not be started

 private:
  struct Handles;
  Handles* handles_;    // freed when libuv has closed them; null then
};

}    // namespace dthrottle
