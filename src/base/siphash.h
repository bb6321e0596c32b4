// SipHash (Aumasson and Bernstein 2012): a hash that nobody can steer without the key.
//
// Tags are written by strangers. With an unkeyed hash a stranger could fill one corner of the table and push out
// whatever lives there. The template carries the number of rounds: <2, 4> is the published recommendation and is
// what the tests compare with a library; <1, 3> is what hash tables use (Rust, Ruby, the kernel), half the time for
// the same purpose.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace dthrottle {

using SipKey = std::array<std::uint64_t, 2>;

// Always in place: a decision makes no call for it, however many others hash something.
template <int kCompress, int kFinalize>
[[gnu::always_inline]] inline std::uint64_t SipHash(const SipKey& key, std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  const auto round = [&] {
    v0 += v1, v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1, v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  };
  const auto compress = [&](std::uint64_t word) {
    v3 ^= word;
#pragma GCC unroll 4
    for (int i = 0; i < kCompress; ++i) round();
    v0 ^= word;
  };
  const auto load = [](const char* at) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
  };
  const char* p = bytes.data();
  const std::size_t left = bytes.size() % 8;
  for (const char* const end = p + bytes.size() - left; p != end; p += 8) compress(load(p));
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  // The tail of at most 7 bytes, without a loop over bytes.
  if (bytes.size() >= 8) {
    last |= load(p + left - 8) >> 8 >> (56 - 8 * left);
  } else {
    for (std::size_t i = 0; i < left; ++i) last |= std::uint64_t{static_cast<unsigned char>(p[i])} << (8 * i);
  }
  compress(last);
  v2 ^= 0xff;
#pragma GCC unroll 4
  for (int i = 0; i < kFinalize; ++i) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}    // namespace dthrottle
