#include "admin/admin.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "admin/accuracy.h"
#include "admin/escape.h"
#include "admin/metrics.h"
#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

namespace {

using Json = nlohmann::ordered_json;

// ---- Answers as text ----

std::string Scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

// Columns are those of the first row, padded to their widest value.
std::string TableText(const Json& rows) {
  if (rows.empty()) return "(none)\n";
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines.front().push_back(name);
  for (const Json& row : rows) {
    lines.emplace_back();
    for (const auto& [name, value] : row.items()) lines.back().push_back(Scalar(value));
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      out += i + 1 == widths.size() ? line[i] : fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

// A string is itself; an object, a line for each member; a list of objects, a table.
std::string Text(const Json& answer) {
  if (answer.is_string()) {
    std::string text = answer.get<std::string>();
    return text.ends_with('\n') ? text : text + '\n';
  }
  if (answer.is_array()) return TableText(answer);
  std::size_t width = 0;
  for (const auto& [name, value] : answer.items()) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : answer.items()) {
    if (!value.is_array()) {
      out += fmt::format("{:<{}}  {}\n", name, width, Scalar(value));
    } else if (!value.empty() && value.front().is_string()) {
      for (const Json& line : value) out += Scalar(line) + '\n';
    } else {
      out += fmt::format("{}:\n{}", name, TableText(value));
    }
  }
  return out;
}

Json ErrorAnswer(std::string_view message) {
  return {{"error", message}};
}

std::string Finish(const Json& answer, bool as_json) {
  // Patterns and paths may hold bytes that are not UTF-8; they must not keep anybody from an answer.
  if (as_json) return answer.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n\n";
  if (answer.is_object() && answer.contains("error")) {
    return fmt::format("error: {}\n\n", answer["error"].get<std::string>());
  }
  std::string text = Text(answer);
  // An empty line is the end of the answer, so there can be none within.
  for (std::size_t i = text.find("\n\n"); i != std::string::npos; i = text.find("\n\n", i)) text.erase(i, 1);
  return text + '\n';
}

// ---- Commands ----

double Rounded(double x) {
  return std::round(x * 1e6) / 1e6;
}

std::string Hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string ShowTag(const Tag& tag) {
  return tag.is_digest ? fmt::format("(over-long, digest {})", Hex(tag.bytes)) : EscapeTag(tag.bytes);
}

std::string RuleName(const Rulebook& rules, const Limit& limit) {
  return limit.rule < rules.rules().size() ? rules.rules()[limit.rule].name : "(none)";
}

struct Context {
  AdminHost& host;
  std::string_view argument;
  Instant now;

  Limiter& limiter() const { return host.limiter(); }
  const Rulebook& rules() const { return host.limiter().rules(); }
};

// The tag that a command names, or null and the answer that says why not.
std::unique_ptr<NamedTag> TagArgument(const Context& c, Json& answer) {
  const Result<std::string> bytes = UnescapeTag(c.argument);
  if (!bytes) {
    answer = ErrorAnswer("TAG: " + bytes.error().message);
    return nullptr;
  }
  return std::make_unique<NamedTag>(*bytes, c.host.settings().query.max_tag_bytes, c.limiter().keys().digest);
}

// ---- How accurate shared limits are ----

std::string TokensText(double tokens) {
  return fmt::format("{:.6g}", tokens);
}

double Hundredths(double x) {
  return std::round(x * 100) / 100;
}

Json AccuracyRows(const Context& c, const std::vector<PeerAge>& ages) {
  Json rows = Json::array();
  const auto& rules = c.rules().rules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto index = static_cast<LimitIndex>(i);
    if (!c.rules().limit(index).shared && !c.rules().limit(index).divided) continue;
    const std::optional<Tokens> bound = BoundOf(c.limiter(), index, ages);
    const RuleAccuracy& seen = c.limiter().accuracy(i);
    rows.push_back({{"rule", rules[i].name},
                    {"share", Name(rules[i].share)},
                    {"bound", bound ? Json(Hundredths(*bound)) : Json()},
                    {"over_percent", Hundredths(seen.over_percent())},
                    {"under_percent", Hundredths(seen.under_percent())},
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
  for (const TagAccuracy& tag : c.limiter().certificate().Hottest(kShown)) {
    const auto limit = tag.is_digest ? std::nullopt : c.rules().Find(tag.tag().bytes);
    rows.push_back({{"over", Hundredths(tag.observed.over)},
                    {"under", Hundredths(tag.observed.under)},
                    {"debt", Hundredths(tag.debt)},
                    {"ahead", Hundredths(tag.ahead)},
                    {"rule", limit.has_value() ? Json(RuleName(c.rules(), c.rules().limit(*limit))) : Json()},
                    {"tag", ShowTag(tag.tag())}});
  }
  return rows;
}

// Each peer's staleness, the bound, what was seen of the rule and of the tag, and what is foretold.
template <class Say>
void WhyShared(const Context& c, const Inspection& seen, Say&& say) {
  constexpr std::size_t kPeersNamed = 8;
  const std::vector<PeerStatus> peers = c.host.Peers();
  if (peers.empty()) return;
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
  const Limit& limit = c.rules().limit(*seen.limit);
  const std::string_view share = limit.forecast ? Name(Share::kForecast)
                                 : limit.shared ? Name(Share::kDebit)
                                                : Name(Share::kLocal);
  if (!limit.divided) say(fmt::format("Other hosts, with share = \"{}\", heard: {}.", share, named));
  const std::vector<PeerAge> ages = AgesOf(peers);
  const std::optional<Tokens> bound = BoundOf(c.limiter(), *seen.limit, ages);
  say(bound ? fmt::format("In theory {} hosts serve at most {} tokens above burst + rate x time.", ages.size() + 1,
                          TokensText(*bound))
            : std::string("Each host limits alone: together they have no bound but as many limits."));
  if (!limit.shared) return;
  if (limit.rule < c.rules().rules().size()) {
    const RuleAccuracy& rule = c.limiter().accuracy(limit.rule);
    say(
        fmt::format("Under the rule {:.2f} % was over-admitted and {:.2f} % under-admitted in the last minute or so; "
                    "the deepest debt is {}.",
                    rule.over_percent(), rule.under_percent(), TokensText(rule.debt)));
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

Json Metrics(const Context& c) {
  return RenderMetrics(c.host, c.now);
}

// Bytes are whole.
Json SignalNumber(const ShedStatus& status, double value) {
  return IsMemory(status.signal) ? Json(static_cast<std::uint64_t>(std::clamp(value, 0.0, 0x1p63))) : Json(value);
}

std::string SignalText(const ShedStatus& status, double value) {
  const std::string_view unit = IsMemory(status.signal) ? " bytes" : status.signal == ShedSignal::kPressure ? " %" : "";
  return Scalar(SignalNumber(status, value)) + std::string(unit);
}

// The state of a bucket, for `show` and `why` alike.
Json BucketFields(const Inspection& seen, const Limit& limit, Instant now) {
  const double level = seen.bucket.Level(seen.shape, now);
  const bool serves = limit.mode == Mode::kOff || level >= 1;
  const Instant again = seen.bucket.ServesAt(seen.shape, 1, now);
  return {{"level", Rounded(level)},
          {"debt", Rounded(std::max(0.0, -level))},
          {"verdict", serves || limit.mode == Mode::kShadow ? "OK" : "NO"},
          {"served_again_in_s", serves ? 0.0 : Rounded(Seconds(again - now))},
          {"full_in_s", Rounded(Seconds(seen.bucket.UntilFull(now)))},
          {"recorded", seen.recorded}};
}

// Where everything is shed the bucket has no say.
Json FinalVerdict(const Json& of_bucket, const Limit& limit, double rejection_probability) {
  return rejection_probability >= 1 && limit.mode == Mode::kEnforce ? Json("NO") : of_bucket;
}

Json LimitFields(const Rulebook& rules, LimitIndex index) {
  const Limit& limit = rules.limit(index);
  const bool is_override = rules.is_override(index);
  const double burst = is_override ? rules.overrides()[index - rules.rules().size()].burst : rules.rules()[index].burst;
  const double rate = is_override ? rules.overrides()[index - rules.rules().size()].rate : rules.rules()[index].rate;
  return {{"rule", RuleName(rules, limit)},
          {"override", is_override},
          {"mode", Name(limit.mode)},
          {"burst", burst},
          {"rate", rate}};
}

Json Show(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Inspection seen = c.limiter().Inspect(tag->query(), c.now);
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    answer["rule"] = nullptr;
    answer["verdict"] = "OK";
    return answer;
  }
  answer.update(LimitFields(c.rules(), *seen.limit));
  const Limit& limit = c.rules().limit(*seen.limit);
  if (limit.divided) answer["part"] = Rounded(seen.part);
  const double shed = c.limiter().rejection_probability(limit.shed_priority);
  answer.update(BucketFields(seen, limit, c.now));
  answer["verdict"] = FinalVerdict(answer["verdict"], limit, shed);
  answer["shed_probability"] = Rounded(shed);
  if (limit.shared && !c.host.Peers().empty()) answer.update(SharedFields(c, seen));
  return answer;
}

std::string WhyShed(const Context& c, const Limit& limit, double probability) {
  const ShedStatus status = c.host.Shed();
  const std::string unknown = status.note.empty() ? "nothing is measured yet" : EscapeTag(status.note);
  const std::string why = status.value.has_value() ? fmt::format("shed.signal = \"{}\" is at {}", Name(status.signal),
                                                                 SignalText(status, *status.value))
                                                   : unknown;
  const bool all = probability >= 1;
  return fmt::format(
      "The rule sheds with priority {}, {}: {}.", limit.shed_priority,
      probability == 0 ? "but not now"
      : all            ? "and now every query"
            : fmt::format("and now a query with probability {:.6g}, before its bucket is asked", probability),
      why);
}

Json Why(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const Rulebook& rules = c.rules();
  const Inspection seen = c.limiter().Inspect(tag->query(), c.now);
  Json steps = Json::array();
  const auto say = [&](std::string line) { steps.push_back(std::move(line)); };

  if (tag->query().over_long != nullptr) {
    say(fmt::format("The tag has {} bytes, more than query.max_tag_bytes = {}: it goes by its digest {}.",
                    tag->bytes().size(), c.host.settings().query.max_tag_bytes, Hex(tag->query().tag.bytes)));
  }
  const bool overridden = seen.limit.has_value() && rules.is_override(*seen.limit);
  say(overridden ? "An override names the tag." : "No override names the tag.");
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
  answer = {{"tag", EscapeTag(tag->bytes())}};
  if (!seen.limit.has_value()) {
    say("No rule fits and there is no default rule: every query is answered OK.");
    answer["verdict"] = "OK";
    answer["steps"] = steps;
    return answer;
  }
  const Limit& limit = rules.limit(*seen.limit);
  const Json limit_fields = LimitFields(rules, *seen.limit);
  const Json bucket = BucketFields(seen, limit, c.now);
  say(fmt::format("The limit is burst {:g}, rate {:g}/s, mode {}.", limit_fields["burst"].get<double>(),
                  limit_fields["rate"].get<double>(), Name(limit.mode)));
  if (limit.divided) {
    say(fmt::format("Hosts divide it, and this one has {:.6g} of the rate: {:.6g}/s, burst {:.6g}.", seen.part,
                    limit_fields["rate"].get<double>() * seen.part, seen.shape.burst()));
  }
  const double shed = c.limiter().rejection_probability(limit.shed_priority);
  if (limit.shed_priority < kShedPriorities) say(WhyShed(c, limit, shed));
  if (shed > 0 && limit.mode == Mode::kShadow) say("The mode is shadow: what is shed is counted and answered OK.");
  const double level = bucket["level"];
  if (shed >= 1 && limit.mode == Mode::kEnforce) {
    // The bucket is not asked.
  } else if (limit.mode == Mode::kOff) {
    say("The mode is off: every query is answered OK and nothing is kept.");
  } else if (!seen.recorded) {
    say("No bucket is recorded, which is the same as a full one: the next query is answered OK.");
  } else if (level >= 1) {
    say(fmt::format("The level is {:.3f} tokens, one or more: the next query is answered OK.", level));
  } else {
    say(fmt::format("The level is {:.3f} tokens, less than one: the limit says NO for another {:.3f} s.", level,
                    bucket["served_again_in_s"].get<double>()));
    if (limit.mode == Mode::kShadow) say("The mode is shadow: the query is counted and answered OK all the same.");
  }
  if (limit.mode != Mode::kOff) WhyShared(c, seen, say);
  answer["verdict"] = FinalVerdict(bucket["verdict"], limit, shed);
  answer["steps"] = steps;
  return answer;
}

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

Json Top(const Context& c) {
  std::size_t n = 10;
  if (!c.argument.empty()) {
    const char* const end = c.argument.data() + c.argument.size();
    const auto [rest, error] = std::from_chars(c.argument.data(), end, n);
    if (error != std::errc() || rest != end || n < 1 || n > TopTags::kEntries) {
      return ErrorAnswer(fmt::format("N must be a whole number from 1 to {}", TopTags::kEntries));
    }
  }
  TopSums served, throttled;
  for (std::size_t i = 0; i < c.limiter().lanes(); ++i) c.limiter().lane(i).AddTop(served, throttled, c.now);
  return {{"throttled", TopList(c, throttled, n)}, {"served", TopList(c, served, n)}};
}

Json Rules(const Context& c) {
  Json rows = Json::array();
  const auto add = [&](const Json& name, const Json& match, const Json& burst, const Json& rate, const Json& share,
                       const Json& mode, const RuleTotals& t, const Retention::Totals& forgotten,
                       const std::optional<Duration>& retention) {
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
                    {"retention_s", retention.has_value() ? Json(Seconds(*retention)) : Json()}});
  };
  const auto& rules = c.rules().rules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& r = rules[i];
    add(r.name, r.match.has_value() ? Json(EscapeTag(*r.match)) : Json(), r.burst, r.rate, Name(r.share), Name(r.mode),
        c.limiter().Totals(i), c.limiter().Forgotten(i), c.limiter().RetentionOf(i));
  }
  const RuleTotals no_rule = c.limiter().Totals(Lane::kNoRule);
  if (no_rule.served + no_rule.throttled + no_rule.shadowed > 0) {
    add("(overrides without a rule)", {}, {}, {}, {}, {}, no_rule, c.limiter().Forgotten(Lane::kNoRule), {});
  }
  const RuleTotals unmatched = c.limiter().Totals(Lane::kUnmatched);
  if (unmatched.served > 0) add("(no rule fits)", {}, {}, {}, {}, {}, unmatched, {}, {});
  return rows;
}

std::string_view Name(PeerState state) {
  constexpr std::string_view kNames[] = {"connecting", "up", "silent", "self", "refused"};
  return kNames[static_cast<int>(state)];
}

// Everything in it that a peer or a name server wrote is escaped.
Json Peers(const Context& c) {
  Json rows = Json::array();
  for (const PeerStatus& p : c.host.Peers()) {
    const bool heard = p.last_heard >= Duration::zero();
    rows.push_back({{"address", EscapeTag(p.address)},
                    {"name", p.name.empty() ? Json() : Json(EscapeTag(p.name))},
                    {"state", Name(p.state)},
                    {"heard_s_ago", heard ? Json(Rounded(Seconds(p.last_heard))) : Json()},
                    {"age_s", heard ? Json(Rounded(Seconds(p.age))) : Json()},
                    {"reports", p.reports},
                    {"missed", p.missed},
                    {"lost", p.lost},
                    {"version", p.version.empty() ? Json() : Json(EscapeTag(p.version))},
                    {"note", p.reason.empty() ? Json() : Json(EscapeTag(p.reason))}});
  }
  return rows;
}

Json ShedAnswer(const Context& c) {
  const ShedStatus status = c.host.Shed();
  const auto number = [&](bool known, double x) { return known ? SignalNumber(status, x) : Json(); };
  const bool known = status.value.has_value();
  Json rows = Json::array();
  const auto& priorities = c.rules().shed_priorities();
  for (std::size_t p = 0, step = 0; p < kShedPriorities; ++p) {
    if (!priorities[p]) continue;
    std::string names;
    for (const Rule& rule : c.rules().rules()) {
      if (rule.shed && rule.shed_priority == p) names += (names.empty() ? "" : ", ") + rule.name;
    }
    const auto& curve = status.curve;
    const auto part =
        curve ? LogisticCurve::Step(curve->low(), curve->high(), step, priorities.count()) : LogisticCurve(0, 0);
    ++step;
    rows.push_back({{"priority", p},
                    {"low", number(known, part.low())},
                    {"high", number(known, part.high())},
                    {"probability", Rounded(c.limiter().rejection_probability(p))},
                    {"rules", names}});
  }
  return {{"signal", Name(status.signal)},
          {"source", status.source.empty() ? Json() : Json(EscapeTag(status.source))},
          {"value", number(known, status.value.value_or(0))},
          {"age_s", known ? Json(Rounded(Seconds(status.age))) : Json()},
          {"maximum", number(status.maximum > 0, status.maximum)},
          {"low", number(known, known ? status.curve->low() : 0)},
          {"high", number(known, known ? status.curve->high() : 0)},
          {"note", status.note.empty() ? Json() : Json(EscapeTag(status.note))},
          {"priorities", rows}};
}

Json Shed(const Context& c) {
  if (c.argument.empty()) return ShedAnswer(c);
  double value = 0;
  const char* const end = c.argument.data() + c.argument.size();
  const auto [rest, error] = std::from_chars(c.argument.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) return ErrorAnswer("VALUE must be a number");
  if (const auto taken = c.host.ReportShed(value); !taken) return ErrorAnswer(taken.error().message);
  return ShedAnswer(c);
}

std::string_view Name(MemberState state) {
  constexpr std::string_view kNames[] = {"unknown", "up", "silent"};
  return kNames[static_cast<int>(state)];
}

Json MemberRows(const std::vector<CapacityMember>& members) {
  Json rows = Json::array();
  for (const CapacityMember& m : members) {
    rows.push_back({{"name", m.name},
                    {"state", Name(m.state)},
                    {"heard_s_ago", m.last_heard < Duration::zero() ? Json() : Json(Rounded(Seconds(m.last_heard)))},
                    {"weight", m.neighbour ? Json(m.weight) : Json()},
                    {"witness", m.witness},
                    {"best_friend", m.best_friend},
                    {"differs", m.differs}});
  }
  return rows;
}

Json TokensOf(Parts parts, double rate) {
  return Rounded(PartOfWhole(parts) * rate);
}

Json EdgeRows(const CapacityTag& tag, double rate) {
  Json rows = Json::array();
  for (const CapacityEdge& edge : tag.edges) {
    rows.push_back({{"neighbour", edge.neighbour},
                    {"indicator", edge.indicator ? Json(Rounded(*edge.indicator)) : Json()},
                    {"given", TokensOf(edge.given, rate)},
                    {"received", TokensOf(edge.received, rate)},
                    {"under_way", TokensOf(edge.under_way, rate)}});
  }
  return rows;
}

Json IndicatorOf(const std::optional<CapacityTag>& tag) {
  return tag && tag->indicator ? Json(Rounded(*tag->indicator)) : Json();
}

// What the exchange has of a tag; to be taken while its thread waits, and shown afterwards.
struct Exchanged {
  std::optional<CapacityTag> tag;
  std::optional<CapacitySum> sum;
};

Json DividedRow(const Context& c, const Dividing::Participant& p, const Exchanged& exchanged) {
  const auto& [known, sum] = exchanged;
  const Tag tag{p.tag, p.is_digest};
  const double part = c.limiter().Inspect({tag, 1, nullptr}, c.now).part;
  Parts given = 0, received = 0;
  if (known) {
    for (const CapacityEdge& edge : known->edges) {
      given += edge.given;
      received += edge.received;
    }
  }
  return {{"rule", p.rule},
          {"rate", p.capacity},
          {"part", Rounded(part)},
          {"share", Rounded(part * p.capacity)},
          {"demand", Rounded(p.demand.value())},
          {"indicator", IndicatorOf(known)},
          {"given", TokensOf(given, p.capacity)},
          {"received", TokensOf(received, p.capacity)},
          {"sum", sum ? TokensOf(sum->parts, p.capacity) : Json()},
          {"sum_hosts", sum ? Json(sum->hosts) : Json()},
          {"tag", ShowTag(tag)}};
}

using Divided = std::pair<const CapacityKey, Dividing::Participant>;

// Those with most demand, which have a name here.
std::vector<const Divided*> MostDivided(const Context& c) {
  constexpr std::size_t kShown = 100;
  std::vector<const Divided*> most;
  if (c.host.dividing() == nullptr) return most;
  for (const Divided& tag : c.host.dividing()->participants()) {
    if (tag.second.capacity > 0) most.push_back(&tag);
  }
  std::sort(most.begin(), most.end(), [](const Divided* a, const Divided* b) {
    const double x = a->second.demand.value(), y = b->second.demand.value();
    return x != y ? x > y : a->second.tag < b->second.tag;
  });
  if (most.size() > kShown) most.resize(kShown);
  return most;
}

Json CapacityOfAll(const Context& c) {
  constexpr std::size_t kSummed = 10;    // the other hosts are asked for the sums of so many tags
  const auto& lent = c.limiter().parts().lent();
  const bool divides = c.host.dividing() != nullptr;
  Json answer = {{"divides", divides}};
  const std::vector<const Divided*> tags = MostDivided(c);
  std::vector<Exchanged> exchanged;
  const bool looked = c.host.LookAtCapacity([&](CapacityExchange& exchange) {
    const CapacityCounts counts = exchange.Counts(c.now);
    answer["generation"] = counts.generation;
    answer["leased"] = counts.leased;
    answer["reserve"] = Rounded(lent.reserve);
    answer["usual"] = Rounded(lent.usual);
    answer["rounds"] = counts.rounds;
    answer["members"] = MemberRows(exchange.Members(c.now));
    for (const Divided* tag : tags) {
      Exchanged& one = exchanged.emplace_back();
      one.tag = exchange.Inspect(tag->first);
      if (exchanged.size() <= kSummed) one.sum = exchange.Sum(tag->first, c.now);
    }
  });
  if (looked && divides) {
    Json rows = Json::array();
    for (std::size_t i = 0; i < tags.size(); ++i) rows.push_back(DividedRow(c, tags[i]->second, exchanged[i]));
    answer["tags"] = std::move(rows);
  } else {
    answer["note"] = divides                                ? "busy; ask again"
                     : c.rules().divided_fingerprint() == 0 ? "no rule has share = \"capacity\""
                                                            : "there is no other host: all of each limit is here";
  }
  return answer;
}

Json Capacity(const Context& c) {
  if (c.argument.empty()) return CapacityOfAll(c);
  Json answer;
  const auto named = TagArgument(c, answer);
  if (named == nullptr) return answer;
  const Tag& tag = named->query().tag;
  const Inspection seen = c.limiter().Inspect(named->query(), c.now);
  if (!seen.limit.has_value() || !c.rules().limit(*seen.limit).divided) {
    return ErrorAnswer("TAG is under no rule with share = \"capacity\"");
  }
  const Limit& limit = c.rules().limit(*seen.limit);
  const double rate = c.rules().rate(*seen.limit);
  const CapacityKey key = c.limiter().KeyOf(tag, limit);
  Exchanged exchanged;
  std::size_t hosts = 1;
  c.host.LookAtCapacity([&](CapacityExchange& exchange) {
    exchanged = {exchange.Inspect(key), exchange.Sum(key, c.now)};
    hosts += exchange.Members(c.now).size();
  });
  const auto& [known, sum] = exchanged;
  std::optional<double> demand;
  if (const Dividing* dividing = c.host.dividing()) {
    const auto found = dividing->participants().find(key);
    if (found != dividing->participants().end() && found->second.capacity > 0) demand = found->second.demand.value();
  }
  answer = {{"tag", EscapeTag(named->bytes())},
            {"rule", RuleName(c.rules(), limit)},
            {"rate", rate},
            {"part", Rounded(seen.part)},
            {"share", Rounded(seen.part * rate)},
            {"takes_part", known.has_value()},
            {"demand", demand ? Json(Rounded(*demand)) : Json()},
            {"indicator", IndicatorOf(known)}};
  if (sum) {
    answer["sum"] = TokensOf(sum->parts, rate);
    answer["sum_hosts"] = sum->hosts;
    answer["sum_age_s"] = Rounded(Seconds(sum->age));
    answer["hosts"] = hosts;
  }
  answer["neighbours"] = known ? EdgeRows(*known, rate) : Json::array();
  return answer;
}

// Seconds from `now` to `then`, which may be over.
Json SecondsTo(const std::optional<BootInstant>& then, BootInstant now) {
  return then.has_value() ? Json(Rounded(Seconds(*then - now))) : Json();
}

Json LeaseRow(const lease::ResourceStatus& r, BootInstant now) {
  return {{"resource", EscapeTag(r.resource)},
          {"algorithm", lease::Name(r.how->algorithm)},
          {"capacity", Rounded(r.capacity)},
          {"from", r.from},
          {"has", Rounded(r.has)},
          {"wants", Rounded(r.wants)},
          {"clients", r.clients},
          {"shortfall", Rounded(r.shortfall)},
          {"safe", r.safe_capacity < 0 ? Json() : Json(Rounded(r.safe_capacity))},
          {"expires_in_s", SecondsTo(r.capacity_expiry, now)},
          {"learning_s", SecondsTo(r.learning_until, now)}};
}

Json HolderRow(const lease::HolderStatus& h, BootInstant now) {
  return {{"client", EscapeTag(h.id)},
          {"has", Rounded(h.has.capacity)},
          {"wants", Rounded(h.wants)},
          {"priority", h.priority},
          {"expires_in_s", SecondsTo(h.has.expiry, now)}};
}

// Everything in it that a lease client or another host wrote is escaped.
Json Leases(const Context& c) {
  const Result<std::string> resource = UnescapeTag(c.argument);
  if (!resource) return ErrorAnswer("RESOURCE: " + resource.error().message);
  const LeaseStatus status = c.host.Leases(*resource);
  const std::string note = status.elector.empty()
                               ? "lease.unix, lease.tcp and lease.grpc are \"\": this host leases nothing"
                               : status.trouble;
  Json rows = Json::array(), holders = Json::array();
  for (const auto& r : status.resources) {
    if (resource->empty() || r.resource == *resource) rows.push_back(LeaseRow(r, status.now));
  }
  for (const auto& h : status.holders) holders.push_back(HolderRow(h, status.now));
  Json answer = {{"elector", status.elector.empty() ? Json() : Json(status.elector)},
                 {"master", status.master.empty() ? Json() : Json(EscapeTag(status.master))},
                 {"here", status.here},
                 {"token", status.token},
                 {"valid_s", status.valid.has_value() ? Json(Rounded(Seconds(*status.valid))) : Json()},
                 {"node", EscapeTag(status.node)},
                 {"level", status.level},
                 {"parent", status.parent.empty() ? Json() : Json(EscapeTag(status.parent))},
                 {"parent_heard_s", status.parent_heard ? Json(Rounded(Seconds(*status.parent_heard))) : Json()},
                 {"parent_note", status.parent_trouble.empty() ? Json() : Json(EscapeTag(status.parent_trouble))},
                 {"note", note.empty() ? Json() : Json(EscapeTag(note))},
                 {"resources", rows}};
  if (!resource->empty()) answer["clients"] = holders;
  return answer;
}

Json Config(const Context& c) {
  return RenderSettings(c.host.settings(), c.rules().rules(), c.rules().overrides());
}

Json ForgiveTag(const Context& c) {
  Json answer;
  const auto tag = TagArgument(c, answer);
  if (tag == nullptr) return answer;
  const bool had = c.limiter().Forgive(tag->query(), c.now);
  return {{"tag", EscapeTag(tag->bytes())}, {"forgiven", had}};
}

Json Help(const Context&);

struct Command {
  std::string_view name;
  std::string_view argument;    // shown in help; "[" in front: may be left out
  std::string_view meaning;
  Json (*run)(const Context&);    // null for those that answer later
};

constexpr Command kCommands[] = {
    {"help", "", "this list", Help},
    {"stats", "", "everything that is counted", Stats},
    {"metrics", "", "the same and more for Prometheus, as text that it scrapes", Metrics},
    {"show", "TAG", "the limit and the bucket of a tag, and when it will be served again", Show},
    {"why", "TAG", "how the next verdict on a tag comes about, step by step", Why},
    {"top", "[N]", "the N most throttled and most served tags of the last minute or two", Top},
    {"rules", "", "rules in order, with what they served and throttled", Rules},
    {"peers", "", "the other hosts: where, heard how long ago, how old their news was, what was missed", Peers},
    {"shed", "[VALUE]", "what load shedding goes by and how much it refuses; VALUE reports what to go by", Shed},
    {"capacity", "[TAG]", "how hosts divide limits: members and tags that take part, or one tag's part and neighbours",
     Capacity},
    {"leases", "[RESOURCE]", "who grants leases, and what is leased out; of RESOURCE, to whom", Leases},
    {"config", "", "the settings in force, as TOML", Config},
    {"forgive", "TAG", "forget what a tag has spent or owes", ForgiveTag},
    {"reload", "", "read the settings file again and put it in force, if it is good", nullptr},
    {"upgrade", "", "go over to the program as it is installed now, with every socket and connection", nullptr},
};

Json Help(const Context&) {
  Json rows = Json::array();
  for (const Command& command : kCommands) {
    const std::string_view blank = command.argument.empty() ? "" : " ";
    rows.push_back(
        {{"command", fmt::format("{}{}{}", command.name, blank, command.argument)}, {"meaning", command.meaning}});
  }
  rows.push_back({{"command", "json COMMAND"}, {"meaning", "the answer as one line of JSON"}});
  return rows;
}

Json ReloadAnswer(const ReloadOutcome& outcome) {
  Json answer = {{"reloaded", outcome.in_force}};
  if (!outcome.in_force) answer["note"] = "the settings in force have not changed";
  answer["problems"] = outcome.problems;
  return answer;
}

}    // namespace

void RunCommand(std::string_view line, AdminHost& host, const AdminReply& reply, Instant now) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const bool as_json = line.starts_with("json ");
  if (as_json) line.remove_prefix(5);
  const std::size_t blank = std::min(line.find(' '), line.size());
  const std::string_view name = line.substr(0, blank);
  const std::string_view argument = line.substr(std::min(blank + 1, line.size()));

  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    if (command.argument.empty() && !argument.empty()) {
      return reply(Finish(ErrorAnswer(fmt::format("{} takes nothing after it", name)), as_json));
    }
    // A tag may be empty, but then the blank before it says that it was meant.
    if (command.argument == "TAG" && blank == line.size()) {
      return reply(Finish(ErrorAnswer(fmt::format("{} needs a TAG", name)), as_json));
    }
    if (command.run != nullptr) return reply(Finish(command.run({host, argument, now}), as_json));
    if (name == "upgrade") {
      return host.Upgrade([=](const Result<std::string>& program) {
        reply(Finish(program ? Json{{"upgrading", true}, {"program", *program}} : ErrorAnswer(program.error().message),
                     as_json));
      });
    }
    return host.Reload([=](const ReloadOutcome& outcome) { reply(Finish(ReloadAnswer(outcome), as_json)); });
  }
  reply(Finish(ErrorAnswer(fmt::format("unknown command \"{}\"; try help", EscapeTag(name.substr(0, 64)))), as_json));
}

std::string CommandTooLong() {
  return Finish(ErrorAnswer(fmt::format("a command has at most {} bytes", kCommandBytesMax)), false);
}

}    // namespace dthrottle
