// The tables [[rule]] and [[override]] of the settings.
#include <algorithm>
#include "base/host_name.h"
#include "base/tag.h"

#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/calendar.h"
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"
#include "rule/glob.h"
#include "rule/rulebook.h"
#include "share/check.h"

namespace dthrottle {

namespace {

constexpr std::string_view kTokens = "a number of tokens";

template <class T>
Key<T> Burst() {
  return Number<T>("burst", "", kBurstMin, kBurstMax, MEMBER(T, burst),
                   "The most tokens a bucket holds: how many queries in a row a tag may make after a rest.", kTokens);
}

template <class T>
Key<T> Rate() {
  Key<T> key = Number<T>("rate", "", kRateMin, kRateMax, MEMBER(T, rate),
                         "How fast a bucket refills, in tokens a second, or in text with a unit, such as \"60/m\". No "
                         "tag is served faster than this in the long run.",
                         "tokens a second");
  key.allowed += ", as a number or as text such as \"60/m\" (s, m, h, d)";
  key.set = [set = key.set](T& target, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    return set(target, text != nullptr ? Value(ParseRate(*text).value_or(0)) : value);
  };
  return key;
}

template <class T>
Key<T> Quota(std::string_view name, std::string_view default_text, Member<T, std::uint64_t> member,
             std::string_view meaning) {
  constexpr std::int64_t kMost = 1'000'000'000'000;
  const auto read = [](const Value& value) -> std::optional<std::uint64_t> {
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr || *number < 0 || *number > kMost) return std::nullopt;
    return static_cast<std::uint64_t>(*number);
  };
  return Made<T, std::uint64_t>(name, default_text, fmt::format("a whole number from 0 to {}", kMost), member, meaning,
                                read, [](std::uint64_t number) { return static_cast<std::int64_t>(number); });
}

template <class T>
Key<T> Weight(std::string_view default_text, Member<T, double> member, std::string_view meaning) {
  return Number<T>("weight", default_text, 0.001, 1000, member, meaning, "a number");
}

// Either the networks or the path of a file that lists them, which Load reads.
Key<Rule> MatchCidrs() {
  Key<Rule> key{"match_cidrs",
                "[]",
                "a list of networks such as [\"192.0.2.0/24\", \"2001:db8::/32\"], or the absolute path of a file that "
                "lists them",
                "The networks whose addresses the rule is for. The address is what stands in the tag behind the part of "
                "*match* before its first *, ? or [; without *match* it is the whole tag. Rules with the same *match* and "
                "networks are tried together, where the first of them stands, and that with the longest network that "
                "contains the address applies. A file has a network on each line; what follows # is a comment. There may "
                "be a million of them. A reload reads the file again.",
                {},
                {}};
  key.set = [](Rule& rule, const Value& value) {
    RuleNetworks networks;
    if (const auto* file = std::get_if<std::string>(&value)) {
      networks.file = *file;
      if (file->empty() || !IsPath(*file)) return false;
    } else if (const auto* given = std::get_if<std::vector<std::string>>(&value)) {
      networks.given = *given;
      std::vector<Network> list;
      for (const std::string& text : *given) {
        const auto network = ParseNetwork(text);
        if (!network.has_value()) return false;
        list.push_back(*network);
      }
      networks.list = std::make_shared<const std::vector<Network>>(std::move(list));
    } else {
      return false;
    }
    rule.networks = std::move(networks);
    return true;
  };
  key.get = [](const Rule& rule) -> Value {
    if (!rule.networks.has_value()) return {};
    return rule.networks->file.empty() ? Value(rule.networks->given) : Value(rule.networks->file);
  };
  return key;
}

Key<Rule> Also() {
  using List = std::vector<Derivation>;
  const auto read = [](const Value& value) -> std::optional<List> {
    const auto* texts = std::get_if<std::vector<std::string>>(&value);
    if (texts == nullptr || texts->size() > Rule::kAlsoMax) return std::nullopt;
    List list;
    for (const std::string& text : *texts) {
      const auto derivation = ParseDerivation(text);
      if (!derivation || std::ranges::find(list, *derivation) != list.end()) return std::nullopt;
      list.push_back(*derivation);
    }
    return list;
  };
  const auto show = [](const List& list) {
    std::vector<std::string> texts;
    for (const Derivation& derivation : list) texts.push_back(FormatDerivation(derivation));
    return texts;
  };
  return Made<Rule, List>(
      "also", "[]",
      "a list of at most 8 different ones of \"ipv4/BITS\", \"ipv6/BITS\" and \"before TEXT\", where TEXT has 1 to 16 "
      "bytes",
      MEMBER(Rule, also),
      "Further tags that a tag of the rule is charged with, all or nothing: a query is served if all of them would serve "
      "it. \"ipv6/48\" is the network of that size that an IPv6 address is in: with ip:2001:db8:7:1::9 also "
      "ip:2001:db8:7::/48 is charged; \"ipv4/24\" is the same for IPv4. The address is found as for *match_cidrs*. "
      "\"before /\" is what stands before the first / behind the literal beginning of *match*: with acme/bob also acme. "
      "Such a tag is a tag like any other: it finds its own rule, which may have another burst, rate and share, and is "
      "seen by commands and peers. What its rule has under *also* is not charged. An exempt tag, of mode \"off\", is "
      "charged with nothing. A tag of more than 255 bytes without a / among the first 255 is charged with these, for "
      "the / is taken to stand behind them. A tag that two of the list name is charged once.",
      read, show);
}

}    // namespace

const std::vector<Key<Rule>>& RuleKeys() {
  using namespace std::chrono_literals;
  using R = Rule;
  static const std::vector<Key<R>> keys = {
      Text<R>("name", "\"\"", "a name of up to 64 letters, digits and \"_-.\"", MEMBER(R, name),
              "What the rule is called in answers, counters and logs. Without one it is called rule-*N*, by its place.",
              IsHostName),
      Optional<R>(
          MEMBER(R, match),
          Text<std::string>(
              "match", "", "a glob of at most 255 bytes: * ? [a-z] [!a-z] \\x", Itself<std::string>,
              "The tags that the rule is for, as a glob over the whole tag: * stands for any bytes, ? for one, [a-z] "
              "for one of a set, [!a-z] for one not of it, and \\ takes the next byte as it is. Without *match* the "
              "rule is the default.",
              [](const std::string& text) { return text.size() <= kTagBytesMax && Glob::Compile(text).has_value(); })),
      MatchCidrs(),
      Burst<R>(),
      Rate<R>(),
      Integer<R>("max_own_limit", "0", 0, OwnLimit::kRequestsMax, MEMBER(R, max_own_limit),
                 "Up to so many requests a tag of the rule may name as a limit of its own, which takes the place of burst "
                 "and rate: a tag *TAG* of the rule is asked for as *TAG*|100/m with a burst of 100 and a rate of 100 a "
                 "minute. Units are s, m, h, d, w, mo (30 days) and y (365 days). With each other limit it is another tag, "
                 "with a bucket of its own. The limit that a descriptor of Envoy brings along is such a limit; one that is "
                 "not allowed is counted in envoy_limits_refused and the rule decides. An override of *TAG* goes before. "
                 "On a host 3,072 limits that differ can be in use at once; where one has no room the rule decides, and "
                 "own_limits_crowded counts it. "
                 "What clients choose of such a tag must not have a | in it, or they choose their limit; what Envoy "
                 "sends has none. With 0 tags name no limits."),
      Also(),
      Choice<R, Among>(
          "among", "\"first\"", MEMBER(R, among),
          "How what this host may serve of a tag of the rule is divided among the tags that are charged with it by *also* "
          "of their rules, when they ask for more: \"first\", who asks first; \"ratio\", each gets the same share of what "
          "it asks for; \"level\", each gets what it asks for up to the same level, so that only those that ask for most "
          "are cut. What they ask for is measured once a second, of 512 such tags and 4,096 tags charged with each, those "
          "that ask for most; beyond these it is who asks first. The limit holds in any case. Under share = \"debit\" and \"forecast\" it is what "
          "all hosts serve that is divided, by \"level\" only; the tags that are charged with it must be shared so too, "
          "because hosts hear of each other's by their reports."),
      Choice<R, CutOff>(
          "cut_off", "\"full\"", MEMBER(R, cut_off),
          "What the hosts of a site go on with while another of *sites.others* is not heard: \"full\", the whole limit, "
          "so that clients are served as before and all sites together may serve a limit each; or \"part\", the site's "
          "*sites.part* of it, so that the limit holds over all sites and a client of one site gets less. Places of "
          "*in_flight* are divided so too, and quotas are not."),
      Weight<R>("1", MEMBER(R, weight),
                "How much of a tag that they are charged with, and that is divided by *among* = \"level\", tags of the "
                "rule get against others, where all ask for more: one of weight 2 gets twice what one of weight 1 gets."),
      DurationKey<R>("delay", "\"0s\"", 0s, 1min, MEMBER(R, delay),
                     "The longest that a question may be made to wait for its tokens instead of being refused, if it "
                     "says that it would: it has them at once, in debt, and is told when to go on. So requests are "
                     "spaced at the rate, and the queue is never longer than this. Queries of three bytes do not wait. "
                     "With 0s nothing waits. Under share = \"local\" and \"debit\" only."),
      Quota<R>("quota", "0", MEMBER(R, quota),
               "So many tokens of a tag are served in each *per*, by all hosts together that share the limit, or by each "
               "host where share = \"local\": as well as burst and rate, so both must allow a query and both pay for it. "
               "All hosts are to have the same *per* and *time_zone*, and their clocks set. What is counted outlives a "
               "reboot in *quota.file*. It is late by what hosts serve until they hear of each other: each tells of a tag "
               "at once when it has served a quarter of its part of what is left. 0: there is none."),
      Choice<R, Per>("per", "\"day\"", MEMBER(R, calendar.per),
                     "How long a period of *quota* is: \"hour\", \"day\", \"week\" or \"month\", by the calendar of "
                     "*time_zone*. Weeks begin on Monday. A day on which clocks change has 23 or 25 hours."),
      Text<R>("time_zone", "\"UTC\"", "a time zone that the system knows, such as \"Europe/Paris\"",
              MEMBER(R, calendar.time_zone), "Where midnight is that of *per*, by a name of the IANA database.",
              IsTimeZone),
      Integer<R>("penalty.after", "0", 0, 1'000'000, MEMBER(R, penalty.after),
                 "So many refusals by the limit, *penalty.within* of the first, and the tag is refused at once for as "
                 "long as *penalty.lasts*, whatever its bucket holds, on all hosts that share the limit. All four may be "
                 "written as penalty = { after = 20, within = \"1m\", lasts = \"10m\" }. Refusals by all of these hosts count; "
                 "some may be heard of up to *peers.period* late. In mode \"shadow\" penalties are kept, told and counted, "
                 "and refuse nothing. 0: there are no penalties."),
      DurationKey<R>("penalty.within", "\"1m\"", 1s, 24h, MEMBER(R, penalty.within),
                     "For how long refusals count, from the first one on. Then the count begins anew."),
      DurationKey<R>("penalty.lasts", "\"10m\"", 1s, 168h, MEMBER(R, penalty.lasts),
                     "How long a penalty lasts. Refusals meanwhile do not make it longer."),
      Flag<R>("penalty.doubling", "false", MEMBER(R, penalty.doubling),
              "Whether a penalty lasts twice as long as the one before it, up to seven days, if that has ended no "
              "longer ago than it lasted."),
      Choice<R, Share>(
          "share", "\"debit\"", MEMBER(R, share),
          "How hosts share the limit: \"local\", this host alone; \"debit\", every host debits what the others served; "
          "\"forecast\", the same, but reports go out as soon as a host leaves what the others foretell of it, so that "
          "the limit holds in every second and not only in the long run; \"capacity\", each host has a part of the "
          "rate, and parts move to where the demand is; see [capacity]."),
      Choice<R, Mode>("mode", "\"enforce\"", MEMBER(R, mode),
                      "\"enforce\" throttles; \"shadow\" decides and counts but answers OK, to try a rule before it "
                      "hurts; \"off\" answers OK and keeps nothing."),
      Optional<R>(MEMBER(R, max_debt),
                  Number<Tokens>("max_debt", "", 0, kBurstMax, Itself<Tokens>,
                                 "How far below zero other hosts' hits may take a bucket. Without it as far as all "
                                 "hosts together can serve within a period and a burst: (peers + 1) x (burst + rate x "
                                 "(peers.period + delay)). More than that only a host that is wrong can say.",
                                 kTokens)),
      Optional<R>(
          MEMBER(R, max_unheard),
          Number<Tokens>(
              "max_unheard", "", 1, kBurstMax, Itself<Tokens>,
              "Under share = \"forecast\": the most that this host serves of a tag that its peers can neither have "
              "foretold nor heard of; a query beyond it is refused until they have heard, some 20 ms. It bounds what a "
              "crowd that comes to all hosts at once gets: so many tokens from each. A burst on one host alone is "
              "served in parts of it. Without it 2 x burst / the square root of the number of hosts, and at least 4.",
              kTokens)),
      Number<R>("tolerance", "0", 0, 1e6, MEMBER(R, tolerance),
                "How much of what hosts serve under the rule may be beyond the limit, in % of what one bucket for all "
                "would have served in the last minute: when more of it has been seen the log says so, and again when "
                "that is over; accuracy_alerts counts. With 0 nothing is said. See CHOOSING A SHARE."),
      Optional<R>(
          MEMBER(R, horizon),
          Allowing(
              "a duration such as \"60s\" from 1s to 24h",
              DurationKey<Duration>(
                  "horizon", "", 1s, 24h, Itself<Duration>,
                  "Other hosts' hits that are older than this when they are heard of are dropped, and counted: a "
                  "client is not made to pay for a network that was down for long. Without it three periods or the "
                  "time in which a bucket refills twice, whichever is longer, but at least 10 s and at most 300 s."))),
      Integer<R>("in_flight", "0", 0, 1'000'000, MEMBER(R, in_flight),
                 "How many questions of [ask] about a tag may be in progress at once: each *enter* has a place of the "
                 "tag, and of those that are charged with it (*also*), until it gives them back or its connection ends, "
                 "whatever becomes of the program. Whatever else is "
                 "asked about the tag takes no place and is refused while all are taken. Under share = \"local\" these "
                 "are the places of each host; under \"debit\" and \"forecast\" those of all hosts together, which hear "
                 "of each other's within 50 ms and give the places of a host that died back after three periods, or a second if "
                 "that is longer; under \"capacity\" hosts divide them as they divide the rate, in whole places, and "
                 "never have more together; with fewer places than hosts they have them in turn; and "
                 "[[resource]] with source = \"capacity\" leases nothing of such a tag. 0: any number."),
      Flag<R>("fail_closed", "false", MEMBER(R, fail_closed),
              "Whether clients are to refuse tags of the rule while the daemon does not answer. It is told by the line "
              "absent of [ask]: a client that has asked it once knows what to do when the daemon is gone. The modules for "
              "nginx and Apache have a setting of their own for each location. In mode \"enforce\" only."),
      Flag<R>(
          "shed", "false", MEMBER(R, shed),
          "Whether queries under the rule, and under overrides of tags that it matches, are refused when the host runs "
          "hot; see [shed]. In mode \"shadow\" a refusal is counted and answered OK, in mode \"off\" there is none."),
      Integer<R>("shed_priority", "0", 0, kShedPriorities - 1, MEMBER(R, shed_priority),
                 "Which rules are refused first: those with the lowest number. The interval from shed.low to shed.high "
                 "is cut into as many equal parts as there are priorities among rules that shed, and each has the "
                 "curve over its own part: all of a priority is refused before any of the next one is."),
  };
  return keys;
}

const std::vector<Key<Override>>& OverrideKeys() {
  using O = Override;
  static const std::vector<Key<O>> keys = {
      Text<O>("tag", "", "text of at most 255 bytes and query.max_tag_bytes, without LF and without CR at its end",
              MEMBER(O, tag), "The tag, byte by byte.",
              [](const std::string& text) {
                return text.size() <= kTagBytesMax && text.find('\n') == std::string::npos && !text.ends_with('\r');
              }),
      Burst<O>(),
      Rate<O>(),
      Optional<O>(
          MEMBER(O, mode),
          Choice<Mode, Mode>("mode", "", Itself<Mode>,
                             "As the key of a rule; without it, the mode of the rule. \"off\" exempts the tag.")),
      Optional<O>(MEMBER(O, quota),
                  Quota<std::uint64_t>("quota", "", Itself<std::uint64_t>,
                                       "As the key of a rule; without it, that of the rule. A rule has to fit the tag, because "
                                       "it says *per* and *time_zone*. 0: there is none.")),
      Optional<O>(MEMBER(O, weight),
                  Weight<double>("", Itself<double>, "As the key of a rule; without it, that of the rule.")),
  };
  return keys;
}

namespace {

template <class T>
void CheckRefill(Findings& f, std::string_view what, const T& limit, Findings::Place place) {
  if (!(limit.burst >= kBurstMin && limit.rate >= kRateMin)) return;    // said already
  if (limit.burst / limit.rate <= kRefillSecondsMax) return;
  f.Error(place, fmt::format("{}: burst / rate = {} / {}: must be at most {:.0f} seconds, a leap year", what,
                             FormatNumber(limit.burst), FormatNumber(limit.rate), kRefillSecondsMax));
}

// REQUIRES: the rule divides what it has among tags.
void CheckAmong(Findings& f, const Rule& rule, Findings::Place place) {
  const Settings& s = f.settings();
  if (rule.among == Among::kRatio && rule.share != Share::kLocal && rule.share != Share::kCapacity) {
    f.Error(place, fmt::format("rule \"{}\": among = \"ratio\" with share = \"{}\": must be \"local\" or \"capacity\"",
                               rule.name, Name(rule.share)));
  }
  const auto told = [](const Rule& its) { return its.share == Share::kDebit || its.share == Share::kForecast; };
  if (rule.among == Among::kLevel && told(rule) && s.peers.enabled()) {
    for (const Rule& its : s.rules) {
      if (its.also.empty() || told(its)) continue;
      f.Warn(place, fmt::format("rule \"{}\": among = \"level\" divides what all hosts serve, and does not know of the tags "
                                "of rule \"{}\" elsewhere, whose share = \"{}\" tells nobody",
                                rule.name, its.name, Name(its.share)));
    }
  }
  if (std::ranges::all_of(s.rules, [](const Rule& its) { return its.also.empty(); })) {
    f.Warn(place, fmt::format("rule \"{}\": among = \"{}\" divides nothing, because no rule has also", rule.name,
                              Name(rule.among)));
  }
}

}    // namespace

void CheckRules(Findings& f) {
  const Settings& s = f.settings();
  std::unordered_map<std::string_view, std::size_t> by_name;
  std::optional<std::size_t> default_rule;
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    const Rule& rule = s.rules[i];
    const auto [other, is_new] = by_name.emplace(rule.name, i);
    if (!is_new) {
      f.Error(f.rules[i], fmt::format("rule.name = \"{}\": must be unique, and line {} has it", rule.name,
                                      f.rules[other->second].line));
    }
    if (!rule.match.has_value() && !f.has_match[i]) {    // a match that is wrong is still one
      if (default_rule.has_value()) {
        f.Error(f.rules[i], fmt::format("rule \"{}\" without match; must be one rule at most, and that of line {} is",
                                        rule.name, f.rules[*default_rule].line));
      }
      default_rule = default_rule.value_or(i);
    }
    CheckRefill(f, "rule", rule, f.rules[i]);
    if (!KnowsShare(rule.share)) {
      f.Error(f.rules[i],
              fmt::format("rule \"{}\": share = \"{}\" is not built into this program", rule.name, Name(rule.share)));
    }
    if (rule.delay != Duration::zero() && rule.share != Share::kLocal && rule.share != Share::kDebit) {
      f.Error(f.rules[i], fmt::format("rule \"{}\": delay = \"{}\" with share = \"{}\": must be \"local\" or \"debit\"",
                                      rule.name, FormatDuration(rule.delay), Name(rule.share)));
    }
    if (rule.among != Among::kFirst) CheckAmong(f, rule, f.rules[i]);
    const double between_reports = rule.rate * Seconds(s.peers.period);
    if (rule.share == Share::kDebit && rule.mode != Mode::kOff && rule.burst < between_reports) {
      f.Warn(f.rules[i],
             fmt::format("rule \"{}\": burst = {} is less than rate x peers.period = {}: several hosts can serve more "
                         "than a burst between two reports; raise burst, shorten the period, or share = \"local\"",
                         rule.name, FormatNumber(rule.burst), FormatNumber(between_reports)));
    }
  }
}

namespace {

// The rules that take what later ones match, while these are gone through in their order.
class Taken {
 public:
  explicit Taken(const std::vector<Rule>& rules) : rules_(rules) { GroupNetworks(); }

  // Why no tag finds a rule, if that is certain; "" otherwise.
  std::string Complaint(std::size_t rule) {
    const std::string& match = *rules_[rule].match;
    std::size_t stands = rule;    // where it is tried
    if (rules_[rule].networks.has_value()) {
      stands = groups_.at(match).front();
      if (!first_of_some_.contains(rule)) return "rules before it have the same match and all of its networks";
    }
    if (const auto same = by_match_.find(match); same != by_match_.end() && same->second < stands) {
      return fmt::format("rule \"{}\" before it has the same match", rules_[same->second].name);
    }
    if (all_ < stands) return fmt::format("rule \"{}\" before it takes every tag", rules_[all_].name);
    return "";
  }

  void Add(std::size_t rule) {
    const Rule& its = rules_[rule];
    if (its.networks.has_value()) return;
    by_match_.try_emplace(*its.match, rule);
    if (!its.match->empty() && its.match->find_first_not_of('*') == std::string::npos) all_ = std::min(all_, rule);
  }

  // The first rule that takes every tag; as many as there are rules: none.
  std::size_t all() const { return all_; }

 private:
  // Rules of one match are tried together, and a network that is listed twice is the first one's (NetworkMap).
  void GroupNetworks() {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (rules_[i].networks.has_value()) groups_[*rules_[i].match].push_back(i);
    }
    for (const auto& [match, group] : groups_) {
      std::vector<std::pair<Network, std::size_t>> listed;
      for (const std::size_t i : group) {
        if (group.size() == 1 || rules_[i].networks->list->empty()) first_of_some_.insert(i);
        if (group.size() == 1) continue;
        for (const Network& network : *rules_[i].networks->list) listed.emplace_back(network, i);
      }
      std::ranges::sort(listed);
      for (std::size_t k = 0; k < listed.size(); ++k) {
        if (k == 0 || listed[k].first != listed[k - 1].first) first_of_some_.insert(listed[k].second);
      }
    }
  }

  const std::vector<Rule>& rules_;
  std::unordered_map<std::string_view, std::vector<std::size_t>> groups_;    // with networks, by match
  std::set<std::size_t> first_of_some_;    // with networks, of which one at least is none of a rule before
  std::unordered_map<std::string_view, std::size_t> by_match_;    // without networks
  std::size_t all_ = rules_.size();
};

}    // namespace

void CheckReach(Findings& f) {
  const std::vector<Rule>& rules = f.settings().rules;
  if (f.wrong("rule")) return;
  Taken taken(rules);
  const auto warn = [&](std::size_t rule, std::string_view why) {
    f.Warn(f.rules[rule], fmt::format("rule \"{}\": never applies, because {}", rules[rule].name, why));
  };
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!rules[i].match.has_value()) continue;
    if (rules[i].match->empty() && !rules[i].networks.has_value()) {
      f.Warn(f.rules[i], fmt::format("rule \"{}\": match = \"\" is the empty tag alone; without match the rule is the "
                                     "default", rules[i].name));
    }
    if (const std::string why = taken.Complaint(i); !why.empty()) warn(i, why);
    taken.Add(i);
  }
  for (std::size_t i = 0; i < rules.size() && taken.all() < rules.size(); ++i) {
    if (!rules[i].match.has_value()) warn(i, fmt::format("rule \"{}\" takes every tag", rules[taken.all()].name));
  }
}

// What tags of the rule begin with, which derivations pass over.
std::string HeadOf(const Rule& rule) {
  return rule.match.has_value() ? Glob::Compile(*rule.match)->literal_head() : std::string();
}

// What the derivation makes of a tag that the rule is for.
std::string DerivedExample(const Rule& rule, const Derivation& derivation) {
  using Kind = Derivation::Kind;
  const std::string head = HeadOf(rule);
  const std::string rest = derivation.kind == Kind::kIpv4   ? "192.0.2.77"
                           : derivation.kind == Kind::kIpv6 ? "2001:db8:7:1::9"
                                                            : fmt::format("acme{}bob", derivation.separator);
  std::array<char, kTagBytesMax> text;
  return std::string(Derive(derivation, {(head + rest).substr(0, kTagBytesMax)}, head.size(), text).value_or(head));
}

// Whether a tag of another rule is derived from one of rule `i`: the other rule's match says what DerivedExample cannot
// guess, such as the one tenant that has a limit.
bool LimitsSome(const std::vector<Rule>& all, const Rulebook& rules, std::size_t i, const Derivation& derivation) {
  const std::string head = HeadOf(all[i]);
  const auto is_derived = [&](const std::string& tag) {
    const std::string from = derivation.kind == Derivation::Kind::kBefore ? tag + derivation.separator + "bob"
                                                                          : tag.substr(0, tag.rfind('/'));
    if (from.size() > kTagBytesMax || !from.starts_with(head) || rules.Find(from) != i) return false;
    std::array<char, kTagBytesMax> text;
    return Derive(derivation, {from}, head.size(), text) == tag;
  };
  return std::ranges::any_of(all, [&](const Rule& other) {
    if (&other == &all[i] || !other.match.has_value()) return false;
    const std::string tag = Glob::Compile(*other.match)->Example();
    return is_derived(tag) && rules.Find(tag) != i;
  });
}

// A derived tag that finds the rule it is derived under, or none, has no limit of its own.
void CheckAlso(Findings& f) {
  const Settings& s = f.settings();
  if (!f.ok() || std::ranges::all_of(s.rules, [](const Rule& rule) { return rule.also.empty(); })) return;
  const Rulebook rules(s.rules, {});
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    for (const Derivation& derivation : s.rules[i].also) {
      const std::string example = DerivedExample(s.rules[i], derivation);
      const auto found = rules.Find(example);
      if ((found.has_value() && *found != i) || LimitsSome(s.rules, rules, i, derivation)) continue;
      f.Warn(f.rules[i], fmt::format("rule \"{}\": also \"{}\": such a tag, {}, {}", s.rules[i].name,
                                     FormatDerivation(derivation), Quote(Value(example)),
                                     found.has_value() ? "is under the same rule; give it a rule before this one"
                                                       : "is under no rule, so it limits nothing"));
    }
  }
}

// A share that does not fit the numbers of its rule. CheckCapacity does the same for "capacity", which counts hosts
// in another way.
void CheckShares(Findings& f) {
  const Settings& s = f.settings();
  if (!s.peers.enabled() || f.wrong("rule") || f.wrong("peers")) return;
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    if (s.rules[i].mode != Mode::kOff && s.rules[i].share != Share::kCapacity) WarnOfShare(f, i, HostsOf(s));
  }
}

void WarnOfShare(Findings& f, std::size_t rule, double hosts) {
  const Rule& r = f.settings().rules[rule];
  for (const std::string& warning : CheckShare(r, {hosts, f.settings().peers.period})) {
    f.Warn(f.rules[rule], fmt::format("rule \"{}\": {}", r.name, warning));
  }
}

void CheckOverrides(Findings& f) {
  const Settings& s = f.settings();
  std::unordered_map<std::string_view, std::size_t> by_tag;
  by_tag.reserve(s.overrides.size());
  for (std::size_t i = 0; i < s.overrides.size(); ++i) {
    const Override& o = s.overrides[i];
    const auto [other, is_new] = by_tag.emplace(o.tag, i);
    if (!is_new) {
      f.Error(f.overrides[i], fmt::format("override.tag = {}: must be unique, and line {} has it", Quote(o.tag),
                                          f.overrides[other->second].line));
    }
    if (o.tag.size() > s.query.max_tag_bytes) {
      f.Error(f.overrides[i], fmt::format("override.tag = {}: must be at most query.max_tag_bytes = {} bytes",
                                          Quote(o.tag), s.query.max_tag_bytes));
    }
    CheckRefill(f, "override", o, f.overrides[i]);
  }
}

}    // namespace dthrottle
