// Hosts on loopback for the tests of the transport: peer threads, and what stands in for their limiters.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "io/clock.h"
#include "io/files.h"
#include "io/peer_thread.h"

namespace dthrottle::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline int Listen(std::uint16_t port, int type = SOCK_STREAM) {
  const int fd = ::socket(AF_INET, type | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (type == SOCK_STREAM) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0 && (type != SOCK_STREAM || ::listen(fd, 16) == 0))
    return fd;
  ::close(fd);
  return -1;
}

// A port that is free, outside the range of outgoing connections.
inline std::uint16_t FreePort() {
  static std::set<unsigned> given;
  for (;;) {
    std::uint16_t port;
    FillRandom(std::as_writable_bytes(std::span(&port, 1)));
    port = static_cast<std::uint16_t>(12000 + port % 18000);
    const int fd = Listen(port);
    if (fd >= 0) ::close(fd);
    if (fd >= 0 && given.insert(port).second) return port;
  }
}

inline std::string Url(unsigned port, const std::string& rest = "") {
  return fmt::format("tcp://127.0.0.1:{}{}", port, rest);
}

// A connected TCP socket.
inline int Dial(unsigned port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  return fd;
}

inline long ResidentKb() {
  long size = 0, pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &size, &pages) != 2) pages = 0;
  std::fclose(file);
  return pages * (::sysconf(_SC_PAGESIZE) / 1024);
}

struct TemporaryFolder {
  TemporaryFolder() {
    char name[] = "/tmp/dthrottle-io-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

class Node {
 public:
  static constexpr Duration kPeriod = milliseconds(100);

  Node(std::string name, std::uint16_t p, std::vector<std::string> connect) : port(p) {
    options.bind = {"127.0.0.1", p};
    options.connect = std::move(connect);
    options.exchange.name = std::move(name);
    options.exchange.period = kPeriod;
    options.exchange.version = "test";
    options.seed = p;
    options.log = [this](LogLevel, std::string text) {
      const std::lock_guard lock(mutex_);
      log_ += text + "\n";
    };
  }

  ~Node() { thread.reset(); }    // it may log until it has ended

  void WithKeys(const KeyPair& keys, AuthorizedKeys authorized) {
    options.keys = keys;
    options.authorized = std::move(authorized);
    options.exchange.identities_proven = true;
  }

  Result<void> Start() {
    options.exchange.incarnation = static_cast<std::uint64_t>(Now().time_since_epoch().count());
    thread = std::make_unique<PeerThread>(options);
    from_ = Now();
    return thread->Start();
  }

  // What a limiter does: takes debits, answers for the table, and closes a period when it is over.
  void Pump() {
    const Instant now = Now();
    for (FromPeers item; thread->from_peers().TryPop(item);) {
      if (item.kind == FromPeers::Kind::kDebits) {
        for (const Entry& e : item.entries.list()) heard[std::string(item.entries.tag(e).bytes)] = item.to;
      } else if (item.kind == FromPeers::Kind::kHostBarred) {
        barred.push_back(item.peer);
      } else if (item.kind == FromPeers::Kind::kSnapshotWanted) {
        for (const auto kind : {ToPeers::Kind::kSnapshotBegin, ToPeers::Kind::kSnapshotEnd}) {
          ToPeers part;
          part.kind = kind;
          part.from = part.to = now;
          part.snapshot = item.snapshot;
          thread->to_peers().TryPush(std::move(part));
        }
      }
    }
    if (now - from_ >= kPeriod) PushPeriod(now);
    thread->Notify();
  }

  void Hit(const std::string& tag) { hits_.insert(tag); }    // once a period

  void PushPeriod(Instant now = Now()) {
    if (!hits_.empty()) {
      ToPeers item;
      item.kind = ToPeers::Kind::kHits;
      item.from = from_;
      item.to = now;
      for (const std::string& tag : std::exchange(hits_, {})) item.entries.Add({tag}, 1, 0);
      REQUIRE(thread->to_peers().TryPush(std::move(item)));
    }
    ToPeers end;
    end.kind = ToPeers::Kind::kPeriodEnd;
    end.from = from_;
    end.to = from_ = now;
    thread->to_peers().TryPush(std::move(end));
  }

  PeerStatus Peer(std::size_t i = 0) const {
    const auto peers = thread->Peers();
    return i < peers.size() ? peers[i] : PeerStatus{};
  }
  bool Up(std::size_t i = 0) const { return Peer(i).state == PeerState::kUp; }

  std::string Log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  const std::uint16_t port;
  PeerThread::Options options;
  std::unique_ptr<PeerThread> thread;
  std::vector<std::uint32_t> barred;       // numbers of hosts whose key was removed
  std::map<std::string, Instant> heard;    // when the interval ended that a tag's last hit came in

 private:
  Instant from_{};
  std::set<std::string> hits_;
  std::mutex mutex_;
  std::string log_;
};

// Lets the hosts go on until `done`, at most as long as `limit`. How long it took, or none.
inline std::optional<Duration> Until(const std::vector<Node*>& nodes, const std::function<bool()>& done,
                                     Duration limit = seconds(60)) {
  const Instant from = Now();
  while (Now() - from < limit) {
    for (Node* node : nodes) {
      if (node->thread) node->Pump();
    }
    if (done()) return Now() - from;
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (Node* node : nodes) UNSCOPED_INFO(node->options.exchange.name << ":\n" << node->Log());
  return std::nullopt;
}

inline void For(const std::vector<Node*>& nodes, Duration time) {
  Until(
      nodes, [] { return false; }, time);
}

}    // namespace dthrottle::testing
