#include "bus/owners/counted_streams.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

namespace dthrottle {
namespace {

// A kill may come between any two of these, and finds them in this order.
void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}    // namespace

CountedStreams::CountedStreams(Words words, const SipKey& key) : words_(words), key_(key), noted_(kSlots) {
  if (words_[0] != kMagic) {
    std::ranges::fill(words_, std::uint64_t{0});
    Store(words_[0], kMagic);
  }
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (stream(slot) != 0) before_[stream(slot)] = counted(slot);
  }
}

bool CountedStreams::IsOurs(std::string_view head) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, head.data(), std::min(head.size(), sizeof magic));
  return magic == kMagic || std::ranges::all_of(head, [](char c) { return c == 0; });
}

std::uint64_t CountedStreams::NameOf(std::string_view host, std::uint64_t incarnation, std::uint64_t epoch) const {
  std::string bytes;
  for (const std::uint64_t number : {incarnation, epoch}) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return std::max<std::uint64_t>(SipHash<2, 4>(key_, bytes.append(host)), 1);
}

// The slot of the stream, or the one that it is to take: a free one, or the one that was noted longest ago.
std::size_t CountedStreams::SlotFor(std::uint64_t name) const {
  std::size_t best = name % kSlots;
  const auto rank = [&](std::size_t slot) { return stream(slot) == 0 ? 0 : noted_[slot] + 1; };
  for (std::size_t i = 0; i < kReach; ++i) {
    const std::size_t slot = (name + i) % kSlots;
    if (stream(slot) == name) return slot;
    if (rank(slot) < rank(best)) best = slot;
  }
  return best;
}

void CountedStreams::Note(std::uint64_t name, std::uint64_t last) {
  const std::size_t slot = SlotFor(name);
  if (stream(slot) != name) {
    Store(stream(slot), 0);
    Store(counted(slot), last);
    Store(stream(slot), name);
  } else {
    Store(counted(slot), last);
  }
  noted_[slot] = ++notes_;
}

std::optional<std::uint64_t> CountedStreams::Before(std::uint64_t name) const {
  const auto its = before_.find(name);
  return its != before_.end() ? std::optional(its->second) : std::nullopt;
}

}    // namespace dthrottle
