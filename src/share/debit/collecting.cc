#include "share/debit/collecting.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "share/debit/word.h"
#include "share/said_tag.h"
#include "share/sites/site_sums.h"

namespace dthrottle {

namespace {

constexpr std::size_t kGroupsPerSlice = 64;

// The longest that an interval reaches back after a start: no horizon is longer.
constexpr Duration kIntervalMax = std::chrono::minutes(5);

template <class Add, class Wait>
class Visitor final : public SlotVisitor {
 public:
  Visitor(Add add, Wait can_wait) : add_(std::move(add)), can_wait_(std::move(can_wait)) {}
  bool Visit(const Tag& tag, const Slot& slot, const Waste& waste) override { return add_(tag, slot, waste); }
  bool CanWait(const Tag& tag, const Slot& slot) override { return can_wait_(tag, slot); }

 private:
  Add add_;
  Wait can_wait_;
};

}    // namespace

Collecting::Collecting(Ways& ways, Outlet& outlet, const Ownership& ownership, Duration period, Instant now)
    : ways_(ways),
      debits_(ways.Get<Debits>()),
      table_(*ways.core().table),
      outlet_(outlet),
      ownership_(ownership),
      period_(period) {
  if (reported_until() == 0) reported_until() = static_cast<std::uint64_t>(now.time_since_epoch().count());
  from_ = std::clamp(FromNanoseconds(static_cast<std::int64_t>(reported_until())), now - kIntervalMax, now);
}

// In nanoseconds of the clock that the table's buckets go by; 0: never. It lies beside the table, so that hits which a
// life before could not report before it was killed are reported as of an interval that contains them.
std::uint64_t& Collecting::reported_until() const {
  return table_.words().back();
}

void Collecting::Begin(Instant now) {
  running_ = true;
  to_ = now;
  ways_.Each([&](auto& way) { way.PeriodEnds(now); });
}

// Hits that waited may have begun before the interval of this report: those of a watched tag wait for two periods and
// then for the next walk through the table.
bool Collecting::PushDraft(Draft& draft, ToPeers::Kind kind, Instant to, Instant now) {
  if (draft.entries.empty()) return true;
  if (!outlet_.HasRoom(now)) return false;
  ToPeers message;
  message.kind = kind;
  message.from = draft.Stamp(from_, to, kReachPeriods * period_);
  message.to = to;
  if (ownership_.owning() != nullptr) Owned(draft, now);
  message.entries = std::move(draft.entries);
  draft.Clear();
  return outlet_.Push(message, now);
}

// What this host has served of tags that it owns is heard by nobody else on the way.
void Collecting::Owned(const Draft& draft, Instant now) {
  Owning& owning = *ownership_.owning();
  owning.NamedHere(draft.entries, now);
  const auto each = [&](const std::vector<Beside>& besides, auto&& use) {
    for (const Beside& beside : besides) {
      const Tag tag = draft.entries.tag(draft.entries.list()[beside.entry]);
      if (ownership_.Owns(tag)) use(tag, beside.number);
    }
  };
  const auto hash_of = [&](const Tag& tag) { return table_.Hash(TableTag(tag)); };
  each(draft.entries.penalties(), [&](const Tag& tag, auto left) { owning.penalties().Began(tag, left, now); });
  each(draft.entries.quotas()[0], [&](const Tag& tag, auto) { owning.QuotaCounted(hash_of(tag), kNobody, now); });
  each(draft.entries.places(), [&](const Tag& tag, auto) { owning.PlacesChanged(hash_of(tag), kNobody); });
  SiteSums* const sums = ways_.core().site_sums;
  if (sums == nullptr) return;
  for (std::size_t i = 0; i < draft.entries.size(); ++i) {
    const Entry& e = draft.entries.list()[i];
    const Tag tag = draft.entries.tag(e);
    if (!ownership_.Owns(tag)) continue;
    const std::uint64_t hash = hash_of(tag);
    sums->Add(hash, tag, e.value, draft.began[i]);
    sums->TakeBack(hash, draft.entries.back(e));
    sums->Beside(hash, draft.entries, e);
    if (const auto left = draft.entries.penalty(e)) {
      sums->Penalized(hash, tag, now + std::chrono::milliseconds(*left), now);
    }
  }
}

// These hits happened until now, before the next report of all.
bool Collecting::GoUrgent(Instant now) {
  if (!PushUrgent(now)) return true;
  urgent_to_ = now;
  const bool more = ways_.ReportUrgent(from_, now, urgent_);
  urgent_from_ = more ? now : now + Way::kUrgentEvery;
  return !PushUrgent(now) || more;
}

bool Collecting::Go(Instant now) {
  bool full = false;
  Visitor visitor(
      [&](const Tag& tag, const Slot& slot, const Waste& waste) {
        full = !debits_.AddHits(tag, slot, waste, from_, to_, hits_);
        return !full;
      },
      [&](const Tag& tag, const Slot& slot) {
        const Limit& limit = ways_.core().limit(slot.limit);
        return !takes_all_ && ways_.With(limit, [&](auto& way) { return way.CanWait(tag, to_); });
      });
  bool more = table_.TakeUnreported(kGroupsPerSlice, visitor, now);
  if (!more && debits_.TellDenied(to_, hits_)) more = full = true;
  if ((full || !more) && !PushHits(now)) return true;
  if (more) return true;
  if (!outlet_.Push(ToPeers::Kind::kPeriodEnd, to_, now)) return true;
  from_ = to_;
  reported_until() = static_cast<std::uint64_t>(from_.time_since_epoch().count());
  running_ = false;
  return false;
}

}    // namespace dthrottle
