// Limits that tags name themselves, in place of those of their rules.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>

#include "config/load.h"
#include "bucket/table.h"
#include "rule/own_limit.h"
#include "rule/rulebook.h"
#include "share/ways.h"
#include "test/support/ask.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant At(double seconds) {
  return FromNanoseconds(static_cast<Duration::rep>(seconds * 1e9));
}

constexpr std::string_view kRules = R"(
[[rule]]
name = "web"
match = "edge|*"
burst = 2
rate = 0.001
max_own_limit = 1000
[[rule]]
name = "others"
burst = 3
rate = 1
[[override]]
tag = "edge|plan=vip"
burst = 7
rate = 1
)";

std::string NameOf(const Rulebook& rules, std::string_view tag) {
  const auto index = rules.Find(tag);
  REQUIRE(index.has_value());
  const Limit& limit = rules.limit(*index);
  return fmt::format("{} {:.4g} {:.4g}{}{}", rules.rules()[limit.rule].name, limit.shape.burst(), rules.rate(*index),
                     rules.is_own(*index) ? " own" : "", rules.is_override(*index) ? " override" : "");
}

// As ASK lines of dthrottle-grpc are.
std::string Ask(testing::AskHost& host, std::string_view tag) {
  return host.Send(fmt::format("take 1 {}\n", tag));
}

TEST_CASE("own limit: a tag ends with its limit, a number and a unit") {
  const auto read = [](std::string_view tag) {
    const auto limit = ReadOwnLimit(tag);
    return limit ? fmt::format("{} {} {}", limit->tag, limit->requests, limit->seconds) : std::string("none");
  };
  CHECK(read("a|b=c|100/m") == "a|b=c 100 60");
  CHECK(read("a|7/mo") == "a 7 2592000");
  CHECK(read("a|7/y") == "a 7 31536000");
  CHECK(read("|7/w") == " 7 604800");
  CHECK(read("a|0/s") == "a 0 1");
  CHECK(read("a|4294967295/?") == "a 4294967295 0");
  for (const char* tag : {"a", "a|b=c", "a|", "a|/s", "a|1", "a|1/", "a|1/x", "a|1/s ", "a|-1/s", "a|1.5/s", "a|4294967296/s",
                          "a|100/m|b=c", "a|x=1/s"}) {
    CAPTURE(tag);
    CHECK(read(tag) == "none");
  }
  for (const OwnLimit::Unit& unit : OwnLimit::kUnits) {
    std::string tag = "t";
    AppendOwnLimit(tag, 4'294'967'295, unit.seconds);
    CHECK(tag.size() <= 1 + OwnLimit::kBytesMax);
    CHECK(read(tag) == fmt::format("t 4294967295 {}", unit.seconds));
  }
}

TEST_CASE("own limit: it takes the place of burst and rate where the rule of the tag without it allows so much") {
  const auto rules = testing::Rules(kRules);
  CHECK(NameOf(*rules, "edge|plan=a") == "web 2 0.001");
  CHECK(NameOf(*rules, "edge|plan=a|60/m") == "web 60 1 own");
  CHECK(NameOf(*rules, "edge|plan=a|1000/d") == "web 1000 0.01157 own");
  CHECK(NameOf(*rules, "edge|plan=a|1001/d") == "web 2 0.001");
  CHECK(NameOf(*rules, "edge|plan=a|0/s") == "web 2 0.001");
  CHECK(NameOf(*rules, "edge|plan=a|5/?") == "web 2 0.001");
  CHECK(NameOf(*rules, "elsewhere|plan=a|5/s") == "others 3 1");
  CHECK(NameOf(*rules, "edge|plan=vip|5/s") == "web 2 0.001");    // by the whole tag: its own override goes before
  CHECK_FALSE(rules->FindOwn("edge|plan=vip|5/s").has_value());
  CHECK(rules->FindOwn("edge|plan=a|60/m") == rules->FindOwn("edge|plan=b|60/m"));
  CHECK(NameOf(*testing::Rules("[[rule]]\nname = \"web\"\nburst = 2\nrate = 1\n"), "edge|a=b|60/m") == "web 2 1");
}

TEST_CASE("own limit: the longest unit and the largest number are within the bounds of a bucket") {
  Host host(fmt::format("[[rule]]\nname = \"r\"\nburst = 1\nrate = 1\nmax_own_limit = {}\n", OwnLimit::kRequestsMax));
  for (const OwnLimit::Unit& unit : OwnLimit::kUnits) {
    for (const std::uint32_t requests : {1U, 2U, OwnLimit::kRequestsMax}) {
      if (unit.seconds == 0) continue;
      std::string tag = "t";
      AppendOwnLimit(tag, requests, unit.seconds);
      CAPTURE(tag);
      CHECK(host.Serves(tag, At(1), requests));
      CHECK_FALSE(host.Serves(tag, At(1)));
      CHECK_FALSE(host.Serves(tag, At(1) + (unit.seconds * 900ms), requests));
      CHECK(host.Serves(tag, At(1) + std::chrono::seconds(unit.seconds), requests));
    }
  }
}

TEST_CASE("own limit: only so many differ at once, and the rule decides beyond them") {
  const auto rules = testing::Rules("[[rule]]\nname = \"r\"\nburst = 2\nrate = 1\nmax_own_limit = 100000\n");
  std::size_t own = 0;
  for (std::size_t i = 1; i <= OwnLimits::kRoom; ++i) own += rules->FindOwn(fmt::format("t|{}/s", i)).has_value();
  CHECK(own == OwnLimits::kMost);
  CHECK(NameOf(*rules, "another|1/s") == "r 1 1 own");
  CHECK(NameOf(*rules, fmt::format("t|{}/s", OwnLimits::kRoom)) == "r 2 1");
}

// Frees the places of limits that no bucket needs at `now`.
void Renew(Host& host, Instant now) {
  host.limiter->RenewOwnLimits();
  while (host.limiter->Tick(now)) {
  }
}

TEST_CASE("own limit: places of limits that no bucket needs are free again, and buckets keep theirs") {
  Host host("[[rule]]\nname = \"r\"\nburst = 1000\nrate = 100\nmax_own_limit = 100000\n");
  const OwnLimits& own = *host.limiter->rules().own();
  CHECK(host.Serves("kept|10/h", At(0), 10));
  for (int turn = 0; turn < 4; ++turn) {
    const auto tag = [&](std::size_t i) { return fmt::format("e{}|{}/s", turn, i + 1); };
    for (std::size_t i = 0; i < OwnLimits::kMost; ++i) host.Serves(tag(i), At(turn * 10));
    CHECK(own.wants_room());
    CHECK(own.used() == OwnLimits::kMost);
    CHECK(own.crowded() > 0);
    CHECK(host.Serves("late|7/m", At(turn * 10), 300));    // the rule decides
    Renew(host, At(turn * 10 + 4));
    CHECK(own.used() == (turn == 0 ? 1 : 2));    // and 9/m of the turns before
    CHECK_FALSE(own.wants_room());
    CHECK(host.Level("late|7/m", At(turn * 10 + 4)) == Approx(7));    // its bucket was full
    CHECK_FALSE(host.Serves(fmt::format("y{}|9/m", turn), At(turn * 10 + 4), 10));
    CHECK(host.Serves(fmt::format("y{}|9/m", turn), At(turn * 10 + 4), 9));
    CHECK_FALSE(host.Serves("kept|10/h", At(turn * 10 + 4)));
    Renew(host, At(turn * 10 + 9.5));
    CHECK(own.used() == 2);
    CHECK_FALSE(host.Serves("kept|10/h", At(turn * 10 + 9.5)));
  }
  CHECK(host.Level("kept|10/h", At(40)) == Approx(40.0 / 360).margin(1e-3));
}

TEST_CASE("own limit: while places are freed, limits that come have room beside those that are in use") {
  Host host("[[rule]]\nname = \"r\"\nburst = 1000\nrate = 100\nmax_own_limit = 100000\n");
  for (std::size_t i = 0; i < OwnLimits::kMost; ++i) host.Serves(fmt::format("e|{}/y", i + 1), At(0));
  host.limiter->RenewOwnLimits();
  CHECK_FALSE(host.limiter->rules().FindOwn("new|99999/s").has_value());
  for (std::size_t i = 0; i < OwnLimits::kMost; i += 2) CHECK(host.limiter->rules().FindOwn(fmt::format("e|{}/y", i + 1)));
  while (host.limiter->Tick(At(1))) {
  }
  CHECK(host.limiter->rules().own()->used() == OwnLimits::kMost);
  for (std::size_t i = 0; i < OwnLimits::kMost; i += 100) {
    CHECK(host.Level(fmt::format("e|{}/y", i + 1), At(1)) == Approx(double(i)).margin(0.01));
  }
}

TEST_CASE("own limit: limits that peers name take part of the places, and one peer part of that") {
  const auto rules = testing::Rules("[[rule]]\nname = \"r\"\nburst = 2\nrate = 1\nmax_own_limit = 100000\n");
  const auto named = [&](Source source, std::size_t first) {
    std::size_t found = 0;
    for (std::size_t i = first; i < first + 5000; ++i) found += rules->Find(fmt::format("t|{}/s", i), source).has_value();
    return found;
  };
  CHECK(named(Source::Peer(1), 1) == OwnLimits::kPeersMost / 2);
  CHECK(rules->FindOwn("t|1/s").has_value());    // and is this host's from now on
  CHECK(named(Source::Peer(1), 20'000) == 1);
  CHECK(named(Source::Peer(2), 10'000) == OwnLimits::kPeersMost / 4);
  CHECK(NameOf(*rules, "y|9/m") == "r 9 0.15 own");
  CHECK(named(Source::kQuery, 30'000) == 5000);
  CHECK(rules->own()->used() == OwnLimits::kMost);
}

TEST_CASE("own limit: a limiter's successor finds the buckets, though it numbers limits anew") {
  Host host(kRules);
  CHECK(host.Serves("edge|a=b|10/h", At(0), 4));
  CHECK(host.Serves("edge|a=c|20/h", At(0), 20));
  host.Start(testing::Rules(kRules), At(1));
  CHECK(host.limiter->rules().FindOwn("edge|z=z|999/h").has_value());    // before the others are touched
  CHECK(host.Level("edge|a=b|10/h", At(1)) == Approx(6).margin(0.01));
  CHECK_FALSE(host.Serves("edge|a=c|20/h", At(1)));
  CHECK(host.limiter->table().counts().dropped == 0);
  CHECK(host.limiter->Notes().empty());    // what an upgrade hands over would have it not look
}

TEST_CASE("own limit: rules that allow it no longer decide by their own numbers, and back") {
  Host host(kRules);
  CHECK(host.Serves("edge|a=b|10/h", At(0), 10));
  const auto adopt = [&](std::string_view toml) {
    host.limiter->Adopt(testing::Rules(toml));
    while (host.limiter->Tick(At(0))) {
    }
    host.limiter->TakeRetired();
  };
  adopt(kRules);    // the same ones, which number limits anew
  CHECK(host.limiter->rules().FindOwn("edge|z=z|999/h").has_value());
  CHECK(host.Level("edge|a=b|10/h", At(0)) == Approx(0).margin(1e-6));
  CHECK_FALSE(host.Serves("edge|a=b|10/h", At(0)));
  std::string less(kRules);
  less.replace(less.find("1000"), 4, "9");
  adopt(less);
  CHECK(host.Level("edge|a=b|10/h", At(0)) == Approx(0).margin(1e-6));    // ten of two make no debt
  adopt(kRules);
  CHECK(host.Level("edge|a=b|10/h", At(0)) == Approx(8).margin(1e-6));
}

TEST_CASE("own limit: what a tag is charged with is found without its limit") {
  Host host(R"(
[[rule]]
name = "networks"
match = "ip:*.0/24"
burst = 3
rate = 0.001
[[rule]]
name = "addresses"
match = "ip:*"
also = ["ipv4/24"]
burst = 1
rate = 0.001
max_own_limit = 100
)");
  CHECK(host.Serves("ip:10.0.0.1|100/m", At(0), 2));
  CHECK(host.Serves("ip:10.0.0.2|100/m", At(0)));
  CHECK_FALSE(host.Serves("ip:10.0.0.3|100/m", At(0)));
  CHECK(host.Level("ip:10.0.0.0/24", At(0)) == Approx(0).margin(1e-6));
}

TEST_CASE("own limit: a question of Envoy's that names one that is not allowed is asked without it, and counted") {
  testing::AskHost host(kRules, 30);
  CHECK(Ask(host, "edge|a=b|0/s") == "OK 1\n");    // of applications: a tag like any other
  host.turn.TakeOnlyAllowedLimits();
  CHECK(Ask(host, "edge|a=b|1001/s") == "OK 1\n");
  CHECK(Ask(host, "edge|a=b|5/?") == "OK 0\n");
  CHECK(Ask(host, "edge|a=b").starts_with("NO limit"));
  CHECK(Ask(host, "edge|a=b|0/s").ends_with(" web edge|a=b|0/s\n"));
  CHECK(Ask(host, "edge|a=b|1000/s") == "OK 999\n");
  CHECK(host.turn.limits_refused() == 3);
  const std::string longest = "edge|a=" + std::string(19, 'x');
  CHECK(Ask(host, longest + "|9/s") == "OK 8\n");
  CHECK(Ask(host, longest + "x|9/s") == "OK 1\n");    // its digest would not tell
  CHECK(host.turn.limits_refused() == 4);
}

}    // namespace
}    // namespace dthrottle
