// Chance as an argument: xoshiro256** (Blackman and Vigna 2018), seeded through splitmix64.
//
// Good for sampling, phases and simulation; not for keys.
#pragma once

#include <bit>
#include <cstdint>

namespace dthrottle {

class Prng {
 public:
  explicit Prng(std::uint64_t seed) {
    for (auto& word : state_) {
      std::uint64_t z = (seed += 0x9e3779b97f4a7c15);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      word = z ^ (z >> 31);
    }
  }

  // Uniform over all 64-bit values.
  std::uint64_t Next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform over [0, bound). REQUIRES: bound > 0.
  std::uint64_t Below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{Next()} * bound) >> 64);
  }

 private:
  std::uint64_t state_[4];
};

}    // namespace dthrottle
