// What will happen, in order. Events of one instant happen in the order in which they were foreseen, so that a run
// depends on nothing but its seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
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

// A binary heap of small keys; events themselves stay where they are put. A frame that arrives at many hosts at one
// instant is kept once, and popped for each of them.
class EventQueue {
 public:
  void Push(WorldTime at, Event event) {
    if (JoinsLast(at, event)) {
      events_[last_].others.push_back({event.parcel.to, event.parcel.connection});
      return;
    }
    if (free_.empty()) {
      last_ = static_cast<std::uint32_t>(events_.size());
      events_.emplace_back();
    } else {
      last_ = free_.back();
      free_.pop_back();
    }
    events_[last_].event = std::move(event);
    last_at_ = at;
    heap_.push_back({at, pushed_++, last_});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  // The host that the frame which was popped last comes to so many events later; kNobody: it comes to no other.
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  std::uint32_t Coming(std::size_t later) const {
    if (heap_.empty()) return kNobody;
    const Foreseen& first = events_[heap_.front().place];
    if (first.gone == 0) return kNobody;    // nobody has had it yet
    const std::size_t other = first.gone + later - 2;
    return other < first.others.size() ? first.others[other].host : kNobody;
  }

  bool empty() const { return heap_.empty(); }
  WorldTime next() const { return heap_.front().at; }

  // REQUIRES: !empty().
  Event Pop() {
    const std::uint32_t place = heap_.front().place;
    Foreseen& first = events_[place];
    if (first.gone < first.others.size()) {
      Event event = first.event;
      const Receiver& other = first.others[first.gone++];
      first.event.parcel.to = other.host, first.event.parcel.connection = other.connection;
      return event;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    heap_.pop_back();
    free_.push_back(place);
    if (place == last_) last_ = kNone;
    first.others.clear();
    first.gone = 0;
    return std::move(first.event);
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Key {
    WorldTime at;
    std::uint64_t order;
    std::uint32_t place;
  };
  struct Receiver {
    std::uint32_t host, connection;
  };
  struct Foreseen {
    Event event;
    std::vector<Receiver> others{};    // of the frame, behind the one that the event has
    std::size_t gone = 0;              // of them
  };

  static bool Later(const Key& a, const Key& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }

  // This event differs from the latest by its receiver only, and follows it at once.
  bool JoinsLast(WorldTime at, const Event& event) const {
    if (last_ == kNone || last_at_ != at || event.kind != Event::Kind::kParcel || event.parcel.frame == nullptr) {
      return false;
    }
    const Event& last = events_[last_].event;
    return last.kind == event.kind && last.parcel.frame == event.parcel.frame &&
           last.parcel.channel == event.parcel.channel && last.parcel.from == event.parcel.from;
  }

  std::vector<Key> heap_;
  std::deque<Foreseen> events_;    // by place
  std::vector<std::uint32_t> free_;
  std::uint64_t pushed_ = 0;
  std::uint32_t last_ = kNone;    // the latest that was pushed, if it is not over
  WorldTime last_at_{};
};

}    // namespace dthrottle::lab
