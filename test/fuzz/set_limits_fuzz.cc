// A frame about set limits, as it is and with the right checksum behind it, a line, and a file of lines: never a crash,
// and what is accepted is written again as the same bytes.
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "feature/set_limits/limit_message.h"
#include "feature/set_limits/set_limits.h"

using namespace dthrottle;

namespace {

void TryFrame(std::string_view frame) {
  LimitMessage message, again;
  if (!DecodeLimits(frame, message)) return;
  if (!DecodeLimits(EncodeLimits(message), again) || !(message == again)) std::abort();
}

void TryLine(std::string_view line) {
  const auto read = ParseSigned(line);
  if (read && read->Line() != line) std::abort();
  if (read) IsGenuine(*read);
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  TryFrame(bytes);
  std::string sealed(bytes);
  const XXH64_hash_t checksum = XXH3_64bits(sealed.data(), sealed.size());
  sealed.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  TryFrame(sealed);
  TryLine(bytes);
  SetLimits set;
  set.TakeFile(bytes, {}, Duration(std::chrono::hours(1)));
  SetLimits again;
  if (!again.TakeFile(set.File(Duration(std::chrono::hours(1))), {}, Duration(std::chrono::hours(1))).empty()) {
    std::abort();
  }
  if (again.InForce(Duration()) != set.InForce(Duration())) std::abort();
  ParseOperatorSecret(bytes);
  return 0;
}
