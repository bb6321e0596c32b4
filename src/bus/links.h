// The links of a host in ascending order of their ids. A link stays where it is, so hosts may point at it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "bus/peer.h"

namespace dthrottle {

class Links {
 public:
  // Null: there is none.
  Link* Find(LinkId id) const {
    const std::size_t at = Place(id);
    return at < ids_.size() && ids_[at] == id ? links_[at].get() : nullptr;
  }

  // Brings what reports by these links need from memory, much of it at once. Ids that there are not are passed over.
  void Prefetch(std::span<const LinkId> ids) const {
    std::array<const Link*, 16> links;
    while (!ids.empty()) {
      const std::size_t count = std::min(ids.size(), links.size());
      for (std::size_t i = 0; i < count; ++i) {
        links[i] = Find(ids[i]);
        if (links[i] != nullptr) PrefetchBegin(links[i]);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (links[i] != nullptr && links[i]->peer != nullptr) PrefetchBegin(links[i]->peer);
      }
      ids = ids.subspan(count);
    }
  }

  // REQUIRES: Find(id) is null.
  Link& Add(LinkId id) {
    const auto at = static_cast<std::ptrdiff_t>(Place(id));
    ids_.insert(ids_.begin() + at, id);
    Link& link = **links_.insert(links_.begin() + at, std::make_unique<Link>());
    link.status.link = id;
    return link;
  }

  // REQUIRES: Find(id) is not null.
  void Remove(LinkId id) {
    const auto at = static_cast<std::ptrdiff_t>(Place(id));
    ids_.erase(ids_.begin() + at);
    links_.erase(links_.begin() + at);
  }

  std::size_t size() const { return links_.size(); }
  auto begin() const { return links_.begin(); }    // of pointers
  auto end() const { return links_.end(); }

 private:
  // The assembler keeps calls of this: GCC takes a function that only prefetches for one without an effect.
  static void PrefetchBegin(const void* what) {
    constexpr std::size_t kLine = 64, kLines = 6;
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(static_cast<const char*>(what) + i * kLine);
    asm volatile("");
  }

  // Where the id is, or would be. Ids are distinct, so it is no further from either end than its number is from the
  // number there: where few are missing between, hardly anything is left to search.
  std::size_t Place(LinkId id) const {
    if (ids_.empty() || id <= ids_.front()) return 0;
    if (id > ids_.back()) return ids_.size();
    const std::size_t from_front = id - ids_.front(), from_back = ids_.back() - id, last = ids_.size() - 1;
    const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(last - std::min(from_back, last));
    const auto end = ids_.begin() + static_cast<std::ptrdiff_t>(std::min(from_front, last)) + 1;
    return static_cast<std::size_t>(std::lower_bound(first, end, id) - ids_.begin());
  }

  std::vector<LinkId> ids_;
  std::vector<std::unique_ptr<Link>> links_;    // in the same order
};

}    // namespace dthrottle
