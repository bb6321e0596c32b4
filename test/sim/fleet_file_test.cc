#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "lab/fleet_file.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kSmall = "[[rule]]\nburst = 50\nrate = 5\n[[workload]]\nrate = 3\n";

std::vector<std::string> Problems(std::string_view toml) {
  std::vector<std::string> lines;
  for (const Problem& p : ParseFleet(toml, "f").problems) lines.push_back(Format(p));
  return lines;
}

std::vector<std::string> ProblemsWith(std::string_view more) {
  return Problems(std::string(kSmall) + std::string(more));
}

TEST_CASE("a fleet file has the daemon's keys and five tables of its own") {
  const LoadedFleet loaded = ParseFleet(R"(
[fleet]
hosts = 16
duration = "2m"
seed = 7
seeds = 3
drift_ppm = 0
date = "2026-03-29T02:30:00+02:00"
[network]
delay = "10ms"
loss = 0.01
[peers]
period = "1s"
[[rule]]
name = "client"
burst = 100
rate = "6000/m"
share = "local"
[[override]]
tag = "vip"
burst = 1000
rate = 500
[[workload]]
tag = "c"
tags = 10
rate = 200.5
arrivals = "steady"
on = "2s"
off = "6s"
spread = "zipf"
host_exponent = 2
until = "1m"
cost = 3
with = ["tenant", "site"]
with_tags = 4
random_turns = true
quiet = 0.1
rate_at_end = 50
[[workload]]
rate = 1
spread = "group"
group = 4
stays = "3s"
[[trace]]
file = "queries.csv"
from = "7s"
[[fault]]
kind = "deaf"
at = "20s"
lasts = "5s"
host = 3
size = 2
)",
                                        "f");
  REQUIRE(loaded.problems.empty());
  const FleetFile& file = loaded.file;
  CHECK(file.fleet.hosts == 16);
  CHECK(file.fleet.duration == 2min);
  CHECK((file.fleet.seed == 7 && file.fleet.seeds == 3 && file.fleet.drift_ppm == 0));
  CHECK(file.fleet.date == 1774744200s);
  CHECK(file.network.delay == 10ms);
  CHECK(file.network.lossy);
  CHECK(file.settings.peers.period == 1s);
  REQUIRE(file.settings.rules.size() == 1);
  CHECK(file.settings.rules[0].rate == 100);
  CHECK(file.settings.overrides.size() == 1);
  REQUIRE(file.workloads.size() == 2);
  const Workload& w = file.workloads[0];
  CHECK((w.tag == "c" && w.tags == 10 && w.rate == 200.5 && !w.poisson && w.on == 2s && w.off == 6s && w.cost == 3));
  CHECK((w.spread == Workload::Spread::kZipf && w.host_exponent == 2 && w.until == After(1min)));
  CHECK((w.with == std::vector<std::string>{"tenant", "site"} && w.with_tags == 4 && TagsOf(w) == 18));
  CHECK((TagOf(w, 9) == "c9" && TagOf(w, 10) == "tenant0" && TagOf(w, 17) == "site3"));
  CHECK((w.random_turns && w.quiet == 0.1 && w.rate_at_end == 50));
  const Workload& group = file.workloads[1];
  CHECK((group.spread == Workload::Spread::kGroup && group.group == 4 && group.stays == 3s && !group.rate_at_end));
  REQUIRE(file.traces.size() == 1);
  CHECK((file.traces[0].path == "queries.csv" && file.traces[0].from == After(7s)));
  REQUIRE(file.faults.size() == 1);
  const Fault& fault = file.faults[0];
  CHECK((fault.kind == Fault::Kind::kDeaf && fault.at == After(20s) && fault.lasts == 5s));
  CHECK((fault.host == 3 && fault.size == 2));
}

TEST_CASE("what is wrong with a fleet file is said with its place, value and what is allowed") {
  CHECK(ProblemsWith("[fleet]\nhosts = 0\n") ==
        std::vector<std::string>{"f:7:9: error: fleet.hosts = 0: must be a whole number from 1 to 1024"});
  CHECK(ProblemsWith("[fleet]\nhost = 1\n")[0] ==
        "f:7:1: error: unknown key fleet.host; must be one of hosts, duration, seed, seeds, workers, drift_ppm, date");
  for (const char* date : {"2026-03-29", "2026-02-29T00:00:00Z", "1969-12-31T23:59:59Z", "2201-01-01T00:00:00Z", "now"}) {
    CHECK(ProblemsWith(fmt::format("[fleet]\ndate = \"{}\"\n", date)) ==
          std::vector<std::string>{fmt::format("f:7:8: error: fleet.date = \"{}\": must be a time from 1970 to 2200, such as "
                                               "\"2030-03-31T00:30:00+01:00\"", date)});
  }
  CHECK(ProblemsWith("[[fleet]]\nhosts = 1\n")[0] ==
        "f:6:1: error: fleet = a list of mixed values: must be a table, [fleet]");
  CHECK(ProblemsWith("[network]\nloss = 1.5\n")[0] == "f:7:8: error: network.loss = 1.5: must be a number from 0 to 1");
  CHECK(ProblemsWith("[[workload]]\nspread = \"x\"\n") ==
        std::vector<std::string>{
            "f:6:1: error: workload without rate; must be a number from 1e-06 to 1e+06",
            "f:7:10: error: workload.spread = \"x\": must be one of \"in-turns\", \"uniform\", \"zipf\", \"sticky\", \"group\""});
  CHECK(ProblemsWith("[[workload]]\nrate = 1\narrivals = 1\n")[0] ==
        "f:8:12: error: workload.arrivals = 1: must be one of \"steady\", \"poisson\"");
  CHECK(ProblemsWith("[[workload]]\nrate = 1\nwith = [\"a\", \"client\"]\n") ==
        std::vector<std::string>{"f:6:1: error: workload.with: \"client\" is there twice; must be tags of their own"});
  const auto stay = [](std::string_view keys) {
    const auto problems = ProblemsWith("[[workload]]\nrate = 1\n" + std::string(keys));
    REQUIRE(problems.size() == 1);
    return problems[0];
  };
  CHECK(stay("takes = \"all\"\n") ==
        "f:8:9: error: workload.takes = \"all\": must be one of \"tokens\", \"hold\", \"place\"");
  CHECK(stay("used_max = 3\n") ==
        "f:6:1: error: workload.takes = \"tokens\": must be \"hold\" with used_min, used_max, released and lost");
  CHECK(stay("takes = \"hold\"\nused_min = 4\nused_max = 3\n") ==
        "f:6:1: error: workload.used_min = 4: must be at most workload.used_max = 3");
  CHECK(stay("takes = \"hold\"\nreleased = 0.7\nlost = 0.4\n") ==
        "f:6:1: error: workload.released = 0.7, workload.lost = 0.4: must be at most 1 together");
  CHECK(stay("takes = \"place\"\n") ==
        "f:6:1: error: workload.takes = \"place\": the rule of \"client\" has no in_flight; must be tags that have places");
  // One tag with places is enough, as it is for `enter`: beside others, or charged with one.
  constexpr std::string_view kJobs = "[[rule]]\nmatch = \"job:*\"\nburst = 50\nrate = 5\nin_flight = 2\n";
  constexpr std::string_view kUsers = "[[rule]]\nmatch = \"*/*\"\nburst = 50\nrate = 5\nalso = [\"before /\"]\n";
  for (const char* tags : {"with = [\"job:a\"]\n", "tag = \"job:a/bob\"\n"}) {
    const auto rules = std::string(kUsers) + std::string(kJobs);
    CHECK(ProblemsWith(rules + "[[workload]]\nrate = 1\ntakes = \"place\"\n" + tags).empty());
  }
  CHECK(ProblemsWith("[[fault]]\n")[0].starts_with("f:6:1: error: fault without kind; must be one of \"kill\""));
  CHECK(ProblemsWith("fault = 1\n").empty() == false);
  CHECK(Problems("[fleet").at(0).starts_with("f:1:7: error: not TOML"));
  CHECK(ProblemsWith("[flete]\n")[0].find(
            "[fleet], [network], [[rule]], [[override]], [[resource]], [[workload]], [[trace]], [[fault]]") != std::string::npos);
}

TEST_CASE("what begins after the end of the run is warned of") {
  CHECK(ProblemsWith("[[workload]]\nrate = 1\nfrom = \"2m\"\nuntil = \"3m\"\n")[0] ==
        "f:6:1: warning: workload.from = \"2m\": never comes, since fleet.duration = \"1m\"");
  CHECK(ProblemsWith("[[fault]]\nkind = \"kill\"\nat = \"1m\"\n")[0] ==
        "f:6:1: warning: fault.at = \"1m\": never comes, since fleet.duration = \"1m\"");
}

TEST_CASE("a trace is taken for a fleet whose rules fit it, or the first line that is wrong is named") {
  FleetFile file = ParseFleet("[fleet]\nhosts = 3\n[[rule]]\nmatch = \"a*\"\nburst = 9\nrate = 1\n[[trace]]\nfile = \"t\"\n", "f").file;
  REQUIRE(file.traces.size() == 1);
  REQUIRE(TakeTrace(file, 0, "# a comment\n0.5,0,1,a\r\n\n0.5,2,3,a,b\n1e0,1,1,a", "t"));
  const Trace& trace = *file.traces[0].trace;
  CHECK(trace.tags == std::vector<std::string>{"a", "a,b"});
  REQUIRE(trace.lines.size() == 3);
  CHECK((trace.lines[1].at == 500ms && trace.lines[1].host == 2 && trace.lines[1].cost == 3 && trace.lines[1].tag == 1));
  for (const auto& [text, complaint] :
       {std::pair("0,0,1,a\n1,0,1\n", "t:2: error: must be SECONDS,HOST,COST,TAG"),
        {"x,0,1,a", "t:1: error: must be SECONDS,HOST,COST,TAG"},
        {"-1,0,1,a", "SECONDS must be a number from 0 to 1e+09"},
        {"nan,0,1,a", "SECONDS must be a number"},
        {"0,3,1,a", "HOST must be from 0 to 2"},
        {"0,0,0,a", "COST must be from 1 to 1000000"},
        {"2,0,1,a\n1,0,1,a", "t:2: error: SECONDS must not be less than before"},
        {"0,0,1,b", "t: no rule fits \"b\""}}) {
    CAPTURE(text);
    const auto taken = TakeTrace(file, 0, text, "t");
    REQUIRE_FALSE(taken.has_value());
    CHECK(taken.error().message.find(complaint) != std::string::npos);
  }
}

TEST_CASE("what no key can know by itself is checked together") {
  CHECK(Problems("[[rule]]\nburst = 1\nrate = 1\nshare = \"local\"\n") ==
        std::vector<std::string>{"f: error: no [[workload]] and no [[trace]]: must be one at least, or nobody asks"});
  CHECK(Problems("[[workload]]\nrate = 1\n") ==
        std::vector<std::string>{"f: error: no [[rule]]: must be one at least, or there is no limit to simulate"});
  CHECK(Problems("[[rule]]\nmatch = \"a*\"\nburst = 10\nrate = 1\n[[workload]]\nrate = 1\ntags = 3\n") ==
        std::vector<std::string>{
            "f:5:1: error: workload.tag: no rule fits \"client0\"; must be tags that have a limit"});
  CHECK(ProblemsWith("[[workload]]\nrate = 1\noff = \"1s\"\n") ==
        std::vector<std::string>{"f:6:1: error: workload.off = \"1s\" without workload.on: must be both or neither"});
  CHECK(ProblemsWith("[[workload]]\nrate = 1\nfrom = \"5s\"\nuntil = \"5s\"\n") ==
        std::vector<std::string>{"f:6:1: error: workload.until = \"5s\": must be more than workload.from = \"5s\""});
  CHECK(ProblemsWith("[[fault]]\nkind = \"kill\"\nhost = 2\n") ==
        std::vector<std::string>{"f:6:1: error: fault.host = 2: must be less than fleet.hosts = 2; the first is 0"});
  CHECK(ProblemsWith("[[fault]]\nkind = \"split\"\nsize = 3\n") ==
        std::vector<std::string>{"f:6:1: error: fault.size = 3: must be at most fleet.hosts = 2"});
  CHECK(
      ProblemsWith("[fleet]\nhosts = 1024\n[[workload]]\nrate = 1\ntags = 20000\n") ==
      std::vector<std::string>{"f: error: 20001 tags of all workloads x fleet.hosts = 1024: must be at most 16777216"});
  CHECK(ProblemsWith("[capacity]\ngraph = \"list\"\nlinks = [\"a b\"]\n") ==
        std::vector<std::string>{"f: warning: capacity.graph = \"list\" names hosts of its own: simulated as "
                                 "\"regular\" with capacity.degree = 4"});
  CHECK(Problems("[[rule]]\nburst = 9\nrate = 5\nshare = \"capacity\"\n[[workload]]\nrate = 3\n").empty());
  const std::string divided =
      "[[rule]]\nname = \"r\"\nburst = 9\nrate = 50\nshare = \"capacity\"\n[[workload]]\nrate = 3\n";
  CHECK(Problems("[fleet]\nhosts = 9\n" + divided).empty());
  CHECK(Problems("[fleet]\nhosts = 10\n" + divided) ==
        std::vector<std::string>{"f: warning: rule \"r\": burst = 9 among 10 hosts is less than a token for each: as none "
                                 "holds less than one, 10 can be served at once; raise burst, or share = \"debit\""});
  CHECK(ProblemsWith("[capacity]\nindicator = \"reported\"\ngain = 0.1\n") ==
        std::vector<std::string>{"f: error: capacity.indicator = \"reported\": must be another one, because nobody "
                                 "reports here and parts would never move"});
  CHECK(Problems("[[rule]]\nburst = 1\nrate = 5\n[[workload]]\nrate = 3\n").at(0).starts_with("f:1:1: warning: rule"));
}

TEST_CASE("every key means what its default says, and the manual has both") {
  std::ifstream page(DTHROTTLE_SOURCE "/man/dthrottle-sim.1");
  const std::string manual{std::istreambuf_iterator<char>(page), {}};
  for (const FleetKey& key : FleetKeys()) {
    CAPTURE(key.path);
    const std::string name = key.path.substr(key.path.find('.') + 1);
    const std::size_t item = manual.find(".It Ic " + name + "\n");
    REQUIRE(item != std::string::npos);
    const std::string said = manual.substr(item, manual.find("\n.It ", item) + 1 - item);
    CHECK(said.find(key.default_text.empty()
                        ? "It has to be given.\n"
                        : "Default: " + std::string(key.default_text) + ".\n") != std::string::npos);
    if (key.default_text.empty()) continue;
    const std::string table = key.path.substr(0, key.path.find('.'));
    const std::string needed = table == "fault" ? "kind = \"kill\"\n" : table == "trace" ? "file = \"x\"\n" : "";
    // The default, written out, changes nothing.
    std::string text(kSmall);
    if (table == "workload") {
      text += name + " = " + std::string(key.default_text) + "\n";
    } else {
      text += (needed.empty() ? "[" + table + "]\n" : "[[" + table + "]]\n" + needed) + name + " = " +
              std::string(key.default_text) + "\n";
    }
    CHECK(Problems(text).empty());
    if (const auto* whole = std::get_if<std::int64_t>(&key.built_in)) {
      CHECK(std::to_string(*whole) == key.default_text);
    } else if (const auto* number = std::get_if<double>(&key.built_in)) {
      CHECK(std::stod(std::string(key.default_text)) == *number);
    } else if (const auto* flag = std::get_if<bool>(&key.built_in)) {
      CHECK((*flag ? "true" : "false") == key.default_text);
    } else if (const auto* list = std::get_if<std::vector<std::string>>(&key.built_in)) {
      CHECK((list->empty() && key.default_text == "[]"));
    } else {
      CHECK("\"" + std::get<std::string>(key.built_in) + "\"" == key.default_text);
    }
  }
}

TEST_CASE("the examples that we ship are accepted without a warning") {
  for (const char* const name :
       {"fleet.toml", "fleet-delay.toml", "fleet-hold.toml", "fleet-quota.toml", "fleet-sites.toml"}) {
    CAPTURE(name);
    std::ifstream example(std::string(DTHROTTLE_SOURCE "/conf/examples/") + name);
    const std::string text{std::istreambuf_iterator<char>(example), {}};
    REQUIRE_FALSE(text.empty());
    CHECK(Problems(text).empty());
  }
}

}    // namespace
}    // namespace dthrottle::lab
