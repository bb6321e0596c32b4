#include "report/publishing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr std::size_t kRepeatedMax = 64;    // frames in answer to one request

}    // namespace

void Publishing::FromLimiter(ToPeers& item) {
  switch (item.kind) {
    case ToPeers::Kind::kHits:
      Flush();
      hits_ = std::move(item);
      return;
    case ToPeers::Kind::kUrgent:
      ++core_.counts.urgent_frames;
      core_.counts.urgent_entries += item.entries.size();
      return Publish(item, false);
    case ToPeers::Kind::kPeriodEnd:
      if (!hits_) {
        hits_ = std::move(item);
        hits_->from = hits_->to;
        hits_->entries.Clear();
      }
      return PublishHits(true);
    default:
      DT_CHECK(false);
  }
}

void Publishing::Publish(ToPeers& item, bool last) {
  Message& m = core_.Begin(MessageKind::kReport, item.to);
  m.sequence = ring_.next();
  m.ring_low = ring_.low();
  m.from = item.from;
  m.period = core_.options.period;
  m.last = last;
  m.entries = std::move(item.entries);
  core_.counts.published_entries += m.entries.size();
  Frame frame = core_.Encoded();
  ++core_.counts.published;
  core_.counts.published_bytes += frame->size();
  ring_.Append(frame);
  core_.transport.Publish(frame);
}

void Publishing::PublishHits(bool last) {
  Publish(*hits_, last);
  hits_.reset();
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
