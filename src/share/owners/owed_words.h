// What each host, by its number, is to be told because it has named it: hashes of tags, or other words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bus/entries.h"

namespace dthrottle {

template <class Word = std::uint64_t>
class OwedWords {
 public:
  // The host is to be told of the word, which it may be owed already.
  void Owe(std::uint32_t peer, const Word& word) {
    if (due_.size() <= peer) due_.resize(peer + 1);
    if (due_[peer].size() < kMost) due_[peer].push_back(word);
  }

  // Calls add(word) for what the host is to be told, until that returns false for want of room. Returns whether all
  // found room.
  template <class Add>
  bool Give(std::uint32_t peer, Add&& add) {
    if (peer >= due_.size()) return true;
    std::vector<Word>& due = due_[peer];
    while (!due.empty() && add(due.back())) due.pop_back();
    return due.empty();
  }

  bool any(std::uint32_t peer) const { return peer < due_.size() && !due_[peer].empty(); }

 private:
  static constexpr std::size_t kMost = 4 * kEntriesMax;    // to one host; it names again what is left out

  std::vector<std::vector<Word>> due_;
};

}    // namespace dthrottle
