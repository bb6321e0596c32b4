// What it costs to hear a report: decode it, hand it over, debit its entries. And how long the limiter's loop stands
// still for it at most, when queries wait behind a slice of Sharing::Work.
//
//   merge_bench [TAGS]     default a million IPv4 tags, 128 bytes of table for each
//
// One thread does what the peer thread and the limiter's thread do, a few frames at a time, and each one's share is
// timed by itself. The daemon wishes for huge pages and gets them unless its table is a file on most file systems, so
// both are shown. CPU time, medians of the rounds; for the longest slice the worst of the rounds as well.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bus/codec.h"
#include "limiter/limiter.h"
#include "rule/rulebook.h"
#include "share/debit/sharing.h"
#include "share/ways.h"
#include "test/bench/measure.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

constexpr int kRounds = 7;
constexpr std::size_t kPeers = 99;
constexpr std::size_t kRingItems = 256;
constexpr std::size_t kFramesAtOnce = 16;    // of one sender's report, before the limiter's thread looks
constexpr std::size_t kQueriesAtOnce = 64;

std::vector<std::string> Ipv4Tags(std::size_t n) {
  Prng prng(1);
  std::unordered_set<std::uint32_t> taken;
  std::vector<std::string> tags;
  while (tags.size() < n) {
    const auto x = static_cast<std::uint32_t>(prng.Next());
    if (!taken.insert(x).second) continue;
    char text[16];
    std::snprintf(text, sizeof text, "%u.%u.%u.%u", x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24);
    tags.emplace_back(text);
  }
  return tags;
}

// A few rules that look at the tag before the one that takes it.
std::shared_ptr<const Rulebook> Rules() {
  std::vector<Rule> rules(4);
  const char* const names[] = {"login", "search", "crawler", "default"};
  const char* const matches[] = {"login:*", "search:*", "*.example.com"};
  for (std::size_t i = 0; i < rules.size(); ++i) {
    rules[i].name = names[i];
    if (i + 1 < rules.size()) rules[i].match = matches[i];
    rules[i].burst = 20;
    rules[i].rate = 10;
  }
  return std::make_shared<Rulebook>(std::move(rules), std::vector<Override>());
}

// One host's table and the two rings.
class Host {
 public:
  Host(std::size_t bytes, bool huge_pages, Instant now)
      : region_(Map(bytes, huge_pages)),
        limiter_(region_, {}, {{1, 2}, {}}, Rules(), 1, now),
        sharing_(limiter_.ways(), to_peers_, from_peers_, kPeers, 1s, prng_, now) {
    while (limiter_.Tick(now)) {}    // what a daemon does in its idle time
  }
  ~Host() { munmap(region_.data(), region_.size()); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Asked for once each, so that it is recorded and has something to report.
  void Query(const std::vector<std::string>& tags, Instant now) {
    std::vector<dthrottle::Query> queries;
    std::vector<Verdict> verdicts(kQueriesAtOnce);
    for (std::size_t i = 0; i < tags.size(); i += queries.size()) {
      queries.clear();
      for (std::size_t k = i; k < std::min(i + kQueriesAtOnce, tags.size()); ++k) queries.push_back({{tags[k]}});
      limiter_.Answer(queries, std::span(verdicts).first(queries.size()), 0, prng_, now);
    }
  }

  void Push(FromPeers&& item) { DT_CHECK(from_peers_.TryPush(std::move(item))); }

  // Works until there is nothing left to do, as a loop that has no queries. What comes out is counted and forgotten,
  // outside the clock.
  void Work(Instant now) {
    for (bool more = true; more;) {
      const double start = CpuSeconds();
      more = sharing_.Work(now);
      const double took = CpuSeconds() - start;
      spent += took;
      longest = std::max(longest, took);
      ++slices;
      for (ToPeers item; to_peers_.TryPop(item);) entries_out += item.entries.size();
    }
  }

  void Reset() { spent = longest = 0, slices = entries_out = 0; }

  Limiter& limiter() { return limiter_; }
  Instant report_at() const { return sharing_.next(); }

  double spent = 0, longest = 0;    // seconds
  std::size_t slices = 0, entries_out = 0;

 private:
  static std::span<std::byte> Map(std::size_t bytes, bool huge_pages) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DT_CHECK(p != MAP_FAILED);
    madvise(p, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return {static_cast<std::byte*>(p), bytes};
  }

  Prng prng_{1};
  ToPeersRing to_peers_{kRingItems};
  FromPeersRing from_peers_{kRingItems};
  std::span<std::byte> region_;
  Limiter limiter_;
  Sharing sharing_;
};

std::vector<std::string> Frames(const std::vector<std::string>& tags, MessageKind kind, Instant from, Instant to) {
  Prng prng(2);
  Message m;
  const auto begin = [&](std::uint64_t sequence) {
    m.Clear();
    m.kind = kind;
    m.sender = "web-1.example";
    m.incarnation = 1'700'000'000'000'000;
    m.sequence = sequence;
    m.from = from;
    m.to = to;
    if (kind == MessageKind::kReport) m.period = 1s;
  };
  Codec codec;
  std::vector<std::string> frames;
  begin(1);
  for (const std::string& tag : tags) {
    const bool hits = kind == MessageKind::kReport;
    const std::uint64_t value =
        hits ? std::min<std::uint64_t>(1'000'000, ~std::uint64_t{0} / (prng.Next() | 1)) : prng.Below(2'000'000) + 1;
    if (m.entries.Add({tag}, value, 0)) continue;
    codec.Encode(m, frames.emplace_back());
    begin(frames.size() + 1);
    DT_CHECK(m.entries.Add({tag}, value, 0));
  }
  codec.Encode(m, frames.emplace_back());
  return frames;
}

struct Figures {
  std::vector<double> peer_ns, merge_ns, slice_ns, longest_us;

  void Print(const char* name) const {
    const bool in = !peer_ns.empty();
    const double peer = in ? Median(peer_ns) : 0, merge = Median(merge_ns);
    const std::string decode = in ? std::to_string(peer).substr(0, 5) : "-";
    std::printf("%-34s  %6s  %8.1f  %6.1f  %14.1f  %14.1f  %8.1f\n", name, decode.c_str(), merge, peer + merge,
                Median(slice_ns) / 1e3, Median(longest_us), *std::max_element(longest_us.begin(), longest_us.end()));
  }
};

class Bench {
 public:
  explicit Bench(std::size_t n) : tags_(Ipv4Tags(n)), bytes_(std::max(Table::kRegionBytesMin, n * 128)) {}

  void Run() {
    const std::vector<std::string> frames = Frames(tags_, MessageKind::kReport, Instant(), Instant() + 1s);
    std::size_t bytes = 0;
    for (const std::string& frame : frames) bytes += frame.size();
    std::printf("%zu IPv4 tags, table of %zu MiB, %d rounds\n", tags_.size(), bytes_ >> 20, kRounds);
    std::printf("on the wire  %.2f bytes a tag, %zu frames\n",
                static_cast<double>(bytes) / static_cast<double>(tags_.size()), frames.size());
    std::printf("CPU                                 ns a tag:                  us a slice of the loop:\n");
    std::printf(
        "                                    decode  the loop     sum          median  longest, median     worst\n");
    Hear("report of tags in the table", frames, FromPeers::Kind::kDebits, true, false);
    Hear("  the table in huge pages", frames, FromPeers::Kind::kDebits, true, true);
    Hear("report of new tags", frames, FromPeers::Kind::kDebits, false, false);
    Hear("  the table in huge pages", frames, FromPeers::Kind::kDebits, false, true);
    const std::vector<std::string> parts = Frames(tags_, MessageKind::kSnapshot, Instant(), Instant());
    Hear("snapshot taken, into an empty table", parts, FromPeers::Kind::kBuckets, false, false);
    Tell("own report", false, {});
    Tell("own report, and a report comes in", false, frames);
    Tell("snapshot given", true, {});
  }

 private:
  // What is heard is merged; each share in nanoseconds a tag.
  void Hear(const char* name, const std::vector<std::string>& frames, FromPeers::Kind kind, bool known,
            bool huge_pages) {
    Figures figures;
    Instant now = Instant() + 1h;
    auto host = std::make_unique<Host>(bytes_, huge_pages, now);
    Codec codec;
    for (int round = -1; round < kRounds; ++round) {
      if (known && round < 0) host->Query(tags_, now);
      if (!known) host = std::make_unique<Host>(bytes_, huge_pages, now);
      host->Work(now += 1s);
      host->Reset();
      double decoding = 0;
      for (std::size_t i = 0; i < frames.size(); i += kFramesAtOnce) {
        const double start = CpuSeconds();
        for (std::size_t k = i; k < std::min(i + kFramesAtOnce, frames.size()); ++k) {
          DT_CHECK(codec.Decode(frames[k], message_) == DecodeFault::kNone);
          host->Push({kind, now - 1s, now, 0, std::move(message_.entries)});
        }
        decoding += CpuSeconds() - start;
        host->Work(now);
      }
      if (round >= 0) Add(figures, *host, decoding);
    }
    DT_CHECK(host->limiter().ways().Get<Debits>().peers().counts().unmatched == 0);
    DT_CHECK(host->limiter().table().counts().tags == tags_.size());
    figures.Print(name);
  }

  // What the host says itself: its own report or a snapshot, perhaps while another's report is merged.
  void Tell(const char* name, bool snapshot, const std::vector<std::string>& frames) {
    Figures figures;
    Instant now = Instant() + 1h;
    Host host(bytes_, false, now);
    Codec codec;
    host.Work(now += 1s);
    for (int round = -1; round < kRounds; ++round) {
      now += 1h;    // everything has refilled
      host.Work(now);
      now = host.report_at();
      host.Query(tags_, now - 1ms);
      if (snapshot) host.Work(now);
      for (std::size_t i = 0; i < std::min(frames.size(), kRingItems); ++i) {
        DT_CHECK(codec.Decode(frames[i], message_) == DecodeFault::kNone);
        host.Push({FromPeers::Kind::kDebits, now - 1s, now, 0, std::move(message_.entries)});
      }
      if (snapshot) host.Push({FromPeers::Kind::kSnapshotWanted, {}, {}, 1, {}});
      host.Reset();
      host.Work(now);
      DT_CHECK(host.entries_out == tags_.size());
      if (round >= 0) Add(figures, host, 0);
    }
    figures.peer_ns.clear();
    figures.Print(name);
  }

  void Add(Figures& figures, const Host& host, double decoding) const {
    const auto n = static_cast<double>(tags_.size());
    figures.peer_ns.push_back(decoding * 1e9 / n);
    figures.merge_ns.push_back(host.spent * 1e9 / n);
    figures.slice_ns.push_back(host.spent * 1e9 / static_cast<double>(host.slices));
    figures.longest_us.push_back(host.longest * 1e6);
  }

  const std::vector<std::string> tags_;
  const std::size_t bytes_;
  Message message_;    // keeps its memory, as the exchange's does
};

}    // namespace

int main(int argc, char** argv) {
  const std::size_t n = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
  if (n == 0) return 2;
  Bench(n).Run();
}
