#include "quota/quotas.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"

namespace dthrottle {

namespace {

void Increment(std::atomic<std::uint64_t>& count) {
  count.fetch_add(1, std::memory_order_relaxed);
}

// Places of the table of tags: no more than half of the slots, so that a tag always finds one.
std::size_t PlacesIn(std::size_t slots, std::size_t ways) {
  return std::bit_floor(slots / 2 / ways) * ways;
}

}    // namespace

// ---- The file ----

Quotas::Quotas(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh,
               const Hash& hash, QuotaCalendars::Calendar calendar, Instant now)
    : file_(region, boot_id, fresh),
      tags_(PlacesIn(file_.slots(), kWays)),
      others_(file_, file_.slots() - tags_.places()),
      calendars_(std::move(calendar)),
      latest_(file_.counter(), calendars_, now) {
  DT_CHECK(file_.slots() >= kSlotsMin && tags_.places() < file_.slots());
  Restore(hash);
}

void Quotas::Restore(const Hash& hash) {
  std::vector<Entry*> by_slot(file_.used_end());
  for (std::uint32_t i = 0; i < by_slot.size(); ++i) {
    QuotaSlot& slot = file_.slot(i);
    if (slot.kind != QuotaSlot::kTag) continue;
    const std::uint64_t its_hash = hash(slot.tag());
    const bool is_twice = tags_.Find(its_hash) != Tags::kNone;    // a kill left it so while it moved
    const std::size_t at =
        is_twice ? Tags::kNone : tags_.RoomFor(its_hash, [](std::size_t) { return std::optional<int>(); });
    if (at == Tags::kNone) {
      if (!is_twice) Increment(forgotten_);    // the region was larger
      file_.Free(i);
      continue;
    }
    tags_.Put(at, its_hash);
    tags_.SetTold(at);
    tags_[at].slot = i;
    if (slot.own.taken != 0) tags_[at].by = kHere;
    by_slot[i] = &tags_[at];
  }
  RestoreOthers(by_slot);
  if (file_.counter_before() != 0 && file_.counter_before() != file_.counter()) Inherit();
  file_.Begin();
}

void Quotas::RestoreOthers(std::span<Entry* const> by_slot) {
  for (std::uint32_t i = 0; i < by_slot.size(); ++i) {
    const QuotaSlot& slot = file_.slot(i);
    if (slot.kind != QuotaSlot::kCounted) continue;
    Entry* const entry = slot.others.tag < by_slot.size() ? by_slot[slot.others.tag] : nullptr;
    const bool ours = entry != nullptr && file_.slot(entry->slot).period == slot.period;
    if (!ours || !others_.Restore(entry->others, i)) file_.Free(i);
  }
  for (Entry* const entry : by_slot) {
    if (entry != nullptr) entry->others.Sort();
  }
}

// What this host has counted before the boot is an other counter's. A kill in the middle repeats it without harm: of two
// counts the further one is kept.
void Quotas::Inherit() {
  for (std::size_t place = 0; place < tags_.places(); ++place) {
    if (tags_.HashAt(place) == 0) continue;
    Entry& entry = tags_[place];
    QuotaSlot::OfTag& own = Own(entry);
    if (own.taken == 0) continue;
    others_.Inherit(entry.others, entry.slot, file_.counter_before(), own);
    own.back = 0;
    own.taken = 0;
  }
}

// ---- Periods ----

// Brings the tag into the period that it is in now, and returns that. Its quota is that of the limit from now on.
QuotaSpan Quotas::Roll(Entry& entry, const Limit& limit, Instant now) {
  QuotaSlot& slot = file_.slot(entry.slot);
  QuotaSpan span = calendars_.Now(limit.calendar, now);
  if (slot.period < span.begin && latest_.MayBegin(slot, span, now)) {
    BeginPeriod(entry, span, now);
  } else if (slot.period > span.begin && slot.period == calendars_.Next(limit.calendar).begin) {
    span = calendars_.Next(limit.calendar);
  } else if (slot.period != span.begin) {
    MoveTo(entry, span);
  }
  latest_.SetEnd(slot, span.ends);
  entry.others.SetQuota(limit.quota);
  return span;
}

// The counts are of that period from now on, earlier or later, and peers hear so.
void Quotas::MoveTo(Entry& entry, const QuotaSpan& span) {
  QuotaSlot& slot = file_.slot(entry.slot);
  latest_.Move(slot, span);
  others_.SetPeriod(entry.others, span.begin);
  slot.until = span.next;
  slot.period = span.begin;
  entry.begun = {};
  entry.told = 0;
}

// The old period is over, so a kill after the first store takes nothing that anybody asks for.
void Quotas::BeginPeriod(Entry& entry, const QuotaSpan& span, Instant now) {
  QuotaSlot& slot = file_.slot(entry.slot);
  latest_.Begin(slot, span, now);
  entry.begun = now;
  entry.by = kNobody;
  others_.Free(entry.others);
  QuotaSlot::OfTag& own = Own(entry);
  own.back = 0;
  own.taken = 0;
  own.forgiven = 0;
  slot.until = span.next;
  std::atomic_ref(slot.period).store(span.begin, std::memory_order_release);
  entry.told = 0;
  entry.news = kNever;
}

// ---- Tags ----

std::uint64_t Quotas::Used(const Entry& entry) const {
  const QuotaSlot::OfTag& own = Own(entry);
  const std::uint64_t elsewhere = entry.others.net();
  return own.taken - own.back + elsewhere - std::min(own.forgiven, elsewhere);
}

QuotaStanding Quotas::StandingOf(const Entry& entry, const Limit& limit, const QuotaSpan& span) const {
  return {limit.quota, Used(entry), span.ends, span.length()};
}

Quotas::Entry* Quotas::Find(std::uint64_t hash) {
  const std::size_t at = tags_.Find(hash);
  return at != Tags::kNone ? &tags_[at] : nullptr;
}

// How many tags of its set take their places as those of the peer.
std::size_t Quotas::OfPeerNear(std::uint64_t hash, std::uint32_t peer) const {
  return tags_.CountNear(hash, [&](const Entry& its) { return its.by == peer; });
}

// What a tag is worth where one is served here. Where peers' tags crowd a set, that of the peer with most goes first.
std::optional<Quotas::Worth> Quotas::WorthHere(std::size_t place, Instant now) const {
  const Entry& its = tags_[place];
  if (IsOver(its, now)) return Worth(0, 0);
  const std::uint64_t hash = tags_.HashAt(place);
  const std::size_t theirs = its.by != kHere ? OfPeerNear(hash, its.by) : 0;
  const bool crowds = theirs > kOfPeer || (theirs > 0 && kWays - OfPeerNear(hash, kHere) > kOfPeers);
  return Worth(crowds ? 1 + kWays - theirs : 1 + kWays, Used(its));
}

// The same where the peer names one, or kNobody, by what a peer passes on. None: it stays.
std::optional<Quotas::Worth> Quotas::WorthElsewhere(std::size_t place, std::uint32_t peer, Instant now) const {
  const Entry& its = tags_[place];
  if (IsOver(its, now)) return Worth(0, 0);
  if (peer == kNobody) return std::nullopt;
  const std::uint64_t hash = tags_.HashAt(place);
  const std::size_t theirs = its.by != kHere ? OfPeerNear(hash, its.by) : 0;
  if (theirs <= OfPeerNear(hash, peer) + 1) return std::nullopt;
  return Worth(1 + kWays - theirs, Used(its));
}

// Makes an entry, where the one that is worth least makes room; null: all stay.
template <class WorthOf>
Quotas::Entry* Quotas::Make(const Tag& tag, std::uint64_t hash, const QuotaSpan& span, WorthOf&& worth, Instant now) {
  const std::size_t at = tags_.RoomFor(hash, worth);
  if (at == Tags::kNone) return nullptr;
  if (tags_.HashAt(at) != 0) {
    if (worth(at) != Worth(0, 0)) Increment(forgotten_);
    others_.Free(tags_[at].others);
    file_.Free(tags_[at].slot);
    tags_.Remove(at);
  }
  const auto taken = file_.Take();
  if (!taken.has_value()) return nullptr;
  QuotaSlot& slot = file_.slot(*taken);
  slot.latest_min = 0;
  slot.period = span.begin;
  slot.until = span.next;
  slot.own = {};
  slot.own.size = static_cast<std::uint8_t>(tag.bytes.size());
  slot.own.is_digest = tag.is_digest;
  std::copy(tag.bytes.begin(), tag.bytes.end(), slot.own.bytes.begin());
  QuotaFile::SetKind(slot, QuotaSlot::kTag);
  tags_.Put(at, hash);
  tags_.SetTold(at);
  Entry& entry = tags_[at];
  entry.slot = *taken;
  entry.told = 0;
  entry.news = kNever;
  entry.begun = now;
  entry.by = kNobody;
  return &entry;
}

QuotaStanding Quotas::Look(std::uint64_t hash, const Limit& limit, Instant now) {
  if (Entry* const entry = Find(hash)) return StandingOf(*entry, limit, Roll(*entry, limit, now));
  const QuotaSpan span = calendars_.Now(limit.calendar, now);
  return {limit.quota, 0, span.ends, span.length()};
}

QuotaStanding Quotas::Take(const Tag& tag, std::uint64_t hash, const Limit& limit, std::uint64_t tokens, Instant now) {
  Entry* entry = Find(hash);
  if (entry == nullptr) {
    entry = Make(tag, hash, calendars_.Now(limit.calendar, now),
                 [&](std::size_t place) { return WorthHere(place, now); }, now);
  }
  if (entry == nullptr) return Look(hash, limit, now);
  const QuotaSpan span = Roll(*entry, limit, now);
  entry->by = kHere;
  QuotaSlot::OfTag& own = Own(*entry);
  std::atomic_ref(own.taken).store(std::min(own.taken + tokens, QuotaFile::kCountMax), std::memory_order_relaxed);
  const QuotaStanding standing = StandingOf(*entry, limit, span);
  if (hosts_.load(std::memory_order_relaxed) > 1) TellSoon(*entry, hash, standing);
  return standing;
}

void Quotas::TellSoon(const Entry& entry, std::uint64_t hash, const QuotaStanding& standing) {
  const std::uint64_t untold = Version(entry) - std::min(entry.told, Version(entry));
  if (untold * 4 * hosts_.load(std::memory_order_relaxed) < standing.left()) return;
  if (tags_.SetUntold(tags_.Find(hash)) && wake_) wake_();
}

void Quotas::GiveBack(std::uint64_t hash, const Limit& limit, std::uint64_t tokens, Instant taken, Instant now) {
  Entry* const entry = Find(hash);
  if (entry == nullptr) return;
  const QuotaSpan span = Roll(*entry, limit, now);
  if (taken < (entry->begun != Instant() ? entry->begun : span.ends - span.length())) return;
  QuotaSlot::OfTag& own = Own(*entry);
  own.back = std::min(own.back + tokens, own.taken);
}

bool Quotas::Forgive(std::uint64_t hash, const Limit& limit, Instant now) {
  Entry* const entry = Find(hash);
  if (entry == nullptr) return false;
  Roll(*entry, limit, now);
  QuotaSlot::OfTag& own = Own(*entry);
  const bool had = Used(*entry) > 0;
  own.forgiven = entry->others.net();
  own.back = own.taken;
  entry->begun = now;
  return had;
}

// ---- Peers ----

bool Quotas::Hear(const Tag& tag, std::uint64_t hash, const Limit& limit, const QuotaWord& word, std::uint32_t peer,
                  Instant now) {
  if (word.counter == file_.counter()) return true;
  if (word.counter == kAllHosts) return Increment(disbelieved_), false;
  // A tag takes its place as one of the peer that has counted it, not of those that pass that on.
  Entry* const entry = InPeriod(tag, hash, limit, word.period, word.back.has_value() ? peer : kNobody, now);
  if (entry == nullptr) return false;
  if (!others_.Hear(entry->others, entry->slot, word, peer)) return Increment(crowded_), false;
  Increment(heard_);
  return true;
}

// By now this host has counted at least what the owner knows of it, so what others have counted is no less than this.
bool Quotas::HearOwner(const Tag& tag, std::uint64_t hash, const Limit& limit, const QuotaWord& word,
                       std::uint32_t peer, Instant now) {
  if (word.counter != kAllHosts) return Increment(disbelieved_), false;
  Entry* const entry = InPeriod(tag, hash, limit, word.period, peer, now);
  if (entry == nullptr) return false;
  const QuotaSlot::OfTag& own = Own(*entry);
  const std::uint64_t back = word.back.value_or(0);
  const QuotaCount others{kAllHosts, word.taken - std::min(own.taken, word.taken), back - std::min(own.back, back)};
  if (!others_.HearOwner(entry->others, entry->slot, others)) return Increment(crowded_), false;
  Increment(heard_);
  return true;
}

// The tag in the period of a word about it; null: it is over, or far away, or there is no room for the tag.
Quotas::Entry* Quotas::InPeriod(const Tag& tag, std::uint64_t hash, const Limit& limit, std::uint64_t period,
                                std::uint32_t peer, Instant now) {
  const QuotaSpan current = calendars_.Now(limit.calendar, now), next = calendars_.Next(limit.calendar);
  const bool begins = period == next.begin && now >= current.ends - kEarly;
  Entry* entry = Find(hash);
  if (entry != nullptr) Roll(*entry, limit, now);
  const std::uint64_t ours = entry != nullptr ? file_.slot(entry->slot).period : current.begin;
  if (period < ours || (period != current.begin && period != ours && !begins)) {
    Increment(other_period_);
    return nullptr;
  }
  if (entry == nullptr) {
    entry = Make(tag, hash, begins ? next : current,
                 [&](std::size_t place) { return WorthElsewhere(place, peer, now); }, now);
  }
  if (entry == nullptr) return Increment(crowded_), nullptr;
  if (period > file_.slot(entry->slot).period) BeginPeriod(*entry, next, now);
  Roll(*entry, limit, now);
  const bool others = entry->by != kHere && entry->by != kNobody;
  if (entry->by == kNobody) entry->by = peer;
  if (others && peer != kNobody && OfPeerNear(hash, entry->by) > OfPeerNear(hash, peer) + 1) entry->by = peer;
  return entry;
}

// ---- Where a host owns tags ----

std::uint64_t Quotas::LeftOfAll(const Entry& entry, const Limit& limit) const {
  const QuotaSlot::OfTag& own = Own(entry);
  return limit.quota - std::min(limit.quota, own.taken - own.back + entry.others.sum().net());
}

std::optional<QuotaWord> Quotas::OfAll(std::uint64_t hash, const Limit& limit, Instant now) {
  Entry* const entry = Find(hash);
  if (entry == nullptr) return std::nullopt;
  Roll(*entry, limit, now);
  return WordOf(*entry, kAllHosts, entry->others.sum());
}

std::optional<QuotaWord> Quotas::OfSite(std::uint64_t hash, const Limit& limit, std::uint64_t counter, Instant now) {
  Entry* const entry = Find(hash);
  if (entry == nullptr) return std::nullopt;
  Roll(*entry, limit, now);
  return WordOf(*entry, counter, entry->others.OfHosts());
}

// What this host and those of the sum have counted.
std::optional<QuotaWord> Quotas::WordOf(const Entry& entry, std::uint64_t counter, QuotaCount sum) const {
  const std::uint64_t taken = std::min(sum.taken + Own(entry).taken, QuotaFile::kCountMax);
  if (taken == 0) return std::nullopt;
  return QuotaWord{counter, file_.slot(entry.slot).period, taken, std::min(sum.back + Own(entry).back, taken)};
}

bool Quotas::IsHalfUsed(std::uint64_t hash, const Limit& limit, Instant now) {
  Entry* const entry = Find(hash);
  if (entry == nullptr) return false;
  Roll(*entry, limit, now);
  return LeftOfAll(*entry, limit) <= limit.quota / 2;
}

bool Quotas::IsNews(std::uint64_t hash, const Limit& limit, Instant now) {
  const bool is_half_used = IsHalfUsed(hash, limit, now);
  Entry* const entry = Find(hash);
  if (entry == nullptr) return false;
  const std::uint64_t left = LeftOfAll(*entry, limit), quarter = entry->news / 4;
  const bool changed = left < entry->news - quarter || left > entry->news + quarter;
  if (entry->news == kNever ? !is_half_used : !changed) return false;
  entry->news = is_half_used ? left : kNever;
  return true;
}

std::optional<Tag> Quotas::TagOf(std::uint64_t hash) const {
  const std::size_t at = tags_.Find(hash);
  return at != Tags::kNone ? std::optional(file_.slot(tags_[at].slot).tag()) : std::nullopt;
}

QuotaCounts Quotas::counts() const {
  const auto read = [](const Count& count) { return count.load(std::memory_order_relaxed); };
  return {tags_.used(), read(heard_), read(other_period_), read(forgotten_), read(crowded_),
          read(disbelieved_) + others_.disputed()};
}

}    // namespace dthrottle
