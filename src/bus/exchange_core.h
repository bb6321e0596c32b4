// What all parts of an exchange work with: this host's settings and counters, the message that has just come, the way
// to the wire, the way to the limiter, and the instant of the next pass over everything that is due.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "base/prng.h"
#include "bus/exchange.h"

namespace dthrottle {

// The FromPeers ring, with queues behind it for what it has no room for at the moment: one for each peer's hits. They
// take turns, so that one peer's flood does not delay the news of others. Anything else waits for all hits that came
// before it, and hits that come later wait for it.
class Outbox {
 public:
  static constexpr std::size_t kItemsOfPeerMax = 64;    // 64 frames

  explicit Outbox(FromPeersRing& ring) : ring_(ring) {}

  void Push(FromPeers&& item) {
    if (empty() && ring_.TryPush(std::move(item))) return;
    if (item.kind == FromPeers::Kind::kDebits && ordered_.empty()) {
      hits_[item.peer].push_back(std::move(item));
      ++size_;
    } else {
      ordered_.push_back(std::move(item));
    }
  }

  void Move() {
    while (!hits_.empty()) {
      auto turn = hits_.upper_bound(last_);
      if (turn == hits_.end()) turn = hits_.begin();
      if (!ring_.TryPush(std::move(turn->second.front()))) return;
      --size_;
      last_ = turn->first;
      turn->second.pop_front();
      if (turn->second.empty()) hits_.erase(turn);
    }
    while (!ordered_.empty() && ring_.TryPush(std::move(ordered_.front()))) ordered_.pop_front();
  }

  bool empty() const { return hits_.empty() && ordered_.empty(); }
  // True if more hits of that peer have to come again later.
  bool full(std::uint32_t peer) const {
    const auto queue = hits_.find(peer);
    return ordered_.size() >= kOrderedMax || (queue != hits_.end() && queue->second.size() >= kItemsOfPeerMax);
  }
  std::size_t size() const { return size_ + ordered_.size(); }    // of all queues

 private:
  static constexpr std::size_t kOrderedMax = 256;

  FromPeersRing& ring_;
  std::map<std::uint32_t, std::deque<FromPeers>> hits_;    // by peer; no queue is empty
  std::size_t size_ = 0;                                   // of these
  std::uint32_t last_ = 0;                                 // whose turn it was
  std::deque<FromPeers> ordered_;                          // behind them
};

// No sum overflows: an entry has at most 2^40.
inline std::uint64_t HitsOf(const Entries& entries) {
  std::uint64_t hits = 0;
  for (const Entry& entry : entries.list()) hits += entry.value;
  return hits;
}

class ExchangeCore {
 public:
  static constexpr Instant kNever = Instant::max();
  static constexpr Duration kPassEvery = std::chrono::milliseconds(50);    // least time between two passes

  ExchangeCore(Exchange::Options o, FromPeersRing& to, Transport& t, Prng p, Instant now)
      : options(std::move(o)),
        transport(t),
        prng(p),
        owners(options.owners),
        to_limiter(to),
        ceilings(options.ceilings),
        codec_(options.codec ? options.codec : std::make_shared<Codec>()),
        next_pass_(now) {}

  // A message of this host, to be filled in and then sent as Encoded().
  Message& Begin(MessageKind kind, Instant now) {
    out_.Clear();
    out_.kind = kind;
    out_.sender = options.name;
    out_.incarnation = options.incarnation;
    out_.to = now;
    return out_;
  }

  Frame Encoded() {
    codec_->Encode(out_, encoded_);
    return std::make_shared<const std::string>(encoded_);
  }

  // The number of a refusal that nothing has asked for. Hellos, and requests for snapshots, have odd numbers.
  static constexpr std::uint64_t kUnasked = 2;

  // `snapshot`: the one that is refused; 0: something else.
  void Refuse(const Route& route, const char* why, std::uint64_t snapshot, Instant now) {
    Message& m = Begin(MessageKind::kRefusal, now);
    m.text = why;
    m.snapshot = snapshot;
    transport.Answer(route, Encoded());
  }

  // Decodes into `in`, or copies what was `decoded` before. What cannot be read is counted.
  DecodeFault Decode(std::string_view frame, const Decoded* decoded = nullptr) {
    if (decoded != nullptr) in = decoded->message;
    const DecodeFault fault = decoded != nullptr ? decoded->fault : codec_->Decode(frame, in);
    if (fault == DecodeFault::kVersion) {
      ++counts.other_version;
    } else if (fault != DecodeFault::kNone) {
      ++counts.junk;
    }
    return fault;
  }

  // Into `in`, of a frame that was decoded before.
  bool DecodeAgain(std::string_view frame) { return codec_->Decode(frame, in) == DecodeFault::kNone; }

  // A life that is no other's continuation begins to count.
  void BeginAccount() {
    if (owners != nullptr && options.account) counts.owners_lost_hits = options.account->OpenToOwners();
  }
  // Hits of this host that nobody has to hear of any more.
  void OwnerCounted(std::uint64_t hits) const {
    if (hits != 0 && options.account) options.account->OwnerCounted(hits);
  }

  bool OwnsTags() const { return owners != nullptr && owners->Find(options.name); }
  std::uint64_t epoch() const { return owners != nullptr ? owners->epoch() : 0; }

  // Asks for a pass at `at`, or as soon as one may be.
  void PassAt(Instant at) { next_pass_ = std::min(next_pass_, at); }
  void PassSoon() { next_pass_ = last_pass_; }
  Instant next_pass() const { return std::max(next_pass_, last_pass_ + kPassEvery); }
  void BeginPass(Instant now) {
    last_pass_ = now;
    next_pass_ = kNever;
  }

  const Exchange::Options options;
  Transport& transport;
  Prng prng;
  std::shared_ptr<const Owners> owners;    // in force; null: everybody hears everything
  bool owners_settled = true;        // nothing is left to do of the latest change
  bool awaits_tags = false;          // of owners of the list before, so reports are held back
  bool counts_from_first = false;    // this life has owned its tags since the list in force began
  Outbox to_limiter;
  PeerCeilings ceilings;
  ExchangeCounts counts;
  Message in;

 private:
  const std::shared_ptr<Codec> codec_;
  Message out_;    // kept for its memory, as are the bytes
  std::string encoded_;
  Instant last_pass_{}, next_pass_;
};

}    // namespace dthrottle
