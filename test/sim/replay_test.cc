#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <numeric>

#include "config/load.h"
#include "lab/replay.h"

namespace dthrottle::lab {
namespace {

constexpr std::int64_t kBegin = 1700000000;    // 2023-11-14 22:13:20 UTC

ReplayOptions Options(std::string_view settings, std::uint32_t hosts, std::string_view tag = "%h") {
  ReplayOptions options;
  options.hosts = hosts;
  options.tag = TagTemplate::Parse(tag).value();
  LoadedSettings loaded = ParseSettings(settings, "test");
  REQUIRE(loaded.ok());
  options.settings = std::move(loaded.settings);
  return options;
}

std::string Line(std::int64_t after_s, std::string_view host, std::string_view path = "/") {
  const std::string t = FormatTime(kBegin + after_s);
  static constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const auto month = static_cast<std::size_t>(std::stoi(t.substr(5, 2)) - 1);
  return fmt::format(R"({} - - [{}/{}/{}:{} +0000] "GET {} HTTP/1.1" 200 5)", host, t.substr(8, 2),
                     kMonths.substr(3 * month, 3), t.substr(0, 4), t.substr(11, 8), path);
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
  const auto most = replay.MostRefused(2);
  REQUIRE(most.size() == 2);
  CHECK((most[0].tag == "3" && most[0].refused == 9 && most[0].override_ && most[0].rule == 2));
  CHECK((most[1].tag == "10" && most[1].first_s == kBegin + 2 && most[1].last_s == kBegin + 9 && !most[1].override_));
  CHECK(replay.refused_tags() == 3);
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
  replay.Take("nonsense");
  replay.Take(Line(0, "a"));
  replay.Take(std::string_view("\0\xff\x1b[2J", 6));
  replay.Take(Line(5, "a"));
  replay.Take(Line(3, "a"));
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
  CHECK(replay.unreadable()[1].line == 3);
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
