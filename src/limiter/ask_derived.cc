// Tags that are charged with others (Rule::also). A query of a tag that has some is a question about all of them, and
// so is a question that names one: all pay or none does.
#include <array>

#include "base/check.h"
#include "limiter/deciding.h"
#include "limiter/limit_of.h"
#include "limiter/under_limit.h"
#include "share/derived_tag.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// The tags that a question is charged to: those that it names, in order, then those that are derived from them. It
// keeps their bytes, because a shard can only be locked together with the others once all of them are known.
template <std::size_t kNamedMax>
class Charged {
 public:
  static constexpr std::size_t kDerivedMax = kNamedMax * Rule::kAlsoMax;
  static constexpr std::size_t kMax = kNamedMax + kDerivedMax;

  explicit Charged(std::span<const NamedTagAt> named) : named_(named.size()) {
    for (const NamedTagAt& its : named) {
      queries_[size_] = *its.query;
      tags_[size_] = {&queries_[size_], its.probe};
      because_[size_] = size_;
      ++size_;
    }
  }
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;

  // A tag that is charged with a named one. A tag that is charged already pays both costs.
  void Add(std::string_view text, Cost cost, std::size_t because, double weight, const LimiterCore& core) {
    DT_CHECK(size_ < kMax);
    auto& [charges, places] = with_[because];
    char* const bytes = bytes_[size_ - named_].data();
    std::copy(text.begin(), text.end(), bytes);
    DerivedTag& tag = derived_[size_ - named_] = DerivedTag({bytes, text.size()}, core);
    for (std::size_t i = 0; i < size_; ++i) {
      if (queries_[i].tag == tag.tag()) {
        queries_[i].cost = Questions::Sum(queries_[i].cost, cost);
        ++tags_[i].times;
        places[charges++] = static_cast<std::uint8_t>(i);
        return;
      }
    }
    queries_[size_] = tag.query(cost);
    tags_[size_] = {&queries_[size_], core.table->Aim(queries_[size_].tag)};
    tags_[size_].member = &queries_[because].tag;
    tags_[size_].weight = weight;
    because_[size_] = because;
    places[charges++] = static_cast<std::uint8_t>(size_);
    ++size_;
  }

  std::span<NamedTagAt> tags() { return std::span(tags_).first(size_); }
  std::size_t named() const { return named_; }
  // The named tag that a tag is charged with.
  std::size_t because(std::size_t i) const { return because_[i]; }
  // The places of the tags that are charged with a named one, in the order of its rule.
  std::span<const std::uint8_t> with(std::size_t named) const {
    return std::span(with_[named].places).first(with_[named].charges);
  }
  // Payment::with_unpaid of a named tag.
  std::uint8_t WithUnpaid(std::size_t named, std::span<const Standing> its) const {
    unsigned unpaid = 0, bit = 0;
    for (const std::uint8_t place : with(named)) unpaid |= unsigned{!its[place].paid} << bit++;
    return static_cast<std::uint8_t>(unpaid);
  }

 private:
  static_assert(Rule::kAlsoMax <= 8 && kMax <= 256);
  struct With {
    std::size_t charges = 0;
    std::array<std::uint8_t, Rule::kAlsoMax> places;    // of the tags charged with it, in the order of its rule
  };

  const std::size_t named_;
  std::size_t size_ = 0;
  std::array<Query, kMax> queries_;
  std::array<NamedTagAt, kMax> tags_;
  std::array<std::size_t, kMax> because_;
  std::array<With, kNamedMax> with_;
  std::array<DerivedTag, kDerivedMax> derived_;
  std::array<std::array<char, kTagBytesMax>, kDerivedMax> bytes_;    // of derived tags; not set before they are
};

std::int64_t LeftOf(const Standing& standing, Instant now) {
  return standing.limited() ? standing.bucket.WholeTokens(standing.shape, now) : INT64_MAX;
}

// A named tag stands where one does that is charged with it, if that has less left.
void ShowWith(const Standing& its, Standing& shown, Instant now) {
  if (its.free) shown.free = std::min(*its.free, shown.free.value_or(UINT32_MAX));
  if (LeftOf(its, now) >= LeftOf(shown, now)) return;
  shown.shape = its.shape;
  shown.bucket = its.bucket;
  shown.limit = its.limit;
  shown.renewed = its.renewed;
}

// A charge of a tag that is divided among those that are charged to it.
std::optional<AmongTags::Charge> DividedCharge(const NamedTagAt& named, const LimiterCore& core) {
  if (named.member == nullptr || named.limit == nullptr || named.limit->among == Among::kFirst) return std::nullopt;
  const bool with_others = named.limit->shared && core.window != 0;
  return AmongTags::Charge{.divided = {.tag = named.query->tag,
                                       .hash = named.probe.hash,
                                       .among = named.limit->among,
                                       .hosts = with_others ? core.peers + 1 : 1,
                                       .period = with_others ? ToDuration(core.waste_window) : Duration()},
                           .member = AmongTags::NameOf(*named.member),
                           .cost = named.query->cost,
                           .weight = named.weight};
}

}    // namespace

bool Deciding::IsCut(const NamedTagAt& named, const Shape& shape) {
  const auto charge = DividedCharge(named, core_);
  return charge.has_value() && !core_.among->Would(*charge, shape, prng_, now_);
}

// Where hosts share a limit by reports, what a tag wants beyond its part is no demand that they should foresee.
Verdict Deciding::Cut(Asked& asked, RuleCounters& counters) {
  core_.among->CountCut();
  if (asked.limit.shared) {
    asked.Refused();
  } else {
    ways_.With(asked.limit, [&](auto& way) { return way.Refuse(asked), true; });
  }
  return Refuse(asked.limit, Verdict::kThrottle, counters);
}

void Deciding::CountAmong(const NamedTagAt& named, Verb verb, const Standing& standing) {
  auto charge = DividedCharge(named, core_);
  if (!charge.has_value()) return;
  charge->holds = verb == Verb::kHold;
  const Tokens level = core_.among->IsDue(charge->divided.hash, now_) ? BelievedLevel(named, standing) : 0;
  core_.among->Count(*charge, standing.paid, standing.shape, level, now_);
}

// Hosts that forecast each other do not wait for reports.
Tokens Deciding::BelievedLevel(const NamedTagAt& named, const Standing& standing) {
  const Tag& tag = named.query->tag;
  const Slot* const slot = Table::Locked(*core_.table, named.probe.hash).Find(tag, named.probe, now_);
  const auto foretold = ways_.ForetoldLevel({tag, named.probe.hash, *named.limit, slot}, now_);
  return foretold.value_or(standing.bucket.Level(standing.shape, now_));
}

Outcome Limiter::DecideDerived(const Query& query, const Table::Probe& probe, LaneUse use, Prng& prng, Instant now,
                               Standing* standing) {
  const NamedTagAt named{&query, probe};
  Standing its;
  Deciding deciding(*core_, *ways_, *shedder_, use.front_end, core_->tally.lane(use.number), prng, now);
  const Outcome outcome = deciding.AskDerived({Verb::kTake, 0, 1}, {&named, 1}, {&its, 1});
  if (standing != nullptr) *standing = its;
  return outcome;
}

Outcome Deciding::AskDerived(const Questions::Question& question, std::span<const NamedTagAt> named,
                           std::span<Standing> standings) {
  return named.size() == 1 ? AskCharged<1>(question, named, standings)
                           : AskCharged<Questions::kTagsMax>(question, named, standings);
}

// The standing of a named tag is that of the tag that refuses, or else of the one that has least left: itself, or one
// that is charged with it.
template <std::size_t kNamedMax>
Outcome Deciding::AskCharged(const Questions::Question& question, std::span<const NamedTagAt> named,
                           std::span<Standing> standings) {
  Charged<kNamedMax> charged(named);
  for (std::size_t i = 0; i < named.size(); ++i) {
    const Query& query = *named[i].query;
    Table::Shard shard(*core_.table, named[i].probe.hash);
    const Slot* const slot = shard.Find(query.tag, named[i].probe, now_);
    const auto limit = LimitOf(*core_.rules, query, slot);
    if (!limit.has_value()) continue;
    core_.rules->ForEachDerived(*limit, TextOf(query), [&](std::string_view tag) {
      charged.Add(tag, query.cost, i, core_.limit(*limit).weight, core_);
    });
  }
  const std::span<NamedTagAt> tags = charged.tags();
  std::array<Standing, Charged<kNamedMax>::kMax> all;
  const std::span its = std::span(all).first(tags.size());
  const Table::Shards locked(*core_.table, tags.size(), [&](std::size_t i) { return tags[i].probe.hash; });
  Outcome outcome = Decide(question, LookAtAll(question, tags, its), tags, its);
  std::copy_n(its.begin(), named.size(), standings.begin());
  for (std::size_t i = 0; i < named.size(); ++i) {
    standings[i].with_unpaid = charged.WithUnpaid(i, its);
    for (const std::uint8_t place : charged.with(i)) ShowWith(its[place], standings[i], now_);
  }
  if (outcome.verdict != Verdict::kServe) {
    const std::size_t refused = charged.because(outcome.tag);
    standings[refused] = its[outcome.tag];
    outcome.tag = refused;
  }
  return outcome;
}

}    // namespace dthrottle
