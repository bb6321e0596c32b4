// What an entry of a report costs on the wire, to write and to read.
//
//   report_bench [ENTRIES]     default a million, in frames as full as they get
//
// Tags are in random order, as a table yields them. Hits follow Zipf's law. CPU time, medians of the rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bus/codec.h"
#include "test/bench/measure.h"

using namespace dthrottle;

namespace {

constexpr int kRounds = 7;

template <class... Values>
std::string Format(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

unsigned Bits(std::uint64_t x, unsigned at, unsigned n) {
  return static_cast<unsigned>(x >> at) & ((1u << n) - 1);
}

std::string Ipv4(Prng& prng) {
  const std::uint64_t x = prng.Next();
  return Format("%u.%u.%u.%u", Bits(x, 0, 8), Bits(x, 8, 8), Bits(x, 16, 8), Bits(x, 24, 8));
}

// Customers' prefixes of 48 bits out of few providers', then networks and hosts of their own.
std::string Ipv6(Prng& prng) {
  const std::uint64_t x = prng.Next();
  return Format("2001:%x:%x:%x::%x", 0xdb0 + Bits(x, 0, 4), Bits(x, 4, 16), Bits(x, 20, 8), Bits(x, 28, 16));
}

std::string PathAndCustomer(Prng& prng) {
  static constexpr const char* kPaths[] = {"/api/v1/orders", "/api/v1/search", "/login", "/api/v2/items", "/cart"};
  return Format("%s:customer-%u", kPaths[prng.Below(std::size(kPaths))], Bits(prng.Next(), 0, 20));
}

std::string Uuid(Prng& prng) {
  const std::uint64_t a = prng.Next(), b = prng.Next();
  return Format("%08x-%04x-4%03x-8%03x-%04x%08x", Bits(a, 0, 16) << 16 | Bits(a, 16, 16), Bits(a, 32, 16),
                Bits(a, 48, 12), Bits(b, 0, 12), Bits(b, 12, 16), Bits(b, 28, 16) << 16 | Bits(b, 44, 16));
}

Message Report(std::uint64_t sequence) {
  Message m;
  m.kind = MessageKind::kReport;
  m.sender = "web-1.example";
  m.incarnation = 1'700'000'000'000'000;
  m.sequence = sequence;
  m.ring_low = 1;
  m.from = FromNanoseconds(1'000'000'000'000);
  m.to = m.from + std::chrono::seconds(1);
  m.period = std::chrono::seconds(1);
  return m;
}

void Measure(const char* name, std::size_t n, std::string (*tag)(Prng&), bool with_phases) {
  Prng prng(1);
  std::vector<Message> messages;
  std::size_t raw = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::string bytes = tag(prng);
    const std::uint64_t hits = std::min<std::uint64_t>(1'000'000, ~std::uint64_t{0} / (prng.Next() | 1));
    const auto phase = static_cast<std::uint8_t>(with_phases ? prng.Below(kPhases) : 0);
    if (messages.empty() || !messages.back().entries.Add({bytes}, hits, phase)) {
      messages.push_back(Report(messages.size() + 1));
      DT_CHECK(messages.back().entries.Add({bytes}, hits, phase));
    }
    raw += bytes.size();
  }
  std::vector<std::string> frames(messages.size());
  std::vector<double> encode, decode;
  Codec codec;
  Message back;
  for (int round = 0; round < kRounds; ++round) {
    const double start = CpuSeconds();
    for (std::size_t i = 0; i < frames.size(); ++i) codec.Encode(messages[i], frames[i]);
    const double encoded = CpuSeconds();
    std::size_t entries = 0;
    for (const std::string& frame : frames) {
      DT_CHECK(codec.Decode(frame, back) == DecodeFault::kNone);
      entries += back.entries.size();
    }
    DT_CHECK(entries == n);
    decode.push_back((CpuSeconds() - encoded) * 1e9 / static_cast<double>(n));
    encode.push_back((encoded - start) * 1e9 / static_cast<double>(n));
  }
  std::size_t bytes = 0;
  for (const std::string& frame : frames) bytes += frame.size();
  const auto per_entry = [n](std::size_t total) { return static_cast<double>(total) / static_cast<double>(n); };
  std::printf("%-14s  %-6s  %9.1f  %6zu  %11.2f  %15.1f  %15.1f\n", name, with_phases ? "random" : "0", per_entry(raw),
              frames.size(), per_entry(bytes), Median(encode), Median(decode));
}

}    // namespace

int main(int argc, char** argv) {
  const std::size_t n = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
  if (n == 0) return 2;
  std::printf("%zu entries, medians of %d rounds\n", n, kRounds);
  std::printf("tags            phases  tag bytes  frames  bytes/entry  encode ns/entry  decode ns/entry\n");
  for (const bool with_phases : {false, true}) {
    Measure("IPv4", n, Ipv4, with_phases);
    Measure("IPv6", n, Ipv6, with_phases);
    Measure("path:customer", n, PathAndCustomer, with_phases);
    Measure("UUID", n, Uuid, with_phases);
  }
}
