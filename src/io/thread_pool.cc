#include "io/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace dthrottle {

namespace {

// The number that libuv reads.
std::size_t PoolThreads() {
  constexpr int kDefault = 4, kMax = 1024;
  const char* const text = std::getenv("UV_THREADPOOL_SIZE");
  return static_cast<std::size_t>(text != nullptr ? std::clamp(std::atoi(text), 1, kMax) : kDefault);
}

// Has so many threads at once, and then none of them. Throws std::system_error where they cannot be had.
void TryThreads(std::size_t count) {
  std::vector<pid_t> ids(count);
  {
    std::mutex mutex;
    std::vector<std::jthread> threads;
    const std::lock_guard lock(mutex);    // no thread ends before
    for (pid_t& id : ids) {
      threads.emplace_back([&mutex, &id] {
        id = ::gettid();
        const std::lock_guard wait(mutex);
      });
    }
  }
  // The system counts a thread for a moment after it was joined.
  for (const pid_t id : ids) {
    while (::tgkill(::getpid(), id, 0) == 0) std::this_thread::yield();
  }
}

}    // namespace

void StartThreadPool(uv_loop_t* loop, std::size_t others) {
  {
    const SignalsBlocked blocked;
    TryThreads(PoolThreads() + others);
  }
  struct Nothing {};
  InThreadPool(loop, Nothing(), [](Nothing&) {}, [](Nothing&) {});
}

}    // namespace dthrottle
