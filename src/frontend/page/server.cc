#include "frontend/page/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "frontend/page/memory.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/readable.h"

namespace dthrottle {

namespace {

// Bounds of a turn, for which queries wait. Turns are WorkerEntries::kSettleEvery apart, so 40,000 entries are looked at
// each second, and 40,000 settled.
constexpr std::size_t kNotesPerTurn = 64;    // of one worker
constexpr std::size_t kLooksPerTurn = 200, kSettlesPerTurn = 200;
constexpr std::size_t kRecallsPerTurn = 500;

SipKey FreshKey() {
  SipKey key;
  FillRandom(std::as_writable_bytes(std::span(key)));
  return key;
}

}    // namespace

struct PageServer::Worker {
  Worker(PageServer& server, int connected, PageMemory made)
      : fd(connected), memory(std::move(made)),
        entries(memory.page(), memory.counts(), memory.entries(), server.lending_),
        notes(server.loop_, fd, [this, &server] { server.OnReadable(*this); }) {}

  const int fd;
  PageMemory memory;
  WorkerEntries entries;
  std::size_t index = 0;    // in workers_
  Readable notes;
};

PageServer::PageServer(uv_loop_t* loop, Limiter& limiter, const Options& options, Log& log)
    : loop_(loop),
      lending_(limiter),
      tag_bytes_max_(options.tag_bytes_max),
      entries_(std::bit_ceil(std::max<std::uint32_t>(options.entries, DTHROTTLE_PAGE_WAYS))),
      log_(log),
      timer_(loop, [this] { OnTimer(); }) {
  lending_.Enable(options.strays);
}

PageServer::~PageServer() {
  DT_CHECK(workers_.empty() && leaving_.empty());
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
  worker->index = workers_.size();
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
  if (!timer_.due_in()) look_at_ = now + WorkerEntries::kLookEvery;
  StartTimer(worker.entries.settles() ? WorkerEntries::kSettleEvery : WorkerEntries::kLookEvery);
  return true;
}

// What the page says ends with the connection: a child of the worker may have it still.
void PageServer::End(Worker& worker) {
  workers_[worker.index] = workers_.back();
  workers_[worker.index]->index = worker.index;
  workers_.pop_back();
  worker.notes.Stop();
  leaving_.push_back(&worker);
  StartTimer(Duration(0));
}

void PageServer::RecallLeaving(Instant now, std::size_t most) {
  while (most > 0 && !leaving_.empty()) {
    Worker& worker = *leaving_.front();
    most -= worker.entries.Recall(now, most);
    if (worker.entries.live() > 0) return;
    leaving_.pop_front();
    Forget(worker);
  }
}

void PageServer::Forget(Worker& worker) {
  ended_.refused += worker.entries.refused();
  ended_.clamped += worker.entries.clamped();
  ::close(worker.fd);
  delete &worker;
}

void PageServer::Recall() {
  while (!workers_.empty()) End(*workers_.back());
  RecallLeaving(Now(), SIZE_MAX);
  timer_.Stop();
}

void PageServer::Close() {
  Recall();
  timer_.Close();
}

// ---- Entries ----

// Leaves a timer alone that fires sooner.
void PageServer::StartTimer(Duration after) {
  if (const auto due = timer_.due_in(); !due || *due > after) timer_.StartOnce(after);
}

void PageServer::OnTimer() {
  const Instant now = Now();
  RecallLeaving(now, kRecallsPerTurn);
  if (to_look_at_ == 0 && now >= look_at_) {
    to_look_at_ = workers_.size();
    look_at_ = now + WorkerEntries::kLookEvery;
  }
  const bool looking = Look(now);
  Settle(now);
  bool live = false, settles = looking || !leaving_.empty();
  for (const Worker* const worker : workers_) {
    live |= worker->entries.live() > 0;
    settles |= worker->entries.settles();
  }
  const Duration left = std::max(look_at_ - now, Duration(0));
  if (settles) return StartTimer(looking ? WorkerEntries::kSettleEvery : std::min(WorkerEntries::kSettleEvery, left));
  if (live) StartTimer(left);
}

// True if the round is not at its end.
bool PageServer::Look(Instant now) {
  for (std::size_t left = kLooksPerTurn; left > 0 && to_look_at_ > 0 && !workers_.empty();) {
    WorkerEntries& entries = workers_[next_ % workers_.size()]->entries;
    left -= entries.Look(now, left);
    if (entries.looking()) return true;
    ++next_, --to_look_at_;
  }
  if (workers_.empty()) to_look_at_ = 0;
  return to_look_at_ > 0;
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
  const auto add = [&counts](const Worker* worker) {
    counts.entries += worker->entries.live();
    counts.refused += worker->entries.refused();
    counts.clamped += worker->entries.clamped();
  };
  std::ranges::for_each(workers_, add);
  std::ranges::for_each(leaving_, add);
  return counts;
}

}    // namespace dthrottle
