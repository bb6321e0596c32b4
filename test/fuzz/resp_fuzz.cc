// Bytes of a client of Redis, cut in two places that the input chooses: never a crash, and never other commands than
// uncut; each reply to them is complete and of a kind that Redis has.
#include <sodium/core.h>

#include <cstdint>
#include <cstdlib>

#include "test/support/resp.h"

using namespace dthrottle;

namespace {

constexpr const char* kRules =
    "[[rule]]\nmatch=\"a*\"\nburst=2\nrate=1\n[[rule]]\nmatch=\"s*\"\nburst=1\nrate=1\nmode=\"shadow\"\n";

// The commands that a reader makes of the bytes, and the error that it ends with.
struct Commands {
  std::string seen;

  bool OnCommand(RespArguments arguments) {
    for (const std::string_view argument : arguments) (seen += argument) += '\0';
    seen += '\n';
    return true;
  }
};

std::string Read(std::string_view bytes, std::size_t first, std::size_t second) {
  RespReader reader;
  Commands commands;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    const std::string whole = std::string(reader.rest()) + std::string(piece);
    if (const auto read = reader.Read(whole, commands); !read) return commands.seen + read.error().message;
    if (reader.rest().size() > RespReader::kRestBytesMax) std::abort();
  }
  return commands.seen;
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
  const std::size_t a = data[1] * bytes.size() / 255, b = data[2] * bytes.size() / 255;
  if (Read(bytes, 0, 0) != Read(bytes, std::min(a, b), std::max(a, b))) std::abort();

  // Making a host takes longer than all the rest, so there are two, and time in which what was spent comes back.
  static testing::RespHost by_rules(kRules, false, 20), as_brought(kRules, true, 20);
  static Instant now{};
  testing::RespHost& host = data[0] % 2 == 0 ? by_rules : as_brought;
  host.reader = {};
  host.client = {};
  CheckReplies(host.Send(bytes, now += std::chrono::seconds(10)));
  return 0;
}
