// A frame about shares, as it is, with the right checksum behind it, and as a neighbour in the same generation would
// say it: never a crash, and what is accepted comes back the same when it is sent on.
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "capacity/capacity_message.h"
#include "capacity/topology.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

// Two hosts of three that talk to each other, so that the first is in a generation.
struct Hosts {
  struct Wire final : CapacityTransport {
    void Send(std::string_view peer, std::string_view frame) override {
      if (to != nullptr && peer == name) frames.emplace_back(frame);
    }
    void Save(std::string_view) override {}
    std::string name;
    CapacityExchange* to = nullptr;
    std::vector<std::string> frames;
  };

  static CapacitySettings Settings() {
    return {.members = {"a", "b", "c"}, .graph = CompleteTopology(3), .tags_max = 100};
  }

  Hosts()
      : a({.name = "a"}, Settings(), wire_a, Prng(1), BootInstant(1s)),
        b({.name = "b"}, Settings(), wire_b, Prng(2), BootInstant(1s)) {
    wire_a.name = "b", wire_a.to = &b;
    wire_b.name = "a", wire_b.to = &a;
    for (int i = 0; i < 40; ++i) {
      now += 500ms;
      a.Tick(now), b.Tick(now);
      while (!wire_a.frames.empty() || !wire_b.frames.empty()) {
        for (const std::string& frame : std::exchange(wire_a.frames, {})) b.OnMessage("a", frame, now);
        for (const std::string& frame : std::exchange(wire_b.frames, {})) a.OnMessage("b", frame, now);
      }
    }
    if (a.Counts(now).generation == 0) std::abort();
    wire_a.to = nullptr;
  }

  Wire wire_a, wire_b;
  CapacityExchange a, b;
  BootInstant now = BootInstant(1s);
};

void Try(std::string_view frame) {
  static CapacityMessage message, again;
  static std::string sent, sent_again;
  if (DecodeCapacity(frame, message) != CapacityFault::kNone) return;
  EncodeCapacity(message, sent);
  if (DecodeCapacity(sent, again) != CapacityFault::kNone) std::abort();
  EncodeCapacity(again, sent_again);
  if (sent != sent_again) std::abort();
  Hosts hosts;
  message.generation += hosts.a.Counts(hosts.now).generation;
  message.to_epoch = hosts.a.Counts(hosts.now).epoch;
  message.epoch += hosts.b.Counts(hosts.now).epoch;
  for (const char* who : {"b", "c"}) {
    message.host = who;
    EncodeCapacity(message, sent);
    hosts.a.OnMessage(who, sent, hosts.now);
  }
  for (int i = 0; i < 30; ++i) hosts.a.Tick(hosts.now += 500ms);
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  Try(std::string(bytes).append(reinterpret_cast<const char*>(&sum), sizeof(sum)));
  return 0;
}
