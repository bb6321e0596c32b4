#include "limiter/lending.h"

#include <cmath>
#include <utility>

#include "limiter/limit_of.h"
#include "limiter/recall.h"
#include "limiter/shedder.h"
#include "limiter/under_limit.h"

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr Duration kHold = 20ms;           // tokens stay with a worker for so long at least, lest two workers take turns
constexpr Duration kReserveAhead = 200ms;  // no token is lent that is due later
constexpr Duration kReserveFor = 100ms;    // until the next look: what is due by then is divided at once
constexpr Duration kFillsMin = 50ms;       // a bucket that fills faster would be full while its tokens lie with workers
constexpr Duration kAhead = 1s;            // nothing is said of what is later
// Times its rate that a tag is asked for: below the first it is hardly ever refused, above the second it is contended.
constexpr double kSeldom = 0.5, kNearLimit = 0.8, kContended = 1.5, kCrowded = 3;
constexpr double kVeryFew = 8, kFew = 11, kMany = 300;    // tokens in a bucket; what is spent unseen is much of few
constexpr double kPlenty = 0.75;    // of its burst; a tag that had less for PlentyFor is contended
// So is one that had less for so long while it was surely asked for more often than so many times its rate; a bucket of few
// tokens is full by chance then, and the fewer the more often.
constexpr double kAbove = 1.05, kAboveTokens = 3;
constexpr Duration kAboveFor = 5s;
constexpr std::uint64_t kOfQuota = 8;    // a part of a quota's rest may be lent

template <class Use>
void ForEachLoan(Loan* first, Use&& use) {
  for (Loan* loan = first; loan != nullptr; loan = loan->next) use(*loan);
}

// This host's part of the limit, as the shape has it.
double PartNow(const Asked& asked) {
  return static_cast<double>(asked.limit.shape.interval) / static_cast<double>(asked.shape.interval);
}

// The rate that `seconds` may show by chance where `demand` tokens a second are wanted. They show more one time in forty.
double Surely(double demand, double seconds = LentTag::kLately) {
  return demand + 2 * std::sqrt(demand / seconds);
}

// A bucket that is asked for at its rate goes up and down by its burst in about burst^2 / rate, by chance. One of many
// tokens seldom has them all again.
Duration PlentyFor(const Shape& shape) {
  const double burst = shape.burst(), by_chance = 2 * burst * burst / shape.rate();
  const double seconds = burst < kMany ? std::clamp(by_chance, 20.0, 60.0) : 20;
  return DurationOf(seconds);
}

// Whether the tag is asked for more often than it can be served: then tokens are spent soon wherever they lie, and a
// worker that has none may refuse though another one has some. A tag whose bucket is never nearly full is so too, since
// what is refused by mistake is served later.
bool IsContended(const LentTag& tag, const Asked& asked) {
  const double rate = asked.shape.rate(), above = std::max(kAbove, 1 + kAboveTokens / asked.shape.burst());
  return tag.demand() > Surely(kContended * rate) || tag.plenty_at + PlentyFor(asked.shape) < asked.now ||
         (tag.demand_long() > Surely(above * rate, LentTag::kLong) && tag.plenty_at + kAboveFor < asked.now);
}

// Remembers when the bucket is nearly full, with what is lent.
void SeePlenty(LentTag& tag, Asked& asked, Cost out) {
  if (asked.bucket().Level(asked.shape, asked.now) + out >= kPlenty * asked.shape.burst()) tag.plenty_at = asked.now;
}

// What tokens cost when they were lent, in tokens of the whole limit.
Tokens Worth(const Loan& loan, Cost tokens) {
  return tokens / loan.part;
}

// Takes back what is not spent. Returns how much that is, and adds to `spent`.
Cost TakeBack(Ways& ways, Asked& asked, Loan& loan, WorkerSpent& spent) {
  const Instant since = loan.lent_at;
  const Cost back = loan.Recall(spent);
  asked.bucket().Credit(TicksOf(Worth(loan, back), asked.limit.shape), asked.now);
  if (back > 0 && ways.HasQuota(asked.limit)) ways.quotas()->GiveBack(asked.hash, asked.limit, back, since, asked.now);
  return back;
}

void CountSpent(Ways& ways, Asked& asked, Lane& lane, const WorkerSpent& spent, Instant since) {
  if (spent.tokens == 0) return;
  LimiterCore& core = ways.core();
  RuleCounters& counters = lane.counters(core.tally.counter(asked.limit.rule));
  counters.served.Add(spent.queries);
  if (asked.bucket().IsNearLimit(asked.shape, asked.now)) counters.near_limit.Add(spent.queries);
  ways.With(asked.limit, [&](auto& way) { return way.Spent(asked, spent.tokens, since), true; });
  lane.AddTimes(asked.query.tag, asked.hash, true, spent.queries, asked.now);
  core.loans.CountServed(spent.queries);
  if (!core.observed.sample().Has(asked.hash)) return;
  if (const auto observer = core.observed.observer()) {
    Query one = asked.query;
    one.cost = 1;
    observer->Decided(one, true, spent.tokens, lane.number(), asked.now);
  }
}

// SettleLoans for one who knows the loans of the tag.
Cost Settle(Ways& ways, Asked& asked, Lane& lane, LentTag* tag) {
  Loans& loans = ways.core().loans;
  Loan* const first = tag != nullptr ? tag->first : nullptr;
  const Instant since = tag != nullptr ? std::exchange(tag->settled_at, asked.now) : asked.now;
  const bool strays = asked.slot != nullptr && loans.AnyStrays(asked.now);
  if (first == nullptr && !strays) return 0;
  ways.With(asked.limit, [&](auto& way) { return way.Prepare(asked), true; });
  if (strays) loans.LeaveRoomForStrays(asked.bucket(), asked.shape, asked.now);
  Tokens out = 0;
  ForEachLoan(first, [&](const Loan& loan) { out += Worth(loan, loan.out); });
  if (out == 0) return 0;
  asked.bucket().LeaveRoom(TicksOf(out, asked.limit.shape), asked.now);
  asked.Keep();
  WorkerSpent spent;
  ForEachLoan(first, [&](Loan& loan) {
    spent += loan.Settle();
    if (loan.part != PartNow(asked)) TakeBack(ways, asked, loan, spent);
  });
  CountSpent(ways, asked, lane, spent, since);
  return Loans::Out(first);
}

// Settles and lends the tokens of one tag, for the length of one call.
class Dealing {
 public:
  Dealing(Ways& ways, const Shedder& shedder, Asked& asked, Lane& lane)
      : ways_(ways),
        shedder_(shedder),
        asked_(asked),
        lane_(lane),
        tag_(ways.core().loans.Find(asked.hash)),
        first_(tag_ != nullptr ? tag_->first : nullptr) {}

  void Deal(Loan& loan, bool alone) {
    out_ = Settle(ways_, asked_, lane_, tag_);
    loan.uses = loan.Decided() - loan.seen;
    std::uint32_t uses = 0;
    ForEachLoan(first_, [&](Loan& its) {
      its.uses = its.Decided() - its.seen;
      uses += its.uses;
      takers_ += alone || its.uses > 0;
    });
    contended_ = Contended(alone, uses);
    most_ = MayLend();
    if (most_ < 1 || IsOverdrawn() || WouldLose()) {
      RecallLoans(ways_, asked_, lane_);
      out_ = 0;
      Say(loan, alone,
          dthrottle::RefusedUntil(ways_, asked_.query, asked_.hash, asked_.limit, asked_.slot, asked_.now));
    } else {
      if (!alone) TakeFromIdle();
      Cost left = takers_;
      alone ? Give(loan, left) : ForEachLoan(first_, [&](Loan& its) {
        if (its.uses > 0) Give(its, left--);
      });
      const bool refuses = MayRefuse() && (contended_ || out_ == 0);
      Say(loan, alone, refuses ? bucket().ServesAt(asked_.shape, 1, asked_.now) : asked_.now);
    }
    loan.fills = out_ > 0 && MayFill();
  }

 private:
  Bucket& bucket() { return asked_.bucket(); }
  // A look measures the demand, to which workers have added these uses.
  bool Contended(bool alone, std::uint32_t uses) {
    if (tag_ == nullptr) return true;    // there was no room for the loan, so it lends nothing
    SeePlenty(*tag_, asked_, out_);
    if (!alone) tag_->Count(uses);
    if (!alone || tag_->measured_at() + kReserveFor <= asked_.now) tag_->Measure(asked_.now);
    return IsContended(*tag_, asked_);
  }
  // Whether the tag may well be asked for at about its rate, and its bucket be full at the next look.
  bool MayFill() {
    if (tag_ == nullptr || Surely(tag_->demand()) < kNearLimit * asked_.shape.rate()) return false;
    const Tokens soon = Seconds(kReserveFor) * asked_.shape.rate();
    return bucket().Level(asked_.shape, asked_.now) + out_ + soon >= asked_.shape.burst();
  }
  // Whether a thousandth or more would be lost of a bucket that holds few tokens: refill for which it has no room,
  // because it is not known yet that tokens are spent.
  bool WouldLose() {
    const Tokens burst = asked_.shape.burst();
    if (tag_ == nullptr || burst >= kFew) return false;
    const double rate = asked_.shape.rate(), demand = tag_->demand();
    const bool crowded = burst < kVeryFew ? demand > kCrowded * rate : demand > Surely(kContended * rate);
    return !crowded && Surely(demand) > kSeldom * rate;
  }
  // Peers took what is lent: the bucket owes more than tokens that are not due yet.
  bool IsOverdrawn() {
    Cost not_due = 0;
    ForEachLoan(first_, [&](const Loan& its) { not_due += its.due > asked_.now ? its.out : 0; });
    return bucket().Level(asked_.shape, asked_.now) + not_due < -0.5;
  }

  // An entry that is not used is not prolonged.
  void Say(Loan& loan, bool alone, Instant until) {
    until = std::min(until, asked_.now + kAhead);
    const auto say = [&](Loan& its) {
      its.Say(its.uses > 0 ? until : std::min(until, its.says_until), asked_.now);
      its.seen += its.uses;
      its.dealt_at = asked_.now;
    };
    if (alone) return loan.Say(until, asked_.now);
    loan.listed ? ForEachLoan(first_, say) : say(loan);
  }

  // How many tokens may be out.
  Tokens MayLend() const {
    const Limit& limit = asked_.limit;
    const bool may = limit.mode != Mode::kOff && !limit.derives && limit.in_flight == 0 &&
                     PenaltyLeft(ways_.core(), limit, asked_.hash, asked_.now) == Duration::zero() &&
                     asked_.shape.depth >= ToTicks(kFillsMin) && shedder_.probability(limit.shed_priority) == 0;
    return may ? std::min(ways_.With(limit, [&](auto& way) { return way.MayLend(asked_); }), OfQuota()) : 0;
  }
  // Tokens that are lent count as used of the quota. They are a small part of what is left, so hardly any lies with a
  // worker when another one is refused.
  Tokens OfQuota() const {
    if (asked_.limit.quota == 0) return Way::kLendAll;
    if (ways_.quotas() == nullptr) return 0;
    const std::uint64_t left = ways_.quotas()->Look(asked_.hash, asked_.limit, asked_.now).left();
    return static_cast<Tokens>((left + out_) / kOfQuota);
  }
  // Refusals are asked for where they lead to a penalty, and in shadow mode, which serves them.
  bool MayRefuse() const { return !asked_.limit.penalizes && asked_.limit.mode == Mode::kEnforce; }

  // Where tokens are short, a worker that does not use them has none.
  void TakeFromIdle() {
    Cost back = 0;
    WorkerSpent spent;
    ForEachLoan(first_, [&](Loan& its) {
      if (its.uses > 0 || !its.Idle(kHold, asked_.now)) return;
      if (bucket().WholeTokens(asked_.shape, asked_.now) < takers_) back += TakeBack(ways_, asked_, its, spent);
    });
    CountSpent(ways_, asked_, lane_, spent, asked_.now);
    out_ -= back + spent.tokens;
  }

  // Half of the burst is never lent, so that the bucket has room while tokens lie with workers.
  std::int64_t Room() const {
    const auto room = static_cast<Tokens>(Loans::Room(asked_.shape, out_));
    return static_cast<std::int64_t>(std::min(room, most_ - out_));
  }

  // A worker has its part of the tokens that are there. One more part is left for those that ask.
  void Give(Loan& loan, Cost takers) {
    Adjust(loan);
    if (!loan.trusted || loan.out > loan.want / 2) return;
    const std::int64_t room = Room(), there = std::min(room, bucket().WholeTokens(asked_.shape, asked_.now));
    if (there > 0) {
      const auto part = static_cast<Cost>(std::max<std::int64_t>(there / (takers + 1), 1));
      Lend(loan, std::min(loan.want - loan.out, part), asked_.now);
    } else if (loan.out == 0 && room > 0 && contended_ && MayRefuse()) {
      Reserve(loan, static_cast<Cost>(room));
    }
  }

  // Tokens that nobody has yet, if they are due soon: together, when the last of them is.
  void Reserve(Loan& loan, Cost room) {
    const auto soon = static_cast<Cost>(ToTicks(kReserveFor) / asked_.shape.interval / std::max<Cost>(takers_, 1));
    const Cost tokens = std::clamp<Cost>(soon, 1, std::min(room, Loan::kWantMax));
    const Instant due = bucket().ServesAt(asked_.shape, tokens, asked_.now);
    if (due <= asked_.now + kReserveAhead) Lend(loan, tokens, due);
  }

  void Lend(Loan& loan, Cost tokens, Instant due) {
    const Ticks window = ways_.core().window;
    if (asked_.slot == nullptr || window == 0 ||
        !bucket().Take(asked_.shape, tokens, asked_.now, asked_.shard.waste(asked_.slot), window)) {
      bucket().Charge(asked_.shape, tokens, asked_.now);
    }
    asked_.Keep();
    ways_.With(asked_.limit, [&](auto& way) { return way.Charged(asked_), true; });
    if (ways_.HasQuota(asked_.limit)) {
      ways_.quotas()->Take(asked_.query.tag, asked_.hash, asked_.limit, tokens, asked_.now);
    }
    loan.Lend(tokens, PartNow(asked_), due, asked_.now);
    out_ += tokens;
  }

  // A worker that uses up what it is lent is lent twice as much.
  static void Adjust(Loan& loan) {
    if (loan.out == 0 && loan.uses >= loan.want) loan.want = std::min(loan.want * 2, Loan::kWantMax);
    if (loan.uses < loan.want / 8) loan.want = std::max(loan.want / 2, Loan::kWantMin);
  }

  Ways& ways_;
  const Shedder& shedder_;
  Asked& asked_;
  Lane& lane_;
  LentTag* const tag_;
  Loan* const first_;
  Cost out_ = 0, takers_ = 0;
  Tokens most_ = 0;
  bool contended_ = true;
};

}    // namespace

Cost SettleLoans(Ways& ways, Asked& asked, Lane& lane) {
  return Settle(ways, asked, lane, ways.core().loans.Find(asked.hash));
}

// A query of several tokens is asked for though its own worker has some of them, because these alone are too few.
void CollectLoans(Ways& ways, Asked& asked, Lane& lane, bool all) {
  LentTag* const tag = ways.core().loans.Find(asked.hash);
  const Cost out = Settle(ways, asked, lane, tag);
  if (tag == nullptr) return;
  tag->Count(asked.query.cost);
  SeePlenty(*tag, asked, out);
  if (out == 0) return;
  const Cost cost = asked.query.cost;
  const bool takes = (all || cost > 1) && asked.bucket().Level(asked.shape, asked.now) + out >= cost;
  const bool stays = !takes && IsContended(*tag, asked);
  WorkerSpent spent;
  ForEachLoan(tag->first, [&](Loan& loan) {
    if (stays ? !loan.Idle(kHold, asked.now) : loan.out == 0) return;
    if (asked.bucket().WholeTokens(asked.shape, asked.now) < cost) TakeBack(ways, asked, loan, spent);
  });
  CountSpent(ways, asked, lane, spent, asked.now);
}

void RecallLoans(Ways& ways, Asked& asked, Lane& lane) {
  SettleLoans(ways, asked, lane);
  WorkerSpent spent;
  ForEachLoan(ways.core().loans.Of(asked.hash), [&](Loan& loan) { TakeBack(ways, asked, loan, spent); });
  CountSpent(ways, asked, lane, spent, asked.now);
}

void Lending::Enable(Instant strays) {
  LimiterCore& core = limiter_.ways().core();
  core.table->Exclusively([&] { core.loans.Enable(strays); });
}

bool Lending::Deal(const Query& query, Loan& loan, bool alone, LaneUse use, Instant now) {
  Ways& ways = limiter_.ways();
  LimiterCore& core = ways.core();
  Lane& lane = core.tally.lane(use.number);
  const Table::Probe probe = core.table->Aim(query.tag);
  Table::Shard shard(*core.table, probe.hash);
  if (!loan.listed) loan.listed = core.loans.Join(probe.hash, loan);
  if (!loan.listed) loan.trusted = false;
  Slot* const slot = shard.Find(query.tag, probe, now);
  const auto index = LimitOf(*core.rules, query, slot);
  if (!index.has_value()) {
    WorkerSpent spent;
    loan.Recall(spent);
    lane.counters(Lane::kUnmatched).served.Add(spent.queries);
    loan.Say(now, now);
    return false;
  }
  const Limit& limit = core.limit(*index);
  Asked asked{query, probe.hash, *index, limit, shard, slot, lane.number(), now, limit.shape};
  const std::uint32_t tickets = loan.settled;
  Dealing dealing(ways, limiter_.shedder(), asked, lane);
  const bool idle = loan.Idle(kHold, now);
  dealing.Deal(loan, alone);
  return alone && idle && loan.settled == tickets;
}

void Lending::Settle(const Query& query, LaneUse use, Instant now) {
  Ways& ways = limiter_.ways();
  LimiterCore& core = ways.core();
  const Table::Probe probe = core.table->Aim(query.tag);
  Table::Shard shard(*core.table, probe.hash);
  Slot* const slot = shard.Find(query.tag, probe, now);
  const auto index = LimitOf(*core.rules, query, slot);
  if (!index.has_value()) return;
  Lane& lane = core.tally.lane(use.number);
  const Limit& limit = core.limit(*index);
  Asked asked{query, probe.hash, *index, limit, shard, slot, lane.number(), now, limit.shape};
  SettleLoans(ways, asked, lane);
}

void Lending::Return(const Query& query, Loan& loan, LaneUse use, Instant now) {
  Ways& ways = limiter_.ways();
  LimiterCore& core = ways.core();
  if (!loan.listed) return;
  Lane& lane = core.tally.lane(use.number);
  const Table::Probe probe = core.table->Aim(query.tag);
  Table::Shard shard(*core.table, probe.hash);
  Slot* const slot = shard.Find(query.tag, probe, now);
  WorkerSpent spent;
  if (const auto index = LimitOf(*core.rules, query, slot); index.has_value()) {
    const Limit& limit = core.limit(*index);
    Asked asked{query, probe.hash, *index, limit, shard, slot, lane.number(), now, limit.shape};
    SettleLoans(ways, asked, lane);
    TakeBack(ways, asked, loan, spent);
    CountSpent(ways, asked, lane, spent, asked.now);
  } else {
    loan.Recall(spent);
    lane.counters(Lane::kUnmatched).served.Add(spent.queries);
  }
  core.loans.Leave(probe.hash, loan);
  loan.listed = false;
}

std::uint64_t Lending::served() const {
  return limiter_.ways().core().loans.served();
}

}    // namespace dthrottle
