// `show`, `why` and `forgive`: one tag.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "admin/accuracy.h"
#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "admin/extension.h"
#include "config/keys.h"
#include "config/values.h"
#include "limiter/inspect.h"
#include "limiter/shedder.h"
#include "query/named_tag.h"
#include "rule/rulebook.h"
#include "share/derived_tag.h"
#include "share/inspection.h"
#include "share/ways.h"

namespace dthrottle::commands {

namespace {

std::string TokensText(double tokens) {
  return fmt::format("{:.6g}", tokens);
}

// When each peer was heard.
std::string HeardText(const std::vector<PeerStatus>& peers) {
  constexpr std::size_t kPeersNamed = 8;
  std::string named;
  std::size_t others = 0;
  for (const PeerStatus& p : peers) {
    if (p.state == PeerState::kSelf || ++others > kPeersNamed) continue;
    const std::string name = EscapeTag(p.name.empty() ? p.address : p.name);
    named += named.empty() ? "" : ", ";
    named += p.last_heard < Duration::zero()
                 ? fmt::format("{} never", name)
                 : fmt::format("{} {:.3f} s ago, with hits {:.3f} s old", name, Seconds(p.last_heard), Seconds(p.age));
  }
  if (others > kPeersNamed) named += fmt::format(", and {} more: see peers", others - kPeersNamed);
  return named;
}

// Each peer's staleness, the bound, what was seen of the rule and of the tag, and what is foretold.
template <class Say>
void WhyShared(const Context& c, const Inspection& seen, Say&& say) {
  const std::vector<PeerStatus> peers = c.host.Peers();
  if (peers.empty()) return;
  const Limit& limit = c.rules().limit(*seen.limit);
  const std::string_view share = limit.forecast ? Name(Share::kForecast)
                                 : limit.shared ? Name(Share::kDebit)
                                                : Name(Share::kLocal);
  if (!limit.divided) say(fmt::format("Other hosts, with share = \"{}\", heard: {}.", share, HeardText(peers)));
  const std::vector<PeerAge> ages = AgesOf(peers);
  const std::optional<Tokens> bound = BoundOf(c.limiter(), *seen.limit, ages);
  say(bound ? fmt::format("In theory {} hosts serve at most {} tokens above burst + rate x time.", ages.size() + 1,
                          TokensText(*bound))
            : std::string("Each host limits alone: together they have no bound but as many limits."));
  if (!limit.shared) return;
  if (limit.rule < c.rules().rules().size()) {
    const RuleAccuracy& rule = c.limiter().ways().Get<Debits>().accuracy(limit.rule);
    say(
        fmt::format("Under the rule {:.2f} % was over-admitted and {:.2f} % under-admitted in the last minute or so; "
                    "the deepest debt is {}.",
                    rule.over_percent(), rule.under_percent(), TokensText(rule.debt)));
    if (!rule.observed.clear()) {
      say(fmt::format("Reports are too far apart to tell that better: both may be off by {:.2f} %.",
                      rule.blurred_percent()));
    }
  }
  if (seen.accuracy.has_value()) {
    const TagAccuracy& tag = *seen.accuracy;
    say(fmt::format("Of this tag {:.1f} tokens were over- and {:.1f} under-admitted; hosts are {:.1f} {} one bucket.",
                    tag.observed.over, tag.observed.under, std::abs(tag.ahead), tag.ahead < 0 ? "behind" : "ahead of"));
  }
  if (seen.foretold.has_value()) {
    const auto& f = *seen.foretold;
    say(
        fmt::format("It is foretold: asked for {:.1f}/s here and {:.1f}/s elsewhere, of which {:.3f} is earned; the "
                    "bucket of all is taken to be at {:.1f}.",
                    f.demand, f.peers_demand, f.share, f.level));
    if (f.held) say("Peers have not heard of max_unheard tokens: what is not served waits for that.");
  } else if (limit.forecast || seen.watched) {
    say(seen.watched ? "It is watched: its hits are reported before the period is over."
                     : "It is not watched: little is asked for, and reports once a period will do.");
  }
}

// The same for `show`.
Json SharedFields(const Context& c, const Inspection& seen) {
  const std::optional<Tokens> bound = BoundOf(c.limiter(), *seen.limit, AgesOf(c.host.Peers()));
  Json fields = {{"bound", bound ? Json(Hundredths(*bound)) : Json()}, {"watched", seen.watched}};
  if (seen.foretold.has_value()) {
    const auto& f = *seen.foretold;
    fields.update({{"demand", Rounded(f.demand)},
                   {"peers_demand", Rounded(f.peers_demand)},
                   {"earns", Rounded(f.share)},
                   {"believed_level", Rounded(f.level)}});
  }
  return fields;
}

double LevelOf(const Inspection& seen, Instant now) {
  return seen.bucket.Level(seen.shape, now);
}

// How long the bucket alone refuses a token.
Duration BucketWait(const Inspection& seen, Instant now) {
  return LevelOf(seen, now) >= 1 ? Duration::zero() : seen.bucket.ServesAt(seen.shape, 1, now) - now;
}

bool IsPenalized(const Inspection& seen) {
  return seen.penalty != Duration::zero();
}

bool IsBusy(const Inspection& seen) {
  return seen.places.has_value() && seen.places->all_taken();
}

// Behind what a limit says, where it does not count.
const char* UnlessShadow(const Limit& limit) {
  return limit.mode == Mode::kShadow ? ", if the mode were not shadow" : "";
}

bool IsSpent(const Inspection& seen) {
  return seen.quota.has_value() && seen.quota->left() == 0;
}

// How a query would be answered now.
struct Foreseen {
  bool refused = false;
  // Until it is served, if nobody asks meanwhile; none: no clock says.
  std::optional<Duration> wait = Duration::zero();

  const char* verdict() const { return refused ? "NO" : "OK"; }

  // Adds what another tag that the query is charged to has to say.
  void Also(const Foreseen& its) {
    refused = refused || its.refused;
    wait = wait && its.wait ? std::optional(std::max(*wait, *its.wait)) : std::nullopt;
  }
};

// By what is known of one tag: its bucket, its penalty, its quota, its places, and how much the host sheds.
Foreseen Foresee(const Context& c, const Inspection& seen, const Limit& limit) {
  if (limit.mode != Mode::kEnforce) return {};
  if (IsBusy(seen) || c.limiter().shedder().probability(limit.shed_priority) >= 1) return {true, std::nullopt};
  const bool refused = LevelOf(seen, c.now) < 1 || IsPenalized(seen) || IsSpent(seen);
  const Duration until_new = IsSpent(seen) ? seen.quota->ends - c.now : Duration::zero();
  return {refused, std::max({BucketWait(seen, c.now), seen.penalty, until_new})};
}

struct ChargedTag {
  std::string tag;
  Inspection seen;
};

// The tags that are charged with a tag that is under this limit.
std::vector<ChargedTag> Charged(const Context& c, const NamedTag& tag, const Limit& limit) {
  std::vector<ChargedTag> all;
  if (!limit.derives) return all;
  for (std::string& charged : ChargedWith(c.limiter(), tag.query(), c.now)) {
    Inspection seen = Inspect(c.limiter(), DerivedTag(charged, c.limiter().ways().core()).query(), c.now);
    all.push_back({std::move(charged), std::move(seen)});
  }
  return all;
}

Foreseen ForeseeAll(const Context& c, std::span<const ChargedTag> charged) {
  Foreseen all;
  for (const ChargedTag& its : charged) {
    if (its.seen.limit.has_value()) all.Also(Foresee(c, its.seen, c.rules().limit(*its.seen.limit)));
  }
  return all;
}

Json LimitFields(const Rulebook& rules, LimitIndex index) {
  const Limit& limit = rules.limit(index);
  const bool is_override = rules.is_override(index);
  const double burst = is_override           ? rules.overrides()[index - rules.rules().size()].burst
                       : rules.is_own(index) ? limit.shape.burst()
                                             : rules.rules()[index].burst;
  return {{"rule", RuleName(rules, limit)},
          {"override", is_override},
          {"mode", Name(limit.mode)},
          {"burst", burst},
          {"rate", rules.rate(index)}};
}

// The rules that were tried, down to the one that applies.
template <class Say>
void WhyRule(const Context& c, const Inspection& seen, Say&& say) {
  const Rulebook& rules = c.rules();
  const bool overridden = seen.limit.has_value() && rules.is_override(*seen.limit);
  say(overridden ? "An override names the tag." : "No override names the tag.");
  if (seen.limit.has_value() && rules.is_own(*seen.limit)) say("The tag names its limit itself, and its rule allows it.");
  const std::size_t chosen = seen.limit.has_value() ? rules.limit(*seen.limit).rule : rules.rules().size();
  for (std::size_t i = 0; i < rules.rules().size(); ++i) {
    const Rule& rule = rules.rules()[i];
    const std::string what = rule.match.has_value() ? fmt::format("match {}", Quote(Value(*rule.match))) : "default";
    if (i == chosen) {
      say(fmt::format("Rule \"{}\" ({}): applies.", rule.name, what));
      if (rule.match.has_value()) break;
    } else if (rule.match.has_value()) {
      say(fmt::format("Rule \"{}\" ({}): does not match.", rule.name, what));
    }
  }
}

// What the bucket says, unless it is not asked. `refused`: something says NO.
template <class Say>
void WhyLevel(const Context& c, const Inspection& seen, const Limit& limit, double shed, bool refused, Say&& say) {
  const double level = LevelOf(seen, c.now);
  const char* const serves = refused ? "the bucket says OK" : "the next query is answered OK";
  if (shed >= 1 && limit.mode == Mode::kEnforce) {
    // The bucket is not asked.
  } else if (limit.mode == Mode::kOff) {
    say("The mode is off: every query is answered OK and nothing is kept.");
  } else if (!seen.recorded) {
    say(fmt::format("No bucket is recorded, which is the same as a full one: {}.", serves));
  } else if (level >= 1) {
    say(fmt::format("The level is {:.3f} tokens, one or more: {}.", level, serves));
  } else {
    say(fmt::format("The level is {:.3f} tokens, less than one: the limit says NO for another {:.3f} s.", level,
                    Seconds(BucketWait(seen, c.now))));
    if (limit.mode == Mode::kShadow) {
      say(refused ? "The mode is shadow: this limit counts the query and does not refuse it."
                  : "The mode is shadow: the query is counted and answered OK all the same.");
    }
  }
}

// How it is divided among the tags that are charged with it.
std::string WhyAmong(const Limit& limit, const DividedAmong& now) {
  if (now.ratio >= 1) return "There is enough for the tags that are charged with it.";
  if (limit.among == Among::kRatio) {
    return fmt::format("The tags that are charged with it get {:.3g} of what they ask for, each.", now.ratio);
  }
  return fmt::format("The tags that are charged with it get at most {:.4g}/s each.", now.level);
}

std::string WhyQuota(const Context& c, const Limit& limit, const QuotaStanding& quota) {
  const QuotaCalendar& calendar = c.rules().calendars()[limit.calendar];
  return fmt::format("Of a quota of {} a {} ({}) all hosts have used {}, as far as is known here: {}. "
                     "It begins anew in {:.0f} s.",
                     quota.amount, Name(calendar.per), calendar.time_zone, quota.used,
                     quota.left() > 0 ? fmt::format("{} are left", quota.left())
                                      : fmt::format("the answer is NO{}", UnlessShadow(limit)),
                     Seconds(quota.ends - c.now));
}

std::string WhyPenalized(const Penalty& terms, const Limit& limit, Duration left) {
  return fmt::format("It was refused {} times within {} and is penalized: refused for another {:.3f} s, on all hosts{}.",
                     terms.after, FormatDuration(terms.within), Seconds(left), UnlessShadow(limit));
}

// REQUIRES: seen.places.
std::string WhyPlaces(const Limit& limit, const Inspection& seen) {
  const std::uint32_t elsewhere = limit.in_flight - seen.places->most;
  return fmt::format("Of {} places {} are taken{}{}{}.", limit.in_flight, seen.places->taken,
                     elsewhere > 0 ? fmt::format(" here, and {} are for other hosts", elsewhere) : "",
                     IsBusy(seen) ? ", so it waits until one is given back" : "",
                     IsBusy(seen) ? UnlessShadow(limit) : "");
}

// What a tag that is charged with another has to say.
std::string WhyItself(const Context& c, const Inspection& seen, const Limit& limit) {
  const bool enforces = limit.mode == Mode::kEnforce;
  if (IsPenalized(seen)) {
    return fmt::format(": it is penalized, refused for another {:.3f} s{}.", Seconds(seen.penalty),
                       UnlessShadow(limit));
  }
  if (IsSpent(seen)) return ". " + WhyQuota(c, limit, *seen.quota);
  if (enforces && c.limiter().shedder().probability(limit.shed_priority) >= 1) return ": every query is shed.";
  if (enforces && IsBusy(seen)) return ": all its places are taken.";
  const bool refuses = enforces && LevelOf(seen, c.now) < 1;
  std::string text = refuses ? fmt::format(": that says NO for another {:.3f} s.", Seconds(BucketWait(seen, c.now)))
                             : std::string(": that says OK.");
  if (seen.among.has_value()) text += " " + WhyAmong(limit, *seen.among);
  return text;
}

template <class Say>
void WhyCharged(const Context& c, std::span<const ChargedTag> charged, Say&& say) {
  for (const auto& [tag, seen] : charged) {
    if (!seen.limit.has_value()) {
      say(fmt::format("It is charged with {} too, which no rule limits.", EscapeTag(tag)));
      continue;
    }
    const Limit& limit = c.rules().limit(*seen.limit);
    say(fmt::format("It is charged with {} too, under rule \"{}\", whose level is {:.3f}{}", EscapeTag(tag),
                    RuleName(c.rules(), limit), LevelOf(seen, c.now), WhyItself(c, seen, limit)));
  }
}

}    // namespace

Json Show(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Inspection seen = Inspect(c.limiter(), tag->query(), c.now);
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    answer["rule"] = nullptr;
    answer["verdict"] = "OK";
    return answer;
  }
  answer.update(LimitFields(c.rules(), *seen.limit));
  const Limit& limit = c.rules().limit(*seen.limit);
  if (limit.divided) answer["part"] = Rounded(seen.part);
  const double shed = c.limiter().shedder().probability(limit.shed_priority);
  Foreseen next = Foresee(c, seen, limit);
  next.Also(ForeseeAll(c, Charged(c, *tag, limit)));
  const double level = LevelOf(seen, c.now);
  answer.update({{"level", Rounded(level)},
                 {"debt", Rounded(std::max(0.0, -level))},
                 {"verdict", next.verdict()},
                 {"served_again_in_s", next.wait ? Json(Rounded(Seconds(*next.wait))) : Json()},
                 {"full_in_s", Rounded(Seconds(seen.bucket.UntilFull(c.now)))},
                 {"recorded", seen.recorded}});
  if (seen.among.has_value()) answer["among_ratio"] = Rounded(seen.among->ratio);
  if (seen.quota.has_value()) {
    answer.update({{"quota", seen.quota->amount},
                   {"quota_used", seen.quota->used},
                   {"quota_ends_in_s", Rounded(Seconds(seen.quota->ends - c.now))}});
  }
  if (limit.penalizes) answer["penalty_s"] = Rounded(Seconds(seen.penalty));
  if (seen.places.has_value()) {
    answer.update({{"places", seen.places->taken}, {"places_here", seen.places->most}, {"in_flight", limit.in_flight}});
  }
  if (seen.lent > 0) answer["lent"] = seen.lent;
  answer["shed_probability"] = Rounded(shed);
  if (limit.shared && !c.host.Peers().empty()) answer.update(SharedFields(c, seen));
  return answer;
}

Json Why(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Rulebook& rules = c.rules();
  const Inspection seen = Inspect(c.limiter(), tag->query(), c.now);
  Json steps = Json::array();
  const auto say = [&](std::string line) { steps.push_back(std::move(line)); };

  if (tag->query().over_long != nullptr) {
    say(fmt::format("The tag has {} bytes, more than query.max_tag_bytes = {}: it goes by its digest {}.",
                    tag->bytes().size(), c.host.settings().query.max_tag_bytes, Hex(tag->query().tag.bytes)));
  }
  WhyRule(c, seen, say);
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    say("No rule fits and there is no default rule: every query is answered OK.");
    answer["verdict"] = "OK";
    answer["steps"] = steps;
    return answer;
  }
  const Limit& limit = rules.limit(*seen.limit);
  const Json limit_fields = LimitFields(rules, *seen.limit);
  say(fmt::format("The limit is burst {:g}, rate {:g}/s, mode {}.", limit_fields["burst"].get<double>(),
                  limit_fields["rate"].get<double>(), Name(limit.mode)));
  for (const Extension* const extension : c.host.extensions()) extension->Why(tag->bytes(), *seen.limit, say);
  if (limit.divided) {
    say(fmt::format("Hosts divide it, and this one has {:.6g} of the rate: {:.6g}/s, burst {:.6g}.", seen.part,
                    limit_fields["rate"].get<double>() * seen.part, seen.shape.burst()));
  }
  const double shed = c.limiter().shedder().probability(limit.shed_priority);
  if (limit.shed_priority < kShedPriorities) say(WhyShed(c, limit, shed));
  if (shed > 0 && limit.mode == Mode::kShadow) say("The mode is shadow: what is shed is counted and answered OK.");
  if (IsPenalized(seen)) say(WhyPenalized(rules.penalty(limit), limit, seen.penalty));
  if (seen.quota.has_value()) say(WhyQuota(c, limit, *seen.quota));
  if (seen.places.has_value()) say(WhyPlaces(limit, seen));
  if (seen.among.has_value()) say(WhyAmong(limit, *seen.among));
  if (seen.lent > 0) say(fmt::format("Workers have {} of its tokens on loan, which the bucket has paid.", seen.lent));
  const std::vector<ChargedTag> charged = Charged(c, *tag, limit);
  Foreseen next = Foresee(c, seen, limit);
  next.Also(ForeseeAll(c, charged));
  WhyLevel(c, seen, limit, shed, next.refused, say);
  WhyCharged(c, charged, say);
  if (limit.mode != Mode::kOff) WhyShared(c, seen, say);
  answer["verdict"] = next.verdict();
  answer["steps"] = steps;
  return answer;
}

Json ForgiveTag(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const bool had = Forgive(c.limiter(), tag->query(), c.now);
  return {{"tag", EscapeTag(tag->bytes())}, {"forgiven", had}};
}

}    // namespace dthrottle::commands
