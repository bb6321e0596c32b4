#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cstdio>
#include <string>

#include "io/csv.h"
#include "lab/experiment.h"
#include "lab/render.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

FleetFile File(std::string_view text) {
  LoadedFleet loaded = ParseFleet(text, "test");
  for (const Problem& problem : loaded.problems) UNSCOPED_INFO(Format(problem));
  REQUIRE(loaded.ok());
  return loaded.file;
}

// Poisson queries at twice the rate to eight hosts, over a perfect network.
TEST_CASE("the baselines keep to the limit in the long run, and waver where their news are late") {
  const FleetFile file = File(
      "[fleet]\nhosts = 8\nduration = \"30s\"\n[peers]\nperiod = \"1s\"\n[[rule]]\nburst = 100\nrate = 100\n"
      "[[workload]]\nrate = 200\n");
  for (const BaselineKind kind : {BaselineKind::kGrd, BaselineKind::kFps}) {
    CAPTURE(Name(kind));
    const Measures m = Simulate(file, kind, 1).measures;
    CHECK(m.served == Approx(m.ideal).epsilon(0.1));
    CHECK(m.over + m.under > 1);
    CHECK(m.entries > 0);
  }
  CHECK(Simulate(file, BaselineKind::kGrd, 1).digest != Simulate(file, BaselineKind::kFps, 1).digest);
}

TEST_CASE("runs on several threads are those of one, and an early end leaves what is done") {
  FleetFile file = File(
      "[fleet]\nhosts = 2\nduration = \"5s\"\nseeds = 5\n[peers]\nperiod = \"1s\"\n[[rule]]\nburst = 10\nrate = 10\n"
      "[[workload]]\nrate = 20\n");
  const Series one = SimulateAll(file, std::nullopt), many = SimulateAll(file, std::nullopt, {.jobs = 3});
  REQUIRE((one.runs.size() == 5 && many.runs.size() == 5));
  for (std::size_t i = 0; i < 5; ++i) CHECK(one.runs[i].digest == many.runs[i].digest);
  // In the middle of the third run, and when the first has asked for half of its time.
  const Series three = SimulateAll(file, std::nullopt, {.go_on = [](double part) { return part < 0.5; }});
  CHECK(three.runs.size() == 2);
  const Series none = SimulateAll(file, std::nullopt, {.go_on = [](double part) { return part < 0.14; }});
  REQUIRE(none.runs.size() == 1);
  CHECK_FALSE(none.runs[0].whole);
  CHECK(none.runs[0].seconds.size() == 3);
  CHECK(none.runs[0].lasted == 3s);
  // The output says how much was reached, and no table of whole runs has a part of one.
  CHECK(RenderFleet(file, "f") == RenderFleet(file, "f", &one));
  CHECK(RenderFleet(file, "f", &one).starts_with("fleet          f: 2 hosts, period 1s, 5s, seeds 1 to 5: mean +- "));
  CHECK(RenderFleet(file, "f", &three).starts_with("fleet          f: 2 hosts, period 1s, 5s, seeds 1 to 2, 2 of 5: "));
  CHECK(RenderFleet(file, "f", &none).starts_with("fleet          f: 2 hosts, period 1s, 3s of 5s, seed 1, 1 of 5\n"));
  CHECK((MissingRuns(file, one).empty() && MissingRuns(file, three) == "only seeds 1 to 2, 2 of 5"));
  CHECK((three.whole() && !none.whole()));
  const std::string rows = RenderMeasuresCsv({{"a", "", three}, {"b", "", none}});
  CHECK((rows.find("\na,2,") != rows.npos && rows.find("\nb,") == rows.npos));
  // Before hosts have met nobody has asked.
  const Series early = SimulateAll(file, std::nullopt, {.go_on = [](double part) { return part < 0.05; }});
  REQUIRE(early.runs.size() == 1);
  CHECK_FALSE(early.runs[0].whole);
  CHECK(early.runs[0].seconds.empty());
  CHECK((early.runs[0].measures.asked == 0 && early.runs[0].measures.frames == 0));
}

TEST_CASE("workers decide most by themselves, and no host serves more than its limit") {
  const std::string load =
      "[[rule]]\nburst = 50\nrate = 100\nshare = \"local\"\n"
      "[[workload]]\nrate = 400\n[[workload]]\ntags = 20\ntag_exponent = 1.0\nrate = 60\n";
  const std::string fleet = "[fleet]\nhosts = 1\nduration = \"30s\"\ndrift_ppm = 0\n";
  const Measures asked = Simulate(File(fleet + load), std::nullopt, 1).measures;
  const Measures m = Simulate(File(fleet + "workers = 4\n[page]\nentries = 256\n" + load), std::nullopt, 1).measures;
  CHECK(asked.by_workers == 0);
  CHECK(m.by_workers > 60);
  CHECK(m.excess <= asked.excess + 0.01);    // each token is charged when it is lent
  CHECK(m.served <= m.ideal * 1.001);
  CHECK(m.served >= m.ideal * 0.98);
}

TEST_CASE("workers of many hosts share a limit nearly as well as queries that are all asked") {
  const std::string fleet =
      "[fleet]\nhosts = 4\nduration = \"30s\"\nWORKERS[peers]\nperiod = \"1s\"\n"
      "[[rule]]\nburst = 100\nrate = 200\nshare = \"debit\"\n[[workload]]\nrate = 400\n";
  const auto with = [&](const std::string& workers) {
    std::string text = fleet;
    return Simulate(File(text.replace(text.find("WORKERS"), 7, workers)), std::nullopt, 1).measures;
  };
  const Measures all_asked = with(""), m = with("workers = 4\n[page]\nentries = 64\n");
  INFO("over + under " << all_asked.over + all_asked.under << " % and " << m.over + m.under << " %");
  CHECK(m.by_workers > 50);
  CHECK(m.served == Approx(m.ideal).epsilon(0.03));
  CHECK(m.over + m.under < 2 * (all_asked.over + all_asked.under) + 2);
}

TEST_CASE("workers of hosts that foretell each other serve by themselves what is far from its limit, and refuse nobody") {
  const auto with = [](int hosts, std::string_view spread, double rate, const char* workers) {
    return Simulate(File(fmt::format("[fleet]\nhosts = {}\nduration = \"30s\"\n{}[peers]\nperiod = \"1s\"\n{}"
                                     "[[rule]]\nburst = 1000\nrate = 1000\nshare = \"forecast\"\n"
                                     "[[workload]]\nrate = {}\n",
                                     hosts, workers, spread, rate)),
                    std::nullopt, 1)
        .measures;
  };
  constexpr const char* kWorkers = "workers = 4\n[page]\nentries = 64\n";
  for (const int hosts : {4, 16}) {
    for (const char* spread : {"", "spread = \"owners\"\nowners = [\"host-0\"]\n"}) {
      CAPTURE(hosts, spread);
      const Measures within = with(hosts, spread, 900, kWorkers);
      CHECK(within.by_workers > (*spread == 0 ? 40 : 15));
      CHECK(within.served > 0.9999 * within.ideal);
      const Measures asked = with(hosts, spread, 1300, ""), above = with(hosts, spread, 1300, kWorkers);
      CHECK(above.over + above.under < asked.over + asked.under + 1.5);    // by chance, from seed to seed
    }
  }
}

TEST_CASE("a host that is killed with its workers' tokens serves no more than the limit") {
  const FleetFile file = File(
      "[fleet]\nhosts = 2\nduration = \"30s\"\nworkers = 4\n[page]\nentries = 64\n[peers]\nperiod = \"1s\"\n"
      "[[rule]]\nburst = 100\nrate = 200\nshare = \"local\"\n[[workload]]\nrate = 600\n"
      "[[fault]]\nkind = \"kill\"\nhost = 1\nat = \"10s\"\nlasts = \"1s\"\n"
      "[[fault]]\nkind = \"wipe\"\nhost = 0\nat = \"20s\"\nlasts = \"1s\"\n");
  const Outcome one = Simulate(file, std::nullopt, 1), again = Simulate(file, std::nullopt, 1);
  CHECK(one.digest == again.digest);
  CHECK(one.measures.by_workers > 50);
  // Each of the two hosts has the limit to itself here, and a table that is gone gives one burst more.
  CHECK(one.measures.served <= 2 * (100 + 200 * 30.0) + 100);
}

TEST_CASE("a trace is asked as it stands, and a rate moves to another one") {
  FleetFile file = File(
      "[fleet]\nhosts = 2\nduration = \"10s\"\n[peers]\nperiod = \"1s\"\n[[rule]]\nburst = 1000\nrate = 100\n"
      "[[trace]]\nfile = \"t\"\nfrom = \"2s\"\n");
  REQUIRE(TakeTrace(file, 0, "0,0,5,a\n0,1,1,b\n3.5,1,2,a\n", "t"));
  const Outcome traced = Simulate(file, std::nullopt, 1);
  CHECK((traced.measures.asked == 8 && traced.measures.served == 8));
  CHECK((traced.seconds.at(2).asked == 6 && traced.seconds.at(5).asked == 2));
  const Outcome rising = Simulate(
      File("[fleet]\nduration = \"10s\"\n[[rule]]\nburst = 1e6\nrate = 100\n"
           "[[workload]]\narrivals = \"steady\"\nrate = 1e-6\nrate_at_end = 100\n"),
      std::nullopt, 1);
  CHECK(rising.measures.asked == Approx(500).epsilon(0.02));
  CHECK(rising.seconds.at(0).asked < 10);
  CHECK(rising.seconds.at(9).asked > 90);
}

TEST_CASE("a rate that moves beyond the end of a run has come as far as the run has") {
  const Outcome rising = Simulate(
      File("[fleet]\nduration = \"10s\"\n[[rule]]\nburst = 1e6\nrate = 100\n"
           "[[workload]]\narrivals = \"steady\"\nrate = 1e-6\nrate_at_end = 100\nuntil = \"20s\"\n"),
      std::nullopt, 1);
  CHECK(rising.measures.asked == Approx(250).epsilon(0.02));
  CHECK(rising.seconds.at(9).asked < 55);
}

// ---- Quotas ----

// Ten queries a second, beginning a minute before midnight of the rule's time zone.
constexpr std::string_view kOverMidnight =
    "[fleet]\nhosts = 4\nduration = \"2m\"\ndate = \"2026-03-28T22:59:00Z\"\n[peers]\nperiod = \"1s\"\n"
    "[[rule]]\nburst = 100\nrate = 100\nquota = 200\nper = \"day\"\ntime_zone = \"Europe/Berlin\"\n"
    "[[workload]]\nrate = 10\narrivals = \"steady\"\n";

TEST_CASE("a quota is what all hosts serve of a tag in a day, and as much again from midnight on") {
  for (const char* share : {"debit", "forecast", "capacity", "owners"}) {
    CAPTURE(share);
    const bool owners = share == std::string_view("owners");
    std::string text(kOverMidnight);
    text.insert(text.find("[[workload]]"), fmt::format("share = \"{}\"\n", owners ? "debit" : share));
    if (owners) text.insert(text.find("[[rule]]"), "spread = \"owners\"\nowners = [\"host-0\", \"host-1\"]\n");
    const Outcome outcome = Simulate(File(text), std::nullopt, 1);
    const Measures& m = outcome.measures;
    std::printf("quota of 200 over 4 hosts, %s: %.0f served in two days, at most %.1f %% of it in one\n", share, m.served,
                m.quota);
    CHECK(m.asked == 1199);
    CHECK(m.ideal == 400);
    CHECK(m.quota >= 100);
    CHECK(m.quota_over <= 2);
    CHECK(m.served >= 400);
    CHECK(m.served <= 400 + 2 * m.quota_over);
    for (std::size_t second = 22; second < 60; ++second) CHECK(outcome.seconds[second].served == 0);
    CHECK(outcome.seconds[60].served == 10);
  }
}

// Each tag's quota is less than a host is asked for, and most hosts see a tag for the first time when it is spent.
TEST_CASE("a quota is known on all hosts where owners keep it, though each asks for little") {
  std::string text =
      "[fleet]\nhosts = 64\nduration = \"60s\"\n[peers]\nperiod = \"1s\"\nspread = \"owners\"\n"
      "owners = [\"host-0\", \"host-1\"]\n[[rule]]\nburst = 100\nrate = 100\nquota = 50\n"
      "[[workload]]\nrate = 40\ntags = 20\n";
  const Measures m = Simulate(File(text), std::nullopt, 1).measures;
  CHECK(m.ideal == 20 * 50);
  CHECK(m.quota >= 100);
  CHECK(m.quota_over <= 2);

  // Killed at a bad time, when little is left: hosts go on by the owners' last word, and hear from their next lives.
  for (const char* host : {"0", "1"}) {
    text += fmt::format("[[fault]]\nkind = \"kill\"\nhost = {}\nat = \"20s\"\nlasts = \"3s\"\n", host);
  }
  const Outcome killed = Simulate(File(text), std::nullopt, 1);
  CHECK(killed.measures.quota < 140);
  for (std::size_t second = 28; second < 60; ++second) {
    CAPTURE(second);
    CHECK(killed.seconds[second].served <= killed.seconds[second].ideal + 1);
  }
}

// Three sites that are 60 ms apart, with an owner each.
std::string ThreeSites(std::string_view rule) {
  return fmt::format("[fleet]\nhosts = 12\nduration = \"60s\"\n[network]\nsites = 3\nbetween_sites = \"60ms\"\n"
                     "[peers]\nperiod = \"1s\"\nspread = \"owners\"\nowners = [\"host-0\", \"host-4\", \"host-8\"]\n"
                     "[sites]\nperiod = \"3s\"\n[[rule]]\n{}\n",
                     rule);
}

TEST_CASE("sites have one quota together, of many tags and of one that is asked for fast") {
  const std::string many = ThreeSites("burst = 100\nrate = 100\nquota = 50") + "[[workload]]\nrate = 40\ntags = 20\n";
  const Measures few = Simulate(File(many), std::nullopt, 1).measures;
  CHECK(few.ideal == 20 * 50);
  CHECK(few.quota >= 100);
  CHECK(few.quota_over <= 3);
  CHECK(few.served <= 20 * 50 + 20);
  const std::string one = ThreeSites("burst = 300\nrate = 1000\nquota = 5000") + "[[workload]]\nrate = 300\n";
  const Measures fast = Simulate(File(one), std::nullopt, 1).measures;
  CHECK(fast.ideal == 5000);
  CHECK(fast.served >= 5000);
  CHECK(fast.quota_over <= 30);    // what is asked for in 100 ms
}

// The site that is cut off and the two others do not hear of each other for 20 s.
TEST_CASE("what a site served of a quota while it was cut off is known to the others soon after") {
  const std::string text = ThreeSites("burst = 300\nrate = 1000\nquota = 4000") +
                           "[[workload]]\nrate = 100\n[[fault]]\nkind = \"split\"\nhost = 0\nsize = 4\n"
                           "at = \"10s\"\nlasts = \"20s\"\n";
  const Outcome outcome = Simulate(File(text), std::nullopt, 1);
  CHECK(outcome.measures.ideal == 4000);
  CHECK(outcome.measures.quota_over <= 10);
}

TEST_CASE("workers serve a quota by themselves, and hosts together no more than some thousandths beyond it") {
  for (const char* spread : {"", "spread = \"owners\"\nowners = [\"host-0\"]\n"}) {
    CAPTURE(spread);
    const Measures m = Simulate(File(fmt::format("[fleet]\nhosts = 4\nduration = \"60s\"\nworkers = 4\n[page]\nentries = 64\n"
                                                 "[peers]\nperiod = \"1s\"\n{}[[rule]]\nburst = 300\nrate = 1000\n"
                                                 "share = \"debit\"\nquota = 5000\n[[workload]]\nrate = 300\n",
                                                 spread)),
                                std::nullopt, 1)
                           .measures;
    CHECK(m.by_workers > 90);
    CHECK(m.served >= 5000);
    CHECK(m.quota_over <= 15);
  }
}

// As many hits as a rule of the same burst and rate would serve, at the same moments.
TEST_CASE("hosts share a limit that a tag names itself as they share a rule's") {
  constexpr std::string_view kFleet =
      "[fleet]\nhosts = 4\nduration = \"60s\"\n[peers]\nperiod = \"1s\"\n[[workload]]\ntag = \"edge|plan=a|600/m\"\n"
      "rate = 30\n[[rule]]\n";
  for (const char* share : {"local", "debit", "forecast", "capacity", "owners"}) {
    CAPTURE(share);
    const bool owners = share == std::string_view("owners");
    const auto run = [&](std::string_view limit) {
      std::string text = fmt::format("{}{}share = \"{}\"\n", kFleet, limit, owners ? "debit" : share);
      if (owners) text.insert(text.find("[[workload]]"), "spread = \"owners\"\nowners = [\"host-0\"]\n");
      return Simulate(File(text), std::nullopt, 1).measures;
    };
    const Measures rule = run("burst = 600\nrate = 10\n"), own = run("burst = 1\nrate = 0.001\nmax_own_limit = 600\n");
    CHECK(own.asked > 1500);
    CHECK(own.ideal == rule.ideal);
    CHECK(own.served == rule.served);
    CHECK(own.entries == rule.entries);
    if (share != std::string_view("local")) CHECK(own.served < 600 + 60 * 10 + 60);
  }
}

TEST_CASE("a static split divides a limit that a tag names itself") {
  constexpr std::string_view kFleet =
      "[fleet]\nhosts = 8\nduration = \"20s\"\n[[workload]]\ntag = \"edge|40/s\"\nrate = 500\n";
  const auto run = [&](std::string_view rule) {
    return Simulate(File(fmt::format("{}[[rule]]\n{}", kFleet, rule)), Share::kLocal, 1).measures;
  };
  const Measures rule = run("burst = 40\nrate = 40\n"), own = run("burst = 10\nrate = 1\nmax_own_limit = 100000\n");
  CHECK(own.ideal == Approx(40 + 20 * 40).margin(2));
  CHECK(own.ideal == rule.ideal);
  CHECK(own.served == rule.served);
  CHECK(own.excess <= 1);
  // No bucket holds less than a token: five of eight hosts have one that the limit has no room for.
  const Measures least = Simulate(File("[fleet]\nhosts = 8\nduration = \"20s\"\n[[rule]]\nburst = 10\nrate = 1\n"
                                       "max_own_limit = 10\n[[workload]]\ntag = \"edge|3/d\"\nrate = 50\n"),
                                  Share::kLocal, 1)
                             .measures;
  CHECK((least.ideal == 3 && least.served == 8));
}

TEST_CASE("hosts follow the calendar for as long as a run lasts") {
  const FleetFile file = File(
      "[fleet]\nhosts = 2\nduration = \"5h\"\n[peers]\nperiod = \"5s\"\n[[rule]]\nburst = 100\nrate = 10\n"
      "quota = 50\nper = \"hour\"\n[[workload]]\nrate = 0.1\narrivals = \"steady\"\n");
  const Outcome outcome = Simulate(file, std::nullopt, 1);
  CHECK(outcome.measures.served == 5 * 50);
  for (std::size_t hour = 0; hour < 5; ++hour) {
    std::uint64_t served = 0;
    for (std::size_t s = hour * 3600; s < (hour + 1) * 3600; ++s) served += outcome.seconds[s].served;
    CHECK(served == 50);
  }
}

TEST_CASE("one host serves a quota to the token, and what a hold gives back is there again") {
  const FleetFile file = File(
      "[fleet]\nhosts = 1\nduration = \"90s\"\ndate = \"2026-03-28T23:59:00Z\"\n"
      "[[rule]]\nburst = 1000\nrate = 1000\nquota = 100\n[[workload]]\nrate = 20\n"
      "[[workload]]\ntag = \"held\"\nrate = 20\ntakes = \"hold\"\ncost = 2\nused_max = 1\nused_min = 1\n");
  const Measures m = Simulate(file, std::nullopt, 1).measures;
  CHECK(m.served == m.ideal);
  CHECK((m.over == 0 && m.under == 0));
  CHECK((m.quota == 100 && m.quota_over == 0));
  // Two days: 100 tokens of one tag, and of the other 100 that were used, which were held by 100 holds or one less.
  CHECK(m.served >= 2 * 100 + 2 * 2 * 99);
  CHECK(m.served <= 2 * 100 + 2 * 2 * 100);
}

TEST_CASE("what hosts have counted of a quota outlives their processes where a file keeps it, and peers where none does") {
  const auto run = [](std::string_view settings, std::string_view kinds) {
    std::string text = "[fleet]\nhosts = 3\nduration = \"60s\"\n[peers]\nperiod = \"1s\"\n[quota]\n";
    text += settings;
    text += "[[rule]]\nburst = 100\nrate = 100\nquota = 100\n[[workload]]\nrate = 30\n";
    for (int host = 0; host < 3; ++host) {
      text += fmt::format("[[fault]]\nkind = \"{}\"\nhost = {}\nat = \"20s\"\n", kinds, host);
    }
    return Simulate(File(text), std::nullopt, 1).measures;
  };
  const double kept = run("file = \"/var/lib/dthrottle/quotas\"\n", "kill").quota;
  CHECK(kept < 115);
  CHECK(run("file = \"/var/lib/dthrottle/quotas\"\n", "wipe").quota == kept);
  CHECK(run("", "kill").quota > 190);    // all hosts at once: nobody is left who knows
}

TEST_CASE("places of a tag that is charged are free when a host is killed, as its own tag's are") {
  std::string text =
      "[fleet]\nhosts = 2\nduration = \"60s\"\n[peers]\nperiod = \"1s\"\n"
      "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 1000\nrate = 1000\nin_flight = 1000\nalso = [\"before /\"]\n"
      "[[rule]]\nname = \"tenant\"\nburst = 1000\nrate = 1000\nin_flight = 10\n"
      "[[workload]]\ntag = \"acme/bob\"\narrivals = \"steady\"\nrate = 4\ntakes = \"place\"\nlasts = \"1s\"\n";
  for (int at = 5; at < 60; at += 5) {
    text += fmt::format("[[fault]]\nkind = \"kill\"\nhost = {}\nat = \"{}s\"\nlasts = \"1s\"\n", at / 5 % 2, at);
  }
  const Measures m = Simulate(File(text), std::nullopt, 1).measures;
  CHECK((m.places >= 4 && m.places <= 5));
  CHECK(m.places_over == 0);
}

TEST_CASE("a static split divides quotas too") {
  const FleetFile file = File(kOverMidnight);
  const Measures m = Simulate(file, Share::kLocal, 1).measures;
  CHECK(m.served == 400);
  CHECK((m.quota == 100 && m.quota_over == 0 && m.ideal == 400));
}

// One host against the ledger's bucket: they must agree to the token.
TEST_CASE("one host is one bucket for all") {
  const FleetFile file =
      File("[fleet]\nhosts = 1\ndrift_ppm = 0\n[[rule]]\nburst = 10\nrate = 5\n[[workload]]\nrate = 20\n");
  const Measures m = Simulate(file, std::nullopt, 1).measures;
  CHECK(m.asked > 1000);
  CHECK(m.served == m.ideal);
  CHECK((m.over == 0 && m.under == 0));
  CHECK(m.excess <= 1e-6);
  CHECK(m.fairness == 1);
  CHECK(m.silence == m.ideal_silence);
  CHECK(m.frames == 0);
}

TEST_CASE("where etcd has the list of owners the first three hosts of each site own all tags") {
  const std::string fleet = "[fleet]\nhosts = 8\nduration = \"10s\"\n[peers]\nperiod = \"1s\"\nspread = \"owners\"\n";
  const std::string load = "[[rule]]\nburst = 100\nrate = 100\n[[workload]]\nrate = 200\n[sites]\nperiod = \"2s\"\n";
  const auto run = [&](std::string_view owners, std::string_view more) {
    return Simulate(File(fmt::format("{}{}\n{}{}", fleet, owners, load, more)), std::nullopt, 1).digest;
  };
  constexpr std::string_view kEtcd = "etcd = [\"http://etcd-1:2379\"]";
  CHECK(run(kEtcd, "") == run("owners = [\"host-0\", \"host-1\", \"host-2\"]", ""));
  CHECK(run(kEtcd, "[network]\nsites = 4\n") ==
        run("owners = [\"host-0\", \"host-1\", \"host-2\", \"host-3\", \"host-4\", \"host-5\", \"host-6\", \"host-7\"]",
            "[network]\nsites = 4\n"));
  CHECK(run(kEtcd, "[network]\nsites = 2\n") ==
        run("owners = [\"host-0\", \"host-1\", \"host-2\", \"host-4\", \"host-5\", \"host-6\"]",
            "[network]\nsites = 2\n"));
}

// Whatever rules say, and whatever is asked: there is nobody whom the host has to hear of.
TEST_CASE("one host is one bucket for all under every kind of rule") {
  struct {
    const char *name, *load;
  } const cases[] = {
      {"charged",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 20\nrate = 20\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 10\nrate = 10\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 10\nrate = 100\n"},
      {"charged and named",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 20\nrate = 20\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 10\nrate = 10\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 5\nrate = 50\nwith = [\"acme\"]\n"
       "[[workload]]\ntag = \"acme\"\nrate = 5\n"},
      {"fair shares",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 20\nrate = 50\namong = \"level\"\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 1000\nrate = 1000\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 10\nrate = 60\n[[workload]]\ntag = \"acme/hog\"\nrate = 200\n"},
      {"exempt", "[[rule]]\nburst = 1\nrate = 1\nmode = \"off\"\n[[workload]]\nrate = 100\n"},
      {"one is exempt",
       "[[rule]]\nburst = 5\nrate = 5\n[[override]]\ntag = \"c1\"\nburst = 1\nrate = 1\nmode = \"off\"\n"
       "[[workload]]\ntag = \"c\"\ntags = 3\nrate = 100\n"},
      {"a penalty",
       "[[rule]]\nburst = 5\nrate = 5\npenalty = { after = 20, within = \"5s\", lasts = \"8s\" }\n"
       "[[workload]]\nrate = 12\n"},
      {"places that others take",
       "[[rule]]\nburst = 1000\nrate = 1000\nin_flight = 3\n"
       "[[workload]]\nrate = 10\ntakes = \"place\"\n[[workload]]\nrate = 30\n"},
      {"a charged quota",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 1000\nrate = 1000\nquota = 300\nper = \"day\"\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 10\nrate = 10\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 5\nrate = 30\n"},
      {"charged holds",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 40\nrate = 20\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 20\nrate = 10\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 5\nrate = 20\ncost = 4\ntakes = \"hold\"\nused_min = 1\nused_max = 6\n"},
      {"charged waits",
       "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 2\nrate = 20\ndelay = \"300ms\"\n"
       "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 10\nrate = 10\ndelay = \"1s\"\nalso = [\"before /\"]\n"
       "[[workload]]\ntag = \"acme/u\"\ntags = 5\nrate = 50\nwait = \"2s\"\n"},
  };
  for (const auto& [name, load] : cases) {
    CAPTURE(name);
    const FleetFile file = File("[fleet]\nhosts = 1\ndrift_ppm = 0\n" + std::string(load));
    const Measures m = Simulate(file, std::nullopt, 1).measures;
    CHECK(m.asked > 500);
    CHECK(m.served > 0);
    CHECK(m.served == m.ideal);
    CHECK((m.over == 0 && m.under == 0));
    CHECK(m.excess <= 1e-6);
    CHECK(m.quota_over == 0);
    CHECK(m.silence == m.ideal_silence);
  }
}

TEST_CASE("a tag that is charged with others is held to its limit, and counts once") {
  const std::string rules =
      "[[rule]]\nname = \"tenant\"\nmatch = \"acme\"\nburst = 20\nrate = 20\n"
      "[[rule]]\nname = \"user\"\nmatch = \"*/*\"\nburst = 1000\nrate = 1000\nalso = [\"before /\"]\n"
      "[[workload]]\ntag = \"acme/u\"\ntags = 10\nrate = 200\narrivals = \"steady\"\n[peers]\nperiod = \"500ms\"\n";
  const Measures two = Simulate(File("[fleet]\nhosts = 2\n" + rules), std::nullopt, 1).measures;
  CHECK(two.asked == Approx(60 * 200).margin(1));
  CHECK(two.ideal == Approx(20 + 60 * 20).margin(2));
  CHECK(two.served == Approx(two.ideal).epsilon(0.1));
  CHECK(two.excess > 5);    // of the tenant: what is served before hosts have heard of each other
  // Beside a limit that nobody reaches the tenant's is what the baselines hold, too.
  const Measures fps = Simulate(File("[fleet]\nhosts = 2\n" + rules), BaselineKind::kFps, 1).measures;
  CHECK(fps.served == Approx(fps.ideal).epsilon(0.1));
}

TEST_CASE("measures of a story that can be told beforehand are exact") {
  // A query each half second from 0.75 s on, to hosts 0 and 1 in turns; limits that are not shared, a burst of 1 and
  // hardly more than a token a second: each host serves all of its own, one bucket for all every other one.
  const FleetFile file = File(
      "[fleet]\nhosts = 2\nduration = \"10s\"\ndrift_ppm = 0\n[[rule]]\nburst = 1\nrate = 1.01\nshare = \"local\"\n"
      "[[workload]]\nrate = 2\narrivals = \"steady\"\nspread = \"in-turns\"\nfrom = \"250ms\"\n");
  const Outcome outcome = Simulate(file, std::nullopt, 1);
  const Measures& m = outcome.measures;
  CHECK(m.asked == 19);    // up to 9.75 s
  CHECK(m.served == 19);
  CHECK(m.ideal == 10);
  CHECK(m.over == Approx(100 * 9 / 10.0));
  CHECK(m.under == 0);
  CHECK(m.excess == Approx(19 - 9 * 1.01 - 1));    // in 9 s, beyond burst and refill
  CHECK(m.silence == 0);
  CHECK(m.ideal_silence == 0);    // single refusals
  REQUIRE(outcome.seconds.size() == 10);
  const Second &first = outcome.seconds[0], &second = outcome.seconds[1];
  CHECK((first.asked == 1 && first.served == 1 && first.ideal == 1 && first.over == 0));
  CHECK((second.asked == 2 && second.served == 2 && second.ideal == 1 && second.over == 1));
}

TEST_CASE("what waits is served at the rate and goes on in time, as with one bucket for all") {
  const char* const load =
      "[[rule]]\nburst = 1\nrate = 10\ndelay = \"500ms\"\nshare = \"debit\"\n[peers]\nperiod = \"200ms\"\n"
      "[[workload]]\nrate = 30\nwait = \"2s\"\n";
  const Measures one = Simulate(File("[fleet]\nhosts = 1\ndrift_ppm = 0\n" + std::string(load)), std::nullopt, 1).measures;
  CHECK(one.served == one.ideal);
  CHECK(one.excess <= 1e-6);
  CHECK(one.waited > 90);
  CHECK((one.wait_max > 0.4 && one.wait_max <= 0.5));
  const Measures two = Simulate(File("[fleet]\nhosts = 2\n" + std::string(load)), std::nullopt, 1).measures;
  std::printf("two hosts at a delayed limit: %.0f served of %.0f, waits of %.3f s on average\n", two.served, two.ideal,
              two.wait_mean);
  CHECK(two.served <= 1.03 * two.ideal);
  CHECK(two.served >= 0.97 * two.ideal);
}

// Sixteen hosts, whose clients hold 100 tokens each time and ask for as many holds as four times the limit.
Measures HoldsThatUse(Cost used_min, Cost used_max, const char* more = "") {
  const Measures m = Simulate(File(fmt::format("[fleet]\nhosts = 16\nduration = \"1m\"\n[peers]\nperiod = \"1s\"\n"
                                               "[[rule]]\nburst = 2000\nrate = 1000\nshare = \"forecast\"\n"
                                               "[[workload]]\nrate = 40\ntakes = \"hold\"\ncost = 100\n"
                                               "used_min = {}\nused_max = {}\n{}",
                                               used_min, used_max, more)),
                              std::nullopt, 1)
                         .measures;
  std::printf("16 hosts hold 100 for %u to %u: %.0f holds, %.1f %% came back, %.2f %% used beyond the limit\n", used_min,
              used_max, m.holds, m.returned, m.overused);
  return m;
}

TEST_CASE("holds use no more than the limit as long as estimates are not too low, and give back the rest") {
  const Measures fine = HoldsThatUse(0, 100);
  CHECK(fine.overused == 0);
  CHECK((fine.returned > 45 && fine.returned < 55));
  CHECK(fine.holds > 1000);    // half of each comes back: more than the 620 that the limit has room for
  CHECK(fine.lost == 0);
  CHECK(fine.served == Approx(fine.ideal).epsilon(0.05));
  const Measures low = HoldsThatUse(150, 250);
  CHECK(low.overused > 0.5);
  CHECK(low.returned == 0);
}

TEST_CASE("holds that are given back, or that nobody settles, have used nothing") {
  const Measures m = HoldsThatUse(0, 0, "released = 0.5\nlost = 0.25\nttl = \"5s\"\n");
  CHECK(m.overused == 0);
  CHECK(m.returned > 65);
  CHECK((m.lost > 0.2 * m.holds && m.lost < 0.3 * m.holds));
}

TEST_CASE("a hold that lasts longer than its time comes back whole, and what it uses then is beyond the limit") {
  const auto run = [](const char* ttl) {
    return Simulate(File(fmt::format("[fleet]\nhosts = 1\nduration = \"5s\"\ndrift_ppm = 0\n"
                                     "[[rule]]\nburst = 100\nrate = 0.1\n[[workload]]\narrivals = \"steady\"\n"
                                     "rate = 20\ntakes = \"hold\"\ncost = 10\nlasts = \"20s\"\nttl = \"{}\"\n",
                                     ttl)),
                    std::nullopt, 1)
        .measures;
  };
  const Measures in_time = run("20s");
  CHECK((in_time.holds == 10 && in_time.lost == 0 && in_time.returned == 0 && in_time.overused == 0));
  // A hundred tokens are held anew each second, and all of them are used.
  const Measures late = run("1s");
  CHECK(late.holds == Approx(50).margin(1));
  CHECK((late.lost == Approx(40).margin(1) && late.returned == Approx(80).margin(2)));
  CHECK(late.overused == Approx(298).margin(12));
  CHECK(late.served == late.ideal);
}

TEST_CASE("holds that use little of what they hold are divided by what they use") {
  for (const char* among : {"level", "ratio"}) {
    CAPTURE(among);
    const FleetFile file = File(fmt::format(R"(
[fleet]
hosts = 1
duration = "60s"
[[rule]]
name = "user"
match = "*/*"
burst = 10000
rate = 10000
also = ["before /"]
share = "local"
[[rule]]
name = "tenant"
burst = 60
rate = 100
among = "{}"
share = "local"
[[workload]]
tag = "acme/held"
tags = 3
rate = 75
takes = "hold"
cost = 8
lasts = "20ms"
used_min = 1
used_max = 1
[[workload]]
tag = "acme/surge"
rate = 1500
from = "10s"
until = "11s"
)", among));
    const Measures m = Simulate(file, std::nullopt, 1).measures;
    CHECK(m.holds >= 0.9 * 75 * 60);    // the surge alone takes a second of them
  }
}

TEST_CASE("places are taken for as long as they last, and never more than there are where hosts divide them") {
  const auto measures = [](const char* fault) {
    return Simulate(File(fmt::format("[fleet]\nhosts = 4\nduration = \"2m\"\n[peers]\nperiod = \"1s\"\n"
                                     "[[rule]]\nburst = 1000\nrate = 1000\nshare = \"capacity\"\nin_flight = 40\n"
                                     "[[workload]]\nrate = 20\ntakes = \"place\"\nlasts = \"5s\"\n{}",
                                     fault)),
                    std::nullopt, 1)
        .measures;
  };
  const Measures calm = measures("");
  CHECK((calm.places > 30 && calm.places <= 40 && calm.places_over == 0));
  CHECK(calm.served < 0.6 * calm.asked);    // 100 would be taken
  const Measures killed = measures("[[fault]]\nkind = \"kill\"\nhost = 1\nat = \"30s\"\nlasts = \"10s\"\n");
  CHECK((killed.places > 30 && killed.places_over == 0));
}

TEST_CASE("places are those of all hosts where owners pass them on, nearly as where hosts hear each other") {
  const auto run = [](std::string_view spread, const char* lasts, std::string_view fault) {
    return Simulate(File(fmt::format("[fleet]\nhosts = 16\nduration = \"1m\"\n[peers]\nperiod = \"1s\"\n{}"
                                     "[[rule]]\nburst = 1000\nrate = 1000\nshare = \"debit\"\nin_flight = 20\n"
                                     "[[workload]]\nrate = 40\ntakes = \"place\"\nlasts = \"{}\"\n{}",
                                     spread, lasts, fault)),
                    std::nullopt, 1)
        .measures;
  };
  constexpr const char* kOwners = "spread = \"owners\"\nowners = [\"host-0\", \"host-1\"]\n";
  for (const char* lasts : {"200ms", "1s", "5s"}) {    // of 40 queries a second so many are in progress
    CAPTURE(lasts);
    const Measures mesh = run("", lasts, ""), owned = run(kOwners, lasts, "");
    CHECK(owned.places >= std::min(mesh.places, 20.0));
    CHECK(owned.places_over <= mesh.places_over + 3);
    CHECK(owned.served > 0.85 * owned.ideal);
    CHECK(owned.served < 1.15 * owned.ideal);
  }
  // Hosts that are killed, all owners too: each takes what was free as far as it knew, and then its part.
  std::string kills;
  for (const int host : {0, 1, 7}) {
    kills += fmt::format("[[fault]]\nkind = \"kill\"\nhost = {}\nat = \"30s\"\nlasts = \"2s\"\n", host);
  }
  const Measures killed = run(kOwners, "5s", kills);
  CHECK(killed.places > 17);
  CHECK(killed.places_over <= 30);    // each of 16 hosts would take 20
}

// Where two sites do not hear each other for a minute each has 10 of 20 places, or all of them.
TEST_CASE("places are those of all sites, and where they do not hear each other each keeps to its part") {
  const auto run = [](const char* cut_off, std::string_view fault) {
    return Simulate(File(fmt::format("[fleet]\nhosts = 12\nduration = \"2m\"\n[peers]\nperiod = \"1s\"\n"
                                     "spread = \"owners\"\nowners = [\"host-0\", \"host-1\", \"host-6\", \"host-7\"]\n"
                                     "[network]\nsites = 2\nbetween_sites = \"65ms\"\n"
                                     "[sites]\nperiod = \"2s\"\npart = 0.5\n"
                                     "[[rule]]\nburst = 1000\nrate = 1000\nshare = \"debit\"\nin_flight = 20\n"
                                     "cut_off = \"{}\"\n[[workload]]\nrate = 40\ntakes = \"place\"\nlasts = \"1s\"\n{}",
                                     cut_off, fault)),
                    std::nullopt, 1)
        .measures;
  };
  constexpr const char* kSplit = "[[fault]]\nkind = \"split\"\nhost = 0\nsize = 6\nat = \"40s\"\nlasts = \"60s\"\n";
  const Measures together = run("full", ""), part = run("part", kSplit), full = run("full", kSplit);
  for (const Measures& m : {together, part}) {
    CHECK(m.places >= 20);
    CHECK(m.places_over <= 6);
    CHECK(m.served > 0.9 * m.ideal);
    CHECK(m.served < 1.1 * m.ideal);
  }
  CHECK(full.places_over > 15);
}

TEST_CASE("a tag without in_flight has no places, though it is charged with others that have") {
  const Measures m = Simulate(File("[fleet]\nhosts = 1\nduration = \"10s\"\n"
                                   "[[rule]]\nmatch = \"acme/*\"\nburst = 1000\nrate = 1000\nin_flight = 50\n"
                                   "also = [\"before /\"]\n[[rule]]\nmatch = \"acme\"\nburst = 1000\nrate = 1000\n"
                                   "[[workload]]\ntag = \"acme/u\"\ntags = 3\nrate = 60\ntakes = \"place\"\n"
                                   "lasts = \"1s\"\n"),
                              std::nullopt, 1)
                         .measures;
  CHECK((m.places > 10 && m.places < 40));    // of one tag, not of all three
  CHECK(m.places_over == 0);
}

TEST_CASE("places that are given back and taken again all the time are there where hosts divide them") {
  for (const int rate : {8, 40}) {    // some are in flight at once, of 60
    CAPTURE(rate);
    const Measures m = Simulate(File(fmt::format("[fleet]\nhosts = 4\nduration = \"1m\"\n[peers]\nperiod = \"1s\"\n"
                                                 "[[rule]]\nburst = 1000\nrate = 1000\nshare = \"capacity\"\n"
                                                 "in_flight = 60\n[[workload]]\nrate = {}\ntakes = \"place\"\n"
                                                 "lasts = \"1s\"\n", rate)),
                                std::nullopt, 1)
                           .measures;
    CHECK(m.places_over == 0);
    CHECK(m.served > 0.85 * m.asked);
  }
}

TEST_CASE("a question about several tags is served all or nothing, as by one bucket for each of them") {
  const char* const load =
      "[[rule]]\nmatch = \"user*\"\nburst = 5\nrate = 2\n[[rule]]\nmatch = \"tenant*\"\nburst = 20\nrate = 10\n"
      "[[rule]]\nburst = 30\nrate = 15\n[peers]\nperiod = \"200ms\"\n"
      "[[workload]]\ntag = \"user\"\ntags = 20\nrate = 60\nwith = [\"tenant\", \"site\"]\nwith_tags = 2\n";
  const Outcome alone = Simulate(File("[fleet]\nhosts = 1\ndrift_ppm = 0\n" + std::string(load)), std::nullopt, 1);
  CHECK(alone.measures.served == alone.measures.ideal);
  CHECK(alone.measures.under == 0);
  CHECK(static_cast<std::uint64_t>(alone.measures.served) % 3 == 0);    // tokens: one of each of three tags
  CHECK(alone.measures.asked > 1.5 * alone.measures.served);
  const Measures two = Simulate(File("[fleet]\nhosts = 2\n" + std::string(load)), std::nullopt, 1).measures;
  std::printf("questions about three tags on two hosts: %.0f tokens served of %.0f\n", two.served, two.ideal);
  CHECK(two.served == Approx(two.ideal).epsilon(0.05));
}

TEST_CASE("silence lasts from the first refusal to the last before a query is served") {
  // All of it to one host: served at 0.5 s, then refused at 1.0 to 4.0 s, served at 4.5 s.
  const FleetFile file = File(
      "[fleet]\nhosts = 1\nduration = \"9s\"\ndrift_ppm = 0\n[[rule]]\nburst = 1\nrate = 0.26\n"
      "[[workload]]\nrate = 2\narrivals = \"steady\"\n");
  const Measures m = Simulate(file, std::nullopt, 1).measures;
  CHECK(m.silence == Approx(3.0));
  CHECK(m.ideal_silence == Approx(3.0));
}

TEST_CASE("too much for one tag does not make up for too little for another") {
  // Shared by nobody, and all of tag 0 goes to one host: with the split each host has half, so that a sticky tag gets
  // too little.
  const FleetFile file = File(
      "[fleet]\nhosts = 2\ndrift_ppm = 0\n[[rule]]\nburst = 10\nrate = 10\n[[workload]]\nrate = 40\ntags = 2\n"
      "spread = \"sticky\"\n");
  const Outcome split = Simulate(file, Share::kLocal, 1);
  CHECK(split.measures.under == Approx(50).margin(5));
  CHECK(split.measures.over < 1);
}

TEST_CASE("the static split never exceeds the limit and needs no reports") {
  const FleetFile file = File(
      "[fleet]\nhosts = 4\nduration = \"30s\"\n[peers]\nperiod = \"1s\"\n[[rule]]\nburst = 100\nrate = 100\n"
      "[[workload]]\nrate = 200\n");
  const Measures split = Simulate(file, Share::kLocal, 3).measures, debit = Simulate(file, Share::kDebit, 3).measures;
  CHECK(split.excess <= 1);
  CHECK(split.entries == 0);
  CHECK(debit.excess > 10);
  CHECK(debit.entries > 0.5);
  CHECK(debit.frames == Approx(3).margin(1.5));    // a report a second to three others
}

TEST_CASE("hosts that divide a limit never exceed it, and have it where it is asked for") {
  const std::string fleet =
      "[fleet]\nhosts = 4\n[[rule]]\nburst = 100\nrate = 100\n[[workload]]\nrate = 200\nspread = \"sticky\"\n";
  const auto without_its_host = [&](const char* kind) {
    return Simulate(File(fleet + fmt::format("[[fault]]\nkind = \"{}\"\nhost = {}\nat = \"30s\"\nlasts = \"9s\"\n",
                                             kind, HostOfTag("client", 4, 1))),
                    Share::kCapacity, 1);
  };
  const Outcome divided = Simulate(File(fleet), Share::kCapacity, 1);
  CHECK(divided.measures.excess <= 1);
  CHECK(divided.measures.over < 0.1);
  CHECK(divided.measures.entries == 0);
  // All of it comes to one host, which has a quarter at first and soon all but what the others keep in reserve.
  CHECK(divided.seconds[0].served < 60);
  for (std::size_t i = 10; i < divided.seconds.size(); ++i) CHECK(divided.seconds[i].served > 85);
  for (const char* kind : {"kill", "wipe", "split"}) {
    const Outcome outcome = without_its_host(kind);
    CAPTURE(kind);
    CHECK(outcome.measures.excess <= 1);
    CHECK(outcome.seconds.back().served > 85);
    CHECK(outcome.digest != divided.digest);
  }
}

// Capacity follows demand, and comes about when that has gone: the worst that demand can do.
TEST_CASE("hosts that divide a limit never exceed it where demand jumps as fast as parts follow") {
  const Outcome divided = Simulate(
      File("[fleet]\nhosts = 4\nduration = \"60s\"\n[[rule]]\nburst = 40\nrate = 20\n"
           "[[workload]]\nrate = 1000\nspread = \"group\"\ngroup = 2\nstays = \"1s\"\n"),
      Share::kCapacity, 1);
  CHECK(divided.measures.excess <= 1);
  CHECK(divided.measures.served > 0.95 * divided.measures.ideal);
}

TEST_CASE("a fleet file may divide a limit, over its graph of neighbours") {
  const std::string fleet =
      "[fleet]\nhosts = 9\nduration = \"20s\"\n[[rule]]\nburst = 100\nrate = 100\nshare = \"capacity\"\n"
      "[[workload]]\nrate = 300\nspread = \"zipf\"\n[capacity]\ngraph = ";
  const Outcome ring = Simulate(File(fleet + "\"regular\"\ndegree = 2\n"), std::nullopt, 1),
                complete = Simulate(File(fleet + "\"regular\"\ndegree = 8\n"), std::nullopt, 1);
  for (const Outcome* outcome : {&ring, &complete}) {
    CHECK(outcome->measures.excess <= 1);
    CHECK(outcome->measures.served > 0.9 * outcome->measures.ideal);
  }
  CHECK(complete.measures.frames > 1.5 * ring.measures.frames);
}

TEST_CASE("entries of reports are counted, those of urgent ones too") {
  const FleetFile file = File(
      "[fleet]\nhosts = 4\nduration = \"30s\"\n[peers]\nperiod = \"1s\"\n[[rule]]\nburst = 100\nrate = 100\n"
      "[[workload]]\nrate = 200\n");
  const Measures m = Simulate(file, Share::kForecast, 1).measures;
  CHECK(m.entries > 0.5);
  CHECK(m.entries < 2);
  CHECK(m.over < Simulate(file, Share::kDebit, 1).measures.over);
}

TEST_CASE("rules in mode shadow are enforced") {
  const std::string text = "[fleet]\nduration = \"10s\"\n[[rule]]\nburst = 10\nrate = 1\n[[workload]]\nrate = 20\n";
  const FleetFile enforced = File(text);
  FleetFile shadow = enforced;
  shadow.settings.rules[0].mode = Mode::kShadow;
  CHECK(Simulate(enforced, std::nullopt, 1).digest == Simulate(shadow, std::nullopt, 1).digest);
}

TEST_CASE("a seed repeats a run and another does not; several have a mean and a spread") {
  FleetFile file = File(
      "[fleet]\nseed = 5\nseeds = 3\nduration = \"10s\"\n[[rule]]\nburst = 50\nrate = 10\n[[workload]]\nrate = 40\n");
  const Series a = SimulateAll(file, std::nullopt), b = SimulateAll(file, std::nullopt);
  REQUIRE(a.runs.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(a.runs[i].digest == b.runs[i].digest);
  CHECK(a.runs[0].digest != a.runs[1].digest);
  CHECK(a.runs[1].digest == Simulate(file, std::nullopt, 6).digest);
  Series two;
  two.runs = {a.runs[0], a.runs[0]};
  two.runs[0].measures.over = 1, two.runs[1].measures.over = 3;
  CHECK(two.Mean(&Measures::over) == 2);
  CHECK(two.Deviation(&Measures::over) == Approx(std::sqrt(2.0)));
  CHECK(Series{1, {a.runs[0]}}.Deviation(&Measures::over) == 0);
}

TEST_CASE("a fault of the file happens, at its time") {
  const std::string text =
      "[fleet]\nhosts = 1\nduration = \"10s\"\n[[rule]]\nburst = 1000\nrate = 1000\nshare = "
      "\"local\"\n[[workload]]\nrate = 10\n"
      "arrivals = \"steady\"\n";
  const Outcome fine = Simulate(File(text), std::nullopt, 1);
  const Outcome paused =
      Simulate(File(text + "[[fault]]\nkind = \"pause\"\nat = \"3s\"\nlasts = \"2s\"\n"), std::nullopt, 1);
  CHECK(fine.measures.asked == 99);
  CHECK(paused.measures.asked == Approx(80).margin(1.1));    // nobody answered
  CHECK(paused.seconds[3].asked + paused.seconds[4].asked <= 1);
  CHECK(paused.seconds[2].asked == 10);
}

// The bands are of independent simulations (plain debit, 8 seeds, mean over many phases); here with few seeds, so that
// only something broken falls out of them.
TEST_CASE("debit oscillates as far as it must") {
  const FleetFile two = File(
      "[fleet]\nhosts = 2\nseeds = 8\ndrift_ppm = 0\n[network]\ndelay = \"10ms\"\n[peers]\nperiod = \"1s\"\n"
      "[[rule]]\nburst = 100\nrate = 100\n[[workload]]\nrate = 200\n");
  const Series series = SimulateAll(two, std::nullopt);
  CHECK(series.Mean(&Measures::over) == Approx(6.1).margin(3.7));
  CHECK(series.Mean(&Measures::under) == Approx(5.6).margin(3.7));
  FleetFile sixteen = two;
  sixteen.fleet.hosts = 16;
  const Series more = SimulateAll(sixteen, std::nullopt);
  CHECK(more.Mean(&Measures::over) == Approx(31).margin(3 * 7));
  CHECK(more.Mean(&Measures::under) == Approx(30).margin(3 * 6));
  CHECK(more.Mean(&Measures::over) > series.Mean(&Measures::over));
}

TEST_CASE("CSV puts fields in quotes only where they have to be") {
  Csv csv;
  csv.Row("a", 1, 2.5, std::string("b,c"));
  csv.Row("say \"x\"", std::uint64_t{18446744073709551615u}, "", "line\n");
  CHECK(csv.text() == "a,1,2.5,\"b,c\"\n\"say \"\"x\"\"\",18446744073709551615,,\"line\n\"\n");
}

TEST_CASE("text, CSV and pictures have every scheme, second and measure") {
  FleetFile file =
      File("[fleet]\nseeds = 2\nduration = \"3s\"\n[[rule]]\nburst = 50\nrate = 10\ndelay = \"1s\"\nshare = \"debit\"\n"
           "[[workload]]\nrate = 200\nwait = \"1s\"\n");
  const std::vector<Scheme> schemes = {{"debit", "", SimulateAll(file, Share::kDebit)},
                                       {"local", "a note", SimulateAll(file, Share::kLocal)}};
  const std::string seconds = RenderSecondsCsv(schemes), measures = RenderMeasuresCsv(schemes);
  CHECK(std::count(seconds.begin(), seconds.end(), '\n') == 1 + 2 * 2 * 3);
  CHECK(std::count(measures.begin(), measures.end(), '\n') == 1 + 2 * 2);
  const std::string table = RenderComparison(schemes), run = RenderRun(schemes[0].series, 2);
  for (const MeasureKind& kind : MeasureKinds()) {
    CAPTURE(kind.name);
    const bool shown = kind.where == nullptr || schemes[0].series.Mean(kind.where) != 0;
    CHECK((table.find("\n" + std::string(kind.name) + " ") != std::string::npos) == shown);
    CHECK((run.find(kind.meaning) != std::string::npos) == shown);
    CHECK(measures.find("," + std::string(kind.name)) != std::string::npos);
  }
  CHECK(table.ends_with("\nlocal: a note\n"));
  CHECK(run.ends_with("and 1 second more\n"));
  CHECK(PictureScript(schemes).find("title 'local'") != std::string::npos);
}

}    // namespace
}    // namespace dthrottle::lab
