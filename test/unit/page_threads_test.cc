// A page that is written by one thread while others read it.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include "base/worker_page.h"

namespace dthrottle {
namespace {

TEST_CASE("the instant of one tag is never taken for another's that had the entry before or has it again") {
  constexpr std::uint32_t kEntries = 4;
  constexpr std::int64_t kPast = 1, kFar = 1'000'000;
  std::vector<std::uint64_t> bytes(dthrottle_page_bytes(kEntries) / sizeof(std::uint64_t));
  auto* const page = reinterpret_cast<dthrottle_page*>(bytes.data());
  constexpr std::uint64_t kServed = 0x9e3779b97f4a7c15, kRefused = 0xbf58476d1ce4e5b9;    // names of one set
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> wrong{0}, seen{0};
  const auto read = [&] {
    while (!done.load(std::memory_order_relaxed)) {
      std::uint32_t entry = 0;
      const std::int64_t until = dthrottle_page_refused_until(page, kEntries, kServed, &entry);
      wrong += until != 0 && until != kPast && dthrottle_page_refuses(until, kPast);
      seen += until == kPast;
    }
  };
  std::thread one(read), other(read);
  dthrottle_page_entry* const entry = dthrottle_page_at(page, 0);
  for (int i = 0; i < 3'000'000; ++i) {
    dthrottle_page_clear(entry);
    dthrottle_page_put(entry, kServed, kPast);
    // A reader that the machine let wait finds the instant now and then, however fast this thread writes.
    for (int turn = 0; i % 30'000 == 0 && turn < 1'000'000 && seen <= static_cast<std::uint64_t>(i / 30'000); ++turn) {
      std::this_thread::yield();
    }
    dthrottle_page_clear(entry);
    dthrottle_page_put(entry, kRefused, kFar);
  }
  done = true;
  one.join();
  other.join();
  CHECK(wrong == 0);
  CHECK(seen >= 100);
}

}    // namespace
}    // namespace dthrottle
