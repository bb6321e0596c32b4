// What threads share: the table, lanes, parts that change while queries are decided, and the rings between threads. A
// program of its own, so that the thread sanitizer runs these cases and not the hundreds in which one thread runs.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "base/spsc_ring.h"
#include "bucket/table_lookup.h"
#include "query/question.h"
#include "rule/rulebook.h"
#include "share/capacity/dividing.h"
#include "share/capacity/part_table.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/debit.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);
constexpr const char* kDefault = "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n";

template <class Body>
void InThreads(std::size_t threads, Body body) {
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < threads; ++i) running.emplace_back(body, i);
  for (std::thread& thread : running) thread.join();
}

TEST_CASE("lanes share the table and nothing else") {
  Host host(kDefault, 4);
  std::atomic<int> served{0};
  InThreads(4, [&](std::size_t lane) {
    Prng prng(lane);
    for (int i = 0; i < 2000; ++i) {
      const std::string tag = "tag-" + std::to_string(i % 100);
      const Query query{{tag, false}};
      Verdict verdict;
      host.limiter->Answer({&query, 1}, {&verdict, 1}, lane, prng, kNow);
      served += verdict == Verdict::kServe;
    }
  });
  CHECK(served == 100 * 10);
  CHECK(host.limiter->tally().Totals(0).served == 1000);
  CHECK(host.limiter->tally().Totals(0).throttled == 7000);
}

TEST_CASE("questions of several threads are decided all or nothing, and no token is lost or made") {
  constexpr std::size_t kThreads = 2, kTags = 40;
  constexpr int kQuestions = 20'000;
  Host host("[[rule]]\nname=\"default\"\nburst=5000\nrate=1\n", kThreads);
  std::array<std::array<int, kTags>, kThreads> paid{};
  std::array<int, kThreads> refused{};
  InThreads(kThreads, [&](std::size_t lane) {
    Prng prng(lane);
    Questions questions;
    for (int i = 0; i < kQuestions; ++i) {
      std::array<std::string, 4> names;
      std::array<std::size_t, 4> tags;
      questions.Clear();
      questions.Begin(Verb::kTake);
      for (std::size_t k = 0; k < names.size(); ++k) {
        tags[k] = prng.Below(kTags);
        names[k] = "tag-" + std::to_string(tags[k]);
        questions.Name({{names[k], false}, 3});
      }
      Outcome outcome;
      std::array<Standing, 4> standings;
      host.limiter->Ask(questions, {&outcome, 1}, std::span(standings).first(questions.queries().size()), lane, prng,
                        kNow);
      if (outcome.verdict != Verdict::kServe) ++refused[lane];
      for (const std::size_t tag : tags) paid[lane][tag] += outcome.verdict == Verdict::kServe ? 3 : 0;
    }
  });
  CHECK((refused[0] > 0 && refused[1] > 0));
  for (std::size_t i = 0; i < kTags; ++i) {
    CHECK(host.Level("tag-" + std::to_string(i), kNow) == 5000 - paid[0][i] - paid[1][i]);
  }
}

TEST_CASE("threads that share a table lose no update") {
  constexpr int kThreads = 4, kRounds = 2000, kTags = 50;
  const Shape shape = Shape::From(10, 1);
  Host host(kDefault, kThreads);
  Table& table = host.limiter->table();
  InThreads(kThreads, [&](std::size_t) {
    for (int i = 0; i < kRounds; ++i) {
      const std::string name = "tag-" + std::to_string(i % kTags);
      const Tag tag{name, false};
      Table::Probe probe = table.Aim(tag);
      table.Approach(probe, true);
      Table::Shard shard(table, probe.hash);
      Slot* slot = shard.Find(tag, probe, kNow);
      if (slot == nullptr) slot = shard.Insert(tag, Bucket(), 0, Source::kQuery, kNow);
      testing::Debit(slot->bucket, shape, 1, kNow, 1e9, kNow);
    }
  });
  for (int i = 0; i < kTags; ++i) {
    CHECK(host.Level("tag-" + std::to_string(i), kNow) == 10 - kThreads * kRounds / kTags);
  }
}

TEST_CASE("threads ask while parts change") {
  Host host("[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=100\nrate=100\nshare=\"capacity\"\n", 2);
  const auto key_of = [&](std::string_view tag) {
    const Limit& limit = host.limiter->rules().limit(host.limiter->rules().Find(tag).value());
    return host.limiter->ways().Get<Division>().KeyOf({tag, false}, limit);
  };
  ToCapacityRing to(8);
  FromCapacityRing from(8);
  Dividing dividing(host.limiter->ways().Get<Division>(), to, from, 10, 1ms, kNow);
  std::thread asking([&] {
    InThreads(2, [&](std::size_t lane) {
      Prng prng(lane);
      Verdict verdict;
      for (int i = 0; i < 20'000; ++i) {
        const std::string tag = "login:" + std::to_string(i % 20);
        const Query query{{tag, false}};
        host.limiter->Answer({&query, 1}, {&verdict, 1}, lane, prng, kNow + i * 1us);
      }
    });
  });
  for (int i = 0; i < 200; ++i) {
    from.TryPush({CapacityStanding{static_cast<std::uint64_t>(i / 50), OnBootClock(kNow + i * 1ms), 0, kWhole / 4},
                  {{key_of("login:1"), kWhole / 8}, {key_of("login:2"), kWhole / 2}}});
    for (int k = 0; k < 10 && dividing.Work(kNow + i * 1ms); ++k) continue;
    for (ToCapacity item; to.TryPop(item);) continue;
  }
  asking.join();
  CHECK(dividing.participants().size() <= 10);
}

TEST_CASE("a ring brings everything once and in order from one thread to another") {
  constexpr int kItems = 20'000;
  SpscRing<std::string> ring(7);
  std::thread pushing([&] {
    for (int i = 0; i < kItems; ++i) {
      for (std::string item = std::to_string(i); !ring.TryPush(std::move(item));) std::this_thread::yield();
    }
  });
  int wrong = 0;
  for (int i = 0; i < kItems; ++i) {
    std::string item;
    while (!ring.TryPop(item)) std::this_thread::yield();
    wrong += item != std::to_string(i);
  }
  pushing.join();
  CHECK(wrong == 0);
  CHECK(ring.empty());
}

}    // namespace
}    // namespace dthrottle
