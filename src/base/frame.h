// The envelope of every frame between hosts: a prefix whose last byte is the major version, a MessagePack map
// (base/fields.h), and XXH3-64 of both.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/fields.h"

namespace dthrottle {

enum class FrameFault : std::uint8_t { kNone, kJunk, kVersion, kChecksum };

// The least besides the prefix: an empty map, and the checksum.
inline constexpr std::size_t kFrameRestBytes = 1 + sizeof(XXH64_hash_t);

// Replaces `frame` by one whose map has the fields that say(fields) names.
template <class Say>
void WriteFrame(std::string_view prefix, std::string& frame, Say&& say) {
  FieldCounter counter;
  say(counter);
  frame.assign(prefix);
  FieldWriter writer(frame, counter.count());
  say(writer);
  const XXH64_hash_t checksum = XXH3_64bits(frame.data(), frame.size());
  frame.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

// The first step of decoding: leaves of `frame` what is between the prefix and the checksum.
inline FrameFault OpenFrame(std::string_view prefix, std::size_t bytes_max, std::string_view& frame) {
  const std::size_t version_at = prefix.size() - 1;
  if (frame.size() > bytes_max || frame.size() <= version_at || !frame.starts_with(prefix.substr(0, version_at))) {
    return FrameFault::kJunk;
  }
  if (frame[version_at] != prefix[version_at]) return FrameFault::kVersion;
  if (frame.size() < prefix.size() + kFrameRestBytes) return FrameFault::kJunk;
  XXH64_hash_t checksum;
  std::memcpy(&checksum, frame.data() + frame.size() - sizeof(checksum), sizeof(checksum));
  frame.remove_suffix(sizeof(checksum));
  if (checksum != XXH3_64bits(frame.data(), frame.size())) return FrameFault::kChecksum;
  frame.remove_prefix(prefix.size());
  return FrameFault::kNone;
}

}    // namespace dthrottle
