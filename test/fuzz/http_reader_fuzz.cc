// A stream of HTTP requests, cut as the first byte says: never a crash, nothing incomplete beyond its bound, and the
// same requests and the same fault as from the whole stream.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "frontend/http/reader.h"

using namespace dthrottle;

namespace {

std::string ReadInPieces(std::string_view stream, std::size_t piece) {
  HttpReader reader;
  std::string said, unread;
  while (!stream.empty()) {
    const std::size_t n = std::min(piece, stream.size());
    unread += stream.substr(0, n);
    stream.remove_prefix(n);
    for (std::string_view bytes = unread;;) {
      HttpRequest request;
      const auto step = reader.Next(bytes, request);
      if (!step) return said + std::to_string(step.error().status);
      if (step->bytes > bytes.size() || (step->whole && step->bytes == 0)) std::abort();
      bytes.remove_prefix(step->bytes);
      if (!step->whole) {
        if (bytes.size() >= kHttpHeadBytesMax) std::abort();
        unread = std::string(bytes);
        break;
      }
      said += std::string(request.method) + '|' + std::string(request.target) + '|' + std::string(request.host) + '|' +
              std::string(request.tag.value_or("-")) + '|' + std::string(request.fetch_site) +
              (request.keep_alive ? "k" : "") + (request.has_body ? "b" : "") + '\n';
    }
  }
  return said;
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (ReadInPieces(stream, 1 + data[0] % 64) != ReadInPieces(stream, stream.size())) std::abort();
  return 0;
}
