// A frame from the wire, as it is and with the right checksum behind it: never a crash, and what is accepted is sound
// and comes back the same when it is sent on.
#include <cstdint>
#include <cstdlib>

#include "test/support/messages.h"

using namespace dthrottle;

namespace {

void Try(Codec& codec, std::string_view frame) {
  static Message message, again;
  static std::string sent;
  if (codec.Decode(frame, message) != DecodeFault::kNone) return;
  if (!testing::IsSound(message)) std::abort();
  codec.Encode(message, sent);
  if (codec.Decode(sent, again) != DecodeFault::kNone || !testing::Same(message, again)) std::abort();
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Codec codec;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(codec, bytes);
  Try(codec, testing::WithChecksum(bytes));
  return 0;
}
