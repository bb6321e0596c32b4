// The front end for questions without its sockets: one connection, whose bytes go in and whose answers come out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/ask/reader.h"
#include "frontend/ask/turn.h"
#include "hold/holds.h"
#include "test/support/host.h"

namespace dthrottle::testing {

class AskHost {
 public:
  static constexpr std::uint64_t kFirstHold = 1;    // so that transcripts know the IDs

  explicit AskHost(std::string_view toml, std::size_t tag_bytes_max = kTagBytesMax, std::size_t holds_max = 64)
      : host(toml),
        region(HoldTable::RegionBytes(holds_max) / sizeof(Line)),
        holds([this](const Payment& paid, Cost actual, Instant now) { host.limiter->Settle(paid, actual, now); },
              std::as_writable_bytes(std::span(region)), holds_max, {}, kFirstHold),
        turn(*host.limiter, &holds, 0, Prng(1), tag_bytes_max) {
    host.limiter->SetTagBytesMax(tag_bytes_max);
  }

  // As the connection of reader and turn.
  void OnLine(std::string_view line) { turn.OnLine(line, holder); }
  void OnTooLong() { turn.OnTooLong(); }

  // What the daemon would answer to these bytes at `now`.
  std::string Send(std::string_view bytes, Instant now = FromNanoseconds(1'000'000'000)) {
    if (closed) return "";
    const std::string whole = std::string(reader.rest()) + std::string(bytes);
    if (reader.IsBrowser(whole)) {
      closed = true;
      return "";
    }
    reader.Read(whole, *this);
    turn.Answer(now);
    const std::string answers(turn.answers().Of(0, turn.size()));
    turn.Clear();
    return answers;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  Host host;
  std::vector<Line> region;
  Holds holds;
  Holder holder;
  AskTurn turn;
  AskReader reader;
  bool closed = false;    // by the daemon
};

}    // namespace dthrottle::testing
