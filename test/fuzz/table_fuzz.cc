// A table file that somebody has written into: the input is a list of patches (3 bytes of offset, 1 of length, bytes).
// Opening it never crashes, and afterwards it is a sound table that takes and finds tags.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/prng.h"
#include "test/support/host.h"

using namespace dthrottle;

namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

bool Serves(Limiter& limiter, Prng& prng, std::string_view tag, Instant now) {
  const Query query{{tag, false}};
  Verdict verdict;
  limiter.Answer({&query, 1}, {&verdict, 1}, 0, prng, now);
  return verdict == Verdict::kServe;
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto rules = testing::Rules("[[rule]]\nburst=3\nrate=1\n");
  static std::vector<Line> memory(Table::kRegionBytesMin / sizeof(Line));
  static std::vector<Line> pristine;
  const std::span<std::byte> region{reinterpret_cast<std::byte*>(memory.data()), Table::kRegionBytesMin};
  const auto open = [&] {
    return std::make_unique<Limiter>(region, std::array<std::byte, 16>{}, TableKeys{{1, 2}, {}}, rules, 1,
                                     FromNanoseconds(1));
  };
  Prng prng(1);
  if (pristine.empty()) {
    auto limiter = open();
    for (int i = 0; i < 2000; ++i) {
      (void)Serves(*limiter, prng, std::string(static_cast<std::size_t>(i % 250), 'x') + std::to_string(i),
                   FromNanoseconds(1));
    }
    limiter.reset();
    pristine = memory;
  }
  memory = pristine;
  while (size >= 5) {
    const std::size_t offset = (data[0] | data[1] << 8 | data[2] << 16) % region.size();
    const std::size_t n = std::min({std::size_t{data[3]}, size - 4, region.size() - offset});
    std::memcpy(&region[offset], data + 4, n);
    data += 4 + n;
    size -= 4 + n;
  }
  const auto limiter = open();
  const TableCounts before = limiter->table().counts();
  for (int i = 0; i < 50; ++i) {
    const std::string tag = "new-" + std::to_string(i);
    for (int k = 0; k < 3; ++k) {
      if (!Serves(*limiter, prng, tag, FromNanoseconds(2))) std::abort();
    }
    if (Serves(*limiter, prng, tag, FromNanoseconds(2))) std::abort();
  }
  const TableCounts after = limiter->table().counts();
  if (after.tags + after.evicted + after.reclaimed != before.tags + 50) std::abort();
  return 0;
}
