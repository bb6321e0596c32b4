// Files that the daemon reads at its start: key files, the state of the capacity exchange, the number of the last
// start. Any bytes are refused with a message or taken with every value in its bounds, and messages repeat no secret.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/host_name.h"
#include "capacity/witness.h"
#include "io/files.h"
#include "io/keys.h"

using namespace dthrottle;

namespace {

void Check(bool good) {
  if (!good) std::abort();
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void ReadKeys(std::string_view text) {
  if (const auto keys = ParseKeyFile("file", text)) {
    Check(keys->public_key.size() == kKeyChars && keys->secret_key.size() == kKeyChars);
  } else {
    Check(IsPrintable(keys.error().message) && keys.error().message.size() < 200);
  }
  if (const auto file = ParsePublicKeyFile("file", text)) {
    Check(file->key.size() == kKeyChars && IsPrintable(file->key) && IsPrintable(file->address));
  } else {
    Check(IsPrintable(file.error().message) && file.error().message.size() < 200);
  }
}

void ReadState(std::string_view bytes) {
  const auto saved = Witness::Decode(bytes);
  Check(Witness::IsSaved(bytes) == saved.has_value() || bytes.size() >= kHeadBytes);
  if (!saved) return;
  Check(std::all_of(saved->dead.begin(), saved->dead.end(), [](const auto& dead) { return IsHostName(dead.first); }));
  const auto again = Witness::Decode(Witness::Encode(*saved));
  Check(again && again->promised == saved->promised && again->reserve == saved->reserve && again->dead == saved->dead);
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadKeys(bytes);
  ReadState(bytes);
  if (IsIncarnation(bytes)) Check(bytes.size() <= 21);
  return 0;
}
