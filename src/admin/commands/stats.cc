// `stats`: everything that is counted, and how accurate shared limits are.
#include "admin/accuracy.h"
#include "admin/commands/commands.h"
#include "admin/counts.h"
#include "share/ways.h"

namespace dthrottle::commands {

namespace {

Json AccuracyRows(const Context& c, const std::vector<PeerAge>& ages) {
  Json rows = Json::array();
  const auto& rules = c.rules().rules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto index = static_cast<LimitIndex>(i);
    if (!c.rules().limit(index).shared && !c.rules().limit(index).divided) continue;
    const std::optional<Tokens> bound = BoundOf(c.limiter(), index, ages);
    const RuleAccuracy& seen = c.limiter().ways().Get<Debits>().accuracy(i);
    rows.push_back({{"rule", rules[i].name},
                    {"share", Name(rules[i].share)},
                    {"bound", bound ? Json(Hundredths(*bound)) : Json()},
                    {"over_percent", Hundredths(seen.over_percent())},
                    {"under_percent", Hundredths(seen.under_percent())},
                    {"blurred_percent", Hundredths(seen.blurred_percent())},
                    {"over", Hundredths(seen.observed.over)},
                    {"under", Hundredths(seen.observed.under)},
                    {"served", Hundredths(seen.served)},
                    {"debt", Hundredths(seen.debt)},
                    {"ahead", Hundredths(seen.ahead)},
                    {"tolerance", rules[i].tolerance},
                    {"alert", seen.alarmed}});
  }
  return rows;
}

Json HottestRows(const Context& c) {
  constexpr std::size_t kShown = 16;
  Json rows = Json::array();
  for (const TagAccuracy& tag : c.limiter().ways().Get<Debits>().certificate().Hottest(kShown)) {
    const auto limit = tag.kept.tag().is_digest ? std::nullopt : c.rules().Find(tag.kept.tag().bytes);
    rows.push_back({{"over", Hundredths(tag.observed.over)},
                    {"under", Hundredths(tag.observed.under)},
                    {"debt", Hundredths(tag.debt())},
                    {"ahead", Hundredths(tag.ahead)},
                    {"rule", limit.has_value() ? Json(RuleName(c.rules(), c.rules().limit(*limit))) : Json()},
                    {"tag", ShowTag(tag.kept.tag())}});
  }
  return rows;
}

}    // namespace

Json Stats(const Context& c) {
  const Snapshot snapshot = TakeSnapshot(c.limiter(), c.host.Counts());
  Json out = {{"version", DTHROTTLE_VERSION}};
  for (const Count& count : Counts()) {
    const double value = count.value(snapshot);
    out[std::string(count.name)] = IsWhole(count) ? Json(static_cast<std::uint64_t>(value)) : Json(Rounded(value));
  }
  if (const std::vector<PeerStatus> peers = c.host.Peers(); !peers.empty()) {
    out["accuracy"] = AccuracyRows(c, AgesOf(peers));
    out["accuracy_hottest"] = HottestRows(c);
  }
  return out;
}

}    // namespace dthrottle::commands
