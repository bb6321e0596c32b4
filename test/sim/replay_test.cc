#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <array>
#include <numeric>
#include <vector>

#include "base/prng.h"
#include "config/load.h"
#include "lab/replay.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kBegin = 1700000000;    // 2023-11-14 22:13:20 UTC

ReplayOptions Options(std::string_view settings, std::uint32_t hosts, std::string_view tag = "%h") {
  ReplayOptions options;
  options.hosts = hosts;
  options.question.tags = {TagTemplate::Parse(tag).value()};
  LoadedSettings loaded = ParseSettings(settings, "test");
  REQUIRE(loaded.ok());
  options.settings = std::move(loaded.settings);
  return options;
}

std::string Date(std::int64_t after_s) {
  const std::string t = FormatTime(kBegin + after_s);
  static constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const auto month = static_cast<std::size_t>(std::stoi(t.substr(5, 2)) - 1);
  return fmt::format("[{}/{}/{}:{} +0000]", t.substr(8, 2), kMonths.substr(3 * month, 3), t.substr(0, 4),
                     t.substr(11, 8));
}

std::string Line(std::int64_t after_s, std::string_view host, std::string_view path = "/") {
  return fmt::format(R"({} - - {} "GET {} HTTP/1.1" 200 5)", host, Date(after_s), path);
}

std::string Asks(std::int64_t after_s, std::string_view words) {
  return fmt::format("{} {}", Date(after_s), words);
}

constexpr std::string_view kOne = "[[rule]]\nname = \"all\"\nburst = 5\nrate = 1\n";

TEST_CASE("a log says who would have been refused, when and by which rule") {
  Replay replay(
      Options("[[rule]]\nname = \"a\"\nmatch = \"1*\"\nburst = 2\nrate = 0.001\n[[rule]]\nname = \"b\"\nmatch = "
              "\"2*\"\nburst = 9\n"
              "rate = 1\n[[override]]\ntag = \"11\"\nburst = 3\nrate = 0.001\n[[override]]\ntag = \"3\"\nburst = "
              "1\nrate = 0.001\n",
              1));
  std::vector<ReplaySecond> seconds;
  replay.OnSecond([&](const ReplaySecond& s) { seconds.push_back(s); });
  for (int i = 0; i < 10; ++i) {
    for (const char* host : {"10", "11", "2", "3", "4"}) replay.Take(Line(i, host));
  }
  replay.Finish();
  CHECK(replay.counts().lines == 50);
  CHECK(replay.counts().asked == 50);
  CHECK(replay.counts().refused == 8 + 7 + 9);
  CHECK(replay.counts().ideal_refused == 24);
  REQUIRE(replay.rules().size() == 4);
  CHECK((replay.rules()[0].asked == 20 && replay.rules()[0].refused == 15));
  CHECK((replay.rules()[0].first_s == kBegin + 2 && replay.rules()[0].last_s == kBegin + 9));
  CHECK((replay.rules()[1].asked == 10 && replay.rules()[1].refused == 0));
  CHECK((replay.rules()[2].name == "(override)" && replay.rules()[2].refused == 9));
  CHECK((replay.rules()[3].name == "(no limit)" && replay.rules()[3].asked == 10));
  const auto most = replay.refused().Most(2);
  REQUIRE(most.size() == 2);
  CHECK((most[0].tag == "3" && most[0].refused == 9 && most[0].override_ && most[0].rule == 2));
  CHECK((most[1].tag == "10" && most[1].first_s == kBegin + 2 && most[1].last_s == kBegin + 9 && !most[1].override_));
  CHECK(replay.refused().size() == 3);
  REQUIRE(seconds.size() == 10);
  CHECK((seconds[0].time_s == kBegin && seconds[0].asked == 5 && seconds[0].refused == 1 - 1));
  CHECK((seconds[9].asked == 5 && seconds[9].refused == 3 && seconds[9].ideal_refused == 3));
}

TEST_CASE("a quota goes by the dates of the log, across time that is passed over") {
  // 22:13:20 UTC: the day ends 6,400 s later.
  constexpr std::int64_t kDay = 86400, kMidnight = 6400;
  Replay replay(Options("[[rule]]\nname = \"a\"\nburst = 100\nrate = 100\nquota = 5\n", 1));
  std::vector<std::uint64_t> refused;
  replay.OnSecond([&](const ReplaySecond& second) { refused.push_back(second.refused); });
  for (const std::int64_t begin : {kMidnight - 10, kMidnight - 1, kMidnight, kMidnight + 1, kMidnight + 3 * kDay}) {
    for (int i = 0; i < 7; ++i) replay.Take(Line(begin, "x"));
  }
  replay.Finish();
  CHECK(refused == std::vector<std::uint64_t>{2, 7, 2, 7, 2});
  CHECK(replay.counts().ideal_refused == replay.counts().refused);
}

TEST_CASE("requests of one second come evenly within it") {
  // Eleven a second at ten tokens a second and a burst of two: at one instant nine of them would be refused.
  Replay replay(Options("[[rule]]\nburst = 2\nrate = 10\nshare = \"local\"\n", 1));
  for (int s = 0; s < 3; ++s) {
    for (int i = 0; i < 11; ++i) replay.Take(Line(s, "a"));
  }
  replay.Finish();
  CHECK(replay.counts().refused <= 2);
}

TEST_CASE("several hosts serve more than one bucket until they have told each other") {
  Replay replay(Options("[[rule]]\nburst = 5\nrate = 0.01\n", 4));
  for (int i = 0; i < 40; ++i) replay.Take(Line(0, "a"));
  for (int i = 0; i < 40; ++i) replay.Take(Line(60, "a"));
  replay.Finish();
  CHECK(replay.counts().ideal_refused == 75);
  // Five on each host at first, as far as reports do not come between; later all know.
  CHECK(replay.counts().refused >= 60);
  CHECK(replay.counts().refused <= 70);
}

TEST_CASE("foretelling hosts that a client asks in turns serve it one burst") {
  for (const int burst : {6, 18, 20, 60}) {    // of few tokens a host; of more they may keep a hit to themselves
    CAPTURE(burst);
    ReplayOptions options = Options(fmt::format("[[rule]]\nburst = {}\nrate = 0.01\nshare = \"forecast\"\n", burst), 16);
    options.spread = ReplayOptions::Spread::kRoundRobin;
    Replay replay(options);
    for (int second = 0; second < 200; ++second) {    // each client asks for thrice its burst within five seconds
      for (int i = 0; i < 3 * burst / 5 + 1; ++i) replay.Take(Line(second, fmt::format("client{}", second / 5)));
    }
    replay.Finish();
    const auto& counts = replay.counts();
    const auto served = static_cast<double>(counts.asked - counts.refused);
    const auto ideal = static_cast<double>(counts.asked - counts.ideal_refused);
    CHECK(served >= ideal);
    CHECK(served <= 1.02 * ideal);
  }
}

TEST_CASE("hosts that divide a limit serve no more than one bucket, and as much where it is asked for") {
  ReplayOptions options = Options("[[rule]]\nburst = 40\nrate = 4\nshare = \"capacity\"\n", 4);
  options.spread = ReplayOptions::Spread::kSticky;
  Replay replay(options);
  std::vector<std::uint64_t> served;
  replay.OnSecond([&](const ReplaySecond& second) { served.push_back(second.asked - second.refused); });
  for (int second = 0; second < 60; ++second) {
    for (int i = 0; i < 10; ++i) replay.Take(Line(second, "a"));
  }
  replay.Finish();
  CHECK(replay.counts().refused >= replay.counts().ideal_refused);
  REQUIRE(served.size() == 60);
  CHECK(std::accumulate(served.end() - 20, served.end(), std::uint64_t{0}) >= 70);    // of 80
}

TEST_CASE("spreads: round robin takes turns, sticky keeps a tag where it is") {
  const auto refused = [](ReplayOptions::Spread spread) {
    ReplayOptions options = Options("[[rule]]\nburst = 5\nrate = 0.01\nshare = \"local\"\n", 4);
    options.spread = spread;
    Replay replay(options);
    for (int i = 0; i < 40; ++i) replay.Take(Line(0, "a"));
    replay.Finish();
    return replay.counts().refused;
  };
  CHECK(refused(ReplayOptions::Spread::kSticky) == 35);
  CHECK(refused(ReplayOptions::Spread::kRoundRobin) == 20);
}

TEST_CASE("lines that are unreadable or late are counted, and end nothing") {
  Replay replay(Options(kOne, 2));
  replay.Begin("first");
  replay.Take("nonsense");
  replay.Take(Line(0, "a"));
  replay.Take(std::string_view("\0\xff\x1b[2J", 6));
  replay.Take(Line(5, "a"));
  replay.Take(Line(3, "a"));
  replay.Begin("second");
  replay.Take("");
  replay.Take(Line(-7, "a"));
  replay.Take("yyyy", true);
  replay.Take("zzzz");
  replay.Finish();
  const Replay::Counts& c = replay.counts();
  CHECK((c.lines == 9 && c.unreadable == 5 && c.asked == 4 && c.late == 2 && c.late_s_max == 12));
  CHECK((c.first_s == kBegin && c.last_s == kBegin + 5));
  REQUIRE(replay.unreadable().size() == Replay::kSamplesMax);
  CHECK((replay.unreadable()[0].line == 1 && replay.unreadable()[0].text == "nonsense"));
  CHECK((replay.unreadable()[1].log == "first" && replay.unreadable()[1].line == 3));
  CHECK((replay.unreadable()[2].log == "second" && replay.unreadable()[2].line == 1));
  CHECK_FALSE(replay.unreadable()[2].reason.empty());
}

TEST_CASE("long silence is passed over, and a leap into a far year ends in good time") {
  Replay replay(Options("[peers]\nperiod = \"100ms\"\n[[rule]]\nburst = 5\nrate = 1\n", 2));
  for (int i = 0; i < 8; ++i) replay.Take(Line(0, "a"));
  for (int i = 0; i < 8; ++i) replay.Take(Line(std::int64_t{7000} * 365 * 86400, "a"));
  replay.Finish();
  CHECK(replay.counts().asked == 16);
  CHECK(replay.counts().ideal_refused == 6);    // a full bucket again
}

TEST_CASE("a penalty ends in a silence as it does while others ask") {
  constexpr std::string_view kRule = "[[rule]]\nburst = 5\nrate = 1\npenalty = {{ after = 3, lasts = \"10m\"{} }}\n";
  const auto refused = [](std::string_view more, std::vector<std::int64_t> begins) {
    Replay replay(Options(fmt::format(fmt::runtime(kRule), more), 2));
    std::vector<std::uint64_t> each;
    replay.OnSecond([&](const ReplaySecond& second) { each.push_back(second.ideal_refused); });
    for (const std::int64_t begin : begins) {
      for (int i = 0; i < 10; ++i) replay.Take(Line(begin, "a"));
    }
    replay.Finish();
    CHECK(replay.counts().refused <= replay.counts().ideal_refused);    // each of two hosts has a burst
    return each;
  };
  using Refused = std::vector<std::uint64_t>;
  CHECK(refused("", {0, 300, 7200, 7500}) == Refused{5, 10, 5, 10});
  // The second one is twice as long, and the first one is forgotten once that has ended for as long as it lasted.
  CHECK(refused(", doubling = true", {0, 900, 900 + 1100, 900 + 1300}) == Refused{5, 5, 10, 5});
  CHECK(refused(", doubling = true", {0, 1500, 1500 + 700}) == Refused{5, 5, 5});
}

TEST_CASE("a silence that is short of what a bucket needs is not cut") {
  Replay replay(Options("[[rule]]\nburst = 5\nrate = 0.01\nshare = \"local\"\n", 1));
  for (int i = 0; i < 8; ++i) replay.Take(Line(0, "a"));
  for (int i = 0; i < 8; ++i) replay.Take(Line(250, "a"));    // two tokens
  replay.Finish();
  CHECK(replay.counts().refused == 3 + 6);
}

TEST_CASE("an over-long tag has one bucket, whatever its middle") {
  Replay replay(Options("[[rule]]\nmatch = \"/*\"\nburst = 1\nrate = 0.001\n", 1, "%U"));
  const std::string deep = "/" + std::string(600, 'x'),
                    other = "/" + std::string(300, 'x') + "y" + std::string(299, 'x');
  for (const auto& path : {deep, other, deep, other}) replay.Take(Line(0, "a", path));
  replay.Finish();
  CHECK(replay.counts().refused == 2);
  CHECK(replay.rules()[0].asked == 4);
}

// ---- Questions ----

constexpr std::string_view kLogin =
    "[[rule]]\nname = \"nets\"\nmatch = \"ip:*/24\"\nburst = 4\nrate = 0.001\n"
    "[[rule]]\nname = \"addresses\"\nmatch = \"ip:*\"\nburst = 3\nrate = 0.001\nalso = [\"ipv4/24\"]\n"
    "[[rule]]\nname = \"tenants\"\nmatch = \"tenant:*\"\nburst = 10\nrate = 0.001\n";

TEST_CASE("a refusal names the tag and the rule that refuse, and the other tags have not paid") {
  Replay replay(Options(kLogin, 1));
  // Three pass for one address, a fourth for its network, and five of the tenant's ten tokens are left.
  for (int i = 0; i < 5; ++i) replay.Take(Asks(0, "- take 1 ip:10.0.0.1 1 tenant:acme"));
  for (int i = 0; i < 4; ++i) replay.Take(Asks(1, "- take 1 ip:10.0.0.2 1 tenant:acme"));
  for (int i = 0; i < 3; ++i) replay.Take(Asks(2, "- take 3 tenant:acme"));
  replay.Finish();
  CHECK((replay.counts().asked == 12 && replay.counts().refused == 2 + 3 + 1));
  CHECK(replay.counts().ideal_refused == 6);
  REQUIRE(replay.rules().size() == 5);
  CHECK((replay.rules()[0].name == "nets" && replay.rules()[0].asked == 9 && replay.rules()[0].refused == 3));
  CHECK((replay.rules()[1].asked == 9 && replay.rules()[1].refused == 2));
  CHECK((replay.rules()[2].asked == 12 && replay.rules()[2].refused == 1 && replay.rules()[2].ideal_refused == 1));
  const auto most = replay.refused().Most(3);
  REQUIRE(most.size() == 3);
  CHECK((most[0].tag == "ip:10.0.0.0/24" && most[0].refused == 3 && most[0].rule == 0));
  CHECK((most[1].tag == "ip:10.0.0.1" && most[1].refused == 2 && most[1].rule == 1));
  CHECK((most[2].tag == "tenant:acme" && most[2].refused == 1 && most[2].rule == 2));
}

TEST_CASE("a line of an access log asks about all of its tags at once, at the cost that it has") {
  ReplayOptions options = Options(kLogin, 1, "ip:%h");
  options.question.tags.push_back(TagTemplate::Parse("tenant:%U").value());
  options.question.costs = {TagTemplate::Parse("1").value(), TagTemplate::Parse("%b").value()};    // %b: 5
  Replay replay(options);
  for (int i = 0; i < 4; ++i) replay.Take(Line(0, fmt::format("10.0.{}.1", i), "acme"));
  replay.Finish();
  CHECK((replay.counts().asked == 4 && replay.counts().refused == 2));
  CHECK((replay.rules()[1].refused == 0 && replay.rules()[2].refused == 2));
}

TEST_CASE("what waits for its turn is counted, and how long it waits") {
  // One at once, then one every 100 ms; who would wait for more than 500 ms is refused.
  Replay replay(Options("[[rule]]\nname = \"a\"\nburst = 1\nrate = 10\ndelay = \"500ms\"\nshare = \"local\"\n", 1));
  for (int i = 0; i < 40; ++i) replay.Take(Asks(0, "- take wait=900 1 a"));
  for (int i = 0; i < 5; ++i) replay.Take(Asks(9, "- take 1 a"));    // does not wait
  replay.Finish();
  const Waits& waits = replay.waits();
  CHECK(replay.counts().refused == 40 - 1 - waits.count());
  CHECK((waits.count() >= 13 && waits.count() <= 14));    // 5 at once, and 10 a second
  CHECK((waits.longest() > 400ms && waits.longest() <= 500ms));
  CHECK((waits.Quantile(0.5) > 300ms && waits.Quantile(0.5) <= waits.longest()));
  CHECK(replay.ideal_waits().count() == waits.count());
}

TEST_CASE("a hold is settled by its request, by its time, or by the next one of its request") {
  Replay replay(Options("[[rule]]\nname = \"llm\"\nburst = 100\nrate = 0.001\n", 2));
  replay.Take(Asks(0, "a hold 60000 60 t"));
  replay.Take(Asks(0, "b hold 60000 60 t"));    // refused: 40 are left
  replay.Take(Asks(1, "b commit 60"));          // so there is nothing to settle
  replay.Take(Asks(2, "a commit 10"));          // 50 come back
  replay.Take(Asks(8, "c hold 3000 90 t"));
  replay.Take(Asks(10, "c commit 1 2 3"));      // not its number of tags
  replay.Take(Asks(10, "d hold 60000 90 t"));    // refused
  replay.Take(Asks(11, "d hold 60000 90 t"));    // c's time is over
  replay.Take(Asks(11, "d hold 60000 5 u"));     // and d's before
  replay.Take(Asks(19, "d commit 9"));
  replay.Take(Asks(20, "e hold 60000 90 t"));
  replay.Take(Asks(21, "e release"));
  replay.Finish();
  CHECK((replay.counts().unreadable == 0 && replay.counts().asked == 7));
  CHECK(replay.counts().refused == 2);
  const Requests::Counts& r = replay.requests();
  CHECK((r.holds == 5 && r.committed == 2 && r.released == 1 && r.expired == 2));
  CHECK((r.returned == 50 + 90 + 90 + 90 && r.exceeded == 4));
  CHECK(replay.ideal_requests().holds == 5);
}

TEST_CASE("a hold of an over-long tag is settled with the tags that are charged with it") {
  Replay replay(Options("[[rule]]\nmatch = \"*/*\"\nburst = 100\nrate = 0.001\nalso = [\"before /\"]\n"
                        "[[rule]]\nburst = 100\nrate = 0.001\n", 1));
  const std::string user = "acme/" + std::string(300, 'x');
  replay.Take(Asks(0, "a hold 60000 60 " + user));
  replay.Take(Asks(1, "a commit 10"));
  replay.Take(Asks(2, "b take 90 acme"));
  replay.Take(Asks(3, "c take 1 acme"));    // refused
  replay.Finish();
  CHECK((replay.counts().unreadable == 0 && replay.counts().refused == 1 && replay.counts().ideal_refused == 1));
}

TEST_CASE("a request gives back what it has spent, and not what it was refused") {
  for (const std::uint32_t hosts : {1u, 3u}) {
    CAPTURE(hosts);
    ReplayOptions options = Options("[[rule]]\nname = \"logins\"\nburst = 5\nrate = 0.001\n", hosts);
    options.spread = ReplayOptions::Spread::kRoundRobin;
    Replay replay(options);
    // Peers believe a host that it gives back what they have heard of where it has given back before.
    for (std::uint32_t i = 0; i < hosts; ++i) {
      replay.Take(Asks(0, fmt::format("{} take 1 t", i)));
      replay.Take(Asks(0, fmt::format("{} refund 1 t", i)));
    }
    replay.Take(Asks(0, "a take 4 t"));
    replay.Take(Asks(1, "b peek 5 t"));
    replay.Take(Asks(30, "b take 2 t"));      // refused: 1 is left
    replay.Take(Asks(31, "b refund 2 t"));    // so nothing comes back
    replay.Take(Asks(32, "a refund 3 t"));
    replay.Take(Asks(60, "c take 4 t"));
    replay.Take(Asks(90, "c take 1 t"));
    replay.Take(Asks(91, "c refund 4 t"));    // of the latest that was refused
    replay.Take(Asks(120, "- take 1 t"));
    replay.Take(Asks(121, "d refund 4 t"));    // has spent nothing
    replay.Finish();
    CHECK((replay.counts().unreadable == 0 && replay.counts().peeked == 1 && replay.counts().asked == hosts + 5));
    CHECK((replay.counts().refused == 3 && replay.counts().ideal_refused == 3));
    CHECK((replay.requests().refunded == hosts + 3 && replay.ideal_requests().refunded == hosts + 3));
  }
}

TEST_CASE("what is refunded soon counts at no host, however hosts share") {
  const auto [share, hosts] = GENERATE(table<const char*, std::uint32_t>(
      {{"debit", 4}, {"debit", 24}, {"forecast", 4}, {"forecast", 24}}));
  CAPTURE(share, hosts);
  Replay replay(Options(fmt::format("[peers]\nperiod = \"2s\"\n[[rule]]\nname = \"logins\"\nburst = 100\nrate = 10\n"
                                    "share = \"{}\"\n", share), hosts));
  // 50 a second for 100 s, of which all but 7.5 come back within 3 s.
  Prng prng(1);
  std::array<std::vector<int>, 104> back;
  int request = 0;
  for (int second = 0; second < 104; ++second) {
    for (int i = 0; second < 100 && i < 50; ++i) {
      replay.Take(Asks(second, fmt::format("{} take 1 t", ++request)));
      if (prng.Below(100) < 85) back[static_cast<std::size_t>(second) + prng.Below(4)].push_back(request);
    }
    for (const int its : back[static_cast<std::size_t>(second)]) {
      replay.Take(Asks(second, fmt::format("{} refund 1 t", its)));
    }
  }
  replay.Finish();
  CHECK((replay.counts().unreadable == 0 && replay.counts().asked == 5000));
  CHECK(replay.counts().ideal_refused <= 10);
  CHECK(replay.counts().refused <= replay.counts().ideal_refused + 50);    // of 5,000
  CHECK(replay.requests().refunded >= 4000);
}

TEST_CASE("refunds of the requests before the latest 400,000 are passed over") {
  Replay replay(Options("[[rule]]\nname = \"logins\"\nburst = 1000000\nrate = 1000\nshare = \"local\"\n", 1));
  for (std::size_t i = 0; i <= Requests::kPaidMax; ++i) replay.Take(Asks(0, fmt::format("r{} take 1 t", i)));
  replay.Take(Asks(1, "r0 refund 1 t"));
  replay.Take(Asks(1, "r1 refund 1 t"));
  replay.Finish();
  CHECK((replay.counts().refused == 0 && replay.requests().refunded == 1));
}

TEST_CASE("places are taken until their requests give them back") {
  Replay replay(Options("[[rule]]\nname = \"calls\"\nburst = 1000\nrate = 1000\nin_flight = 3\n", 2));
  for (int i = 0; i < 5; ++i) replay.Take(Asks(0, fmt::format("r{} enter 1 t", i)));
  replay.Take(Asks(8, "r0 give"));
  replay.Take(Asks(9, "r4 give"));    // has none
  replay.Take(Asks(20, "r5 enter 1 t"));
  replay.Take(Asks(21, "r6 enter 1 t"));
  replay.Finish();
  CHECK(replay.counts().ideal_refused == 3);
  CHECK(replay.ideal_requests().places == 4);
  CHECK((replay.ideal_requests().places_max == 3 && replay.ideal_requests().places_tag == "t"));
  // Two hosts that have not heard of each other let more in.
  CHECK((replay.requests().places_max >= 3 && replay.requests().places_max <= 5));
  CHECK(replay.counts().busy == replay.counts().refused);
}

TEST_CASE("a place is taken, too, of what is charged with the tag") {
  Replay replay(Options("[[rule]]\nname = \"tenants\"\nmatch = \"acme\"\nburst = 1000\nrate = 1000\nin_flight = 3\n"
                        "[[rule]]\nname = \"users\"\nburst = 1000\nrate = 1000\nin_flight = 2\nalso = [\"before /\"]\n",
                        1));
  for (int i = 0; i < 5; ++i) replay.Take(Asks(0, fmt::format("r{} enter 1 acme/u{}", i, i)));
  replay.Take(Asks(8, "r0 give"));
  for (int i = 5; i < 7; ++i) replay.Take(Asks(9, fmt::format("r{} enter 1 acme/u{}", i, i)));
  replay.Finish();
  CHECK((replay.counts().refused == 3 && replay.counts().ideal_refused == 3));
  CHECK(replay.counts().busy == 3);
  CHECK((replay.requests().places_max == 3 && replay.requests().places_tag == "acme"));
}

TEST_CASE("places that a line takes for some time end with it") {
  Replay replay(Options("[[rule]]\nname = \"calls\"\nburst = 1000\nrate = 1000\nin_flight = 3\n", 1));
  // A request every 100 ms: three of 290 ms overlap, and of 350 ms four would.
  for (int i = 0; i < 100; ++i) replay.Take(Asks(i / 10, "- enter lasts=290ms 1 t"));
  for (int i = 0; i < 100; ++i) replay.Take(Asks(20 + i / 10, "r enter lasts=0.350s 1 t"));
  replay.Finish();
  CHECK(replay.counts().unreadable == 0);
  CHECK((replay.counts().refused == 25 && replay.counts().busy == 25));    // every fourth
  CHECK(replay.requests().places == 175);
  CHECK(replay.requests().places_max == 3);
}

TEST_CASE("places that a line takes for some time end in a silence by the time of the log") {
  Replay replay(Options("[[rule]]\nname = \"calls\"\nburst = 1000\nrate = 1000\nin_flight = 3\n", 1));
  std::vector<std::uint64_t> refused;
  replay.OnSecond([&](const ReplaySecond& second) { refused.push_back(second.refused); });
  for (int i = 0; i < 3; ++i) replay.Take(Asks(0, "- enter lasts=1h 1 t"));
  for (const int second : {1800, 3599, 3602, 9000}) replay.Take(Asks(second, "- enter lasts=1s 1 t"));
  replay.Finish();
  CHECK(refused == std::vector<std::uint64_t>{0, 1, 1, 0, 0});
  CHECK(replay.counts().ideal_refused == 2);
}

TEST_CASE("what a request has is at the host where it was taken") {
  for (const char* share : {"local", "debit", "forecast", "capacity"}) {
    CAPTURE(share);
    Replay replay(Options(fmt::format("[[rule]]\nname = \"calls\"\nburst = 1000\nrate = 1000\nin_flight = 40\n"
                                      "share = \"{}\"\n", share), 4));
    // Four in flight at a time, a thousand times: a place that is not given back at its own host is lost.
    for (int i = 0; i < 1000; ++i) {
      replay.Take(Asks(i, fmt::format("r{} enter 1 t", i)));
      if (i >= 4) replay.Take(Asks(i, fmt::format("r{} give", i - 4)));
    }
    replay.Finish();
    CHECK(replay.counts().asked == 1000);
    CHECK(replay.counts().refused <= 150);    // parts of a capacity are somewhere else at times
    CHECK(replay.requests().places_max <= 5);
  }
}

TEST_CASE("an empty log is nothing") {
  Replay replay(Options(kOne, 2));
  bool called = false;
  replay.OnSecond([&](const ReplaySecond&) { called = true; });
  replay.Finish();
  CHECK(replay.counts().asked == 0);
  CHECK_FALSE(called);
}

}    // namespace
}    // namespace dthrottle::lab
