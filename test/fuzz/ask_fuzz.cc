// Bytes of an ask socket, cut in two places that the input chooses: never a crash, one line for an answer to each line
// that is whole or too long, a refusal that spends nothing, and the same answers as uncut.
// When the connection ends, everything that it holds comes back.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "limiter/inspect.h"
#include "test/support/ask.h"

using namespace dthrottle;

namespace {

constexpr const char* kRules =
    "[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=5\nrate=1\nin_flight=3\n"
    "[[rule]]\nname=\"s\"\nmatch=\"s*\"\nburst=2\nrate=1\n"
    "mode=\"shadow\"\n[[rule]]\nname=\"n\"\nmatch=\"n*\"\nburst=3\nrate=0.001\n";

std::string AnswersTo(std::string_view bytes, std::size_t first, std::size_t second) {
  testing::AskHost host(kRules, 30, 4096);
  std::string answers;
  std::uint64_t lines = 0;
  for (const std::string_view piece :
       {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)}) {
    answers += host.Send(piece);
    if (host.reader.rest().size() > AskReader::kLineBytesMax) std::abort();
  }
  const AskCounts& counts = host.turn.counts();
  lines = static_cast<std::uint64_t>(std::count(answers.begin(), answers.end(), '\n'));
  if (lines != counts.questions + counts.settlements + counts.errors || counts.refused > counts.questions) std::abort();
  const auto whole = static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  const std::uint64_t open = host.holds.counts().open, bound = host.holder.holds.size();
  host.turn.returns().Leave(host.holder, FromNanoseconds(2'000'000'000));
  if (CountsOf(*host.host.limiter).in_flight.taken != 0 || host.holds.counts().open + bound < open) std::abort();
  if (!host.closed && lines != whole && lines != whole + 1) std::abort();
  return answers;
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t a = data[0] * bytes.size() / 255, b = data[1] * bytes.size() / 255;
  if (AnswersTo(bytes, 0, 0) != AnswersTo(bytes, std::min(a, b), std::max(a, b))) std::abort();
  return 0;
}
