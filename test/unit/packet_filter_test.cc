// What the packet filter is told of penalties (ctl/packet_filter.h).
#include "ctl/packet_filter.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

std::string Penalty(std::string_view tag, double left_s) {
  return fmt::format(R"({{"left_s":{},"lasts_s":600,"from":"here","rule":"r","tag":"{}"}})", left_s, tag);
}

// The changes after the filter has heard of these, which are rows of a list.
std::string After(PacketFilter& filter, const std::string& rows, Instant now = kNow) {
  REQUIRE(filter.Take("[" + rows + "]", now));
  return filter.Changes(now);
}

TEST_CASE("packet filter: addresses behind the prefix become elements that end with their penalties") {
  PacketFilter filter("inet t", {"ip:"});
  CHECK(filter.Everything(kNow) ==
        "add table inet t\n"
        "add set inet t penalized4 { type ipv4_addr; flags interval, timeout; }\nflush set inet t penalized4\n"
        "add set inet t penalized6 { type ipv6_addr; flags interval, timeout; }\nflush set inet t penalized6\n");
  CHECK(After(filter, Penalty("ip:192.0.2.7", 599.2) + "," + Penalty("ip:2001:db8:7::/48", 60) + "," +
                          Penalty("192.0.2.8", 60) + "," + Penalty("ip:x; flush ruleset", 60)) ==
        "add element inet t penalized4 { 192.0.2.7/32 timeout 600s }\n"
        "add element inet t penalized6 { 2001:db8:7::/48 timeout 60s }\n");
}

TEST_CASE("packet filter: only what has changed is told, and a penalty that was forgiven is taken out") {
  PacketFilter filter("inet t", {""});
  After(filter, Penalty("192.0.2.7", 600));
  CHECK(After(filter, Penalty("192.0.2.7", 590), kNow + 10s).empty());
  CHECK(After(filter, Penalty("192.0.2.7", 1200), kNow + 20s) ==
        "delete element inet t penalized4 { 192.0.2.7/32 }\n"
        "add element inet t penalized4 { 192.0.2.7/32 timeout 1200s }\n");
  CHECK(After(filter, "", kNow + 30s) == "delete element inet t penalized4 { 192.0.2.7/32 }\n");
  After(filter, Penalty("192.0.2.7", 5), kNow + 40s);
  CHECK(After(filter, "", kNow + 46s).empty());    // it has ended by itself
}

TEST_CASE("packet filter: a network goes without what lies in it") {
  PacketFilter filter("inet t", {""});
  After(filter, Penalty("192.0.2.7", 600) + "," + Penalty("192.0.3.7", 600));
  CHECK(After(filter, Penalty("192.0.2.7", 600) + "," + Penalty("192.0.2.0/24", 60) + "," + Penalty("192.0.3.7", 600)) ==
        "delete element inet t penalized4 { 192.0.2.7/32 }\n"
        "add element inet t penalized4 { 192.0.2.0/24 timeout 60s }\n");
  CHECK(filter.elements() == 2);
}

// What nft lists of both sets.
std::string Listed(std::string_view v4, std::string_view v6) {
  const auto set = [](std::string_view name, std::string_view elements) {
    return fmt::format(R"({{"nftables":[{{"metainfo":{{}}}},{{"set":{{"name":"{}"{}}}}}]}})", name, elements);
  };
  return set("penalized4", v4) + "\n" + set("penalized6", v6) + "\n";
}

TEST_CASE("packet filter: what somebody else has changed in the sets is changed back") {
  PacketFilter filter("inet t", {""});
  CHECK(filter.Listings()[1] == "list set inet t penalized6\n");
  const std::string rows =
      Penalty("192.0.2.7", 600) + "," + Penalty("192.0.3.0/24", 60) + "," + Penalty("2001:db8::7", 60);
  After(filter, rows);
  const std::string seven = R"({"elem":{"val":"192.0.2.7","timeout":600,"expires":599}})",
                    net = R"({"elem":{"val":{"prefix":{"addr":"192.0.3.0","len":24}},"timeout":60,"expires":59}})";
  const std::string v6 = R"(,"elem":[{"elem":{"val":"2001:db8::7","timeout":60,"expires":60}}])";
  REQUIRE(filter.Found(Listed(R"(,"elem":[)" + seven + "," + net + "]", v6), kNow));
  CHECK(After(filter, rows).empty());
  // One was taken out, another one put in, and a third one ends never.
  REQUIRE(filter.Found(Listed(R"(,"elem":[)" + seven + R"(,"192.0.2.9"])", R"(,"elem":["2001:db8::7"])"), kNow));
  CHECK(After(filter, rows) ==
        "delete element inet t penalized4 { 192.0.2.9/32 }\n"
        "delete element inet t penalized6 { 2001:db8::7/128 }\n"
        "add element inet t penalized4 { 192.0.3.0/24 timeout 60s }\n"
        "add element inet t penalized6 { 2001:db8::7/128 timeout 60s }\n");
  // One is about to end, and so is its penalty.
  REQUIRE(filter.Found(Listed(R"(,"elem":[{"elem":{"val":"192.0.2.7","timeout":600,"expires":0}}])", ""), kNow));
  CHECK(After(filter, Penalty("192.0.2.7", 0.5)).empty());
}

TEST_CASE("packet filter: sets that are not there, or hold what is never ours, are not known") {
  PacketFilter filter("inet t", {""});
  CHECK(filter.Found(Listed("", ""), kNow));
  const std::string one = Listed("", "").substr(0, Listed("", "").find('\n') + 1);
  for (const std::string& listed : {std::string(), one, one + "x\n", one + "{}\n", one + "[]"}) {
    CAPTURE(listed);
    CHECK_FALSE(filter.Found(listed, kNow));
  }
  for (const char* element : {R"({"range":["192.0.2.1","192.0.2.5"]})", "1", R"("x")",
                              R"({"elem":{"val":{"range":["192.0.2.1","192.0.2.5"]},"expires":1}})",
                              R"({"elem":{"val":"192.0.2.7","expires":"x"}})"}) {
    CAPTURE(element);
    CHECK_FALSE(filter.Found(Listed(fmt::format(R"(,"elem":[{}])", element), ""), kNow));
  }
}

TEST_CASE("packet filter: an answer that is no list changes nothing, and rows that are none are passed over") {
  PacketFilter filter("inet t", {""});
  After(filter, Penalty("192.0.2.7", 600));
  for (const char* answer : {"", "{}", "{\"error\":\"x\"}", "[1"}) CHECK_FALSE(filter.Take(answer, kNow));
  CHECK(filter.elements() == 1);
  CHECK(After(filter, "1,{},{\"tag\":1,\"left_s\":2},{\"tag\":\"192.0.2.8\",\"left_s\":\"x\"}," +
                          Penalty("192.0.2.7", 600) + "," + Penalty("192.0.2.9", 1e300))
            .starts_with("add element inet t penalized4 { 192.0.2.9/32 timeout 604800s }"));
}

}    // namespace
}    // namespace dthrottle
