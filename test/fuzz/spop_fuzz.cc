// Bytes of HAProxy, cut in two places that the input chooses: never a crash, answers that are whole frames and no longer
// than HAProxy takes, and the same however the bytes are cut.
#include <sodium/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "test/support/spop.h"

using namespace dthrottle;

namespace {

void Expect(bool good) {
  if (!good) std::abort();
}

struct Replies {
  bool OnFrame(const SpopFrame& frame) {
    const auto type = static_cast<SpopType>(frame.type);
    Expect(frame.whole);
    Expect(type == SpopType::kAgentHello || type == SpopType::kAgentDisconnect || type == SpopType::kAck);
    return true;
  }
};

std::string Send(std::string_view bytes, std::size_t first, std::size_t second, Instant now) {
  static testing::SpopHost host("[[rule]]\nmatch=\"a*\"\nburst=2\nrate=1\n[[rule]]\nburst=3\nrate=1\n", 20);
  host.reader = {};
  host.client = {};
  std::string replies;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    replies += host.Send(piece, now);
    Expect(host.client.leaving || host.reader.rest().size() <= SpopReader::kFrameBytesMax + SpopReader::kLengthBytes);
  }
  return replies;
}

}    // namespace

// All buckets are full again in 10 s.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  if (size < 2) return 0;
  static Instant now{};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t a = data[0] * bytes.size() / 255, b = data[1] * bytes.size() / 255;
  const std::string replies = Send(bytes, 0, 0, now += std::chrono::seconds(10));
  Expect(Send(bytes, std::min(a, b), std::max(a, b), now += std::chrono::seconds(10)) == replies);
  SpopReader reader;
  Replies sink;
  Expect(reader.Read(replies, sink) && reader.rest().empty());
  return 0;
}
