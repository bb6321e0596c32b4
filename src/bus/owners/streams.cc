#include "bus/owners/streams.h"

#include <utility>

namespace dthrottle {
namespace {

// Puts the entries, with what stands beside them, into the part of their owner. They fit, since they fit together.
void Cut(const Owners& owners, const Entries& all, std::vector<Entries>& parts) {
  const bool only_hits = all.besides() == 0;
  for (const Entry& e : all.list()) {
    Besides said;
    if (!only_hits) {
      said = {all.demand(e), all.returnable(e), all.back(e), all.penalty(e), all.places(e), all.quota(e)};
    }
    const Tag tag = all.tag(e);
    parts[owners.Of(tag)].Add(tag, e.value, e.phase, said);
  }
}

}    // namespace

Streams::Streams(ExchangeCore& core) : core_(core) {
  const auto* const owners = core.options.owners.get();
  const std::size_t count = owners == nullptr ? 1 : owners->size() + 1;
  for (std::size_t i = 0; i < count; ++i) streams_.push_back(std::make_unique<Publishing>(core));
  parts_.resize(count);
}

void Streams::FromLimiter(ToPeers& item, Instant now) {
  const auto* const owners = core_.options.owners.get();
  if (owners == nullptr) return streams_.front()->FromLimiter(item, now);
  Cut(*owners, item.entries, parts_);
  for (std::size_t i = 0; i < owners->size(); ++i) {
    ToPeers part;
    part.kind = item.kind;
    part.from = item.from;
    part.to = item.to;
    part.entries = std::exchange(parts_[i], {});
    if (owners->name(i) == core_.options.name) continue;
    if (item.kind == ToPeers::Kind::kPeriodEnd || !part.entries.empty()) streams_[i]->FromLimiter(part, now);
  }
}

void Streams::Flush(Instant now) {
  for (const auto& stream : streams_) stream->Flush(now);
}

Publishing& Streams::For(std::string_view host) {
  const auto* const owners = core_.options.owners.get();
  if (owners == nullptr) return *streams_.front();
  return *streams_[owners->Find(host).value_or(owners->size())];
}

Streams::Sizes Streams::sizes() const {
  Sizes sizes;
  for (const auto& stream : streams_) {
    sizes.frames += stream->ring().size();
    sizes.bytes += stream->ring().bytes();
    sizes.subscribers += stream->subscribers();
  }
  return sizes;
}

}    // namespace dthrottle
