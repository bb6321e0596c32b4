// The front end for questions without its sockets: one connection, whose bytes go in and whose answers come out.
#pragma once

#include <string>
#include <string_view>

#include "frontend/ask/reader.h"
#include "frontend/ask/turn.h"
#include "test/support/host.h"

namespace dthrottle::testing {

class AskHost {
 public:
  explicit AskHost(std::string_view toml, std::size_t tag_bytes_max = kTagBytesMax)
      : host(toml), turn(*host.limiter, 0, Prng(1), tag_bytes_max) {}

  // What the daemon would answer to these bytes at `now`.
  std::string Send(std::string_view bytes, Instant now = FromNanoseconds(1'000'000'000)) {
    if (closed) return "";
    const std::string whole = std::string(reader.rest()) + std::string(bytes);
    if (reader.IsBrowser(whole)) {
      closed = true;
      return "";
    }
    reader.Read(whole, turn);
    turn.Answer(now);
    const std::string answers(turn.Answers(0, turn.lines()));
    turn.Clear();
    return answers;
  }

  Host host;
  AskTurn turn;
  AskReader reader;
  bool closed = false;    // by the daemon
};

}    // namespace dthrottle::testing
