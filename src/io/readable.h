// Watches on a loop whether a descriptor has something to read, and calls a function while it has.
#pragma once

#include <uv.h>

#include <functional>
#include <utility>

#include "base/check.h"
#include "io/uv_handle.h"

namespace dthrottle {

class Readable {
 public:
  // Calls `work` on the loop; this object may be destroyed there. The descriptor is not this object's, and stays open as
  // long as it is watched. The loop must run once more after that.
  Readable(uv_loop_t* loop, int fd, std::function<void()> work) : handle_(std::move(work)) {
    DT_CHECK(uv_poll_init(loop, handle_.get(), fd) == 0);
    GoOn();
  }

  void Stop() { uv_poll_stop(handle_.get()); }
  void GoOn() {
    const auto call = [](uv_poll_t* uv, int, int) { UvHandle<uv_poll_t>::Call(uv); };
    DT_CHECK(uv_poll_start(handle_.get(), UV_READABLE, call) == 0);
  }

 private:
  UvHandle<uv_poll_t> handle_;
};

}    // namespace dthrottle
