// The listener for clients of Redis without its sockets: one client, whose bytes go in and whose replies come out.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "frontend/resp/reader.h"
#include "frontend/resp/turn.h"
#include "test/support/host.h"

namespace dthrottle::testing {

class RespHost {
 public:
  explicit RespHost(std::string_view toml, bool accept_limits = false, std::size_t tag_bytes_max = kTagBytesMax)
      : host(toml), memory_(Table::kRegionBytesMin / sizeof(Line)) {
    if (accept_limits) {
      const std::span<std::byte> region{reinterpret_cast<std::byte*>(memory_.data()), memory_.size() * sizeof(Line)};
      brought = std::make_unique<BroughtLimits>(region, std::array<std::byte, 16>{}, TableKeys{{5, 6}, {}},
                                                FromNanoseconds(0));
    }
    turn = std::make_unique<RespTurn>(*host.limiter, brought.get(), 0, Prng(1), tag_bytes_max, [this] {
      return RespStatus{std::chrono::seconds(7), 1, 1, turn->counts().commands, 1024};
    });
    client.id = 1;
  }

  // What the daemon would reply to these bytes at `now`.
  std::string Send(std::string_view bytes, Instant now = FromNanoseconds(1'000'000'000)) {
    if (client.leaving) return "";
    const std::string whole = std::string(reader.rest()) + std::string(bytes);
    if (const auto read = reader.Read(whole, *this); !read) turn->AddProtocolError(client, read.error());
    turn->Answer(now);
    const std::string replies(turn->answers().Of(0, turn->size()));
    turn->Clear();
    return replies;
  }

  bool OnCommand(RespArguments arguments) {
    turn->Add(client, arguments);
    return !client.leaving;
  }

  Host host;
  std::unique_ptr<BroughtLimits> brought;
  std::unique_ptr<RespTurn> turn;
  RespReader reader;
  RespClient client;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
};

}    // namespace dthrottle::testing
