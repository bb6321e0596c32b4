#include "capacity/witness.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/host_name.h"
#include "base/varint.h"

namespace dthrottle {
namespace {

constexpr char kSavedVersion = 1;

}    // namespace

std::string Witness::Encode(const Saved& saved) {
  std::string bytes(1, kSavedVersion);
  AppendVarint(bytes, saved.promised);
  AppendVarint(bytes, saved.reserve);
  for (const auto& [name, life] : saved.dead) {
    AppendVarint(bytes, name.size());
    bytes += name;
    AppendVarint(bytes, life);
  }
  return bytes;
}

std::optional<Witness::Saved> Witness::Decode(std::string_view bytes) {
  Saved saved;
  if (bytes.empty()) return saved;
  ByteReader in(bytes);
  if (in.Byte() != kSavedVersion) return std::nullopt;
  saved.promised = in.Varint();
  saved.reserve = in.Varint();
  while (!in.empty()) {
    const std::string name(in.Bytes(in.Varint()));
    saved.dead[name] = in.Varint();
    if (!IsHostName(name)) return std::nullopt;
  }
  if (!in.ok()) return std::nullopt;
  return saved;
}

bool Witness::IsSaved(std::string_view head) {
  constexpr std::size_t kWholeBytesMax = 4095;    // of a longer file this is the beginning
  if (head.size() > kWholeBytesMax) return head.front() == kSavedVersion;
  return Decode(head).has_value();
}

Witness::Answer Witness::OnBeat(std::string_view host, std::uint64_t generation, std::uint64_t life,
                                std::uint64_t binding, BootInstant now) {
  if (generation != saved_.promised || generation == 0) return Answer::kNothing;
  auto at = seen_.find(host);
  if (at == seen_.end()) at = seen_.emplace(std::string(host), Seen()).first;
  Seen& seen = at->second;
  const auto dead = saved_.dead.find(host);
  if (life < seen.life || (dead != saved_.dead.end() && life <= dead->second)) return Answer::kDead;
  if (life > seen.life) {
    seen.former_life = std::exchange(seen.life, life);
    seen.former_binding = std::exchange(seen.binding, 0);
  }
  seen.binding = std::max(seen.binding, binding);
  seen.granted = now;
  return Answer::kGrant;
}

std::optional<std::uint64_t> Witness::OnFence(std::string_view host, std::uint64_t generation, std::uint64_t life,
                                              bool& changed, BootInstant now) {
  changed = false;
  if (generation != saved_.promised || generation == 0) return std::nullopt;
  const auto at = seen_.find(host);
  const Seen seen = at == seen_.end() ? Seen() : at->second;
  const auto buried = saved_.dead.find(host);
  if (buried == saved_.dead.end() || life > buried->second) {
    if (life > seen.life || (life == seen.life && !Lapsed(host, now))) return std::nullopt;
    saved_.dead[std::string(host)] = life;
    changed = true;
  }
  if (!whole_) return 0;
  return life == seen.life ? seen.binding : life == seen.former_life ? seen.former_binding : 0;
}

bool Witness::Lapsed(std::string_view host, BootInstant now) const {
  const auto at = seen_.find(host);
  const BootInstant granted = at == seen_.end() ? since_ : at->second.granted.value_or(since_);
  return now - std::max(granted, since_) > patience_;
}

void Witness::Promise(std::uint64_t generation) {
  DT_CHECK(generation > saved_.promised);
  saved_.promised = generation;
  saved_.dead.clear();
  whole_ = false;
  for (auto& [host, seen] : seen_) seen = {.granted = seen.granted};
}

}    // namespace dthrottle
