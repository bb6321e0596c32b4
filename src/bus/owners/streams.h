// The streams of reports that this host publishes. Where everybody hears everything it is one. Where owners have the
// tags it is one for each owner, with numbers, a ring and repairs of its own: what the limiter hands over is cut by
// owner, and what this host owns itself goes to nobody.
//
// When the list of owners changes, a stream of which everything is counted begins anew at once. Another one is closing:
// nothing is published in it, until its owner has said which frames it has counted and that it will count no other
// (kClosed). The hits in the others are then cut anew. So each hit is counted once, by one owner.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bus/owners/owners.h"
#include "bus/publishing.h"

namespace dthrottle {

struct Stream {
  static constexpr std::size_t kWaitingMax = 4096;

  std::unique_ptr<Publishing> publishing;
  bool closing = false;
  std::uint64_t counted_by = 0;      // the incarnation of the owner that counted frames of it; 0: none has
  Instant closing_since{}, ask_at{};
  std::deque<ToPeers> waiting{};     // until it is closed

  // Over a restart; what waits is handed over by then, or lost.
  static void Fields(auto& state, auto& self) {
    state(*self.publishing, self.closing, self.counted_by);
  }
};

class Streams {
 public:
  explicit Streams(ExchangeCore& core);

  // Cuts the item by owner, for the streams to carry. REQUIRES: as Publishing::FromLimiter.
  void FromLimiter(ToPeers& item, Instant now);
  void Flush(Instant now);

  // ---- Owners ----

  // What comes from now on is cut by the owners in force.
  void Switch(Instant now);
  // What the owner has counted of a stream that is closing: every frame up to `counted` but `missing`. What else is in
  // it is cut anew, and what this host owns now is handed to the limiter.
  void Close(std::string_view owner, std::uint64_t counted, const std::vector<SequenceRange>& missing, Instant now);
  // Nobody will say what was counted of it.
  void GiveUp(std::string_view owner, Instant now);
  // The stream to that owner if it is cut by the owners in force; if it is closing. Null otherwise.
  Stream* Open(std::string_view owner);
  Stream* Closing(std::string_view owner);
  // Hands over to the limiter what this host has to count itself. REQUIRES: all tags that it owns have come.
  void ReleaseOwn() {
    for (FromPeers& own : std::exchange(own_, {})) core_.to_limiter.Push(std::move(own));
  }
  // Calls each(owner, stream) for those that are closing.
  template <class Each>
  void ForEachClosing(Each&& each) {
    for (auto& [owner, stream] : streams_) {
      if (stream.closing) each(owner, stream);
    }
  }

  // The one that a host of that name hears.
  Publishing& For(std::string_view host);
  const Publishing& For(std::string_view host) const { return const_cast<Streams*>(this)->For(host); }

  struct Sizes {
    std::uint64_t frames = 0, bytes = 0, subscribers = 0, closing = 0;    // of all
  };
  Sizes sizes() const;

  // Over a restart, with the same owners. REQUIRES: Flush() has been called.
  static void Fields(auto& state, auto& self) {
    state(self.common_);
    std::uint64_t count = self.streams_.size();
    state(count);
    if constexpr (!kIsReading<decltype(state)>) {
      for (const auto& [owner, stream] : self.streams_) state(owner, stream);
    } else {
      self.streams_.clear();
      std::string owner;
      for (; count > 0 && state.ok(); --count) {
        state(owner);
        Stream& stream = self.streams_[owner];
        stream.publishing = std::make_unique<Publishing>(self.core_);
        state(stream);
      }
      self.owners_ = self.core_.owners;
    }
  }

 private:
  void Cut(const Entries& all);
  ToPeers TakePart(const ToPeers& item, std::size_t owner);
  void Begin(const std::string& owner);
  void End(std::map<std::string, Stream, std::less<>>::iterator stream);
  void Wait(Stream& stream, ToPeers&& part);
  void Again(ToPeers& item, Instant now);
  std::uint64_t CutAnew(const FrameRing& frames, std::uint64_t counted, const std::vector<SequenceRange>& missing,
                        Instant now);

  ExchangeCore& core_;
  std::shared_ptr<const Owners> owners_;                  // by which reports are cut
  Publishing common_;    // where everybody hears everything, and for hosts that own nothing
  std::map<std::string, Stream, std::less<>> streams_;    // by owner
  std::vector<Entries> parts_;                            // of what is being cut, by owner
  std::vector<FromPeers> own_;                            // hits of tags that have become this host's own
};

}    // namespace dthrottle
