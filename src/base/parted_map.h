// A map by hash that grows a part at a time. A std::unordered_map moves all it has when it grows: at 10^6 entries that
// takes half a second, and nobody else on its thread is answered meanwhile.
//
// The upper bits of the hash say which part an entry is in. All parts are about as full, so each has a load factor of
// its own: they grow one after the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>

namespace dthrottle {

// REQUIRES: hashes are as good as random.
template <class T>
class PartedMap {
 public:
  static constexpr std::size_t kParts = 1024;
  using Part = std::unordered_map<std::uint64_t, T>;

  PartedMap() {
    for (std::size_t i = 0; i < kParts; ++i) {
      parts_[i].max_load_factor(0.75F * (1 + static_cast<float>(i) / kParts));    // a part doubles when it grows
    }
  }

  std::size_t size() const { return size_; }
  const Part& part(std::size_t index) const { return parts_[index]; }

  // Null: there is none. An entry stays where it is until it is erased.
  T* Find(std::uint64_t hash) {
    Part& part = PartOf(hash);
    const auto known = part.find(hash);
    return known != part.end() ? &known->second : nullptr;
  }
  // The entry, which is made if there is none.
  T& Add(std::uint64_t hash) {
    const auto [entry, made] = PartOf(hash).try_emplace(hash);
    size_ += made;
    return entry->second;
  }
  void Erase(std::uint64_t hash) { size_ -= PartOf(hash).erase(hash); }

  // Erases entries of a part for which unwanted(entry) is true; it may change the others.
  template <class Unwanted>
  void EraseIf(std::size_t index, Unwanted&& unwanted) {
    Part& part = parts_[index];
    for (auto it = part.begin(); it != part.end();) {
      const bool erases = unwanted(it->second);
      size_ -= erases;
      it = erases ? part.erase(it) : std::next(it);
    }
  }
  // Calls each(entry).
  template <class Each>
  void ForEach(Each&& each) const {
    for (const Part& part : parts_) {
      for (const auto& [hash, entry] : part) each(entry);
    }
  }

 private:
  static constexpr int kShift = 64 - 10;
  static_assert(kParts == std::size_t{1} << (64 - kShift));

  Part& PartOf(std::uint64_t hash) { return parts_[hash >> kShift]; }

  std::array<Part, kParts> parts_;
  std::size_t size_ = 0;
};

}    // namespace dthrottle
