#include <catch2/catch.hpp>

#include <vector>

#include "base/prng.h"
#include "share/debit/returnable.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

Instant At(Duration after) {
  return Instant(1h + after);
}

TEST_CASE("of the hits of a peer no more comes back than was said to") {
  ReturnableHits hits;
  CHECK(hits.TakeBack(7, 0, 5) == 0);
  hits.Told(7, 0, 5, true, At(0s));
  hits.Told(7, 0, 3, true, At(1s));
  CHECK(hits.TakeBack(7, 1, 5) == 0);    // another peer
  CHECK(hits.TakeBack(8, 0, 5) == 0);    // another tag
  CHECK(hits.TakeBack(7, 0, 6) == 6);
  CHECK(hits.TakeBack(7, 0, 6) == 2);
  CHECK(hits.TakeBack(7, 0, 6) == 0);
}

TEST_CASE("what may come back is known to the next program") {
  ReturnableHits hits, next;
  CHECK(hits.Keep().empty());
  hits.Told(7, 0, 5, true, At(0s));
  hits.Told(7, 1, 6, false, At(1s));
  hits.Await(7, 2, 3, {1, 5, 4}, At(2s));
  next.Resume(hits.Keep());
  CHECK(next.Keep().size() == 3);
  next.Told(7, 2, 8, true, At(3s));
  CHECK(next.TakeAwaited(7, 2, 8, {1, 4, 0}) == 3);
  CHECK(next.TakeBack(7, 0, 9) == 5);
  CHECK(next.TakeBack(7, 1, 9) == 6);
}

TEST_CASE("what comes back before its hits waits for the reports that are missing, and for no others") {
  constexpr auto kIn = [](std::uint64_t sequence, std::uint64_t missing) { return ReportPlace{1, sequence, missing}; };
  ReturnableHits hits;
  CHECK(hits.Await(7, 0, 5, kIn(3, 0), At(0s)) == 0);    // nothing is missing
  CHECK(hits.Await(7, 0, 5, kIn(9, 4), At(0s)) == 5);
  CHECK(hits.Await(7, 0, 3, kIn(8, 4), At(0s)) == 3);
  hits.Told(7, 0, 4, true, At(1s));
  CHECK(hits.TakeAwaited(7, 0, 4, kIn(10, 4)) == 0);              // what was served since
  CHECK(hits.TakeAwaited(7, 0, 4, ReportPlace{2, 5, 0}) == 0);    // and by another life
  CHECK(hits.TakeAwaited(7, 1, 4, kIn(5, 4)) == 0);
  CHECK(hits.TakeAwaited(7, 0, 2, kIn(5, 4)) == 2);
  CHECK(hits.TakeBack(7, 0, 9) == 2);

  const auto told = [&](std::uint64_t n, const ReportPlace& in) {
    hits.Told(7, 0, n, true, At(2s));
    return hits.TakeAwaited(7, 0, n, in);
  };
  CHECK(told(4, kIn(4, 0)) == 4);
  CHECK(told(9, kIn(5, 0)) == 2);    // of the eight
  CHECK(told(9, kIn(6, 0)) == 0);
  CHECK(hits.TakeBack(7, 0, 99) == 16);

  CHECK(hits.Await(8, 0, 5, kIn(20, 19), At(3s)) == 5);    // that report never comes
  CHECK(hits.Await(8, 0, 1, kIn(40, 30), At(4s)) == 1);
  hits.Told(8, 0, 9, true, At(5s));
  CHECK(hits.TakeAwaited(8, 0, 9, kIn(30, 0)) == 1);
}

TEST_CASE("a thousand peers give back what they took of the same few tags") {
  Prng prng(1);
  ReturnableHits hits;
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t tag = prng.Next();
    for (std::uint32_t peer = 0; peer < 1000; ++peer) hits.Told(tag, peer, 10, true, At(0s));
    std::uint64_t back = 0;
    for (std::uint32_t peer = 0; peer < 1000; ++peer) back += hits.TakeBack(tag, peer, 10);
    CHECK(back == 10'000);
  }
}

TEST_CASE("pairs that were told of longest ago make room for those that are told of now") {
  Prng prng(2);
  ReturnableHits hits;
  constexpr std::uint32_t kPeers = 100;
  std::vector<std::uint64_t> tags(2000);
  for (std::uint64_t& tag : tags) tag = prng.Next();
  for (std::size_t i = 0; i < tags.size(); ++i) {
    for (std::uint32_t peer = 0; peer < kPeers; ++peer) hits.Told(tags[i], peer, 1, true, At(i * 1ms));
  }
  const auto back = [&](std::size_t i) {
    std::uint64_t sum = 0;
    for (std::uint32_t peer = 0; peer < kPeers; ++peer) sum += hits.TakeBack(tags[i], peer, 1);
    return sum;
  };
  CHECK(back(0) <= kPeers / 10);                  // of 200,000 pairs, among the first
  CHECK(back(tags.size() - 1) == kPeers);
}

TEST_CASE("hits that nobody said to come back take no place of those that were said to") {
  Prng prng(4);
  ReturnableHits hits;
  std::vector<std::uint64_t> said(1000), others(200'000);
  for (std::uint64_t& tag : said) hits.Told(tag = prng.Next(), 1, 1, true, At(0s));
  for (std::size_t i = 0; i < others.size(); ++i) hits.Told(others[i] = prng.Next(), 1, 1, false, At(1s + i * 1us));
  std::uint64_t back = 0;
  for (const std::uint64_t tag : said) back += hits.TakeBack(tag, 1, 1);
  CHECK(back == said.size());
  CHECK(hits.TakeBack(others.back(), 1, 1) == 1);
  hits.Told(others.back(), 1, 2, false, At(2s));
  hits.Told(others.back(), 1, 3, true, At(3s));
  CHECK(hits.TakeBack(others.back(), 1, 9) == 5);
}

TEST_CASE("a peer that names ever new tags takes no place of what another peer has said, and has its own part") {
  Prng prng(5);
  ReturnableHits hits;
  std::vector<std::uint64_t> said(1000), lies(400'000);
  for (std::size_t i = 0; i < said.size(); ++i) hits.Told(said[i] = prng.Next(), 1, 1, i % 2 == 0, At(0s));
  for (std::size_t i = 0; i < lies.size(); ++i) hits.Told(lies[i] = prng.Next(), 2, 1, true, At(1s + i * 1us));
  std::uint64_t back = 0, lied = 0;
  for (const std::uint64_t tag : said) back += hits.TakeBack(tag, 1, 1);
  for (const std::uint64_t tag : lies) lied += hits.TakeBack(tag, 2, 1);
  CHECK(back == said.size());
  CHECK(lied > 60'000);    // of 65,536 places what the other does not use
}

TEST_CASE("a tag of which something came back is noted, and of very many the latest") {
  Prng prng(3);
  ReturnableTags tags;
  CHECK_FALSE(tags.any());
  std::vector<std::uint64_t> all(100'000);
  for (std::size_t i = 0; i < all.size(); ++i) tags.Note(all[i] = prng.Next(), At(i * 1ms));
  CHECK(tags.any());
  CHECK(tags.Has(all.back()));
  CHECK_FALSE(tags.Has(all.front()));
}

}    // namespace
}    // namespace dthrottle
