// `capacity`: how hosts divide limits.
#include <algorithm>

#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "capacity/indicator.h"
#include "limiter/inspect.h"
#include "query/named_tag.h"
#include "rule/rulebook.h"
#include "share/capacity/dividing.h"
#include "share/inspection.h"
#include "share/ways.h"

namespace dthrottle::commands {

namespace {

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
  const double part = Inspect(c.limiter(), {tag, 1, nullptr}, c.now).part;
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

// The tags with most demand that have a name here.
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
  const Division& division = c.limiter().ways().Get<Division>();
  const auto& lent = division.parts().lent();
  const BootInstant boot_time = division.BootTime(c.now);
  const bool divides = c.host.dividing() != nullptr;
  Json answer = {{"divides", divides}};
  const std::vector<const Divided*> tags = MostDivided(c);
  std::vector<Exchanged> exchanged;
  const bool looked = c.host.LookAtCapacity([&](CapacityExchange& exchange) {
    const CapacityCounts counts = exchange.Counts(boot_time);
    answer["generation"] = counts.generation;
    answer["leased"] = counts.leased;
    answer["reserve"] = Rounded(lent.reserve);
    answer["usual"] = Rounded(lent.usual);
    answer["rounds"] = counts.rounds;
    answer["members"] = MemberRows(exchange.Members(boot_time));
    for (const Divided* tag : tags) {
      Exchanged& one = exchanged.emplace_back();
      one.tag = exchange.Inspect(tag->first);
      if (exchanged.size() <= kSummed) one.sum = exchange.Sum(tag->first, boot_time);
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

}    // namespace

Json Capacity(const Context& c) {
  if (c.argument.empty()) return CapacityOfAll(c);
  Json answer;
  const auto named = TagArgument(c, answer);
  if (named == nullptr) return answer;
  const Tag& tag = named->query().tag;
  const Inspection seen = Inspect(c.limiter(), named->query(), c.now);
  if (!seen.limit.has_value() || !c.rules().limit(*seen.limit).divided) {
    return ErrorAnswer("TAG is under no rule with share = \"capacity\"");
  }
  const Limit& limit = c.rules().limit(*seen.limit);
  const double rate = c.rules().rate(*seen.limit);
  const Division& division = c.limiter().ways().Get<Division>();
  const CapacityKey key = division.KeyOf(tag, limit);
  Exchanged exchanged;
  std::size_t hosts = 1;
  c.host.LookAtCapacity([&](CapacityExchange& exchange) {
    const BootInstant boot_time = division.BootTime(c.now);
    exchanged = {exchange.Inspect(key), exchange.Sum(key, boot_time)};
    hosts += exchange.Members(boot_time).size();
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

// The value comes first, since a tag may have blanks.
Json Indicate(const Context& c) {
  const std::size_t blank = c.argument.find(' ');
  const std::optional<double> value = ReadReport(c.argument.substr(0, blank));
  if (!value) return ErrorAnswer("VALUE must be a number above 0");
  if (blank == std::string_view::npos) return ErrorAnswer("a tag is needed: indicate VALUE TAG");
  Json answer;
  const Context named{c.host, c.argument.substr(blank + 1), c.now};
  const auto tag = TagArgument(named, answer);
  if (tag == nullptr) return answer;
  if (const auto taken = c.host.Indicate(tag->query().tag, *value); !taken) return ErrorAnswer(taken.error().message);
  return {{"tag", EscapeTag(tag->bytes())}, {"indicated", *value}};
}

}    // namespace dthrottle::commands
