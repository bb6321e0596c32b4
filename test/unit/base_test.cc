#include <sodium/crypto_shorthash_siphash24.h>
#include <catch2/catch.hpp>

#include <string>

#include "base/prng.h"
#include "base/siphash.h"

namespace dthrottle {
namespace {

TEST_CASE("SipHash-2-4 agrees with the library at every length") {
  Prng prng(1);
  for (std::size_t n = 0; n < 70; ++n) {
    SipKey key{prng.Next(), prng.Next()};
    std::string bytes(n, '\0');
    for (char& c : bytes) c = static_cast<char>(prng.Next());
    std::uint64_t expected;
    crypto_shorthash_siphash24(reinterpret_cast<unsigned char*>(&expected),
                               reinterpret_cast<const unsigned char*>(bytes.data()), n,
                               reinterpret_cast<const unsigned char*>(key.data()));
    CAPTURE(n);
    CHECK(SipHash<2, 4>(key, bytes) == expected);
  }
}

TEST_CASE("the hash depends on the key") {
  CHECK(SipHash<1, 3>({1, 2}, "tag") != SipHash<1, 3>({1, 3}, "tag"));
  CHECK(SipHash<1, 3>({1, 2}, "tag") != SipHash<1, 3>({0, 2}, "tag"));
}

TEST_CASE("a seed decides everything a generator says") {
  Prng a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t x = a.Next();
    CHECK(x == b.Next());
    differs |= x != c.Next();
  }
  CHECK(differs);
}

TEST_CASE("numbers below a bound are evenly spread") {
  Prng prng(3);
  std::array<int, 10> seen{};
  for (int i = 0; i < 100'000; ++i) ++seen.at(prng.Below(10));
  for (const int n : seen) CHECK(std::abs(n - 10'000) < 500);    // five standard deviations
}

}    // namespace
}    // namespace dthrottle
