// How far an owner of tags has counted each host's stream of reports. The words lie beside the table, where kill -9
// leaves them: so the next life asks each host for the frames behind that, and counts these and no others
// (protocol/owners.md).
//
// A frame is noted after its last entry has reached the table. A kill in between has its first entries counted again;
// none is left out. A frame behind a gap is not noted before the gap is filled, and may be counted again too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/siphash.h"

namespace dthrottle {

class CountedStreams {
 public:
  static constexpr std::size_t kSlots = 8192;    // twice as many as hosts call an owner at most
  static constexpr std::size_t kWords = 8 + 2 * kSlots;
  using Words = std::span<std::uint64_t, kWords>;

  // Words are 0 where nobody has counted yet, and must outlive it. `key` is that of the table's tags. Another table has
  // another key, so what was counted into that one is not found.
  CountedStreams(Words words, const SipKey& key);

  // Whether these bytes begin such words, or nothing does.
  static bool IsOurs(std::string_view head);

  // Names the reports that a host publishes in one life for the owners of one list. Never 0.
  std::uint64_t NameOf(std::string_view host, std::uint64_t incarnation, std::uint64_t epoch) const;

  // Every frame of the stream up to that one is in the table. For one thread.
  void Note(std::uint64_t stream, std::uint64_t counted);

  // What lives before have noted. For any thread.
  std::optional<std::uint64_t> Before(std::uint64_t stream) const;
  bool any_before() const { return !before_.empty(); }

 private:
  static constexpr std::uint64_t kMagic = 0x31746e756f637464;    // dtcount1
  static constexpr std::size_t kHeadWords = 8, kReach = 32;      // slots in which a stream may be

  std::uint64_t& stream(std::size_t slot) const { return words_[kHeadWords + 2 * slot]; }
  std::uint64_t& counted(std::size_t slot) const { return words_[kHeadWords + 2 * slot + 1]; }
  std::size_t SlotFor(std::uint64_t stream) const;

  Words words_;
  const SipKey key_;
  std::unordered_map<std::uint64_t, std::uint64_t> before_;    // by stream
  std::vector<std::uint64_t> noted_;                           // by slot: when last, in notes; 0: by a life before
  std::uint64_t notes_ = 0;
};

}    // namespace dthrottle
