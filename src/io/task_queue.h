// How one thread asks another's loop to do something: the only way threads of the daemon talk, beside the table.
#pragma once

#include <uv.h>

#include <functional>
#include <mutex>
#include <vector>

namespace dthrottle {

// Runs functions on a loop, in the order they were posted.
class TaskQueue {
 public:
  explicit TaskQueue(uv_loop_t* loop);
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Any thread.
  void Post(std::function<void()> task);

  // On the loop: no tasks after this; the loop must run once more.
  void Close();

 private:
  void Run();

  uv_async_t wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
};

}    // namespace dthrottle
