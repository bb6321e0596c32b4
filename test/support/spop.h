// The front end for HAProxy without its sockets: one connection, whose bytes go in and whose replies come out, and the
// frames that HAProxy sends.
#pragma once

#include <string>
#include <string_view>

#include "frontend/spop/frame.h"
#include "frontend/spop/turn.h"
#include "test/support/host.h"

namespace dthrottle::testing {

class SpopHost {
 public:
  explicit SpopHost(std::string_view toml, std::size_t tag_bytes_max = kTagBytesMax)
      : host(toml), turn(*host.limiter, 0, Prng(1), tag_bytes_max) {}

  // What the daemon would reply to these bytes at `now`.
  std::string Send(std::string_view bytes, Instant now = FromNanoseconds(1'000'000'000)) {
    if (client.leaving) return "";
    const std::string whole = std::string(reader.rest()) + std::string(bytes);
    if (!reader.Read(whole, *this)) turn.OnNoFrame(client);
    turn.Answer(now);
    const std::string replies(turn.answers().Of(0, turn.size()));
    turn.Clear();
    return replies;
  }

  bool OnFrame(const SpopFrame& frame) {
    turn.OnFrame(client, frame);
    return !client.leaving;
  }

  Host host;
  SpopTurn turn;
  SpopReader reader;
  SpopClient client;
};

}    // namespace dthrottle::testing
