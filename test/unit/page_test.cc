// Pages of workers: what an entry promises, and what the daemon makes of counts that anybody may have written.
#include "frontend/page/refusals.h"

#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/siphash.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

Instant At(Duration since) {
  return FromNanoseconds(0) + since;
}

// A worker and the page it looks into, as libdthrottle does.
class Worker final : private Refuser {
 public:
  explicit Worker(Host& host, std::uint32_t entries = 64)
      : entries_(entries), bytes_(dthrottle_page_bytes(entries) / sizeof(std::uint64_t)), counts_(entries),
        host_(host), refusals(page(), counts_.data(), entries, *this) {
    page().head.key[0] = 11;
    page().head.key[1] = 12;
  }

  dthrottle_page& page() { return *reinterpret_cast<dthrottle_page*>(bytes_.data()); }

  // Asks its page, and the daemon if that says nothing; tells of refusals.
  bool Serves(std::string_view tag, Instant now) {
    if (Refuses(tag, now)) return false;
    ++asked;
    const bool serves = host_.Serves(tag, now);
    if (!serves) refusals.Note(tag, now);
    return serves;
  }
  bool Refuses(std::string_view tag, Instant now) {
    std::uint32_t entry = 0;
    const auto name = dthrottle_page_name(page().head.key, tag.data(), tag.size());
    const auto until = dthrottle_page_refused_until(&page(), entries_, name, &entry);
    if (!dthrottle_page_refuses(until, now.time_since_epoch().count())) return false;
    ++counts_[entry];
    return true;
  }

  std::vector<std::uint32_t>& counts() { return counts_; }
  std::uint64_t asked = 0;
  std::map<std::string, std::uint64_t, std::less<>> counted;

 private:
  Instant RefusedUntil(std::string_view tag, Instant now) override {
    return host_.limiter->RefusedUntil({{tag, false}}, now);
  }
  void CountRefused(std::string_view tag, std::uint32_t times, Instant now) override {
    counted[std::string(tag)] += times;
    host_.limiter->CountRefused({{tag, false}}, times, {0, "page"}, now);
  }

  const std::uint32_t entries_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint32_t> counts_;
  Host& host_;

 public:
  WorkerRefusals refusals;
};

constexpr auto kRule = "[[rule]]\nname=\"all\"\nburst=3\nrate=2.0\n";

std::uint64_t Throttled(Host& host) {
  return host.limiter->tally().GrandTotals().throttled;
}

TEST_CASE("both sides of a page call a tag by its keyed SipHash") {
  const std::uint64_t key[] = {1, 2};
  for (const std::string tag : {"", "a", "1234567", "12345678", "a tag of more than two words"}) {
    CHECK(dthrottle_page_name(key, tag.data(), tag.size()) == (SipHash<1, 3>({1, 2}, tag) | 1));
  }
}

TEST_CASE("what the limiter says until when a tag is refused is exact") {
  Prng prng(5);
  for (int run = 0; run < 300; ++run) {
    Host host("[[rule]]\nburst=" + std::to_string(1 + prng.Below(5)) +
              "\nrate=" + std::to_string(0.5 + static_cast<double>(prng.Below(2000)) / 7));
    Instant now = At(1s);
    for (int i = 0; i < 60; ++i) {
      now += Duration(prng.Below(100'000'000));
      const Instant until = host.limiter->RefusedUntil({{"C", false}}, now);
      if (until > now) {
        CHECK_FALSE(host.Serves("C", now));
        CHECK_FALSE(host.Serves("C", until - 1ns));
        now = until;
      }
      CHECK(host.Serves("C", now));
    }
  }
}

TEST_CASE("a tag is refused without asking, and served at the instant at which it would be if it asked") {
  Host with(kRule), without(kRule);
  Worker worker(with);
  Prng prng(6);
  std::uint64_t refused = 0;
  Instant look = At(0s);
  for (Instant now = At(1s); now < At(60s); now += Duration(1 + prng.Below(3'000'000))) {
    if (now >= look) worker.refusals.Look(now), look = now + 100ms;
    const bool serves = without.Serves("C", now);
    REQUIRE(worker.Serves("C", now) == serves);
    refused += !serves;
  }
  worker.refusals.Look(At(60s));
  worker.refusals.Recall(At(60s));
  CHECK(worker.asked < refused / 50);
  CHECK(Throttled(with) == Throttled(without));
  CHECK(Throttled(with) == refused);
}

TEST_CASE("an entry says at most a second ahead, and one that is not used ends by itself") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  CHECK(worker.Refuses("C", At(1999ms)));
  CHECK_FALSE(worker.Refuses("C", At(2s)));
  worker.refusals.Look(At(1100ms));    // it was used
  CHECK(worker.Refuses("C", At(2099ms)));
  worker.refusals.Look(At(2100ms));
  worker.refusals.Look(At(2200ms));    // it was not
  CHECK_FALSE(worker.Refuses("C", At(3100ms)));
  worker.refusals.Look(At(3200ms));
  worker.refusals.Look(At(3300ms));
  CHECK(worker.refusals.live() == 0);
}

TEST_CASE("forgive, other rules and a debit reach a page with the next look") {
  Host host("[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  const auto refuse = [&](Instant now) {
    worker.Serves("C", now);
    worker.Serves("C", now);
    REQUIRE(worker.Refuses("C", now));
  };
  refuse(At(1s));
  host.limiter->Forgive({{"C", false}}, At(1s));
  worker.refusals.Look(At(1s));
  CHECK_FALSE(worker.Refuses("C", At(1s)));

  for (const char* rules : {"[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"\nmode=\"shadow\"",
                            "[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\"\nmode=\"off\"",
                            "[[rule]]\nname=\"all\"\nburst=5\nrate=\"1/h\"", ""}) {
    CAPTURE(rules);
    host.Start(testing::Rules("[[rule]]\nname=\"all\"\nburst=1\nrate=\"1/h\""), At(2s));
    host.limiter->Forgive({{"C", false}}, At(2s));
    refuse(At(2s));
    host.limiter->Adopt(testing::Rules(rules));
    worker.refusals.Look(At(2s));
    CHECK_FALSE(worker.Refuses("C", At(2s)));
  }
}

TEST_CASE("what only asking can tell is asked") {
  Host host(R"(
    [[rule]]
    name = "penalty"
    match = "p*"
    burst = 1
    rate = "1/h"
    penalty = { after = 3, within = "1m", lasts = "1m" }
    [[rule]]
    name = "user"
    match = "*/*"
    burst = 1
    rate = "1/h"
    also = ["before /"]
    [[rule]]
    name = "net"
    burst = 1
    rate = "1/h"
  )");
  Worker worker(host);
  const auto refused_until = [&](std::string_view tag) { return host.limiter->RefusedUntil({{tag, false}}, At(1s)); };
  host.Serves("net/bob", At(1s));
  CHECK_FALSE(host.Serves("net/bob", At(1s)));
  CHECK(refused_until("net/bob") == At(1s));
  CHECK(refused_until("net") > At(1s));
  host.Serves("p", At(1s));
  CHECK_FALSE(host.Serves("p", At(1s)));
  CHECK(refused_until("p") == At(1s));    // each refusal counts towards the penalty
  for (int i = 0; i < 3; ++i) host.Serves("p", At(1s));
  CHECK(refused_until("p") == At(61s));
}

TEST_CASE("a full set forgets the tag that was refused least") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host, 4);    // one set
  for (const char* tag : {"a", "b", "c", "d"}) {
    worker.Serves(tag, At(1s));
    worker.Serves(tag, At(1s));
    for (int i = 0; tag[0] != 'c' && i < 10; ++i) CHECK(worker.Refuses(tag, At(1s)));
  }
  worker.refusals.Look(At(1s));
  worker.Serves("e", At(1s));
  worker.Serves("e", At(1s));
  CHECK(worker.refusals.live() == 4);
  for (const char* tag : {"a", "b", "d", "e"}) CHECK(worker.Refuses(tag, At(1s)));
  CHECK_FALSE(worker.Refuses("c", At(1s)));
}

TEST_CASE("a worker that scribbles over its counts is believed so many refusals a second, and gets no token") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host), honest(host);
  for (const char* tag : {"a", "b", "c"}) {
    worker.Serves(tag, At(1s)), worker.Serves(tag, At(1s));
  }
  honest.Serves("h", At(1s)), honest.Serves("h", At(1s));
  Prng prng(7);
  for (Instant now = At(1s); now < At(11s); now += 100ms) {
    for (auto& count : worker.counts()) count = static_cast<std::uint32_t>(prng.Next());
    honest.Refuses("h", now);
    worker.refusals.Look(now);
    honest.refusals.Look(now);
    for (const char* tag : {"a", "b", "c", "h"}) CHECK_FALSE(host.Serves(tag, now));
  }
  CHECK(worker.refusals.refused() <= static_cast<std::uint64_t>(11 * WorkerRefusals::kPlausible) + 1);
  CHECK(worker.refusals.clamped() > worker.refusals.refused());
  CHECK(worker.counted.contains("a"));
  CHECK_FALSE(worker.counted.contains("h"));
  CHECK(honest.counted["h"] == 100);
}

TEST_CASE("a worker to which few tags come again tells of fewer refusals") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  const auto one_in = [&] { return worker.page().head.note_one_in; };
  worker.refusals.Look(At(1s));
  for (int i = 0; i < 100; ++i) worker.refusals.Note("t" + std::to_string(i), At(1500ms));
  worker.refusals.Look(At(2s));
  CHECK(one_in() == 2);
  worker.Serves("C", At(3s));
  worker.Serves("C", At(3s));
  for (int i = 0; i < 100; ++i) CHECK(worker.Refuses("C", At(3s)));
  worker.refusals.Look(At(3s));
  CHECK(one_in() == 1);
}

TEST_CASE("a count that wraps is a count") {
  Host host("[[rule]]\nburst=1\nrate=\"1/h\"");
  Worker worker(host);
  for (auto& count : worker.counts()) count = 0xfffffffe;
  worker.Serves("C", At(1s));
  worker.Serves("C", At(1s));
  for (int i = 0; i < 5; ++i) CHECK(worker.Refuses("C", At(1s)));
  worker.refusals.Look(At(1s));
  CHECK(worker.counted["C"] == 5);
  CHECK(worker.refusals.clamped() == 0);
}

}    // namespace
}    // namespace dthrottle
