// A handle of libuv with the function that it calls. It closes itself: libuv has it for one more turn of the loop, and
// this object may go before, also in that function.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <utility>

namespace dthrottle {

template <class Uv>
class UvHandle {
 public:
  explicit UvHandle(std::function<void()> work) : held_(new Held{{}, std::move(work)}) {}

  Uv* get() const { return &held_->uv; }
  bool closed() const { return held_ == nullptr; }
  void Close() { held_.reset(); }

  static void Call(Uv* uv) { reinterpret_cast<Held*>(uv)->work(); }

 private:
  struct Held {
    Uv uv;
    const std::function<void()> work;
  };
  struct Closing {
    void operator()(Held* held) const {
      uv_close(reinterpret_cast<uv_handle_t*>(held), [](uv_handle_t* h) { delete reinterpret_cast<Held*>(h); });
    }
  };

  std::unique_ptr<Held, Closing> held_;
};

}    // namespace dthrottle
