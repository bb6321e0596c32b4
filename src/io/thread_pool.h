// Work on a thread of libuv's pool, for whatever would make queries wait.
#pragma once

#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "base/check.h"
#include "io/signals.h"

namespace dthrottle {

// Makes the threads of the pool. Throws std::system_error where the system has none for them and for `others`. libuv
// makes them at the first work otherwise, which may be a reload after months, and ends the process where it cannot.
void StartThreadPool(uv_loop_t* loop, std::size_t others);

// Lets query threads have the processor first, from now on. For threads that do nothing else.
inline void YieldToQueries() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

// Calls act(work) on a thread of the pool, and then done(work) on that of the loop, which has to run until then. Both may
// move out of it; it is destroyed afterwards.
template <class Work, class Act, class Done>
void InThreadPool(uv_loop_t* loop, Work work, Act act, Done done) {
  struct Request {
    uv_work_t request;
    Work work;
    Act act;
    Done done;
  };
  std::unique_ptr<Request> its(new Request{{}, std::move(work), std::move(act), std::move(done)});
  its->request.data = its.get();
  const auto on_thread = [](uv_work_t* request) {
    Request& r = *static_cast<Request*>(request->data);
    r.act(r.work);
  };
  const auto on_loop = [](uv_work_t* request, int) {
    const std::unique_ptr<Request> r(static_cast<Request*>(request->data));
    r->done(r->work);
  };
  const SignalsBlocked blocked;    // the pool's threads may begin here
  DT_CHECK(uv_queue_work(loop, &its->request, on_thread, on_loop) == 0);
  its.release();    // on_loop has it
}

}    // namespace dthrottle
