// Runs a program to its end beside a loop, for no longer than it is given.
#pragma once

#include <uv.h>

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace dthrottle {

struct ChildOutcome {
  bool succeeded = false;    // it ran, and left with 0
  std::string said;          // the first kChildOutputMax bytes of its standard output, or why it did not run
};

inline constexpr std::size_t kChildOutputMax = 4096;

class Child {
 public:
  // Starts `program` with these arguments, the first being its name. `done` is called once from the loop, and this
  // object may be destroyed there.
  Child(uv_loop_t* loop, const std::string& program, const std::vector<std::string>& args, Duration patience,
        std::function<void(ChildOutcome)> done);
  // Kills it, if it still runs; `done` is not called then. The loop must run once more.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  struct Handles;
  Handles* handles_;    // freed when libuv has closed them; null then
};

}    // namespace dthrottle
