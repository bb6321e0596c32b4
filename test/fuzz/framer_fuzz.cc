// Bytes of a query socket, cut in two places that the input chooses: never a crash, and never other tags than uncut.
#include <sodium/core.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "query/framer.h"

using namespace dthrottle;

namespace {

struct Sink {
  std::string seen;
  void OnTag(std::string_view tag) { (seen += tag) += '\n'; }
  void OnOverLongTag(std::unique_ptr<OverLongReader> reader) {
    const OverLongTag tag = reader->Finish();
    seen.append(tag.digest.data(), tag.digest.size()).append(tag.head).append(tag.tail) += '\n';
  }
};

std::string Read(std::string_view bytes, std::size_t first, std::size_t second, const FramerLimits& limits) {
  Framer framer;
  Sink sink;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    const std::string whole = std::string(framer.rest()) + std::string(piece);
    framer.Read(whole, limits, sink);
    if (framer.rest().size() > limits.tag_bytes_max + 1) std::abort();
  }
  return sink.seen;
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  if (size < 3) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  const FramerLimits limits{1 + data[0] % kTagBytesMax, {}};
  const std::size_t a = data[1] * bytes.size() / 255, b = data[2] * bytes.size() / 255;
  if (Read(bytes, 0, 0, limits) != Read(bytes, std::min(a, b), std::max(a, b), limits)) std::abort();
  return 0;
}
