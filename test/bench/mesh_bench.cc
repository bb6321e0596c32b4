// What hearing a mesh of hosts costs one of them: the peer thread, ZeroMQ's own and the limiter's loop.
//
//   mesh_bench [PEERS [SECONDS [TAGS [curve]]]]     default 100 peers, 20 s, 10000 tags a second from each
//   mesh_bench peers PEERS TAGS                      only the peers: prints their addresses, and runs until killed
//
// The receiver is all that the daemon has for it: PeerThread, Limiter, Sharing, driven as a loop drives them. The peers
// are another process, whose CPU time does not count: each is a socket that answers a hello and then reports
// the same IPv4 tags once a second, in its own phase; no tag is of two peers. They have the last of the cores that this
// is given, and the receiver the others: on one core they would wash its caches out, which peers elsewhere do not.
// Medians are of the seconds.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bus/codec.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/peer_thread.h"
#include "limiter/limiter.h"
#include "rule/rulebook.h"
#include "share/debit/sharing.h"
#include "share/ways.h"
#include "test/bench/measure.h"
#include "test/bench/usage.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

constexpr Duration kPeriod = 1s, kWarmUp = 4s, kPatience = 30s;
constexpr std::size_t kBytesPerTag = 128;    // of the table
constexpr double kGoalPercent = 10;

struct Options {
  std::size_t peers = 100;
  int seconds = 20;
  std::size_t tags = 10'000;
  bool curve = false;
};

// What the peers tell the receiver before anything else: where they are.
struct Introduction {
  std::uint16_t port;
  std::array<char, kKeyChars> public_key;
};

std::string NameOf(std::size_t peer) {
  return fmt::format("peer-{}.example", peer);
}

// ---- The peers ----

class Peer {
 public:
  Peer(zmq::context_t& context, std::size_t number, const Options& options)
      : socket_(context, zmq::socket_type::router) {
    if (options.curve) keys_ = GenerateKeyPair();
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::sndhwm, static_cast<int>(64 + options.tags / 1000));
    if (options.curve) {
      socket_.set(zmq::sockopt::curve_server, 1);
      socket_.set(zmq::sockopt::curve_secretkey, keys_.secret_key);
    }
    base_.sender = NameOf(number);
    base_.incarnation = 1;
    Prng prng(number + 1);
    for (std::size_t i = 0; i < options.tags; ++i) {
      // Odd multiples of each other's numbers: distinct addresses in no order.
      const auto x = static_cast<std::uint32_t>((number * options.tags + i) * 0x9e3779b1);
      const std::string tag = fmt::format("{}.{}.{}.{}", x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24);
      const auto hits = std::min<std::uint64_t>(1000, ~std::uint64_t{0} / (prng.Next() | 1));
      if (!frames_.empty() && frames_.back().Add({tag}, hits, 0)) continue;
      frames_.emplace_back();
      DT_CHECK(frames_.back().Add({tag}, hits, 0));
    }
  }

  // On the first port from `port` on that is free; moves it behind that.
  Introduction Bind(std::uint16_t& port) {
    while (zmq_bind(socket_.handle(), Url(port).c_str()) != 0) DT_CHECK(++port < 32000);
    Introduction introduction{port++, {}};
    std::copy(keys_.public_key.begin(), keys_.public_key.end(), introduction.public_key.begin());
    return introduction;
  }

  void Publish(Codec& codec, Instant now) {
    if (subscriber_.empty()) return;
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      Message& m = Begin(MessageKind::kReport, now);
      m.sequence = m.ring_low = ++published_;
      m.from = now - kPeriod;
      m.last = i + 1 == frames_.size();
      std::swap(m.entries, frames_[i]);
      codec.Encode(m, encoded_);
      std::swap(m.entries, frames_[i]);
      Send(zmq::message_t(subscriber_));
    }
  }

  // Knows nothing of snapshots and keeps nothing to send again, but says so.
  void Answer(Codec& codec, Instant now) {
    for (zmq::message_t route, body; socket_.recv(route, zmq::recv_flags::dontwait);) {
      if (!socket_.recv(body, zmq::recv_flags::dontwait)) return;
      if (codec.Decode(body.to_string_view(), message_) != DecodeFault::kNone) continue;
      const MessageKind asked = message_.kind;
      if (asked == MessageKind::kHello) subscriber_ = route.to_string();
      const std::uint64_t snapshot = message_.snapshot;
      Message& m = Begin(asked == MessageKind::kHello            ? MessageKind::kWelcome
                         : asked == MessageKind::kSnapshotWanted ? MessageKind::kSnapshotEnd
                                                                 : MessageKind::kGone,
                         now);
      m.snapshot = snapshot;
      if (m.kind != MessageKind::kSnapshotEnd) {
        m.sequence = published_;
        m.ring_low = published_ + 1;
      }
      codec.Encode(m, encoded_);
      Send(std::move(route));
    }
  }

 private:
  static std::string Url(int port) { return fmt::format("tcp://127.0.0.1:{}", port); }

  Message& Begin(MessageKind kind, Instant now) {
    message_ = base_;
    message_.kind = kind;
    message_.to = now;
    if (kind != MessageKind::kSnapshotEnd) message_.period = kPeriod;
    return message_;
  }

  void Send(zmq::message_t route) {
    socket_.send(route, zmq::send_flags::sndmore);
    socket_.send(zmq::buffer(encoded_), zmq::send_flags::dontwait);
  }

  zmq::socket_t socket_;
  std::string subscriber_;    // its route
  KeyPair keys_;
  Message base_, message_;
  std::vector<Entries> frames_;    // of one report
  std::uint64_t published_ = 0;
  std::string encoded_;
};

// Goes on until it is killed. A turn that was slept through is not made up for. `tell` hears of each peer.
template <class Tell>
[[noreturn]] void BePeers(const Options& options, Tell&& tell) {
  zmq::context_t context(1);
  context.set(zmq::ctxopt::max_sockets, static_cast<int>(options.peers + 16));
  std::vector<std::unique_ptr<Peer>> peers;
  std::uint16_t port = static_cast<std::uint16_t>(12000 + ::getpid() % 16000);
  for (std::size_t i = 0; i < options.peers; ++i) {
    peers.push_back(std::make_unique<Peer>(context, i, options));
    tell(peers.back()->Bind(port));
  }
  Codec codec;
  const Duration every = kPeriod / static_cast<std::int64_t>(peers.size());
  Instant at = Now();
  for (std::size_t turn = 0;; ++turn) {
    at = std::max(at + every, Now() - kPeriod);
    while (Now() < at) {
      for (const auto& peer : peers) peer->Answer(codec, Now());
      const auto wait = std::clamp<Duration>(at - Now(), 0s, 20ms);
      ::usleep(static_cast<useconds_t>(wait / 1us));
    }
    peers[turn % peers.size()]->Publish(codec, Now());
  }
}

// ---- The receiver ----

std::shared_ptr<const Rulebook> Rules() {
  std::vector<Rule> rules(1);
  rules[0].name = "default";
  rules[0].burst = 20;
  rules[0].rate = 10;
  return std::make_shared<Rulebook>(std::move(rules), std::vector<Override>());
}

class Receiver {
 public:
  Receiver(const Options& options, const std::vector<Introduction>& peers)
      : region_(MapRegion(options)),
        limiter_(region_.bytes(), {}, {{1, 2}, {}}, Rules(), 1, Now()),
        thread_(ThreadOptions(options, peers)),
        sharing_(limiter_.ways(), thread_.to_peers(), thread_.from_peers(), options.peers, kPeriod, prng_, Now()) {}

  bool Start() {
    const Result<void> started = thread_.Start();
    if (!started) std::fprintf(stderr, "mesh_bench: %s\n", started.error().message.c_str());
    return started.has_value();
  }

  // Does what the daemon's loop does, without queries.
  void RunUntil(Instant end) {
    for (Instant now = Now(); now < end; now = Now()) {
      if (sharing_.Work(now)) continue;
      thread_.Notify();
      wake_.Sleep(std::min(sharing_.next(), end));
    }
  }

  std::size_t PeersUp() const {
    const auto all = thread_.Peers();
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [](const PeerStatus& p) { return p.state == PeerState::kUp; }));
  }
  ExchangeCounts counts() const { return thread_.Counts(); }
  std::uint64_t merged() const { return limiter_.ways().Get<Debits>().peers().counts().entries; }
  std::uint64_t recorded() { return limiter_.table().counts().tags; }

 private:
  static MappedRegion MapRegion(const Options& options) {
    const std::size_t wanted = std::max(Table::kRegionBytesMin, options.peers * options.tags * kBytesPerTag);
    auto region = MappedRegion::Open("", (wanted + 4095) / 4096 * 4096, nullptr);
    DT_CHECK(region.has_value());
    region->UseHugePages([](Duration) { return true; });    // as the daemon does
    return std::move(*region);
  }

  PeerThread::Options ThreadOptions(const Options& options, const std::vector<Introduction>& peers) {
    PeerThread::Options o;
    o.bind = {"127.0.0.1", static_cast<std::uint16_t>(peers.back().port + 1)};
    o.exchange.name = "receiver.example";
    o.exchange.incarnation = 1;
    o.exchange.period = kPeriod;
    o.exchange.version = "bench";
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const std::string key(peers[i].public_key.begin(), peers[i].public_key.end());
      o.connect.push_back(fmt::format("tcp://127.0.0.1:{}{}", peers[i].port, options.curve ? "#" + NameOf(i) : ""));
      if (options.curve) o.authorized.by_name[NameOf(i)] = key, o.authorized.names[key] = NameOf(i);
    }
    if (options.curve) o.keys = GenerateKeyPair();
    o.exchange.identities_proven = options.curve;
    o.wake = wake_.call();
    return o;
  }

  MappedRegion region_;
  Wake wake_;
  Prng prng_{1};
  Limiter limiter_;
  PeerThread thread_;
  Sharing sharing_;
};

int Measure(const Options& options, const std::vector<Introduction>& peers) {
  Receiver receiver(options, peers);
  if (!receiver.Start()) return 1;
  const Instant patience = Now() + kPatience;
  while (receiver.PeersUp() < options.peers && Now() < patience) receiver.RunUntil(Now() + 100ms);
  const std::size_t up = receiver.PeersUp();
  if (up < options.peers) std::printf("NOTE: only %zu of %zu peers came up\n", up, options.peers);
  receiver.RunUntil(Now() + kWarmUp);

  const ExchangeCounts counts_before = receiver.counts();
  const std::uint64_t merged_before = receiver.merged();
  const Spent spent = Spent::While(options.seconds, [&](Instant end) { receiver.RunUntil(end); });
  const double seconds = spent.seconds;
  const ExchangeCounts counts = receiver.counts();
  const auto a_second = [&](std::uint64_t after, std::uint64_t earlier) {
    return static_cast<double>(after - earlier) / seconds;
  };
  const double entries = a_second(counts.received_entries, counts_before.received_entries);
  const double merged = a_second(receiver.merged(), merged_before);
  const double wanted = static_cast<double>(options.peers * options.tags) / Seconds(kPeriod);
  std::printf("%zu peers, %zu tags a second each, %.0f s%s\n", options.peers, options.tags, seconds,
              options.curve ? ", CURVE" : "");
  std::printf("CPU        %.1f %% of a core (%.1f..%.1f), goal for 1 M entries/s: below %.0f %%\n",
              Median(spent.percent), spent.least(), spent.most(), kGoalPercent);
  spent.PrintThreads();
  std::printf("received   %.0f entries/s in %.0f frames, %.2f MB/s; %.0f merged/s; %.1f ns of CPU an entry%s\n",
              entries, a_second(counts.received, counts_before.received),
              a_second(counts.received_bytes, counts_before.received_bytes) / 1e6, merged,
              1e9 * (spent.after.total - spent.before.total) / seconds / entries,
              merged < 0.98 * wanted ? "  NOTE: fewer than were to be sent" : "");
  std::printf("frames     %lu missed, %lu lost, %lu dropped for a backlog, %lu junk\n",
              counts.missed - counts_before.missed, counts.lost - counts_before.lost,
              counts.overflow - counts_before.overflow, counts.junk - counts_before.junk);
  rusage most;
  ::getrusage(RUSAGE_SELF, &most);
  const std::size_t table_kb = std::max(Table::kRegionBytesMin, options.peers * options.tags * kBytesPerTag) / 1024;
  std::printf("memory     %ld MiB, %ld at most, %+ld KiB since the warm-up; %zu MiB of it are the table, of %lu tags\n",
              spent.after.resident_kb / 1024, most.ru_maxrss / 1024, spent.after.resident_kb - spent.before.resident_kb,
              table_kb / 1024, receiver.recorded());
  return up == options.peers ? 0 : 1;
}

}    // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc == 4 && std::string_view(argv[1]) == "peers") {
    options.peers = std::strtoul(argv[2], nullptr, 10);
    options.tags = std::strtoul(argv[3], nullptr, 10);
    BePeers(options, [](const Introduction& peer) {
      std::printf("tcp://127.0.0.1:%u\n", peer.port);
      std::fflush(stdout);
    });
  }
  if (argc > 1) options.peers = std::strtoul(argv[1], nullptr, 10);
  if (argc > 2) options.seconds = std::atoi(argv[2]);
  if (argc > 3) options.tags = std::strtoul(argv[3], nullptr, 10);
  options.curve = argc > 4 && std::string_view(argv[4]) == "curve";
  if (options.peers == 0 || options.seconds <= 0 || options.tags == 0) return 2;

  // Before there are threads: the other process is a copy of this one.
  int ends[2];
  DT_CHECK(::pipe(ends) == 0);
  const pid_t child = ::fork();
  DT_CHECK(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    KeepTo(true);
    BePeers(options, [&](const Introduction& peer) { DT_CHECK(::write(ends[1], &peer, sizeof peer) == sizeof peer); });
  }
  KeepTo(false);
  ::close(ends[1]);
  std::vector<Introduction> peers(options.peers);
  for (Introduction& peer : peers) {
    if (::read(ends[0], &peer, sizeof peer) != sizeof peer) return 1;
  }
  const int status = Measure(options, peers);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return status;
}
