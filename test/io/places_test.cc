#include "io/places.h"

#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <utility>
#include <vector>

namespace dthrottle {
namespace {

constexpr Instant kNow = FromNanoseconds(1'000'000'000);

// Connections of this process to itself over Unix sockets: all of one user.
struct Pair {
  Pair() {
    int both[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    here = both[0];
    there = both[1];
  }
  ~Pair() { Close(); }
  Pair(Pair&& other) noexcept : here(std::exchange(other.here, -1)), there(std::exchange(other.there, -1)) {}
  void Close() {
    if (here >= 0) ::close(std::exchange(here, -1));
    if (there >= 0) ::close(std::exchange(there, -1));
  }
  int here, there;
};

TEST_CASE("places: a source gets its part, and the socket no more than its total") {
  std::vector<Pair> pairs(10);
  Places part({8, 5}), total({8, 8});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    CHECK(part.Take(pairs[i].here, kNow) == (i < 5 ? Places::Answer::kTaken : Places::Answer::kSourceFull));
    CHECK(total.Take(pairs[i].here, kNow) == (i < 8 ? Places::Answer::kTaken : Places::Answer::kFull));
  }
}

TEST_CASE("places: a connection that was closed holds none, also when its descriptor is another's by now") {
  Places places({4, 4});
  std::vector<Pair> pairs(4);
  for (Pair& pair : pairs) REQUIRE(places.Take(pair.here, kNow) == Places::Answer::kTaken);
  const int before = pairs[2].here;
  pairs[2].Close();
  Pair next;
  CHECK((next.here == before || next.there == before));
  CHECK(places.Take(next.here, kNow) == Places::Answer::kTaken);
  Pair another;
  CHECK(places.Take(another.here, kNow) == Places::Answer::kFull);
}

TEST_CASE("places: what has ended somewhere among many is found before one is turned away, now and then") {
  constexpr std::size_t kMany = 300;
  std::vector<Pair> pairs(kMany);
  Places places({kMany, kMany});
  for (Pair& pair : pairs) REQUIRE(places.Take(pair.here, kNow) == Places::Answer::kTaken);
  std::vector<Pair> more(3);
  REQUIRE(places.Take(more[0].here, kNow) == Places::Answer::kFull);
  // The first few are looked at next, and these come behind them.
  pairs[250].Close();
  pairs[260].Close();
  const auto soon = kNow + std::chrono::milliseconds(400), then = kNow + std::chrono::milliseconds(600);
  CHECK(places.Take(more[0].here, soon) == Places::Answer::kFull);
  CHECK(places.Take(more[0].here, then) == Places::Answer::kTaken);
  CHECK(places.Take(more[1].here, then) == Places::Answer::kTaken);
  CHECK(places.Take(more[2].here, then) == Places::Answer::kFull);
}

TEST_CASE("places: connections that come and go leave nothing behind") {
  Places places({20, 10});
  for (int i = 0; i < 1000; ++i) {
    Pair pair;
    REQUIRE(places.Take(pair.here, kNow) == Places::Answer::kTaken);
  }
}

TEST_CASE("places: descriptors are divided by weight, and nobody gets more than it wants") {
  CHECK(DividePlaces(1000, {{100, 1}, {200, 1}}) == std::vector<std::uint32_t>{100, 200});
  CHECK(DividePlaces(100, {{100, 1}, {200, 1}}) == std::vector<std::uint32_t>{50, 50});
  CHECK(DividePlaces(100, {{10, 1}, {200, 2}, {200, 1}}) == std::vector<std::uint32_t>{10, 60, 30});
  CHECK(DividePlaces(0, {{10, 1}, {0, 1}}) == std::vector<std::uint32_t>{0, 0});
  CHECK(PlacesPerSource(1000, 0.75) == 750);
  CHECK(PlacesPerSource(10, 0.75) == 10);
  CHECK(PlacesPerSource(20, 0.1) == 16);
}

}    // namespace
}    // namespace dthrottle
