// The room that an owner has for what it notes of tags (owning.h), by those that brought the tags: hosts, and others
// that are no hosts. Where there is none left, a tag of the one that brought most gives way. So a host that names any
// number of tags takes room from itself, and a tag of another finds room.
//
// Every step takes the same time, however many tags and hosts there are. For one thread, as Owning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "share/share.h"

namespace dthrottle {

class TagRoom {
 public:
  // What a tag keeps that has room.
  struct Place {
    std::uint32_t peer = kNobody;    // that brought it, by number; kNobody: all that are no hosts
    std::uint32_t index = 0;         // among those of the peer
  };

  // For so many tags.
  explicit TagRoom(std::size_t most) : most_(most) {}

  bool full() const { return used_ >= most_; }

  // The tag, by hash, that gives way to another one of the peer; none: none does.
  std::optional<std::uint64_t> GivesWay(std::uint32_t peer) {
    if (used_ == 0) return std::nullopt;
    Tags* const own = &TagsOf(peer);
    look_ = (look_ + 1) % brought_.size();
    NoteIfMost(look_);    // tags of the one that had most may be gone meanwhile
    Tags& gives = own->hashes.size() >= brought_[largest_].hashes.size() ? *own : brought_[largest_];
    if (gives.hashes.empty()) return std::nullopt;
    return gives.hashes[gives.turn++ % gives.hashes.size()];
  }

  // REQUIRES: it is not full.
  Place Add(std::uint64_t hash, std::uint32_t peer) {
    Tags& tags = TagsOf(peer);
    tags.hashes.push_back(hash);
    ++used_;
    NoteIfMost(IndexOf(peer));
    return {peer, static_cast<std::uint32_t>(tags.hashes.size() - 1)};
  }

  // `place_of(hash)` is the place of a tag that has room.
  template <class PlaceOf>
  void Remove(Place place, PlaceOf&& place_of) {
    std::vector<std::uint64_t>& hashes = TagsOf(place.peer).hashes;
    place_of(hashes.back()).index = place.index;
    hashes[place.index] = hashes.back();
    hashes.pop_back();
    --used_;
  }

 private:
  struct Tags {
    std::vector<std::uint64_t> hashes{};
    std::size_t turn = 0;    // they give way one after the other
  };

  static std::size_t IndexOf(std::uint32_t peer) { return peer == kNobody ? 0 : std::size_t{peer} + 1; }
  Tags& TagsOf(std::uint32_t peer) {
    const std::size_t index = IndexOf(peer);
    if (brought_.size() <= index) brought_.resize(index + 1);
    return brought_[index];
  }
  void NoteIfMost(std::size_t index) {
    if (brought_[index].hashes.size() > brought_[largest_].hashes.size()) largest_ = index;
  }

  const std::size_t most_;
  std::size_t used_ = 0;
  std::vector<Tags> brought_ = std::vector<Tags>(1);    // by IndexOf
  std::size_t largest_ = 0, look_ = 0;                  // of these: the one with most, and the one looked at last
};

}    // namespace dthrottle
