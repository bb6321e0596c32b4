// Three to five hosts share hits, and one or two of them lie as the input says. Never a crash, and no hit of the honest
// is lost or doubled among them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "test/support/lying_fleet.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dthrottle::testing::Input input(data, std::min<std::size_t>(size, 600));
  const std::uint8_t shape = input.Byte();
  const std::size_t hosts = 3 + shape % 3, liars = std::min<std::size_t>(1 + shape / 128, hosts - 2);
  dthrottle::testing::LyingFleet fleet(hosts, liars, 1 + input.Byte());
  fleet.Play(input);
  if (!fleet.EachHitOnce()) std::abort();
  return 0;
}
