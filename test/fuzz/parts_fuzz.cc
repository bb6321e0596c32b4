// Two to five hosts divide a tag, and one of them lies as the input says (test/support/lying_parts.h).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "test/support/lying_parts.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dthrottle::testing::Input input(data, std::min<std::size_t>(size, 600));
  const std::size_t hosts = 2 + input.Byte() % 4;
  dthrottle::testing::LyingParts fleet(hosts, 1 + input.Byte());
  fleet.Play(input);
  fleet.Settle();
  if (fleet.Failure().empty()) return 0;
  std::fprintf(stderr, "does not hold: %s\n", fleet.Failure().c_str());
  std::abort();
}
