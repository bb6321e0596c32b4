#include <catch2/catch.hpp>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "rule/glob.h"
#include "rule/rulebook.h"

namespace dthrottle {
namespace {

bool Matches(std::string_view pattern, std::string_view tag) {
  return Glob::Compile(pattern).value().Matches(tag);
}

TEST_CASE("a pattern covers the whole tag") {
  CHECK(Matches("login", "login"));
  CHECK_FALSE(Matches("login", "login:1"));
  CHECK_FALSE(Matches("login", "a login"));
  CHECK(Matches("", ""));
  CHECK_FALSE(Matches("", "x"));
}

TEST_CASE("a star stands for any bytes, none included") {
  CHECK(Matches("*", ""));
  CHECK(Matches("*", std::string_view("\0\xff\n", 3)));
  CHECK(Matches("login:*", "login:"));
  CHECK(Matches("*:login", "x:y:login"));
  CHECK(Matches("a*b*c", "abc"));
  CHECK(Matches("a*b*c", "a-bc-b-c"));
  CHECK_FALSE(Matches("a*b*c", "acb"));
  CHECK_FALSE(Matches("ab*ba", "aba"));
  CHECK(Matches("**a**", "xax"));
}

TEST_CASE("a question mark stands for one byte, a set for one of its bytes") {
  CHECK(Matches("v?", "v1"));
  CHECK_FALSE(Matches("v?", "v"));
  CHECK(Matches("[a-cx]", "b"));
  CHECK(Matches("[a-cx]", "x"));
  CHECK_FALSE(Matches("[a-cx]", "d"));
  CHECK(Matches("[!a-c]", "d"));
  CHECK_FALSE(Matches("[!a-c]", "a"));
  CHECK(Matches("[]]", "]"));
  CHECK(Matches("[a-]", "-"));
  CHECK(Matches("[\x80-\xff]", "\xc3"));
}

TEST_CASE("a backslash takes the next byte as it is") {
  CHECK(Matches("a\\*", "a*"));
  CHECK_FALSE(Matches("a\\*", "ab"));
  CHECK(Matches("\\[x\\]", "[x]"));
  CHECK(Matches("\\\\", "\\"));
}

TEST_CASE("a pattern that is not one is refused") {
  for (const char* bad : {"[", "[a", "[!", "a\\", "[z-a]", "[]"}) {
    CAPTURE(bad);
    CHECK_FALSE(Glob::Compile(bad).has_value());
  }
}

TEST_CASE("patterns of many stars take no more than their product") {
  std::string pattern, tag(255, 'a');
  for (int i = 0; i < 100; ++i) pattern += "a*";
  CHECK_FALSE(Matches(pattern + "b", tag));    // exponential in a naive matcher: it would not come back
  CHECK(Matches(pattern, tag));
}

TEST_CASE("of a tag known by its ends, a pattern sees both") {
  const std::string head(255, 'h'), tail(255, 't');
  const auto ends = [&](std::string_view pattern) { return Glob::Compile(pattern).value().MatchesEnds(head, tail); };
  CHECK(ends("hh*"));
  CHECK(ends("*tt"));
  CHECK(ends("h*t"));
  CHECK(ends("*"));
  CHECK(ends("h*anything*t"));
  CHECK_FALSE(ends("t*"));
  CHECK_FALSE(ends("*h"));
  CHECK_FALSE(ends(std::string(255, 'h')));
}

Rule MakeRule(std::string name, std::optional<std::string> match, double burst = 10) {
  Rule rule;
  rule.name = std::move(name);
  rule.match = std::move(match);
  rule.burst = burst;
  return rule;
}

TEST_CASE("the first rule that matches applies, and the default only if none does, wherever it stands") {
  const Rulebook book({MakeRule("default", {}), MakeRule("api", "api:*"), MakeRule("all-api", "api*")}, {});
  CHECK(book.Find("api:1") == 1u);
  CHECK(book.Find("api-2") == 2u);
  CHECK(book.Find("web") == 0u);
  CHECK(book.limit(*book.Find("web")).rule == 0);
}

TEST_CASE("of 150 patterns the one applies that the first look at each of them finds") {
  Prng prng(1);
  const auto random_text = [&](std::string_view letters) {
    std::string text;
    for (std::uint64_t n = prng.Below(5); n > 0; --n) text += letters[prng.Below(letters.size())];
    return text;
  };
  std::vector<Rule> rules(150);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    rules[i].name = "r" + std::to_string(i);
    rules[i].match = i == 100 ? "" : random_text("abcdefgh*?") + random_text("abcdefgh*");
  }
  const Rulebook book(rules, {});
  std::set<std::optional<LimitIndex>> found;
  for (int i = 0; i < 5000; ++i) {
    const std::string tag = random_text("abcdefgh\xff") + random_text("abcdefgh");
    std::optional<LimitIndex> first;
    for (LimitIndex rule = 0; rule < rules.size() && !first; ++rule) {
      if (Matches(*rules[rule].match, tag)) first = rule;
    }
    CAPTURE(tag);
    REQUIRE(book.Find(tag) == first);
    found.insert(first);
  }
  CHECK(found.size() > 10);
  CHECK(*found.rbegin() > LimitIndex{64});
}

TEST_CASE("without a default rule a tag may have no limit") {
  const Rulebook book({MakeRule("api", "api:*")}, {});
  CHECK_FALSE(book.Find("web").has_value());
  CHECK_FALSE(Rulebook().Find("web").has_value());
}

TEST_CASE("an override is found before any rule and keeps the rule's mode unless it has its own") {
  Rule shadow = MakeRule("api", "api:*");
  shadow.mode = Mode::kShadow;
  const Rulebook book({shadow}, {{"api:vip", 100, 20, {}, {}}, {"api:free", 1, 1, Mode::kOff, {}}, {"elsewhere", 5, 5, {}, {}}});
  const auto vip = book.Find("api:vip");
  REQUIRE(vip.has_value());
  CHECK(book.is_override(*vip));
  CHECK(book.limit(*vip).shape == Shape::From(100, 20));
  CHECK(book.limit(*vip).rule == 0);
  CHECK(book.limit(*vip).mode == Mode::kShadow);
  CHECK(book.limit(*book.Find("api:free")).mode == Mode::kOff);
  CHECK(book.limit(*book.Find("elsewhere")).rule == book.rules().size());
  CHECK(book.limit(*book.Find("elsewhere")).mode == Mode::kEnforce);
  CHECK(book.Find("api:vip2") == 0u);
}

TEST_CASE("the fingerprint changes with whatever changes a bucket's meaning") {
  const auto fingerprint = [](std::vector<Rule> rules, std::vector<Override> overrides = {}) {
    return Rulebook(std::move(rules), std::move(overrides)).fingerprint();
  };
  const std::uint64_t base = fingerprint({MakeRule("a", "a*"), MakeRule("b", {})});
  CHECK(fingerprint({MakeRule("a", "a*"), MakeRule("b", {})}) == base);
  CHECK(fingerprint({MakeRule("b", {}), MakeRule("a", "a*")}) != base);
  CHECK(fingerprint({MakeRule("a", "a"), MakeRule("b", {})}) != base);
  CHECK(fingerprint({MakeRule("a", "a*", 11), MakeRule("b", {})}) != base);
  CHECK(fingerprint({MakeRule("a", "a*"), MakeRule("b", "")}) != base);
  CHECK(fingerprint({MakeRule("a", "a*"), MakeRule("b", {})}, {{"x", 1, 1, {}, {}}}) != base);
}

}    // namespace
}    // namespace dthrottle
