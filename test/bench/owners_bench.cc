// What one host, and one owner, of a large fleet with owners costs (protocol/owners.md): its peer thread, ZeroMQ's own
// and the limiter's loop.
//
//   owners_bench [HOSTS [OWNERS [TAGS [SECONDS [LOAD]]]]]    default 250 hosts, 8 owners, 1000 tags, 20 s, load 0.5
//
// Every host asks for each of the same tags once a second, LOAD times what their limit allows. Everything is what the
// daemon has for it: PeerThread, Limiter, Sharing, over real connections without keys. The others are another process,
// whose CPU time does not count, on the last of the cores. First an owner is measured, with all hosts, each of which
// asks for its part of the tags only; then a host, with all owners and three more hosts, and beside it what the same
// questions cost it where nothing is shared. The goals are those of 1,000 hosts; a host takes some 25 descriptors here,
// and the others a core for 250 hosts or so.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
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

constexpr Duration kPeriod = 1s, kSlice = 10ms, kWarmUp = 10s, kPatience = 60s;
constexpr std::size_t kOtherHosts = 3;    // beside the host that is measured

struct Options {
  std::size_t hosts = 250, owners = 8, tags = 1000;
  int seconds = 20;
  double load = 0.5;
};

// A fleet of which this process has some nodes.
struct Plan {
  std::vector<std::string> owners;
  std::vector<std::uint16_t> ports;    // of the owners
  std::size_t hosts, tags;
  std::shared_ptr<const Rulebook> rules;

  Plan(std::size_t hosts_in_all, std::size_t owners_in_all, std::size_t tags_asked, double load)
      : hosts(hosts_in_all), tags(tags_asked) {
    for (std::size_t i = 0; i < owners_in_all; ++i) owners.push_back(fmt::format("owner-{}.example", i));
    Rule rule;
    rule.name = "default";
    rule.share = Share::kForecast;
    rule.rate = static_cast<double>(hosts) / load;
    rule.burst = 2 * rule.rate;
    rules = std::make_shared<Rulebook>(std::vector<Rule>{rule}, std::vector<Override>());
  }
};

std::uint16_t FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  DT_CHECK(::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  DT_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

class Node {
 public:
  // An owner asks for nothing.
  Node(const Plan& plan, std::string name, std::uint16_t port, bool asks)
      : plan_(plan),
        name_(std::move(name)),
        asks_(asks),
        region_(*MappedRegion::Open("", Table::kRegionBytesMin, nullptr)),
        limiter_(region_.bytes(), {}, {{1, 2}, {}}, plan.rules, 1, Now()),
        thread_(ThreadOptions(port)) {
    limiter_.ways().WatchTags(10'000, wake_.call());
  }

  void Start() {
    const Result<void> started = thread_.Start();
    if (!started) std::fprintf(stderr, "owners_bench: %s\n", started.error().message.c_str());
    DT_CHECK(started.has_value());
    sharing_ = std::make_unique<Sharing>(limiter_.ways(), thread_.to_peers(), thread_.from_peers(), plan_.owners.size(),
                                         kPeriod, prng_, Now());
    sharing_->OwnedBy(thread_.owners_at_start(), name_);
    sharing_->HoldHits();
    first_ = prng_.Below(plan_.tags);
    begun_ = Now();
  }

  // Asks for what is due, and does what the daemon's loop does once. Returns when to call again unless it is woken.
  Instant Turn(Instant now) {
    if (asks_) Ask(now);
    const bool was_full = thread_.from_peers().full();
    while (sharing_->Work(now)) now = Now();
    if (was_full || !thread_.to_peers().empty()) thread_.Notify();
    return sharing_->next();
  }

  // As the daemon's loop does.
  void RunUntil(Instant end) {
    for (Instant now = Now(); now < end; now = Now()) {
      const Instant next = asks_ ? std::min(Turn(now), now + kSlice) : Turn(now);
      wake_.Sleep(std::min(next, end));
    }
  }

  // Asks as a host does that is in no fleet.
  void OnlyAskUntil(Instant end) {
    for (Instant now = Now(); now < end; now = Now()) {
      Ask(now);
      wake_.Sleep(std::min(now + kSlice, end));
    }
  }

  ExchangeCounts counts() const { return thread_.Counts(); }

 private:
  PeerThread::Options ThreadOptions(std::uint16_t port) {
    PeerThread::Options o;
    o.bind = {"127.0.0.1", port};
    for (std::size_t i = 0; i < plan_.owners.size(); ++i) {
      if (plan_.owners[i] != name_) o.connect.push_back(fmt::format("tcp://127.0.0.1:{}", plan_.ports[i]));
    }
    o.exchange.name = name_;
    o.exchange.incarnation = 1;
    o.exchange.version = "bench";
    o.exchange.period = kPeriod;
    o.exchange.fresh_table = true;
    o.exchange.account = limiter_.ways().Get<Debits>().account();
    o.exchange.owners = std::make_shared<const Owners>(plan_.owners);
    o.wake = wake_.call();
    return o;
  }

  // Each tag once a second, evenly.
  void Ask(Instant now) {
    const auto due = static_cast<std::uint64_t>(Seconds(now - begun_) * static_cast<double>(plan_.tags));
    for (; asked_ < due; ++asked_) {
      const std::size_t tag = (first_ + asked_) % plan_.tags;
      const std::string text = fmt::format("198.51.{}.{}", tag / 256, tag % 256);
      const Query query{{text, false}};
      Verdict verdict;
      limiter_.Answer({&query, 1}, {&verdict, 1}, 0, prng_, now);
    }
  }

  const Plan& plan_;
  const std::string name_;
  const bool asks_;
  MappedRegion region_;
  Wake wake_;
  Prng prng_{static_cast<std::uint64_t>(::getpid()) ^ reinterpret_cast<std::uintptr_t>(this)};
  Limiter limiter_;
  PeerThread thread_;
  std::unique_ptr<Sharing> sharing_;
  std::size_t first_ = 0;
  std::uint64_t asked_ = 0;
  Instant begun_{};
};

// Goes on until it is killed.
[[noreturn]] void BeOthers(const Plan& plan, const std::vector<std::size_t>& owners, std::size_t hosts) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (const std::size_t i : owners) {
    nodes.push_back(std::make_unique<Node>(plan, plan.owners[i], plan.ports[i], false));
    nodes.back()->Start();
  }
  for (std::size_t i = 0; i < hosts; ++i) {
    nodes.push_back(std::make_unique<Node>(plan, fmt::format("host-{}.example", i), FreePort(), true));
    nodes.back()->Start();
  }
  for (;; ::usleep(2000)) {
    for (const auto& node : nodes) node->Turn(Now());
  }
}

void Measure(const char* what, const char* goal, Node& node, std::size_t callers, std::size_t connections,
             const Options& options) {
  node.Start();
  const Instant patience = Now() + kPatience;
  const auto hears = [&] { return node.counts().received > 0; };
  while (!hears() && Now() < patience) node.RunUntil(Now() + 100ms);
  node.RunUntil(Now() + kWarmUp);
  const ExchangeCounts earlier = node.counts();
  const Spent spent = Spent::While(options.seconds, [&](Instant end) { node.RunUntil(end); });
  const ExchangeCounts counts = node.counts();
  const auto a_second = [&](std::uint64_t ExchangeCounts::*count) {
    return static_cast<double>(counts.*count - earlier.*count) / spent.seconds;
  };
  std::printf("%-6s CPU %.2f %% of a core (%.2f..%.2f), %.1f kB/s; goal %s; %zu connections\n", what,
              Median(spent.percent), spent.least(), spent.most(),
              (a_second(&ExchangeCounts::received_bytes) + a_second(&ExchangeCounts::published_bytes)) / 1e3, goal,
              connections);
  spent.PrintThreads();
  std::printf("  in    %.0f frames, %.0f entries a second, %lu missed, %lu lost, %lu dropped for a backlog, %lu junk\n",
              a_second(&ExchangeCounts::received), a_second(&ExchangeCounts::received_entries),
              counts.missed - earlier.missed, counts.lost - earlier.lost, counts.overflow - earlier.overflow,
              counts.junk - earlier.junk);
  if (counts.callers < callers) std::printf("  NOTE: only %lu of %zu hosts are heard\n", counts.callers, callers);
  std::printf("  out   %.0f frames, %.0f entries a second\n", a_second(&ExchangeCounts::published),
              a_second(&ExchangeCounts::published_entries));
  std::fflush(stdout);
}

// Before there are threads: the other process is a copy of this one.
template <class Body>
pid_t Beside(Body&& body) {
  const pid_t child = ::fork();
  DT_CHECK(child >= 0);
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  KeepTo(true);
  body();
  std::_Exit(1);
}

// In a process of its own, so that the next one begins without threads.
template <class Others, class Body>
void Run(Others&& others, Body&& body) {
  const pid_t pid = ::fork();
  DT_CHECK(pid >= 0);
  if (pid == 0) {
    const pid_t child = Beside(others);
    KeepTo(false);
    body();
    ::kill(child, SIGKILL);
    std::_Exit(0);
  }
  int status;
  ::waitpid(pid, &status, 0);
}

}    // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc > 1) options.hosts = std::strtoul(argv[1], nullptr, 10);
  if (argc > 2) options.owners = std::strtoul(argv[2], nullptr, 10);
  if (argc > 3) options.tags = std::strtoul(argv[3], nullptr, 10);
  if (argc > 4) options.seconds = std::atoi(argv[4]);
  if (argc > 5) options.load = std::atof(argv[5]);
  if (options.hosts == 0 || options.owners == 0 || options.tags < options.owners || options.seconds <= 0) return 2;
  const rlimit files{64 * options.hosts + 1024, 64 * options.hosts + 1024};
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) std::printf("NOTE: open files are not raised to %lu\n", files.rlim_cur);
  std::printf("%zu hosts, %zu owners, %zu tags asked for by each host once a second, %gx their limit\n", options.hosts,
              options.owners, options.tags, options.load);
  std::fflush(stdout);

  Plan one(options.hosts, 1, options.tags / options.owners, options.load);
  one.ports.push_back(FreePort());
  Run([&] { BeOthers(one, {}, options.hosts); },
      [&] {
        Node owner(one, one.owners[0], one.ports[0], false);
        Measure("owner", "10 %, 2500 kB/s", owner, options.hosts, options.hosts, options);
      });

  // Owners count as hosts in what is each one's part of a limit.
  Plan all(kOtherHosts + 1 + options.owners, options.owners, options.tags, options.load);
  std::vector<std::size_t> owners(options.owners);
  for (std::size_t i = 0; i < owners.size(); ++i) owners[i] = i, all.ports.push_back(FreePort());
  Run([&] { BeOthers(all, owners, kOtherHosts); },
      [&] {
        Node host(all, "host.example", FreePort(), true);
        Measure("host", "0.5 %, 50 kB/s", host, 0, options.owners, options);
        const Spent asking = Spent::While(options.seconds, [&](Instant end) { host.OnlyAskUntil(end); });
        std::printf("its questions alone, without a fleet\n");
        asking.PrintThreads();
        std::fflush(stdout);
      });
  return 0;
}
