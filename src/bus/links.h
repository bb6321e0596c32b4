// The links of a host in ascending order of their ids. A link stays where it is, so hosts may point at it.
//
// Hardly anything of a thousand links is in a cache when a report comes, so what leads to one stands together.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/prefetch.h"
#include "bus/peer.h"

namespace dthrottle {

class Links {
 public:
  // Null: there is none.
  Link* Find(LinkId id) const {
    const std::size_t at = Place(id);
    return at < places_.size() && places_[at].id == id ? places_[at].link.get() : nullptr;
  }

  // Brings what reports by these links need from memory, much of it at once. Ids that there are not are passed over.
  void Prefetch(std::span<const LinkId> ids) const {
    std::array<const Link*, 16> links;
    while (!ids.empty()) {
      const std::size_t count = std::min(ids.size(), links.size());
      for (std::size_t i = 0; i < count; ++i) {
        links[i] = Find(ids[i]);
        if (links[i] != nullptr) dthrottle::Prefetch<kLinkLines>(links[i]);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (links[i] != nullptr && links[i]->peer != nullptr) dthrottle::Prefetch<kPeerLines>(links[i]->peer);
      }
      ids = ids.subspan(count);
    }
  }

  // REQUIRES: Find(id) is null.
  Link& Add(LinkId id) {
    const auto at = static_cast<std::ptrdiff_t>(Place(id));
    Link& link = *places_.insert(places_.begin() + at, {id, std::make_unique<Link>()})->link;
    link.status.link = id;
    return link;
  }

  // REQUIRES: Find(id) is not null.
  void Remove(LinkId id) {
    places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(Place(id)));
  }

  std::size_t size() const { return places_.size(); }
  auto begin() const { return places_.begin(); }    // of pairs: an id, and a pointer to the link
  auto end() const { return places_.end(); }

 private:
  struct AtId {
    LinkId id;
    std::unique_ptr<Link> link;
  };

  // What a report needs of a link and of a peer, which they begin with.
  static constexpr std::size_t kLinkLines = 3, kPeerLines = 5;

  // Where the id is, or would be. Ids are distinct, so it is no further from either end than its number is from the
  // number there: where few are missing between, hardly anything is left to search.
  std::size_t Place(LinkId id) const {
    if (places_.empty() || id <= places_.front().id) return 0;
    if (id > places_.back().id) return places_.size();
    const std::size_t from_front = id - places_.front().id, from_back = places_.back().id - id;
    const std::size_t last = places_.size() - 1;
    const auto first = places_.begin() + static_cast<std::ptrdiff_t>(last - std::min(from_back, last));
    const auto end = places_.begin() + static_cast<std::ptrdiff_t>(std::min(from_front, last)) + 1;
    return static_cast<std::size_t>(std::ranges::lower_bound(first, end, id, {}, &AtId::id) - places_.begin());
  }

  std::vector<AtId> places_;
};

}    // namespace dthrottle
