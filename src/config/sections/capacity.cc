// The section [capacity] of the settings.
#include <set>
#include "base/host_name.h"

#include "config/capacity_links.h"
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

constexpr std::string_view kIndicators[] = {"throttled-amount", "spare-bandwidth", "throttled-ratio", "log-ratio",
                                            "reported"};

// A number of which 0 is written "auto".
Key<Settings> Gain(Member<Settings, double> member, std::string_view meaning) {
  constexpr double kGainMax = 100;
  Key<Settings> key = Number<Settings>("gain", "\"auto\"", 0, kGainMax, member, meaning);
  key.allowed = fmt::format("\"auto\", or a number above 0 and at most {:g}", kGainMax);
  key.set = [=, number = std::move(key.set)](Settings& s, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return number(s, value) && member(s) > 0;
    if (*text == "auto") member(s) = 0;
    return *text == "auto";
  };
  key.get = [=](const Settings& s) -> Value {
    const double gain = Get(member, s);
    return gain == 0 ? Value(std::string("auto")) : Value(gain);
  };
  return key;
}

}    // namespace

Section CapacitySection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "capacity",
      "Dividing limits among hosts, under rules with *share* = \"capacity\". Each host has a part of the rate and of "
      "the burst, and neighbours move parts to where more is asked for, round by round. The parts of a tag never sum "
      "to more than the whole. All hosts need the same of *members*, *graph*, *degree*, *links*, *reserve*, *lease* "
      "and *indicator*, and the same rates under rules that divide.",
      {
          DurationKey<S>("interval", "\"1s\"", 50ms, 1min, MEMBER(S, capacity.interval),
                         "The time between two rounds, in which neighbours tell each other how they fare and give."),
          Reloads(
              DurationKey<S>("lease", "\"10s\"", 200ms, 10min, MEMBER(S, capacity.lease),
                             "A host that nobody hears for so long is taken for dead, and its parts go to others; by "
                             "then it has gone down to its reserve by itself. At least four times the *interval*.")),
          Reloads(TextList<S>("members", "a list of hosts' names", MEMBER(S, capacity.members),
                              "The names of all hosts that divide limits, this one's too. With keys it may be left "
                              "out: then they are the hosts whose keys are authorized.",
                              [](const std::string& text) { return !text.empty() && IsHostName(text); })),
          Reloads(Choice<S, CapacityGraph>(
              "graph", "\"regular\"", MEMBER(S, capacity.graph),
              "Which hosts are neighbours: \"regular\", a random graph in which every host has *degree* neighbours, "
              "the same on all hosts: a ring with 2, all members with as many as there are; \"list\", those in "
              "*links*; \"file\", those in *graph_file*. All hosts need the same. dthrottle-plan(1) says how fast each "
              "evens out.")),
          Reloads(Integer<S>("degree", "4", 2, 64, MEMBER(S, capacity.degree),
                             "Neighbours of a host in a \"regular\" graph.")),
          Reloads(TextList<S>("links", "a list of links such as \"web-1 web-2\" or \"web-1 web-2 0.5\"",
                              MEMBER(S, capacity.links),
                              "For the graph \"list\": two hosts each, and the weight of what moves between them, "
                              "which is 1 if nothing is said.",
                              [](const std::string& text) { return ParseCapacityLink(text).has_value(); })),
          Reloads(Text<S>("graph_file", "\"\"", "an absolute path", MEMBER(S, capacity.graph_file),
                          "For the graph \"file\": links between members as dthrottle-plan(1) reads them, a line "
                          "\"web-1 web-2\" or \"web-1 web-2 0.5\" each, or DOT. Read at start and at each reload.",
                          IsPath)),
          Reloads(Number<S>(
              "reserve", "0.1", 0, 1, MEMBER(S, capacity.reserve),
              "The part of its equal share that a host never gives away, and that is left to it when it is cut off.")),
          Reloads(Text<S>("indicator", "\"throttled-amount\"", OneOf(kIndicators), MEMBER(S, capacity.indicator),
                          "What neighbours make equal: \"throttled-amount\", how much more is asked for than a host "
                          "has, which is also its spare bandwidth with the other sign; \"throttled-ratio\", the same "
                          "as a part of what is asked for; \"log-ratio\", the logarithm of demand over share; \"reported\", "
                          "what an application of each host reports with indicate (of the admin socket, HTTP, the ask "
                          "socket or libdthrottle), a number above 0 that falls with the share, such as a response "
                          "time. Each tag's counts for 10 s. A host that hears nothing more then gives its share away, "
                          "within a minute or so; one that never heard anything keeps its equal share.",
                          [](const std::string& text) { return IsOneOf(kIndicators, text); })),
          Reloads(Gain(MEMBER(S, capacity.gain),
                       "The part of the difference between two neighbours' indicators that moves in a round. \"auto\" "
                       "is half of what is certain to be stable. With *indicator* \"reported\" it is a number: the part of "
                       "the rate that moves where one report is e times the other.")),
          Integer<S>("tags_max", "10000", 1, 1'000'000, MEMBER(S, capacity.tags_max),
                     "The most tags that take part at once. One more keeps the equal share, and is counted. Only tags "
                     "of which some host was asked for more than its part take part."),
          Text<S>("state_file", "\"\"", "an absolute path, or \"\" for table.file with .capacity behind it",
                  MEMBER(S, capacity.state_file),
                  "What a host must not forget about who is dead, some hundred bytes, written when a host dies or "
                  "members change. On a disk it outlives a reboot.",
                  IsPath),
      }};
}

namespace {

// Links of hosts that are no members; and, where hosts divide over links, those that make no graph of the members.
// Without members, the hosts that links name are held against each other.
void CheckLinks(Findings& f, bool divides) {
  const auto& capacity = f.settings().capacity;
  const std::set<std::string> members(capacity.members.begin(), capacity.members.end());
  std::set<std::string> named;
  bool all_known = true;
  for (const std::string& text : capacity.links) {
    const CapacityLink link = ParseCapacityLink(text).value();
    for (const std::string& end : {link.a, link.b}) {
      named.insert(end);
      if (members.empty() || members.contains(end)) continue;
      f.Error("capacity.links",
              fmt::format("capacity.links: \"{}\": must be hosts of capacity.members, and \"{}\" is none", text, end));
      all_known = false;
    }
  }
  if (!divides || capacity.graph != CapacityGraph::kList || capacity.links.empty() || !all_known) return;
  const std::set<std::string>& nodes = members.empty() ? named : members;
  const auto graph = GraphOfLinks(capacity.links, {nodes.begin(), nodes.end()});
  if (!graph) f.Error("capacity.links", "capacity.links: " + graph.error().message);
}

}    // namespace

void CheckCapacity(Findings& f) {
  const Settings& s = f.settings();
  const auto& capacity = s.capacity;
  const auto divided = [](const Rule& rule) { return rule.share == Share::kCapacity && rule.mode != Mode::kOff; };
  const bool used = std::any_of(s.rules.begin(), s.rules.end(), divided);
  if (capacity.lease < 4 * capacity.interval) {
    f.Error("capacity.lease",
            fmt::format("capacity.lease = \"{}\": must be at least four times capacity.interval = \"{}\"",
                        FormatDuration(capacity.lease), FormatDuration(capacity.interval)));
  }
  const std::set<std::string_view> members(capacity.members.begin(), capacity.members.end());
  if (members.size() != capacity.members.size()) {
    f.Error("capacity.members", "capacity.members: must name each host once");
  }
  if (!members.empty() && !s.peers.name.empty() && members.count(s.peers.name) == 0) {
    f.Error("capacity.members",
            fmt::format("capacity.members: must have this host in it, peers.name = \"{}\"", s.peers.name));
  }
  CheckLinks(f, used && s.peers.enabled());
  if (capacity.graph == CapacityGraph::kList && capacity.links.empty()) {
    f.Error("capacity.graph", "capacity.graph = \"list\": must have capacity.links with it");
  }
  if (capacity.graph == CapacityGraph::kFile && capacity.graph_file.empty()) {
    f.Error("capacity.graph", "capacity.graph = \"file\": must have capacity.graph_file with it");
  }
  if (capacity.indicator == "reported" && capacity.gain == 0 && used) {
    f.Error("capacity.indicator",
            "capacity.gain = \"auto\": must be a number with capacity.indicator = \"reported\", since nobody else knows how "
            "steep the measure is");
  }
  if (!used) return;
  if (!s.peers.enabled()) {
    if (f.simulated()) return;
    f.Warn("", "a rule has share = \"capacity\" but peers.connect names no other host: this one has all of it");
    return;
  }
  if (members.empty() && s.peers.authorized_keys.empty()) {
    f.Error(
        "capacity.members",
        "capacity.members is []: must name all hosts where there are no keys, since a rule has share = \"capacity\"");
  }
  if (s.table.file.empty() && capacity.state_file.empty()) {
    f.Error("capacity.state_file",
            "capacity.state_file and table.file are both \"\": must be one at least, since a rule has share = "
            "\"capacity\"");
  }
  const double hosts = members.empty() ? HostsOf(s) : static_cast<double>(members.size());
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    if (divided(s.rules[i])) WarnOfShare(f, i, hosts);
  }
}

}    // namespace dthrottle
