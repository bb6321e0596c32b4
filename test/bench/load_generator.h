// The closed loop: one thread that keeps a number of connections asking, and counts what they are told.
//
// Each connection writes `depth` requests at once, awaits all their replies, and writes the next. So the
// service sees a steady number of applications that wait, and `depth` requests for each read.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "load_latency.h"
#include "load_protocol.h"
#include "load_requests.h"
#include "load_target.h"

namespace dthrottle::bench {

inline constexpr std::uint64_t kSecondNs = 1'000'000'000;
inline constexpr std::uint64_t kPreloadLimitNs = 120 * kSecondNs;
inline constexpr std::uint64_t kLastRepliesLimitNs = 5 * kSecondNs;    // once no more is asked
inline constexpr std::size_t kPreloadDepth = 64;
inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

inline std::uint64_t ToNs(double seconds) {
  return static_cast<std::uint64_t>(seconds * 1e9);
}

struct Connection {
  int fd = -1;    // negative once given up
  bool at_work = false;
  Requests::Slice batch{};
  std::size_t awaited = 0;    // replies still to come
  std::uint64_t asked_at_ns = 0;
  std::string_view unsent;    // what the socket did not take yet
  std::string creates;        // second requests, for tags that were absent
  std::size_t creates_count = 0;
  bool creating = false;             // the replies awaited are to `creates`
  std::size_t received_bytes = 0;    // of an unfinished reply line, at the front of `received`
  std::array<char, 4096> received;
};

struct Counts {
  std::uint64_t allowed = 0;
  std::uint64_t denied = 0;
  std::uint64_t created = 0;    // decisions that took a second request
  std::uint64_t errors = 0;     // replies that were wrong, missing or not asked for

  std::uint64_t decisions() const { return allowed + denied; }
};

class Generator {
 public:
  Generator(const Protocol& protocol, std::uint64_t tags)
      : protocol_(protocol), requests_(protocol.ask, tags), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) Die("cannot create an epoll instance");
  }

  void Open(const std::string& target, std::size_t connections) {
    for (std::size_t i = 0; i < connections; ++i) {
      Connection& c = connections_.emplace_back();
      c.fd = Connect(target);
      fcntl(c.fd, F_SETFL, O_NONBLOCK);
      epoll_event interest{.events = EPOLLIN, .data = {.ptr = &c}};
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &interest) != 0) Die("cannot watch a socket");
    }
  }

  // Asks once for every tag, in the order in which they were made.
  void Preload() {
    Start(requests_.count(), kPreloadDepth);
    RunUntil(NowNs() + kPreloadLimitNs);
    if (busy_ > 0) Die("the preload pass did not end within its time");
  }

  // REQUIRES: no connection is at work.
  void Shuffle() { requests_.Shuffle(); }

  // Sets every connection to work, until `budget` requests were asked. REQUIRES: none is at work.
  void Start(std::uint64_t budget, std::size_t depth) {
    budget_ = budget;
    depth_ = depth;
    for (Connection& c : connections_) {
      if (c.fd < 0) continue;
      c.at_work = true;
      ++busy_;
      BeginBatch(c);
    }
  }

  // Handles what arrives, until `deadline_ns` or until no connection is at work.
  void RunUntil(std::uint64_t deadline_ns) {
    std::array<epoll_event, 256> events;
    for (std::uint64_t now = NowNs(); busy_ > 0 && now < deadline_ns; now = NowNs()) {
      const auto wait_ms = static_cast<int>((deadline_ns - now) / 1'000'000 + 1);
      const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms);
      for (int i = 0; i < ready; ++i) {
        Connection& c = *static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (!c.unsent.empty()) Send(c, c.unsent);
        if (c.fd >= 0) Receive(c);
      }
    }
  }

  // Latencies since the last call.
  LatencyHistogram TakeLatency() { return std::exchange(latency_, {}); }

  // Asks no more and awaits what is outstanding. What does not come is an error.
  void Finish() {
    budget_ = 0;
    RunUntil(NowNs() + kLastRepliesLimitNs);
    for (Connection& c : connections_) {
      if (c.awaited > 0) Abandon(c);
    }
  }

  const Counts& counts() const { return counts_; }    // since the start

 private:
  void BeginBatch(Connection& c) {
    if (budget_ == 0) return Rest(c);
    c.batch = requests_.Take(std::min<std::uint64_t>(depth_, budget_));
    budget_ -= c.batch.count;
    c.awaited = c.batch.count;
    c.asked_at_ns = NowNs();
    Send(c, {c.batch.first, c.batch.count * requests_.request_bytes()});
  }

  // Writes what the socket takes; the rest follows when it is writable again.
  void Send(Connection& c, std::string_view bytes) {
    const ssize_t sent = send(c.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return Abandon(c);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (bytes.empty() != c.unsent.empty()) {
      epoll_event interest{.events = bytes.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT, .data = {.ptr = &c}};
      epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &interest);
    }
    c.unsent = bytes;
  }

  void Receive(Connection& c) {
    const ssize_t got = recv(c.fd, c.received.data() + c.received_bytes, c.received.size() - c.received_bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Abandon(c);
    std::string_view bytes(c.received.data(), c.received_bytes + static_cast<std::size_t>(got));
    std::uint64_t decided = 0;
    for (auto lf = bytes.find('\n'); lf != bytes.npos; lf = bytes.find('\n')) {
      if (c.awaited == 0) return Abandon(c);
      const auto decision = Judge(c, bytes.substr(0, lf));
      if (!decision) {
        if (counts_.errors == 0) fmt::print(stderr, "dthrottle-load: wrong reply: '{}'\n", bytes.substr(0, lf));
        return Abandon(c);
      }
      decided += *decision;
      bytes.remove_prefix(lf + 1);
    }
    if (bytes.size() == c.received.size()) return Abandon(c);    // no reply is that long
    std::copy(bytes.begin(), bytes.end(), c.received.begin());
    c.received_bytes = bytes.size();
    if (decided > 0) latency_.Record(NowNs() - c.asked_at_ns, decided);
    if (c.awaited == 0) EndBatch(c);
  }

  // Counts one reply and says how many decisions it made: 0 where the tag must be created first, nothing if
  // wrong.
  std::optional<std::uint64_t> Judge(Connection& c, std::string_view line) {
    const Request& asked = c.creating ? protocol_.create : protocol_.ask;
    const std::size_t index = c.batch.count - c.awaited;
    switch (asked.judge(line)) {
      case Reply::kAllowed:
        ++counts_.allowed;
        break;
      case Reply::kDenied:
        ++counts_.denied;
        break;
      case Reply::kAbsent:
        c.creates += protocol_.create.around.front();
        c.creates += requests_.TagOf(c.batch, index);
        c.creates += protocol_.create.around.back();
        ++c.creates_count;
        --c.awaited;
        return 0;
      case Reply::kWrong:
        return std::nullopt;
    }
    --c.awaited;
    return 1;
  }

  void EndBatch(Connection& c) {
    if (c.creates_count > 0 && !c.creating) {
      c.creating = true;
      c.awaited = c.creates_count;
      counts_.created += c.creates_count;
      return Send(c, c.creates);
    }
    c.creating = false;
    c.creates.clear();
    c.creates_count = 0;
    BeginBatch(c);
  }

  // A connection whose replies cannot be told apart any more is given up, and all it awaited is an error.
  void Abandon(Connection& c) {
    counts_.errors += std::max<std::size_t>(c.awaited + (c.creating ? 0 : c.creates_count), 1);
    close(c.fd);
    c.fd = -1;
    c.awaited = 0;
    c.unsent = {};
    Rest(c);
  }

  void Rest(Connection& c) {
    if (c.at_work) --busy_;
    c.at_work = false;
  }

  const Protocol protocol_;
  Requests requests_;
  const int epoll_;
  std::deque<Connection> connections_;    // addresses must hold: epoll keeps them
  std::size_t busy_ = 0;                  // connections at work
  std::uint64_t budget_ = 0;              // requests still to be asked
  std::size_t depth_ = 1;
  Counts counts_;
  LatencyHistogram latency_;
};

}    // namespace dthrottle::bench
