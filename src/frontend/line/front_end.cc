#include "frontend/line/front_end.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "admin/admin.h"
#include "base/check.h"
#include "frontend/line/server.h"
#include "io/fresh.h"
#include "io/signals.h"

namespace dthrottle {

// A query thread. The first is the main thread and uses its loop.
struct LineFrontEnd::Worker {
  uv_loop_t* loop = nullptr;
  std::unique_ptr<uv_loop_t> own_loop;
  std::unique_ptr<LineServer> server;
  std::unique_ptr<TaskQueue> tasks;    // null for the main thread
  std::thread thread;
  std::uint64_t given = 0;    // connections, by the main thread
  std::uint64_t beats_seen = 0;
  std::atomic<std::uint64_t> beats{0};

  std::uint64_t connections() const { return given - server->counts().closed.Read(); }

  // Runs on this worker's loop, now or soon.
  void Do(std::function<void()> task) {
    if (tasks == nullptr) {
      task();
    } else {
      tasks->Post(std::move(task));
    }
  }
};

// While it lives unreleased, the threads beside the main one do nothing.
struct LineFrontEnd::Held {
  explicit Held(std::size_t threads) : connections(threads), arrived(static_cast<std::ptrdiff_t>(threads)) {}

  std::vector<std::vector<HandedConnection>> connections;    // by thread
  std::latch arrived;
  std::latch released{1};
};

LineFrontEnd::LineFrontEnd(FrontEndHost& host) : host_(host) {}
LineFrontEnd::~LineFrontEnd() = default;

FrontEnd::Room LineFrontEnd::room() const {
  return {{host_.admin.settings().query.max_connections, 32}};
}

void LineFrontEnd::Start() {
  const auto& query = host_.admin.settings().query;
  Limiter& limiter = host_.admin.limiter();
  const FramerLimits limits{query.max_tag_bytes, limiter.keys().digest};
  const SignalsBlocked blocked;
  for (std::uint32_t i = 0; i < query.threads; ++i) {
    auto worker = std::make_unique<Worker>();
    if (i > 0) {
      worker->own_loop = std::make_unique<uv_loop_t>();
      DT_CHECK(uv_loop_init(worker->own_loop.get()) == 0);
      worker->tasks = std::make_unique<TaskQueue>(worker->own_loop.get());
    }
    worker->loop = i > 0 ? worker->own_loop.get() : host_.loop;
    worker->server = std::make_unique<LineServer>(worker->loop, limiter, i, limits, FreshPrng(), query.idle_timeout);
    if (i > 0) worker->thread = std::thread([loop = worker->loop] { uv_run(loop, UV_RUN_DEFAULT); });
    workers_.push_back(std::move(worker));
  }
}

void LineFrontEnd::Take(int fd) {
  Worker& worker = LeastBusy();
  ++worker.given;
  worker.Do([server = worker.server.get(), fd] { server->Take(fd); });
}

void LineFrontEnd::TakeUp(const HandedConnection& connection) {
  Worker& worker = LeastBusy();
  ++worker.given;
  worker.Do([server = worker.server.get(), connection] { server->TakeUp(connection); });
}

LineFrontEnd::Worker& LineFrontEnd::LeastBusy() {
  return **std::ranges::min_element(workers_, {}, &Worker::connections);
}

std::size_t LineFrontEnd::connections() const {
  std::size_t open = 0;
  for (const auto& worker : workers_) open += worker->connections();
  return open;
}

void LineFrontEnd::Hold(Handover& handover) {
  held_ = std::make_shared<Held>(workers_.size());
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    workers_[i]->Do([held = held_, i, server = workers_[i]->server.get(), name = key()] {
      server->Hold(name, held->connections[i]);
      held->arrived.count_down();
      held->released.wait();
      server->Release();
    });
  }
  workers_[0]->server->Hold(key(), held_->connections[0]);
  held_->arrived.arrive_and_wait();
  for (auto& connections : held_->connections) {
    for (HandedConnection& c : connections) handover.connections.push_back(std::move(c));
  }
}

void LineFrontEnd::Release() {
  held_->released.count_down();
  held_.reset();
  workers_[0]->server->Release();
}

void LineFrontEnd::Reload(std::vector<std::string>&) {
  for (const auto& worker : workers_) {
    worker->Do([server = worker->server.get(), timeout = host_.admin.settings().query.idle_timeout] {
      server->set_idle_timeout(timeout);
    });
  }
}

void LineFrontEnd::Count(ProcessCounts& counts) const {
  counts.rejected_full = rejected_full();
  for (const auto& worker : workers_) {
    const StreamCounts& stream = worker->server->counts();
    const QueryCounters& queries = worker->server->counters();
    counts.connections += worker->connections();
    counts.accepted += stream.accepted.Read();
    counts.idle_closed += stream.idle_closed.Read();
    counts.stalled += stream.stalled.Read();
    counts.over_long += queries.over_long.Read();
    counts.spoke_http += queries.spoke_http.Read();
    counts.answered_in += queries.answered_in.Read();
    counts.loop_lag += queries.loop_lag.Read();
  }
}

bool LineFrontEnd::Beat() {
  bool all_alive = true;
  for (const auto& worker : workers_) {
    const std::uint64_t beats = worker->beats.load(std::memory_order_relaxed);
    all_alive = all_alive && (beats != worker->beats_seen || beats == 0);
    worker->beats_seen = beats;
    worker->Do([w = worker.get()] { w->beats.fetch_add(1, std::memory_order_relaxed); });
  }
  return all_alive;
}

void LineFrontEnd::Drain(std::function<void()> done) {
  const auto left = std::make_shared<std::size_t>(workers_.size());    // the main thread's
  const auto drained = [left, done = std::move(done)] {
    if (--*left == 0) done();
  };
  for (const auto& worker : workers_) {
    worker->Do([this, w = worker.get(), drained] {
      w->server->Drain([this, w, drained] {
        w->server->Close();
        if (w->tasks != nullptr) w->tasks->Close();
        host_.tasks.Post(drained);
      });
    });
  }
}

// REQUIRES: it is drained.
void LineFrontEnd::Close() {
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) continue;
    worker->thread.join();
    DT_CHECK(uv_loop_close(worker->own_loop.get()) == 0);
  }
}

}    // namespace dthrottle
