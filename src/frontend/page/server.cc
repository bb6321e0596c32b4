#include "frontend/page/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/check.h"
#include "frontend/page/memory.h"
#include "io/clock.h"
#include "io/files.h"

namespace dthrottle {

namespace {

constexpr std::size_t kNotesPerTurn = 64;      // of one worker
constexpr std::size_t kLooksPerTurn = 4096;    // half a millisecond; the rest is looked at in the next turns
constexpr std::size_t kSettlesPerTurn = 200;   // 40,000 a second, less than a hundredth of a core

SipKey FreshKey() {
  SipKey key;
  FillRandom(std::as_writable_bytes(std::span(key)));
  return key;
}

}    // namespace

struct PageServer::Worker {
  Worker(PageServer& its, int connected, PageMemory made)
      : server(its), fd(connected), memory(std::move(made)),
        entries(memory.page(), memory.counts(), memory.entries(), its.lending_) {}

  PageServer& server;
  const int fd;
  PageMemory memory;
  WorkerEntries entries;
  std::size_t index = 0;    // in workers_
  uv_poll_t poll;
};

PageServer::PageServer(uv_loop_t* loop, Limiter& limiter, const Options& options, Log& log)
    : loop_(loop),
      lending_(limiter),
      tag_bytes_max_(options.tag_bytes_max),
      entries_(std::bit_ceil(std::max<std::uint32_t>(options.entries, DTHROTTLE_PAGE_WAYS))),
      log_(log) {
  uv_timer_init(loop, &timer_);
  timer_.data = this;
  lending_.Enable(options.strays);
}

PageServer::~PageServer() {
  DT_CHECK(workers_.empty());
}

// ---- Connections ----

// A worker that gets no page asks as ever.
void PageServer::Take(int fd) {
  auto memory = PageMemory::Make(entries_, FreshKey());
  if (!memory || !memory->SendTo(fd, Now().time_since_epoch().count())) {
    ++ended_.failed;
    if (!memory) log_.Warning("page: cannot be made: {}", memory.error().message);
    ::close(fd);
    return;
  }
  auto worker = std::make_unique<Worker>(*this, fd, std::move(*memory));
  DT_CHECK(uv_poll_init(loop_, &worker->poll, fd) == 0);
  worker->poll.data = worker.get();
  worker->index = workers_.size();
  uv_poll_start(&worker->poll, UV_READABLE, [](uv_poll_t* poll, int, int) {
    auto& its = *static_cast<Worker*>(poll->data);
    its.server.OnReadable(its);
  });
  workers_.push_back(worker.release());
  ++ended_.accepted;
}

void PageServer::OnReadable(Worker& worker) {
  const Instant now = Now();
  for (std::size_t i = 0; i < kNotesPerTurn; ++i) {
    if (!Hear(worker, now)) break;
  }
}

// False: there is nothing more, or the worker has left.
bool PageServer::Hear(Worker& worker, Instant now) {
  std::array<char, DTHROTTLE_PAGE_TAG_BYTES_MAX + 1> note;
  const ssize_t n = ::recv(worker.fd, note.data(), note.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    End(worker);
    return false;
  }
  const std::string_view tag(note.data(), static_cast<std::size_t>(n));
  if (tag.size() > tag_bytes_max_ || tag.find('\n') != tag.npos || tag.ends_with('\r')) {
    ++ended_.strange;
    return true;
  }
  ++ended_.notes;
  worker.entries.Note(tag, now);
  if (worker.entries.live() == 0) return true;
  if (!uv_is_active(reinterpret_cast<uv_handle_t*>(&timer_))) look_at_ = now + WorkerEntries::kLookEvery;
  StartTimer(worker.entries.settles() ? WorkerEntries::kSettleEvery : WorkerEntries::kLookEvery);
  return true;
}

// What the page says ends with the connection: a child of the worker may have it still.
void PageServer::End(Worker& worker) {
  worker.entries.Recall(Now());
  ended_.refused += worker.entries.refused();
  ended_.clamped += worker.entries.clamped();
  workers_[worker.index] = workers_.back();
  workers_[worker.index]->index = worker.index;
  workers_.pop_back();
  uv_close(reinterpret_cast<uv_handle_t*>(&worker.poll), [](uv_handle_t* handle) {
    const std::unique_ptr<Worker> its(static_cast<Worker*>(handle->data));
    ::close(its->fd);
  });
}

void PageServer::Recall() {
  while (!workers_.empty()) End(*workers_.back());
  uv_timer_stop(&timer_);
}

void PageServer::Close() {
  Recall();
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

// ---- Entries ----

// Leaves a timer alone that fires sooner.
void PageServer::StartTimer(Duration after) {
  const auto on_timer = [](uv_timer_t* timer) { static_cast<PageServer*>(timer->data)->OnTimer(); };
  const auto ms = static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(after).count());
  const bool active = uv_is_active(reinterpret_cast<uv_handle_t*>(&timer_)) != 0;
  if (!active || uv_timer_get_due_in(&timer_) > ms) uv_timer_start(&timer_, on_timer, ms, 0);
}

void PageServer::OnTimer() {
  const Instant now = Now();
  if (now >= look_at_) {
    Look(now);
    look_at_ = now + WorkerEntries::kLookEvery;
  } else {
    Settle(now);
  }
  bool live = false, settles = false;
  for (const Worker* const worker : workers_) {
    live |= worker->entries.live() > 0;
    settles |= worker->entries.settles();
  }
  const Duration left = look_at_ - now;
  if (live) StartTimer(settles ? std::min(WorkerEntries::kSettleEvery, left) : left);
}

void PageServer::Look(Instant now) {
  std::size_t looks = 0;
  for (std::size_t i = 0; i < workers_.size() && looks < kLooksPerTurn; ++i) {
    WorkerEntries& entries = workers_[next_++ % workers_.size()]->entries;
    looks += entries.live();
    entries.Look(now);
  }
}

void PageServer::Settle(Instant now) {
  std::size_t left = kSettlesPerTurn;
  for (std::size_t i = 0; i < workers_.size() && left > 0; ++i) {
    left -= workers_[next_settled_++ % workers_.size()]->entries.Settle(now, left);
  }
}

PageCounts PageServer::counts() const {
  PageCounts counts = ended_;
  counts.served = lending_.served();
  for (const Worker* const worker : workers_) {
    counts.entries += worker->entries.live();
    counts.refused += worker->entries.refused();
    counts.clamped += worker->entries.clamped();
  }
  return counts;
}

}    // namespace dthrottle
