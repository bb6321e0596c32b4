// Two to five hosts divide a tag, and one of them lies as the input says, or none (test/support/lying_parts.h).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "test/support/lying_parts.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dthrottle::testing::Input input(data, std::min<std::size_t>(size, 600));
  const std::uint8_t shape = input.Byte();
  dthrottle::testing::LyingParts fleet(2 + shape % 4, 1 + input.Byte());
  fleet.Play(input, shape < 128);
  fleet.Settle();
  if (fleet.Failure().empty()) return 0;
  std::fprintf(stderr, "does not hold: %s\n", fleet.Failure().c_str());
  std::abort();
}
