#include "bus/owners/streams.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

Streams::Streams(ExchangeCore& core) : core_(core), owners_(core.owners), common_(core) {
  if (owners_ == nullptr) return;
  for (const std::string& owner : owners_->names()) Begin(owner);
}

void Streams::Begin(const std::string& owner) {
  if (owner == core_.options.name) return;
  Stream& stream = streams_[owner];
  stream.publishing = std::make_unique<Publishing>(core_, owners_->epoch());
  stream.publishing->TakeSubscribers(common_, owner);
}

void Streams::End(std::map<std::string, Stream, std::less<>>::iterator stream) {
  common_.TakeSubscribers(*stream->second.publishing, stream->first);
  streams_.erase(stream);
}

// Puts the entries, with what stands beside them, into the part of their owner. They fit, since they fit together.
void Streams::Cut(const Entries& all) {
  parts_.resize(owners_->size());
  const bool only_hits = all.besides() == 0;
  for (const Entry& e : all.list()) {
    Besides said;
    if (!only_hits) {
      said = {all.demand(e), all.returnable(e), all.back(e), all.penalty(e),
              all.places(e), all.quota(e),      all.member(e), all.refusals(e)};
    }
    const Tag tag = all.tag(e);
    parts_[owners_->Of(tag)].Add(tag, e.value, e.phase, said);
  }
}

// What has been cut of the item for that owner.
ToPeers Streams::TakePart(const ToPeers& item, std::size_t owner) {
  ToPeers part;
  part.kind = item.kind;
  part.from = item.from;
  part.to = item.to;
  part.entries = std::exchange(parts_[owner], {});
  return part;
}

void Streams::FromLimiter(ToPeers& item, Instant now) {
  if (owners_ == nullptr) return common_.FromLimiter(item, now);
  Cut(item.entries);
  for (std::size_t i = 0; i < owners_->size(); ++i) {
    ToPeers part = TakePart(item, i);
    if (item.kind != ToPeers::Kind::kPeriodEnd && part.entries.empty()) continue;
    const auto stream = streams_.find(owners_->name(i));
    if (stream == streams_.end()) {    // it is this host's own
      core_.OwnerCounted(HitsOf(part.entries));
    } else if (stream->second.closing) {
      Wait(stream->second, std::move(part));
    } else {
      stream->second.publishing->FromLimiter(part, now);
    }
  }
}

void Streams::Wait(Stream& stream, ToPeers&& part) {
  if (part.entries.empty()) return;
  if (stream.waiting.size() >= Stream::kWaitingMax) {
    ++core_.counts.owners_dropped;
    core_.OwnerCounted(HitsOf(stream.waiting.front().entries));
    stream.waiting.pop_front();
  }
  stream.waiting.push_back(std::move(part));
}

void Streams::Flush(Instant now) {
  common_.Flush(now);
  for (auto& [owner, stream] : streams_) stream.publishing->Flush(now);
}

// ---- When the owners change ----

void Streams::Switch(Instant now) {
  if (owners_ == core_.owners) return;
  Flush(now);
  owners_ = core_.owners;
  for (auto it = streams_.begin(); it != streams_.end();) {
    const auto stream = it++;
    Stream& its = stream->second;
    if (its.closing) continue;    // of a list still earlier
    if (!its.publishing->all_counted()) {
      its.closing = true;
      its.closing_since = its.ask_at = now;
    } else if (owners_->Find(stream->first)) {
      its.publishing->Reopen(owners_->epoch());
    } else {
      End(stream);
    }
  }
  for (const std::string& owner : owners_->names()) {
    if (!streams_.contains(owner)) Begin(owner);
  }
}

void Streams::Close(std::string_view owner, std::uint64_t counted, const std::vector<SequenceRange>& missing,
                    Instant now) {
  const auto stream = streams_.find(owner);
  if (stream == streams_.end() || !stream->second.closing) return;
  Stream& its = stream->second;
  its.closing = false;
  its.counted_by = 0;
  const Publishing::Kept kept = its.publishing->Reopen(owners_->epoch());
  const std::uint64_t again = CutAnew(kept.frames, counted, missing, now);
  core_.OwnerCounted(kept.hits > again ? kept.hits - again : 0);
  std::deque<ToPeers> waiting = std::exchange(its.waiting, {});
  if (!owners_->Find(owner)) End(stream);
  for (ToPeers& part : waiting) {    // cut by a list that may be over, too
    part.kind = ToPeers::Kind::kUrgent;
    Again(part, now);
  }
}

void Streams::GiveUp(std::string_view owner, Instant now) {
  const auto stream = streams_.find(owner);
  if (stream == streams_.end()) return;
  core_.counts.owners_dropped += stream->second.publishing->ring().size();
  Close(owner, ~std::uint64_t{0}, {}, now);
}

// Returns how many hits those are.
std::uint64_t Streams::CutAnew(const FrameRing& frames, std::uint64_t counted,
                               const std::vector<SequenceRange>& missing, Instant now) {
  std::uint64_t hits = 0;
  for (std::uint64_t sequence = frames.low(); sequence < frames.next(); ++sequence) {
    const auto in = [&](const SequenceRange& range) { return range.first <= sequence && sequence <= range.last; };
    if (sequence <= counted && std::none_of(missing.begin(), missing.end(), in)) continue;
    if (!core_.DecodeAgain(*frames.at(sequence))) continue;
    ToPeers part;
    part.kind = ToPeers::Kind::kUrgent;
    part.from = core_.in.from;
    part.to = core_.in.to;
    part.entries = std::exchange(core_.in.entries, {});
    hits += HitsOf(part.entries);
    Again(part, now);
  }
  return hits;
}

// Hits that no owner has counted, of an interval that is over.
void Streams::Again(ToPeers& item, Instant now) {
  Cut(item.entries);
  for (std::size_t i = 0; i < owners_->size(); ++i) {
    ToPeers part = TakePart(item, i);
    if (part.entries.empty()) continue;
    if (const auto stream = streams_.find(owners_->name(i)); stream == streams_.end()) {
      core_.OwnerCounted(HitsOf(part.entries));
      own_.push_back({FromPeers::Kind::kOwnDebits, part.from, part.to, 0, std::move(part.entries)});
    } else if (stream->second.closing) {
      Wait(stream->second, std::move(part));
    } else {
      stream->second.publishing->PublishAgain(part, now);
    }
  }
}

Stream* Streams::Open(std::string_view owner) {
  const auto stream = streams_.find(owner);
  if (stream == streams_.end() || stream->second.closing) return nullptr;
  return stream->second.publishing->epoch() == core_.epoch() ? &stream->second : nullptr;
}

Stream* Streams::Closing(std::string_view owner) {
  const auto stream = streams_.find(owner);
  return stream != streams_.end() && stream->second.closing ? &stream->second : nullptr;
}

Publishing& Streams::For(std::string_view host) {
  const auto stream = streams_.find(host);
  return stream == streams_.end() ? common_ : *stream->second.publishing;
}

Streams::Sizes Streams::sizes() const {
  Sizes sizes;
  const auto add = [&](const Publishing& publishing) {
    sizes.frames += publishing.ring().size();
    sizes.bytes += publishing.ring().bytes();
    sizes.subscribers += publishing.subscribers();
  };
  add(common_);
  for (const auto& [owner, stream] : streams_) {
    add(*stream.publishing);
    sizes.closing += stream.closing;
  }
  return sizes;
}

}    // namespace dthrottle
