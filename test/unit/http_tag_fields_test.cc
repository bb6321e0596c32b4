// Tags that are made of a request's fields.
#include <catch2/catch.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "frontend/http/tag_fields.h"

using namespace dthrottle;

namespace {

constexpr std::string_view kLines =
    "Host: localhost\r\n"
    "X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\n"
    "x-tenant:  acme \r\n"
    "X-Forwarded-For: 10.0.0.1\r\n"
    "X-Empty:\r\n";

std::string Filled(std::string_view tag, unsigned trusted_hops = 1) {
  const std::vector<std::string> names = {"x-forwarded-for", "X-Tenant", "x-empty", "x-absent"};
  return FillTag(tag, kLines, {names, trusted_hops});
}

}    // namespace

TEST_CASE("braces of a tag stand for what a field says") {
  CHECK(Filled("{x-tenant}") == "acme");
  CHECK(Filled("t:{X-TENANT}:{x-tenant}/") == "t:acme:acme/");
  CHECK(Filled("a{x-empty}b{x-absent}c") == "abc");
}

TEST_CASE("X-Forwarded-For is the address that the outermost trusted proxy added") {
  CHECK(Filled("ip:{x-forwarded-for}") == "ip:10.0.0.1");
  CHECK(Filled("ip:{x-forwarded-for}", 2) == "ip:192.0.2.7");
  CHECK(Filled("ip:{x-forwarded-for}", 3) == "ip:6.6.6.6");
  CHECK(Filled("ip:{x-forwarded-for}", 9) == "ip:6.6.6.6");
}

TEST_CASE("braces that name no field of the settings stay, and so does what a field says") {
  CHECK(Filled("{host}") == "{host}");
  CHECK(Filled("{}{{x-tenant}}{x-tenant") == "{}{acme}{x-tenant");
  CHECK(FillTag("{x-tenant}", "x-tenant: {x-tenant}\r\n", {std::vector<std::string>{"x-tenant"}}) == "{x-tenant}");
  CHECK(FillTag("{x-tenant}", kLines, {}) == "{x-tenant}");
  CHECK(FillTag("", kLines, {}).empty());
}
