#include "io/task_queue.h"

#include <utility>

#include "base/check.h"

namespace dthrottle {

TaskQueue::TaskQueue(uv_loop_t* loop) {
  DT_CHECK(uv_async_init(loop, &wake_, [](uv_async_t* wake) { static_cast<TaskQueue*>(wake->data)->Run(); }) == 0);
  wake_.data = this;
}

void TaskQueue::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  uv_async_send(&wake_);
}

void TaskQueue::Run() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void TaskQueue::Close() {
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
}

}    // namespace dthrottle
