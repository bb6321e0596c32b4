// `rules`, `top` and `penalties`: what each rule did, and which tags are asked for most or penalized.
#include <fmt/format.h>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "base/number.h"
#include "limiter/inspect.h"
#include "limiter/retention.h"
#include "rule/rulebook.h"
#include "tally/tally.h"

namespace dthrottle::commands {

namespace {

Json TopList(const Context& c, const TopSums& sums, std::size_t n) {
  Json rows = Json::array();
  for (const TopEntry& e : Largest(sums, n)) {
    const auto limit = e.is_digest ? std::nullopt : c.rules().Find(e.tag);
    rows.push_back({{"count", e.count},
                    {"error", e.error},
                    {"rule", limit.has_value() ? Json(RuleName(c.rules(), c.rules().limit(*limit))) : Json()},
                    {"tag", ShowTag({e.tag, e.is_digest})}});
  }
  return rows;
}

// The tags that stay penalized longest.
Json PenaltyList(const Context& c, std::size_t n) {
  Json rows = Json::array();
  for (const PenalizedTag& its : Penalized(c.limiter(), c.now)) {
    if (rows.size() == n) break;
    const auto index = its.is_digest ? std::nullopt : c.rules().Find(its.tag);
    const Limit* const limit = index.has_value() ? &c.rules().limit(*index) : nullptr;
    if (limit != nullptr && !limit->penalizes) continue;    // as it was, before a reload
    rows.push_back({{"left_s", Rounded(Seconds(its.left))},
                    {"lasts_s", Rounded(Seconds(its.length))},
                    {"from", its.heard ? "peer" : "here"},
                    {"mode", Name(limit != nullptr ? limit->mode : Mode::kEnforce)},
                    {"rule", limit != nullptr ? Json(RuleName(c.rules(), *limit)) : Json()},
                    {"tag", ShowTag({its.tag, its.is_digest})}});
  }
  return rows;
}

}    // namespace

Json Top(const Context& c) {
  std::size_t n = 10;
  if (!c.argument.empty() && (!ParseNumber(c.argument, n) || n < 1 || n > TopTags::kEntries)) {
    return ErrorAnswer(fmt::format("N must be a whole number from 1 to {}", TopTags::kEntries));
  }
  TopSums served, throttled;
  const Tally& tally = c.limiter().tally();
  for (std::size_t i = 0; i < tally.lanes(); ++i) tally.lane(i).AddTop(served, throttled, c.now);
  return {{"throttled", TopList(c, throttled, n)},
          {"served", TopList(c, served, n)},
          {"penalized", PenaltyList(c, n)}};
}

Json AllPenalties(const Context& c) {
  return PenaltyList(c, SIZE_MAX);
}

Json Rules(const Context& c) {
  Json rows = Json::array();
  const auto add = [&](const Json& name, const Json& match, const Json& burst, const Json& rate, const Json& share,
                       const Json& mode, const RuleTotals& t, const Retention::Totals& forgotten,
                       const std::optional<Duration>& kept) {
    rows.push_back({{"rule", name},
                    {"match", match},
                    {"burst", burst},
                    {"rate", rate},
                    {"share", share},
                    {"mode", mode},
                    {"served", t.served},
                    {"throttled", t.throttled},
                    {"shadowed", t.shadowed},
                    {"shed", t.shed},
                    {"evicted", forgotten.evicted},
                    {"retention_s", kept.has_value() ? Json(Seconds(*kept)) : Json()}});
  };
  const auto& rules = c.rules().rules();
  const Tally& tally = c.limiter().tally();
  const Retention& retention = c.limiter().retention();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& r = rules[i];
    add(r.name, r.match.has_value() ? Json(EscapeTag(*r.match)) : Json(), r.burst, r.rate, Name(r.share), Name(r.mode),
        tally.Totals(i), retention.totals(tally.CounterNamed(i)), retention.of(tally.counter(i)));
  }
  const RuleTotals no_rule = tally.Totals(Lane::kNoRule);
  if (no_rule.served + no_rule.throttled + no_rule.shadowed > 0) {
    add("(overrides without a rule)", {}, {}, {}, {}, {}, no_rule, retention.totals(Lane::kNoRule), {});
  }
  const RuleTotals unmatched = tally.Totals(Lane::kUnmatched);
  if (unmatched.served > 0) add("(no rule fits)", {}, {}, {}, {}, {}, unmatched, {}, {});
  return rows;
}

}    // namespace dthrottle::commands
