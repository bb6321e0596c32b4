// A page that is written by one thread while others read it, and loans that several threads settle.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "share/loans.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

constexpr std::uint32_t kEntries = 4;
constexpr std::uint64_t kOne = 0x9e3779b97f4a0000, kOther = 0xbf58476d1ce40000;    // hashes of one set
constexpr std::int64_t kNow = 10'000'000'000;

struct Page {
  Page() : bytes(dthrottle_page_bytes(kEntries) / sizeof(std::uint64_t)), counts(kEntries) {}
  dthrottle_page& page() { return *reinterpret_cast<dthrottle_page*>(bytes.data()); }
  dthrottle_page_entry* entry() { return dthrottle_page_at(&page(), 0); }

  std::vector<std::uint64_t> bytes;
  std::vector<dthrottle_page_count> counts;
};

TEST_CASE("the instant of one tag is never taken for another's that had the entry before or has it again") {
  Page its;
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> wrong{0}, asked{0};
  const auto read = [&] {
    while (!done.load(std::memory_order_relaxed)) {
      const auto says = dthrottle_page_decide(&its.page(), its.counts.data(), kEntries, kOne, kNow);
      wrong += says != DTHROTTLE_PAGE_ASK;
      asked += says == DTHROTTLE_PAGE_ASK;
    }
  };
  std::thread one(read), other(read);
  const std::uint64_t past = dthrottle_page_times(kNow - 1'000'000, kNow - 1'000'000);
  const std::uint64_t ahead = dthrottle_page_times(kNow + 500'000'000, kNow + 500'000'000);
  // On a busy machine the readers may come late.
  for (int i = 0; i < 2'000'000 || (asked < 1000 && i < 200'000'000); ++i) {
    dthrottle_page_clear(its.entry());
    dthrottle_page_put(its.entry(), dthrottle_page_name(kOne), 0, past);
    if (i % 30'000 == 0) std::this_thread::yield();
    dthrottle_page_clear(its.entry());
    dthrottle_page_put(its.entry(), dthrottle_page_name(kOther), 0, ahead);
  }
  done = true;
  one.join();
  other.join();
  CHECK(wrong == 0);
  CHECK(asked > 0);
}

// Two threads of a worker spend what two tags are lent in turns by one entry, and what they leave is taken back. What the
// threads have served of a tag is never more than what counts as spent of it.
TEST_CASE("of a million loans that are recalled while two threads spend them, nobody gains a token") {
  Page its;
  std::atomic<bool> done{false};
  std::array<std::atomic<std::uint64_t>, 2> served{};
  const auto spend = [&](std::uint64_t seed) {
    Prng prng(seed);
    while (!done.load(std::memory_order_relaxed)) {
      const std::size_t tag = prng.Below(2);
      const std::uint64_t hash = tag == 0 ? kOne : kOther;
      if (dthrottle_page_decide(&its.page(), its.counts.data(), kEntries, hash, kNow) == DTHROTTLE_PAGE_SERVE) {
        served[tag].fetch_add(1, std::memory_order_relaxed);
      }
    }
  };
  std::thread one(spend, 1), other(spend, 2);
  Prng prng(3);
  Loan loan;
  loan.entry = its.entry();
  loan.count = its.counts.data();
  std::array<std::uint64_t, 2> spent{};
  const Instant now = FromNanoseconds(kNow);
  const auto few = [&] { return served[0] <= 100 || served[1] <= 100; };
  for (int i = 0; i < 1'000'000 || (i < 20'000'000 && few()); ++i) {
    const std::size_t tag = prng.Below(2);
    loan.name = dthrottle_page_name(tag == 0 ? kOne : kOther);
    loan.Lend(static_cast<Cost>(1 + prng.Below(4)), 1, now, now);
    loan.Say(now, now);
    // Now and then the machine has to let the others work.
    const std::uint64_t patience = prng.Below(5000) == 0 ? 20'000 : prng.Below(100);
    for (std::uint64_t n = 1; n < patience && dthrottle_page_taken(loan.count) - loan.settled < loan.out; ++n) {
      if (n % 1000 == 0) std::this_thread::yield();
    }
    WorkerSpent its_spent;
    loan.Recall(its_spent);
    spent[tag] += its_spent.tokens;
    if (prng.Below(2) == 0) dthrottle_page_clear(loan.entry);
    if (i % 1000 == 0) std::this_thread::yield();
  }
  dthrottle_page_clear(loan.entry);
  done = true;
  one.join();
  other.join();
  for (const std::size_t tag : {0, 1}) {
    CAPTURE(served[tag].load(), spent[tag], its.counts[0].taken);
    CHECK(served[tag] <= spent[tag]);
    CHECK(served[tag] > 100);
  }
}

// Two query threads, a worker and the thread that lends to it, all at one tag whose bucket does not refill.
TEST_CASE("query threads and a worker together serve what the bucket has, and each token once") {
  constexpr std::uint64_t kBurst = 200'000;
  testing::Host host("[[rule]]\nburst=200000\nrate=0.01", 3);
  host.lending().Enable();
  Page its;
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> asked_served{0}, page_served{0};
  const Query query{{"C", false}};
  const Instant start = FromNanoseconds(kNow);
  std::atomic<std::int64_t> now_ns{kNow};
  const auto ask = [&](std::size_t lane) {
    Prng prng(lane);
    while (!done.load(std::memory_order_relaxed)) {
      Verdict verdict;
      host.limiter->Answer({&query, 1}, {&verdict, 1}, lane, prng, FromNanoseconds(now_ns.load()));
      asked_served += verdict == Verdict::kServe;
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
    }
  };
  const auto decide = [&] {
    while (!done.load(std::memory_order_relaxed)) {
      const auto says = dthrottle_page_decide(&its.page(), its.counts.data(), kEntries, kOne, now_ns.load());
      page_served += says == DTHROTTLE_PAGE_SERVE;
    }
  };
  std::thread first(ask, 1), second(ask, 2), worker(decide);
  Loan loan;
  loan.entry = its.entry();
  loan.count = its.counts.data();
  loan.name = dthrottle_page_name(kOne);
  while (asked_served <= 10) std::this_thread::yield();    // before the worker has all
  Prng prng(4);
  for (int i = 0; i < 20'000 || (i < 10'000'000 && page_served <= 100); ++i) {    // the machine may let the worker wait
    now_ns += 1'000'000;
    const Instant now = FromNanoseconds(now_ns.load());
    host.lending().Deal(query, loan, prng.Below(2) == 0, {0, "page"}, now);
    if (prng.Below(100) == 0) host.lending().Return(query, loan, {0, "page"}, now);
    if (i % 16 == 0) std::this_thread::yield();
  }
  done = true;
  first.join();
  second.join();
  worker.join();
  const Instant end = FromNanoseconds(now_ns.load());
  host.lending().Return(query, loan, {0, "page"}, end);
  const std::uint64_t counted = host.limiter->tally().GrandTotals().served;
  CHECK(page_served > 100);
  CHECK(asked_served + page_served <= counted);
  CHECK(host.lending().served() == counted - asked_served);
  const double refill = Seconds(end - start) / 100, left = host.Level("C", end);
  CHECK(left >= static_cast<double>(kBurst) - static_cast<double>(counted) - 0.01);
  CHECK(left <= static_cast<double>(kBurst) - static_cast<double>(counted) + refill + 0.01);
}

}    // namespace
}    // namespace dthrottle
