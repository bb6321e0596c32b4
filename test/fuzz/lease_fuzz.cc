// Bytes of a lease socket, cut in two places that the input chooses: never a crash, one printable line for an answer to
// each line, and the same answers as uncut.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "frontend/lease/lines.h"

using namespace dthrottle;

namespace {

constexpr BootInstant kNow = BootInstant(std::chrono::hours(1000));

std::string Answers(std::string_view bytes, std::size_t first, std::size_t second, bool learning) {
  lease::ResourceTemplate how;
  how.identifier_glob = "*";
  how.capacity = 100;
  auto templates = lease::Templates::Make({how});
  lease::ServerOptions options;
  options.min_request_interval = Duration::zero();
  options.clients_max = 20;
  lease::LeaseServer server(options, std::move(*templates));
  server.BecomeMaster({.epoch = 1000, .since = learning ? kNow : kNow - std::chrono::hours(1), .former = 900});
  std::string answers, rest;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    const std::string read = rest + std::string(piece);
    const LeaseLines lines = SplitLeaseLines(read);
    const std::size_t before = answers.size();
    const std::size_t count = AnswerLeaseLines(lines, server, kNow, answers);
    if (std::count(answers.begin() + static_cast<std::ptrdiff_t>(before), answers.end(), '\n') !=
        static_cast<std::ptrdiff_t>(count)) {
      std::abort();
    }
    rest = lines.rest;
    if (rest.size() > kLeaseLineBytesMax) std::abort();
    if (lines.too_long) break;
  }
  const auto odd = [](unsigned char c) { return c != '\n' && (c < 0x20 || c > 0x7e); };
  if (std::any_of(answers.begin(), answers.end(), odd)) std::abort();
  return answers;
}

// An answer of a parent, which may be anybody.
void ReadAsParent(std::string_view bytes) {
  for (std::size_t lf; (lf = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(lf + 1)) {
    const auto grant = ReadParentAnswer(bytes.substr(0, lf), kNow);
    if (grant && !(grant->lease.capacity >= 0 && grant->share >= 0 && grant->lease.expiry >= kNow)) std::abort();
  }
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  const std::size_t a = data[1] * bytes.size() / 255, b = data[2] * bytes.size() / 255;
  const bool learning = data[0] % 2 == 1;
  ReadAsParent(bytes);
  if (Answers(bytes, 0, 0, learning) != Answers(bytes, std::min(a, b), std::max(a, b), learning)) std::abort();
  return 0;
}
