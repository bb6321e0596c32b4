// One query thread of the daemon.
#pragma once

#include <uv.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "daemon/daemon.h"
#include "io/query_server.h"
#include "io/task_queue.h"

namespace dthrottle {

// The first is the main thread and uses its loop.
struct Daemon::Worker {
  uv_loop_t* loop = nullptr;
  std::unique_ptr<uv_loop_t> own_loop;
  std::unique_ptr<QueryServer> server;
  std::unique_ptr<TaskQueue> tasks;    // null for the main thread
  std::thread thread;
  std::uint64_t given = 0;    // connections, by the main thread
  std::uint64_t beats_seen = 0;
  std::atomic<std::uint64_t> beats{0};

  std::uint64_t connections() const { return given - server->counters().closed.Read(); }

  // Runs on this worker's loop, now or soon.
  void Do(std::function<void()> task) {
    if (tasks == nullptr) {
      task();
    } else {
      tasks->Post(std::move(task));
    }
  }
};

}    // namespace dthrottle
