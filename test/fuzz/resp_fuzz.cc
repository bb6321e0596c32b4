// Bytes of a client of Redis, cut in two places that the input chooses: never a crash, and never other replies than
// uncut; each reply is complete and of a kind that Redis has.
#include <sodium/core.h>

#include <cstdint>
#include <cstdlib>

#include "test/support/resp.h"

using namespace dthrottle;

namespace {

constexpr const char* kRules =
    "[[rule]]\nmatch=\"a*\"\nburst=2\nrate=1\n[[rule]]\nmatch=\"s*\"\nburst=1\nrate=1\nmode=\"shadow\"\n";

std::string Replies(std::string_view bytes, std::size_t first, std::size_t second, bool accept_limits) {
  testing::RespHost host(kRules, accept_limits, 20);
  std::string replies;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    replies += host.Send(piece);
    if (host.reader.rest().size() > RespReader::kRestBytesMax) std::abort();
  }
  return replies;
}

// Goes through replies, and ends where they end.
void CheckReplies(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find("\r\n");
    if (end == std::string_view::npos || std::string_view("+-:$*%_=").find(bytes[0]) == std::string_view::npos)
      std::abort();
    const char kind = bytes[0];
    const long size = kind == '$' || kind == '=' ? std::stol(std::string(bytes.substr(1, end - 1))) : -1;
    bytes.remove_prefix(end + 2);
    if (size < 0) continue;
    if (bytes.substr(static_cast<std::size_t>(size), 2) != "\r\n") std::abort();
    bytes.remove_prefix(static_cast<std::size_t>(size) + 2);
  }
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  if (size < 3) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  const bool accept_limits = data[0] % 2 != 0;
  const std::size_t a = data[1] * bytes.size() / 255, b = data[2] * bytes.size() / 255;
  const std::string whole = Replies(bytes, 0, 0, accept_limits);
  if (whole != Replies(bytes, std::min(a, b), std::max(a, b), accept_limits)) std::abort();
  CheckReplies(whole);
  return 0;
}
