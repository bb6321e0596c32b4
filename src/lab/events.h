// What will happen, in order. Events of one instant happen in the order in which they were foreseen, so that a run
// depends on nothing but its seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/clock.h"

namespace dthrottle {
struct Decoded;
}

namespace dthrottle::lab {

// How a frame travels.
enum class Channel : std::uint8_t { kPublished, kRequest, kAnswer, kCapacity };

struct Parcel {
  Channel channel{};
  std::uint32_t from = 0, to = 0;
  std::uint32_t connection = 0;    // between the two hosts, by a number that the fleet gives it
  std::shared_ptr<const std::string> frame{};
  std::shared_ptr<const Decoded> decoded{};    // of a frame that many hear; null: each decodes it
};

struct Event {
  enum class Kind : std::uint8_t {
    kParcel,     // arrives
    kWake,       // the host `parcel.to` wanted to be called; `parcel.connection` is the number of its wish
    kArrival,    // the next query of workload `parcel.from`
    kCall,       // of the function number `parcel.from`
  };
  Kind kind{};
  Parcel parcel;
};

// A binary heap of small keys; events themselves stay where they are put.
class EventQueue {
 public:
  void Push(WorldTime at, Event event) {
    std::uint32_t place;
    if (free_.empty()) {
      place = static_cast<std::uint32_t>(events_.size());
      events_.push_back(std::move(event));
    } else {
      place = free_.back();
      free_.pop_back();
      events_[place] = std::move(event);
    }
    heap_.push_back({at, pushed_++, place});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  bool empty() const { return heap_.empty(); }
  WorldTime next() const { return heap_.front().at; }

  // REQUIRES: !empty().
  Event Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const std::uint32_t place = heap_.back().place;
    heap_.pop_back();
    free_.push_back(place);
    return std::move(events_[place]);
  }

 private:
  struct Key {
    WorldTime at;
    std::uint64_t order;
    std::uint32_t place;
  };

  static bool Later(const Key& a, const Key& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }

  std::vector<Key> heap_;
  std::vector<Event> events_;
  std::vector<std::uint32_t> free_;
  std::uint64_t pushed_ = 0;
};

}    // namespace dthrottle::lab
