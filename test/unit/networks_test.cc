// Addresses, networks and what rules make of them: which rule a tag finds, and which tags are charged with it.
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/prng.h"
#include "limiter/inspect.h"
#include "query/question.h"
#include "rule/network_map.h"
#include "tally/tally.h"
#include "test/support/ask.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::AskHost;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

std::string Written(std::string_view text) {
  std::array<char, kNetworkTextMax> buffer;
  const auto network = ParseNetwork(text);
  return network.has_value() ? std::string(WriteNetwork(*network, buffer)) : "none";
}

TEST_CASE("networks: text is read as usual, and written in one way only") {
  CHECK(Written("192.0.2.77/24") == "192.0.2.0/24");
  CHECK(Written("192.0.2.77") == "192.0.2.77/32");
  CHECK(Written("0.0.0.0/0") == "0.0.0.0/0");
  CHECK(Written("2001:DB8:0:0:1::9/64") == "2001:db8::/64");
  CHECK(Written("2001:db8:0:1:1:1:1:1") == "2001:db8:0:1:1:1:1:1/128");
  CHECK(Written("::/0") == "::/0");
  CHECK(Written("::ffff:192.0.2.77") == "192.0.2.77/32");
  CHECK(Written("::ffff:192.0.2.77/120") == "192.0.2.0/24");
  for (const char* wrong : {"", "192.0.2", "192.0.2.0/33", "2001:db8::/129", "192.0.2.0/", "/24", "192.0.2.0/-1",
                            "fe80::1%eth0", "192.0.2.1 ", "::ffff:192.0.2.0/95", "2001:db8::1::2"}) {
    CAPTURE(wrong);
    CHECK(Written(wrong) == "none");
  }
}

TEST_CASE("networks: an IPv6 address is written as the system writes it") {
  Prng prng(11);
  for (int i = 0; i < 20'000; ++i) {
    std::array<unsigned char, 16> bytes{};
    for (std::size_t group = 0; group < 8; ++group) {
      if (prng.Below(2) == 0) continue;    // zeros are what the form is about
      bytes[2 * group] = static_cast<unsigned char>(prng.Below(3) == 0 ? prng.Below(256) : 0);
      bytes[2 * group + 1] = static_cast<unsigned char>(prng.Below(256));
    }
    bytes[0] = 0x20;    // no IPv4 in it
    char expected[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, bytes.data(), expected, sizeof expected);
    REQUIRE(Written(expected) == std::string(expected) + "/128");
  }
}

// Looks at every network.
std::uint16_t Slowly(const std::vector<MappedNetwork>& networks, const IpAddress& address) {
  const MappedNetwork* longest = nullptr;
  for (const MappedNetwork& its : networks) {
    const auto& [network, bits] = its.network;
    if (network.is_v6 != address.is_v6 || address.Prefix(bits) != network) continue;
    if (longest == nullptr || bits > longest->network.bits) longest = &its;
  }
  return longest != nullptr ? longest->value : NetworkMap::kNone;
}

TEST_CASE("networks: the map finds what looking at every network finds") {
  const std::uint64_t seed = GENERATE(1, 2, 3, 4, 5, 6);
  CAPTURE(seed);
  Prng prng(seed);
  // Few values for each byte, so that networks contain each other and begin and end where others do.
  const auto random = [&] {
    IpAddress address{prng.Below(2) == 0, 0, 0};
    for (unsigned i = 0; i < (address.is_v6 ? 16u : 4u); ++i) {
      const std::uint64_t byte = std::array<std::uint64_t, 4>{0, 1, 0x80, 0xff}[prng.Below(4)];
      (i < 8 ? address.high : address.low) |= byte << (56 - i % 8 * 8);
    }
    return address;
  };
  std::vector<MappedNetwork> networks;
  const std::size_t count = seed == 6 ? 0 : 1 + prng.Below(2000);
  for (std::size_t i = 0; i < count; ++i) {
    const IpAddress address = random();
    const auto bits = static_cast<unsigned>(prng.Below(address.size() + 1));
    networks.push_back({{address.Prefix(bits), bits}, static_cast<std::uint16_t>(prng.Below(5))});
  }
  const NetworkMap map(networks);
  for (int i = 0; i < 5000; ++i) {
    const IpAddress address = random();
    REQUIRE(map.Find(address) == Slowly(networks, address));
  }
}

TEST_CASE("networks: the map finds the first address, the last, and nothing before and between") {
  for (const bool is_v6 : {false, true}) {
    const unsigned bits = is_v6 ? 64 : 32;
    const auto at = [&](std::uint64_t number) { return IpAddress{is_v6, number << (64 - bits), 0}; };
    const std::uint64_t last = ~std::uint64_t{0} >> (64 - bits);
    const NetworkMap map({{{at(5), bits}, 1}, {{at(last), bits}, 2}});
    CHECK(map.Find(at(5)) == 1);
    CHECK(map.Find(at(last)) == 2);
    for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{6}, last - 1}) {
      CHECK(map.Find(at(number)) == NetworkMap::kNone);
    }
  }
}

TEST_CASE("networks: of rules with one match, that with the longest network applies, where the first of them stands") {
  const auto rules = testing::Rules(
      "[[rule]]\nburst=1\nrate=1\nname=\"named\"\nmatch=\"ip:192.0.2.9\"\n"
      "[[rule]]\nburst=1\nrate=1\nname=\"site\"\nmatch=\"ip:*\"\nmatch_cidrs=[\"192.0.2.0/24\", \"2001:db8::/32\"]\n"
      "[[rule]]\nburst=1\nrate=1\nname=\"other\"\nmatch=\"ip:198.51.100.*\"\n"
      "[[rule]]\nburst=1\nrate=1\nname=\"desk\"\nmatch=\"ip:*\"\nmatch_cidrs=[\"192.0.2.128/25\", \"198.51.100.0/24\"]\n"
      "[[rule]]\nburst=1\nrate=1\nname=\"rest\"\nmatch=\"ip:*\"\n"
      "[[rule]]\nburst=1\nrate=1\nname=\"bare\"\nmatch_cidrs=[\"192.0.2.0/24\"]\n");
  const auto rule = [&](std::string_view tag) -> std::string {
    const auto found = rules->Find(tag);
    return found.has_value() ? rules->rules()[*found].name : "none";
  };
  CHECK(rule("ip:192.0.2.1") == "site");
  CHECK(rule("ip:192.0.2.200") == "desk");
  CHECK(rule("ip:198.51.100.7") == "desk");
  CHECK(rule("ip:192.0.2.9") == "named");
  CHECK(rule("ip:2001:db8:1::") == "site");
  CHECK(rule("ip:::ffff:192.0.2.1") == "site");
  CHECK(rule("ip:203.0.113.1") == "rest");
  CHECK(rule("ip:192.0.2.0/25") == "rest");    // a network is no address
  CHECK(rule("192.0.2.1") == "bare");
  CHECK(rule("203.0.113.1") == "none");
}

std::vector<std::string> Derived(std::string_view also, std::string_view match, std::string tag) {
  Host host("[[rule]]\nmatch=\"" + std::string(match) + "\"\nalso=" + std::string(also) + "\nburst=1\nrate=1\n");
  const NamedTag named(std::move(tag), 64, host.limiter->keys().digest);
  return ChargedWith(*host.limiter, named.query(), kNow);
}

using Tags = std::vector<std::string>;

TEST_CASE("also: networks of an address, behind the literal beginning of the match") {
  const char* const kAll = "[\"ipv4/24\", \"ipv6/64\", \"ipv6/48\"]";
  CHECK(Derived(kAll, "ip:*", "ip:192.0.2.77") == Tags{"ip:192.0.2.0/24"});
  CHECK(Derived(kAll, "ip:*", "ip:2001:db8:7:1::9") == Tags{"ip:2001:db8:7:1::/64", "ip:2001:db8:7::/48"});
  CHECK(Derived(kAll, "*", "2001:DB8:7:1:0::9") == Tags{"2001:db8:7:1::/64", "2001:db8:7::/48"});
  CHECK(Derived(kAll, "ip:*", "ip:::ffff:192.0.2.77") == Tags{"ip:192.0.2.0/24"});
  CHECK(Derived(kAll, "ip:*", "ip:bob").empty());
  CHECK(Derived(kAll, "ip:*", "ip:").empty());
}

TEST_CASE("also: what stands before the first separator, however long the tag is") {
  CHECK(Derived("[\"before /\"]", "*/*", "acme/bob") == Tags{"acme"});
  CHECK(Derived("[\"before /\"]", "*/*", "acme/bob/x") == Tags{"acme"});
  CHECK(Derived("[\"before :\"]", "user:*", "user:acme:bob") == Tags{"user:acme"});
  CHECK(Derived("[\"before /\"]", "*", "/bob") == Tags{""});
  CHECK(Derived("[\"before /\"]", "[k]/*", "k/bob") == Tags{"k"});    // a set of one byte is a set
  CHECK(Derived("[\"before /\"]", "\\\\*/[/]*", "*//bob") == Tags{"*/"});
  CHECK(Derived("[\"before /\"]", "*", "acme").empty());
  CHECK(Derived("[\"before /\"]", "*", "acme/" + std::string(1000, 'x')) == Tags{"acme"});
}

TEST_CASE("also: a beginning that is longer than what is kept of a tag is charged by as much as is kept") {
  const std::string kept = "t:" + std::string(kTagBytesMax - 2, 'x');
  CHECK(Derived("[\"before /\"]", "t:*", kept + "xxx/bob") == Tags{kept});
  CHECK(Derived("[\"before /\"]", "t:*", kept + "/bob") == Tags{kept});
  CHECK(Derived("[\"before /\"]", "t:*", kept).empty());
  CHECK(Derived("[\"ipv4/24\"]", "t:*", kept + "/bob").empty());
}

TEST_CASE("also: a tag that is derived in two ways is charged once") {
  CHECK(Derived("[\"before /\", \"before //\", \"before :\"]", "u:*", "u:t//x:y") == Tags{"u:t", "u:t//x"});
  AskHost host("[[rule]]\nmatch=\"u:*/*\"\nburst=70\nrate=0.001\nin_flight=2\nalso=[\"before /\", \"before //\"]\n"
               "[[rule]]\nburst=100\nrate=0.001\nin_flight=9\n");
  CHECK(host.Send("take 60 u:t//x\npeek 0 u:t\nenter 1 u:t//x\n") == "OK 2\nOK 9\nOK 1\n");
  CHECK(host.Send("enter 1 u:t//x\ngive u:t//x\ngive u:t//x\npeek 0 u:t\n") == "OK 0\nOK 1\nOK 1\nOK 9\n");
  CHECK(host.host.Level("u:t", FromNanoseconds(1'000'000'000)) == Approx(38));
}

TEST_CASE("also: a derived tag that is longer than query.max_tag_bytes is the one that is asked for by name") {
  AskHost host("[[rule]]\nmatch=\"u:*/*\"\nburst=70\nrate=0.001\nalso=[\"before /\"]\n"
               "[[rule]]\nburst=100\nrate=0.001\nin_flight=50\n",
               20);
  const std::string tenant = "u:" + std::string(30, 't'), user = tenant + "/x";
  const auto level = [&] {
    const NamedTag named(tenant, 20, host.host.limiter->keys().digest);
    const Inspection seen = Inspect(*host.host.limiter, named.query(), FromNanoseconds(1'000'000'000));
    return seen.bucket.Level(seen.shape, FromNanoseconds(1'000'000'000));
  };
  CHECK(host.Send("take 50 " + user + "\n") == "OK 20\n");
  CHECK(level() == Approx(50));
  CHECK(host.Send("take 60 " + tenant + "\ntake 45 " + tenant + "\n").ends_with("\nOK 5\n"));
  CHECK(host.Send("take 10 " + user + "\n").starts_with("NO limit "));
  CHECK(host.Send("refund 45 " + user + "\nhold 60000 40 " + user + "\nrelease 80000\n") ==
        "OK\nOK 80000 10\nOK released\n");
  CHECK(level() == Approx(50));
  CHECK(host.Send("enter 0 " + user + "\npeek 0 " + tenant + "\n") == "OK 49\nOK 49\n");
  CHECK(host.Send("give " + user + "\npeek 0 " + tenant + "\n") == "OK 1\nOK 50\n");
}

TEST_CASE("also: each tag of a question shows what is left of what is charged with it, also where they share that") {
  AskHost host("[[rule]]\nname=\"user\"\nmatch=\"u:*/*\"\nburst=7\nrate=0.001\nin_flight=9\nalso=[\"before /\"]\n"
               "[[rule]]\nname=\"tenant\"\nburst=12\nrate=0.001\nin_flight=2\n");
  CHECK(host.Send("take 11 u:t\npeek 0 u:t/x 0 u:t/y\n") == "OK 1\nOK 1 1\n");
  CHECK(host.Send("peek 0 u:t/x 0 u:t\n") == "OK 1 1\n");
  const std::string all = host.Send("take tell=all 0 u:t/x 1 u:t/y\n");
  CHECK(all.starts_with("OK 0 0 tenant 0 12 "));
  CHECK(all.find(" tenant 0 12 ", 20) != all.npos);
  CHECK(host.Send("refund 10 u:t\nenter 0 u:t/x 0 u:t/y\n") == "OK\nOK 0 0\n");
}

constexpr const char* kTiers =
    "[[rule]]\nshare=\"local\"\nname=\"site\"\nmatch=\"*/48\"\nburst=20\nrate=2\n"
    "[[rule]]\nshare=\"local\"\nname=\"subnet\"\nmatch=\"*/64\"\nburst=8\nrate=1\n"
    "[[rule]]\nshare=\"local\"\nname=\"address\"\nmatch=\"ip:*\"\nburst=4\nrate=1\nalso=[\"ipv6/64\", \"ipv6/48\"]\n";

std::string AddressIn(int site, int subnet, int host) {
  return fmt::format("ip:2001:db8:{:x}:{:x}::{:x}", site, subnet, host);
}

TEST_CASE("also: a query is served if all tags that are charged would serve it, and else none pays") {
  Host host(kTiers);
  for (int i = 0; i < 4; ++i) CHECK(host.Serves(AddressIn(1, 1, 1), kNow));
  CHECK_FALSE(host.Serves(AddressIn(1, 1, 1), kNow));
  CHECK(host.Level("ip:2001:db8:1:1::/64", kNow) == 4);
  CHECK(host.Level("ip:2001:db8:1::/48", kNow) == 16);
  for (int i = 0; i < 4; ++i) CHECK(host.Serves(AddressIn(1, 1, 2), kNow));
  CHECK_FALSE(host.Serves(AddressIn(1, 1, 3), kNow));    // the subnet has no more
  CHECK(host.Level(AddressIn(1, 1, 3), kNow) == 4);
  CHECK(host.Level("ip:2001:db8:1::/48", kNow) == 12);
  CHECK(host.limiter->tally().Totals(0).served == 8);
  CHECK(host.limiter->tally().Totals(0).throttled == 0);
  CHECK(host.limiter->tally().Totals(1).throttled == 1);
  CHECK(host.limiter->tally().Totals(2).throttled == 1);
}

TEST_CASE("also: an attacker that changes its address gets its network's limit, and a neighbour loses nothing") {
  Host host(kTiers, 1, std::size_t{8} << 20);
  Prng prng(3);
  constexpr auto kLasts = 60s;
  int attacker = 0, neighbour = 0, asked = 0;
  for (Instant now = kNow; now < kNow + kLasts; now += 1ms) {
    attacker += host.Serves(AddressIn(1, static_cast<int>(prng.Below(65536)), static_cast<int>(prng.Below(65536))), now);
    if ((now - kNow) % 1s != 0ns) continue;
    ++asked;
    neighbour += host.Serves(AddressIn(2, 1, 1), now);
  }
  CHECK(attacker <= 20 + 2 * 60);
  CHECK(attacker >= 20 + 2 * 60 - 1);
  CHECK(neighbour == asked);
}

TEST_CASE("also: a question names the tag that refuses, and a tag that is charged twice pays both costs") {
  Host host(kTiers);
  const std::string a = AddressIn(1, 1, 1), b = AddressIn(1, 1, 2);
  Questions questions;
  const auto ask = [&](Cost cost) {
    questions.Clear();
    questions.Begin(Verb::kTake);
    questions.Name({{a, false}, cost});
    questions.Name({{b, false}, cost});
    Outcome outcome;
    std::array<Standing, 2> standings;
    host.limiter->Ask(questions, {&outcome, 1}, standings, 0, host.prng, kNow);
    CHECK(standings[0].limited());
    return outcome;
  };
  CHECK(ask(3).verdict == Verdict::kServe);
  CHECK(host.Level("ip:2001:db8:1:1::/64", kNow) == 2);
  CHECK(host.Level("ip:2001:db8:1::/48", kNow) == 14);
  const Outcome refused = ask(1);
  CHECK(refused.verdict == Verdict::kServe);    // one each is left
  const Outcome again = ask(1);
  CHECK(again.verdict == Verdict::kThrottle);
  CHECK(again.wait == 2s);
  CHECK(again.tag == 0);    // the tag that its network refuses
  CHECK(ChargedWith(*host.limiter, questions.queries()[again.tag], kNow)[0] == "ip:2001:db8:1:1::/64");
}

TEST_CASE("also: a refusal is filed under the tag that refused, with its rule") {
  Host host(kTiers);
  for (int i = 0; i < 9; ++i) host.Serves(AddressIn(1, 1, i), kNow);
  std::vector<Refusal> kept;
  host.limiter->tally().lane(0).refusals().AppendTo(kept);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].tag == "ip:2001:db8:1:1::/64");
  CHECK(kept[0].rule == "subnet");
}

TEST_CASE("also: what is given back is given to all that paid") {
  Host host(kTiers);
  const std::string tag = AddressIn(1, 1, 1);
  CHECK(host.Serves(tag, kNow, 4));
  host.limiter->GiveBack({{tag, false}, 3}, 0, kNow);
  CHECK(host.Level(tag, kNow) == 3);
  CHECK(host.Level("ip:2001:db8:1:1::/64", kNow) == 7);
  CHECK(host.Level("ip:2001:db8:1::/48", kNow) == 19);
}

TEST_CASE("also: an exempt tag is charged with nothing") {
  Host host(std::string(kTiers) + "[[override]]\ntag=\"ip:2001:db8:1:1::1\"\nburst=1\nrate=1\nmode=\"off\"\n");
  for (int i = 0; i < 50; ++i) CHECK(host.Serves(AddressIn(1, 1, 1), kNow));
  CHECK(host.Level("ip:2001:db8:1::/48", kNow) == 20);
}

std::string ProblemsOf(std::string_view toml, const FileReader& read = {}) {
  std::string problems;
  for (const Problem& p : ParseSettings(toml, "f", "/run/dthrottle", {}, read).problems) problems += Format(p) + "\n";
  return problems;
}

// The problems of rules that are written without burst and rate; those are added.
std::string Problems(std::string rules, const FileReader& read = {}) {
  constexpr std::string_view kRule = "[[rule]]\n";
  for (std::size_t at = 0; (at = rules.find(kRule, at)) != rules.npos; ++at) rules.insert(at + kRule.size(), "burst=9\nrate=1\n");
  return ProblemsOf(rules, read);
}
TEST_CASE("networks: settings that name what is no network say what is wrong") {
  CHECK(Problems("[[rule]]\nmatch_cidrs=[\"192.0.2.0/33\"]\n").find("match_cidrs = [\"192.0.2.0/33\"]: must be a list of "
                                                                     "networks") != std::string::npos);
  CHECK(Problems("[[rule]]\nmatch_cidrs=\"nets\"\n").find("absolute path") != std::string::npos);
  CHECK(Problems("[[rule]]\nmatch_cidrs=\"/nets\"\n").find("no file can be read here") != std::string::npos);
  const FileReader read = [](const std::string& path) -> Result<std::string> {
    if (path == "/good") return std::string("# partners\n192.0.2.0/24 # one\r\n\n 2001:db8::/32\n203.0.113.7");
    if (path == "/bad") return std::string("192.0.2.0/24\nnonsense\n");
    return Fail("cannot open " + path);
  };
  CHECK(Problems("[[rule]]\nmatch_cidrs=\"/good\"\n", read).empty());
  const LoadedSettings loaded = ParseSettings("[[rule]]\nburst=9\nrate=1\nmatch_cidrs=\"/good\"\n", "f", "/run", {}, read);
  CHECK(loaded.settings.rules[0].networks->list->size() == 3);
  CHECK(Problems("[[rule]]\nmatch_cidrs=\"/bad\"\n", read) ==
        "f:1:1: error: rule \"rule-1\": match_cidrs = \"/bad\": line 2: \"nonsense\": must be a network such as "
        "192.0.2.0/24 or 2001:db8::/32\n");
  CHECK(Problems("[[rule]]\nmatch_cidrs=\"/none\"\n", read).find("cannot open /none") != std::string::npos);
}

TEST_CASE("also: what limits nothing or itself is a warning, and what is none of its words an error") {
  CHECK(Problems("[[rule]]\nmatch=\"ip:*\"\nalso=[\"ipv6/48\"]\n").find("\"ip:2001:db8:7::/48\", is under the same rule") !=
        std::string::npos);
  CHECK(Problems("[[rule]]\nmatch=\"*/*\"\nalso=[\"before /\"]\n").find("\"acme\", is under no rule") != std::string::npos);
  CHECK(ProblemsOf(kTiers).empty());
  // A rule of one tenant or of one network limits that one.
  const std::string by_tenant = "[[rule]]\nmatch=\"*/*\"\nalso=[\"before /\"]\n";
  CHECK(Problems("[[rule]]\nmatch=\"api\"\n" + by_tenant).empty());
  CHECK(Problems(by_tenant + "[[rule]]\nmatch=\"api[0-9]\"\n").empty());
  CHECK(Problems("[[rule]]\nmatch=\"api/all\"\n" + by_tenant).find("is under no rule") != std::string::npos);
  CHECK(Problems("[[rule]]\nmatch=\"ip:10.0.0.0/8\"\n[[rule]]\nmatch=\"ip:*\"\nalso=[\"ipv4/8\"]\n").empty());
  CHECK(Problems("[[rule]]\nmatch=\"ip:10.0.0.0/9\"\n[[rule]]\nmatch=\"ip:*\"\nalso=[\"ipv4/8\"]\n")
            .find("is under the same rule") != std::string::npos);
  for (const char* wrong : {"ipv4/33", "ipv6/0", "ipv6/129", "before ", "after /", "ipv4/24x"}) {
    CAPTURE(wrong);
    CHECK(Problems(fmt::format("[[rule]]\nalso=[\"{}\"]\n", wrong)).find("must be a list of at most 8") !=
          std::string::npos);
  }
  for (const char* twice : {"\"before /\", \"before /\"", "\"ipv4/24\", \"ipv6/48\", \"ipv4/24\""}) {
    CAPTURE(twice);
    CHECK(Problems(fmt::format("[[rule]]\nalso=[{}]\n", twice)).find("must be a list of at most 8 different ones") !=
          std::string::npos);
  }
  CHECK(Problems("[[rule]]\ndelay=\"1s\"\nshare=\"capacity\"\n").find("delay = \"1s\" with share = \"capacity\"") !=
        std::string::npos);
}

}    // namespace
}    // namespace dthrottle
