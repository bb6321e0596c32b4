#include "bus/publishing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr std::size_t kRepeatedMax = 64;    // frames in answer to one request
// Peers say hello every 30 s, so a connection without three of them is over, whatever the transport knows of it.
constexpr Duration kSubscriptionMax = std::chrono::seconds(100);
constexpr std::size_t kSubscriptionsOfName = 4, kSubscriptionsMax = 4096;

}    // namespace

Publishing::Publishing(ExchangeCore& core, std::uint64_t epoch)
    : core_(core), epoch_(epoch), ring_(core.options.ring_bytes) {
  if (!core_.options.account || core_.owners) return;    // an account is of all hits together
  core_.options.account->Open(core_.options.incarnation);
  told_before_ = core_.options.account->told();
}

void Publishing::FromLimiter(ToPeers& item, Instant now) {
  switch (item.kind) {
    case ToPeers::Kind::kHits:
      Flush(now);
      hits_ = std::move(item);
      return;
    case ToPeers::Kind::kUrgent:
      ++core_.counts.urgent_frames;
      core_.counts.urgent_entries += item.entries.size();
      return Publish(item, false, now);
    case ToPeers::Kind::kPeriodEnd:
      if (!hits_) {
        hits_ = std::move(item);
        hits_->from = hits_->to;
        hits_->entries.Clear();
      }
      return PublishHits(true, now);
    default:
      DT_CHECK(false);
  }
}

void Publishing::Publish(ToPeers& item, bool last, Instant now) {
  Message& m = core_.Begin(MessageKind::kReport, item.to);
  m.sequence = ring_.next();
  m.ring_low = ring_.low();
  m.from = item.from;
  m.period = core_.options.period;
  m.last = last;
  m.owners = epoch_;
  m.hosts = item.hosts;
  m.parts = item.parts;
  m.entries = std::move(item.entries);
  core_.counts.published_entries += m.entries.size();
  const std::uint64_t hits = HitsOf(m.entries);
  hits_published_ += hits;
  Frame frame = core_.Encoded();
  ++core_.counts.published;
  core_.counts.published_bytes += frame->size();
  if (core_.options.account) core_.options.account->PublishedFrame();
  if (core_.owners) {
    uncounted_.push_back({ring_.next(), hits, item.to});
    while (uncounted_.front().sequence < ring_.low()) TakeUncounted();    // owners count what they miss
  }
  ring_.Append(frame);
  std::erase_if(subscribers_, [&](const auto& one) {
    if (now - one.hello <= kSubscriptionMax && core_.transport.Publish(one.route, frame)) return false;
    Forget(one.name);
    return true;
  });
}

void Publishing::PublishHits(bool last, Instant now) {
  Publish(*hits_, last, now);
  hits_.reset();
}

void Publishing::Subscribe(const Route& route, const std::string& name, Instant now) {
  const auto place = [&] { return std::ranges::lower_bound(subscribers_, route, {}, &Subscriber::route); };
  if (const auto known = place(); known != subscribers_.end() && known->route == route) {
    known->hello = now;
    if (known->name == name) return;
    Forget(known->name);
    known->name = name;
    ++of_name_[name];
    return;
  }
  if (const auto routes = of_name_.find(name);
             routes != of_name_.end() && routes->second >= kSubscriptionsOfName) {
    EndOldest(&name);
  } else if (subscribers_.size() >= kSubscriptionsMax) {
    EndOldest(nullptr);
  }
  subscribers_.insert(place(), {route, name, now});
  ++of_name_[name];
}

void Publishing::EndOldest(const std::string* name) {
  auto oldest = subscribers_.end();
  for (auto it = subscribers_.begin(); it != subscribers_.end(); ++it) {
    if (name != nullptr && it->name != *name) continue;
    if (oldest == subscribers_.end() || it->hello < oldest->hello) oldest = it;
  }
  Forget(oldest->name);
  subscribers_.erase(oldest);
}

void Publishing::Forget(const std::string& name) {
  const auto routes = of_name_.find(name);
  if (--routes->second == 0) of_name_.erase(routes);
}

std::optional<Instant> Publishing::Counted(std::uint64_t sequence) {
  if (sequence >= ring_.next()) return std::nullopt;
  while (!uncounted_.empty() && uncounted_.front().sequence <= sequence) {
    counted_until_ = std::max(counted_until_, TakeUncounted().to);
  }
  ring_.ForgetUntil(sequence);
  return counted_until_;
}

Publishing::Uncounted Publishing::TakeUncounted() {
  const Uncounted frame = uncounted_.front();
  uncounted_.pop_front();
  core_.OwnerCounted(frame.hits);
  return frame;
}

Publishing::Kept Publishing::Reopen(std::uint64_t epoch) {
  DT_CHECK(!hits_);
  epoch_ = epoch;
  std::uint64_t hits = 0;
  for (const Uncounted& frame : std::exchange(uncounted_, {})) hits += frame.hits;
  hits_published_ = 0;
  return {std::exchange(ring_, FrameRing(core_.options.ring_bytes)), hits};
}

void Publishing::TakeSubscribers(Publishing& from, const std::string& name) {
  for (const Subscriber& one : from.subscribers_) {
    if (one.name == name) Subscribe(one.route, name, one.hello);
  }
  if (std::erase_if(from.subscribers_, [&](const Subscriber& one) { return one.name == name; }) > 0) {
    from.of_name_.erase(name);
  }
}

void Publishing::OnRepeat(const Route& route, Peer& peer, Instant now) {
  if (!peer.repeats.Take(now)) {
    ++core_.counts.excess;
    return;
  }
  const Message& in = core_.in;
  const bool ours = in.incarnation == core_.options.incarnation;
  const std::uint64_t low = ring_.low();
  std::uint64_t gone = 0;
  std::size_t room = kRepeatedMax;
  for (std::size_t i = 0; ours && i < std::min(in.ranges.size(), kRangesMax); ++i) {
    const auto [first, last] = in.ranges[i];
    if (first > last) continue;
    if (first < low) gone += std::min(last, low - 1) - first + 1;
    for (std::uint64_t s = std::max(first, low); s <= last && s < ring_.next() && room > 0; ++s, --room) {
      core_.transport.Answer(route, ring_.at(s));
      ++core_.counts.repeated;
    }
  }
  core_.counts.gone += gone;
  if (ours && gone == 0) return;
  core_.Begin(MessageKind::kGone, now).ring_low = low;
  core_.transport.Answer(route, core_.Encoded());
}

}    // namespace dthrottle
