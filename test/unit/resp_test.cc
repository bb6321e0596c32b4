#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "config/calendar.h"
#include "limiter/asking.h"
#include "limiter/shedder.h"
#include "quota/quotas.h"
#include "share/quota/quota_sharing.h"
#include "share/ways.h"
#include "test/support/resp.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::RespHost;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

// As a client would write it.
std::string Array(std::initializer_list<std::string_view> words) {
  std::string out = fmt::format("*{}\r\n", words.size());
  for (const std::string_view word : words) out += fmt::format("${}\r\n{}\r\n", word.size(), word);
  return out;
}

// The five integers of a reply, with blanks between; or the reply as it is.
std::string Five(const std::string& reply) {
  if (!reply.starts_with("*5\r\n")) return reply;
  std::string out;
  for (const char c : reply.substr(4)) {
    if (c != ':' && c != '\r') out += c == '\n' ? ' ' : c;
  }
  out.pop_back();
  return out;
}

// ---- The stream ----

struct Commands {
  std::vector<std::vector<std::string>> seen;
  bool OnCommand(RespArguments arguments) {
    seen.emplace_back(arguments.begin(), arguments.end());
    return true;
  }
};

std::string ErrorOf(std::string_view bytes) {
  RespReader reader;
  Commands commands;
  const auto read = reader.Read(bytes, commands);
  return read ? "" : read.error().message;
}

TEST_CASE("a client comes back from its bytes as it was, and other bytes are no client") {
  RespClient client;
  client.id = 7;
  client.protocol = 3;
  client.name = "a 1 name";
  client.transaction = {true, true, 2, "*1\r\n$4\r\nPING\r\nPING\r\n"};
  const std::string bytes = SaveRespClient(client);
  const RespClient same = LoadRespClient(bytes).value();
  CHECK(SaveRespClient(same) == bytes);
  CHECK(same.id == 7);
  CHECK(same.protocol == 3);
  CHECK(same.name == "a 1 name");
  CHECK(same.transaction.open);
  CHECK(same.transaction.broken);
  CHECK(same.transaction.bytes == client.transaction.bytes);
  CHECK_FALSE(LoadRespClient(SaveRespClient({})).value().transaction.open);
  for (const char* bad : {"", "7", "7 ", "7 4 0 0 0 ", "7 2 3 0 0 ", "7 2 0 0 1 ", "7 2 0 0 99 ", "7 2 1 1 0 ",
                          "7 2 1 1 0 *1\r\n", "7 2 1 2 0 PING\r\n", "7 2 0 1 0 PING\r\n", "7 2 1 1 0 *x\r\n", "x 2 0 0 0 "}) {
    CAPTURE(bad);
    CHECK_FALSE(LoadRespClient(bad).has_value());
  }
}

TEST_CASE("resp: arrays of bulk strings and inline commands become arguments") {
  RespReader reader;
  Commands commands;
  REQUIRE(reader.Read(
      "*2\r\n$4\r\nPING\r\n$3\r\na\r\n\r\nPING  b \r\n\r\n*0\r\n*-1\r\n  \necho\tc\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nPI",
      commands));
  CHECK(commands.seen == std::vector<std::vector<std::string>>{{"PING", "a\r\n"}, {"PING", "b"}, {"echo", "c"}, {""}});
  CHECK(reader.rest() == "*1\r\n$4\r\nPI");
}

TEST_CASE("resp: what no command can begin with is an error in the words of Redis") {
  CHECK(ErrorOf("*1\r\n$4\r\nPING\r\n") == "");
  CHECK(ErrorOf("*1\r\n:4\r\n") == "Protocol error: expected '$', got ':'");
  CHECK(ErrorOf("*x\r\n") == "Protocol error: invalid multibulk length");
  CHECK(ErrorOf("*\r\n") == "Protocol error: invalid multibulk length");
  CHECK(ErrorOf("*1\n") == "Protocol error: invalid multibulk length");
  CHECK(ErrorOf("*99999999999999999999\r\n") == "Protocol error: invalid multibulk length");
  CHECK(ErrorOf("*1\r\n$-1\r\n") == "Protocol error: invalid bulk length");
  CHECK(ErrorOf("*1\r\n$1x\r\n") == "Protocol error: invalid bulk length");
  CHECK(ErrorOf("*" + std::string(40, '1')) == "Protocol error: too big mbulk count string");
  CHECK(ErrorOf("*1\r\n$" + std::string(40, '1')) == "Protocol error: too big bulk count string");
}

TEST_CASE("resp: every size is bounded before it is waited for") {
  CHECK(ErrorOf(fmt::format("*{}\r\n", kRespArgumentsMax)) == "");
  CHECK(ErrorOf(fmt::format("*{}\r\n", kRespArgumentsMax + 1)) == "Protocol error: invalid multibulk length");
  const auto room = kRespCommandBytesMax - std::string_view("*1\r\n$16372\r\n\r\n").size();
  CHECK(ErrorOf(fmt::format("*1\r\n${}\r\n", room)) == "");
  CHECK(ErrorOf(fmt::format("*1\r\n${}\r\n", room + 1)) == "Protocol error: invalid bulk length");
  CHECK(ErrorOf(std::string(kRespCommandBytesMax - 1, 'a')) == "");
  CHECK(ErrorOf(std::string(kRespCommandBytesMax, 'a')) == "Protocol error: too big inline request");
  std::string words;
  for (std::size_t i = 0; i <= kRespArgumentsMax; ++i) words += "a ";
  CHECK(ErrorOf(words + "\n") == "Protocol error: too big inline request");

  RespReader reader;
  Commands commands;
  const std::string longest = fmt::format("*1\r\n${}\r\n{}", room, std::string(room + 1, 'a'));
  REQUIRE(reader.Read(longest, commands));
  CHECK(reader.rest().size() == kRespCommandBytesMax - 1);
  CHECK(reader.rest().size() <= RespReader::kRestBytesMax);
}

// ---- CL.THROTTLE ----

// Derived by hand from GCRA: burst 5, a token a second. `full_at` is what the bucket is left with.
struct Case {
  int at_ms;
  int quantity;
  const char* reply;    // limited, limit, remaining, retry after, reset after
};
constexpr Case kCases[] = {
    {0, 6, "1 5 5 -1 0"},    // never, so there is no use in coming back
    {0, 1, "0 5 4 -1 1"},      {0, 1, "0 5 3 -1 2"},    {0, 1, "0 5 2 -1 3"},    {0, 1, "0 5 1 -1 4"},
    {0, 1, "0 5 0 -1 5"},      {0, 1, "1 5 0 1 5"},     {3000, 1, "0 5 2 -1 3"},    // full_at 6 s
    {3100, 1, "0 5 1 -1 4"},                                                        // full_at 7 s: 1.1 left, 3.9 s
    {4000, 1, "0 5 1 -1 4"},                                                        // full_at 8 s
    {8000, 1, "0 5 4 -1 1"},   {9500, 1, "0 5 4 -1 1"},                             // full_at 10.5 s
    {9500, 0, "0 5 4 -1 1"},                                                        // a peek
    {9500, 2, "0 5 2 -1 3"},                                                        // full_at 12.5 s
    {9500, 5, "1 5 2 3 3"},    {9750, 5, "1 5 2 3 3"},                              // 2.25 left; 2.75 s for both
    {9750, -1, "0 5 3 -1 2"},                                                       // full_at 11.5 s
    {9750, -10, "0 5 5 -1 0"},                                                      // beyond full is lost
    {9750, 5, "0 5 0 -1 5"},   {9750, 0, "0 5 0 -1 5"},                             // an empty bucket is not in debt
};

TEST_CASE("resp: CL.THROTTLE replies what redis-cell would, under a rule and under a limit that it brings") {
  for (const bool brought : {false, true}) {
    CAPTURE(brought);
    RespHost host("[[rule]]\nburst=5\nrate=1\n", brought);
    for (const Case& c : kCases) {
      CAPTURE(c.at_ms, c.quantity);
      const std::string asked = fmt::format("cl.throttle key 4 1 1 {}\r\n", c.quantity);
      CHECK(Five(host.Send(asked, kNow + std::chrono::milliseconds(c.at_ms))) == c.reply);
    }
  }
}

TEST_CASE("resp: queries of one pipeline see each other, and what is given back between them") {
  for (const bool brought : {false, true}) {
    CAPTURE(brought);
    RespHost host("[[rule]]\nburst=2\nrate=1\n", brought);
    std::string asked;
    for (const char* quantity : {"1", "1", "1", "-1", "1", "0"})
      asked += Array({"CL.THROTTLE", "k", "1", "1", "1", quantity});
    CHECK(host.Send(asked, kNow) ==
          "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n"
          "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:2\r\n"
          "*5\r\n:1\r\n:2\r\n:0\r\n:1\r\n:2\r\n"
          "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n"
          "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:2\r\n"
          "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:2\r\n");
  }
}

TEST_CASE("resp: without accept_limits the numbers of a rule apply, whatever the client sends") {
  RespHost host(
      "[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=10.5\nrate=0.25\n"
      "[[rule]]\nname=\"s\"\nmatch=\"s*\"\nburst=1\nrate=1\nmode=\"shadow\"\n"
      "[[rule]]\nname=\"o\"\nmatch=\"o*\"\nburst=1\nrate=1\nmode=\"off\"\n");
  CHECK(Five(host.Send("cl.throttle a 15 30 60\n", kNow)) == "0 10 9 -1 4");
  CHECK(Five(host.Send("cl.throttle a 15 30 60 10\n", kNow)) == "1 10 9 2 4");    // 9.5 left
  CHECK(Five(host.Send("cl.throttle a 15 30 60 11\n", kNow)) == "1 10 9 -1 4");
  CHECK(Five(host.Send("cl.throttle s 15 30 60\n", kNow)) == "0 1 0 -1 1");
  CHECK(Five(host.Send("cl.throttle s 15 30 60\n", kNow)) == "0 1 0 -1 1");    // would be limited
  for (const char* key : {"other", "o"}) {    // nobody limits it: as if full under its own numbers
    for (const char* quantity : {"1", "100", "-1"}) {
      CHECK(Five(host.Send(fmt::format("cl.throttle {} 15 30 60 {}\n", key, quantity), kNow)) == "0 16 16 -1 0");
    }
  }
  CHECK(host.turn->counts().limited == 2);
}

TEST_CASE("resp: a key in debt is limited even for a peek, until it is out of debt") {
  RespHost host("[[rule]]\nburst=5\nrate=1\n");
  Entries entries;
  REQUIRE(entries.Add({"k"}, 7, 0));
  host.host.limiter->ways().Get<Debits>().ShareWith(1, 5s);
  host.host.limiter->ways().Get<Debits>().Debit(entries, 0, 1, kNow, kNow + 1s, kNow);
  CHECK(Five(host.Send("cl.throttle k 4 1 1 0\n", kNow)) == "1 5 0 2 7");
  CHECK(Five(host.Send("cl.throttle k 4 1 1 1\n", kNow)) == "1 5 0 3 7");
  CHECK(Five(host.Send("cl.throttle k 4 1 1 -1\n", kNow)) == "0 5 0 -1 6");
  CHECK(Five(host.Send("cl.throttle k 4 1 1 0\n", kNow + 1s)) == "0 5 0 -1 5");
}

TEST_CASE("resp: a penalized key is told how long that lasts, also by the refusal that begins it") {
  for (const char* also : {"", "quota=100\nper=\"hour\"\n"}) {
    CAPTURE(also);
    const std::string rule = "[[rule]]\nburst=2\nrate=1\npenalty={ after = 3, within = \"1m\", lasts = \"60s\" }\n";
    RespHost host(rule + also);
    for (const char* reply : {"0 2 1 -1 1", "0 2 0 -1 2", "1 2 0 1 2", "1 2 0 1 2", "1 2 0 60 2", "1 2 0 60 2"}) {
      CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow)) == reply);
    }
    CHECK(Five(host.Send("cl.throttle k 9 1 1 2\n", kNow + 1500ms)) == "1 2 1 59 1");
    CHECK(Five(host.Send("cl.throttle k 9 1 1 3\n", kNow + 3s)) == "1 2 2 -1 0");    // never
    CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow + 60s)) == "0 2 1 -1 1");
  }
}

TEST_CASE("resp: a key that is given something back is told of its quota") {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> counts(Quotas::RegionBytes(1024) / sizeof(Line));
  RespHost host("[[rule]]\nburst=30\nrate=1\nquota=5\nper=\"hour\"\n");
  Limiter& limiter = *host.host.limiter;
  const auto hash = [&](const Tag& tag) { return limiter.table().Hash(tag); };
  const auto calendar = [](const QuotaCalendar& its) {
    QuotaPeriods periods = PeriodsAt(its, 0);
    periods.ends = kNow + 1h;
    return periods;
  };
  limiter.ways().KeepQuotas(std::make_unique<Quotas>(std::as_writable_bytes(std::span(counts)),
                                                     std::array<std::byte, 16>{}, 1, hash, calendar, kNow));
  CHECK(Five(host.Send("cl.throttle q 9 1 1 5\n", kNow)) == "0 5 0 -1 3600");
  CHECK(Five(host.Send("cl.throttle q 9 1 1 -1\n", kNow)) == "0 5 1 -1 3600");
  CHECK(Five(host.Send("cl.throttle q 9 1 1 2\n", kNow)) == "1 5 1 3600 3600");
}

TEST_CASE("resp: a key that is given something back is told of what is charged with it") {
  RespHost host("[[rule]]\nmatch=\"*/*\"\nburst=70\nrate=1\nalso=[\"before /\"]\n"
                "[[rule]]\nmatch=\"acme\"\nburst=120\nrate=1\n");
  CHECK(Five(host.Send("cl.throttle acme 9 1 1 118\n", kNow)) == "0 120 2 -1 118");
  CHECK(Five(host.Send("cl.throttle acme/bob 9 1 1 2\n", kNow)) == "0 120 0 -1 120");
  CHECK(Five(host.Send("cl.throttle acme/bob 9 1 1 -1\n", kNow)) == "0 120 1 -1 119");
  CHECK(Five(host.Send("cl.throttle acme/bob 9 1 1 -9\n", kNow)) == "0 120 10 -1 110");
}

TEST_CASE("resp: a penalty that ends before the key has its tokens is not what it waits for") {
  RespHost host("[[rule]]\nburst=1\nrate=0.01\npenalty={ after = 1, lasts = \"60s\" }\n");
  for (const char* reply : {"0 1 0 -1 100", "1 1 0 100 100", "1 1 0 100 100"}) {
    CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow)) == reply);
  }
}

TEST_CASE("resp: a penalty in shadow mode leaves the reply what it was") {
  RespHost host("[[rule]]\nburst=1\nrate=1\nmode=\"shadow\"\npenalty={ after = 1, lasts = \"60s\" }\n");
  for (int i = 0; i < 3; ++i) CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow)) == "0 1 0 -1 1");
}

TEST_CASE("resp: a key whose places are all taken, and one that is shed, are told of their bucket") {
  RespHost host("[[rule]]\nburst=100\nrate=1\nin_flight=2\nshed=true\n");
  Asking asking(*host.host.limiter, 0, Prng(1), kTagBytesMax);
  for (int i = 0; i < 2; ++i) {
    asking.Begin(Verb::kEnter);
    REQUIRE(asking.Name("k", 1));
  }
  asking.Answer(kNow);
  CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow)) == "1 100 98 1 2");
  host.host.limiter->shedder().Shed(host.host.limiter->rules().shed_priorities(), ShedCurve(1, 2), 2);
  CHECK(Five(host.Send("cl.throttle k 9 1 1\n", kNow)) == "1 100 98 1 2");
  CHECK(Five(host.Send("cl.throttle other 9 1 1\n", kNow)) == "1 100 100 1 0");
}

TEST_CASE("resp: rates that do not divide and replies of less than a second are rounded up") {
  RespHost host("", true);
  CHECK(Five(host.Send("cl.throttle user123 15 30 60\n", kNow)) == "0 16 15 -1 2");    // the README of redis-cell
  CHECK(Five(host.Send("cl.throttle two 0 1 2 1\n", kNow)) == "0 1 0 -1 2");
  CHECK(Five(host.Send("cl.throttle two 0 1 2 1\n", kNow)) == "1 1 0 2 2");
  CHECK(Five(host.Send("cl.throttle two 0 1 2 1\n", kNow + 1ms)) == "1 1 0 2 2");
  CHECK(Five(host.Send("cl.throttle two 0 1 2 1\n", kNow + 2s)) == "0 1 0 -1 2");
  for (const char* reply : {"0 3 2 -1 1", "0 3 1 -1 1", "0 3 0 -1 1", "1 3 0 1 1"}) {
    CHECK(Five(host.Send("cl.throttle third 2 3 1\n", kNow)) == reply);    // a token each 333.3 ms
  }
  for (const char* reply : {"0 1 0 -1 9", "1 1 0 9 9"}) {
    CHECK(Five(host.Send("cl.throttle seven 0 7 60\n", kNow)) == reply);    // 8.57 s
  }
}

TEST_CASE("resp: whoever brings other numbers for a key keeps the time that its bucket needs to fill") {
  RespHost host("", true);
  CHECK(Five(host.Send("cl.throttle k 9 1 1 6\n", kNow)) == "0 10 4 -1 6");
  CHECK(Five(host.Send("cl.throttle k 19 1 1 1\n", kNow)) == "0 20 13 -1 7");
  CHECK(Five(host.Send("cl.throttle k 2 1 1 1\n", kNow)) == "1 3 0 5 7");
  CHECK(Five(host.Send("cl.throttle k 9 2 1 1\n", kNow + 4s)) == "0 10 3 -1 4");    // 3 s are six tokens now
}

TEST_CASE(
    "resp: a key under a limit that is brought and the same tag under a rule have nothing to do with each other") {
  RespHost host("[[rule]]\nburst=1\nrate=1\n", true);
  CHECK(Five(host.Send("cl.throttle k 4 1 1 5\n", kNow)) == "0 5 0 -1 5");
  CHECK(host.host.Serves("k", kNow));
  CHECK_FALSE(host.host.Serves("k", kNow));
  CHECK(Five(host.Send("cl.throttle k 4 1 1 1\n", kNow + 5s)) == "0 5 4 -1 1");
}

TEST_CASE("resp: keys may be any bytes, and long ones have buckets of their own") {
  for (const bool brought : {false, true}) {
    RespHost host("[[rule]]\nburst=2\nrate=1\n", brought, 20);
    const std::string longest(1000, 'x');
    const std::string_view any("\0\r\n\xff k", 6);
    for (const std::string_view key :
         {std::string_view(""), any, std::string_view(longest), std::string_view(longest).substr(1)}) {
      CHECK(Five(host.Send(Array({"CL.THROTTLE", key, "1", "1", "1"}), kNow)) == "0 2 1 -1 1");
      CHECK(Five(host.Send(Array({"CL.THROTTLE", key, "1", "1", "1"}), kNow)) == "0 2 0 -1 2");
    }
  }
}

TEST_CASE("resp: what redis-cell refuses is refused in its words") {
  for (const bool brought : {false, true}) {
    RespHost host("[[rule]]\nburst=2\nrate=1\n", brought);
    const std::string usage =
        "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    CHECK(host.Send("cl.throttle\n") == usage);
    CHECK(host.Send("cl.throttle k 1 1\n") == usage);
    CHECK(host.Send("cl.throttle k 1 1 1 1 1\n") == usage);
    CHECK(host.Send("cl.throttle k 1 x 1\n") == "-Cell error: Store error: Couldn't parse as integer: x\r\n");
    CHECK(host.Send(Array({"cl.throttle", "k", "1", "1", "1", "\r\n"})) ==
          "-Cell error: Store error: Couldn't parse as integer:   \r\n");
    for (const char* bad : {"1.5", "9223372036854775808", "--1", "+-1", "0x1", ""}) {
      CHECK(host.Send(Array({"cl.throttle", "k", "1", "1", "1", bad})) ==
            fmt::format("-Cell error: Store error: Couldn't parse as integer: {}\r\n", bad));
    }
    for (const char* zero : {"0 1", "1 0", "0 0", "2000000000 1"}) {
      CHECK(host.Send(fmt::format("cl.throttle k 1 {}\n", zero)) ==
            "-Cell error: Store error: Zero rates are not supported\r\n");
    }
    for (const char* negative : {"-1 1 1", "1 -1 1", "1 1 -1"}) {
      CHECK(host.Send(fmt::format("cl.throttle k {}\n", negative)) ==
            "-Cell error: Store error: Negative limits are not supported\r\n");
    }
    CHECK(Five(host.Send("cl.throttle k +1 +1 +1 +1\n")) == "0 2 1 -1 1");
    CHECK(host.turn->counts().protocol_errors == 0);
  }
}

TEST_CASE("resp: a limit that is brought is within bounds, or an error; any quantity will do") {
  RespHost host("", true);
  const auto bad = [&](const char* numbers) {
    return host.Send(fmt::format("cl.throttle k {}\n", numbers))
        .starts_with("-Cell error: Store error: max_burst has to be");
  };
  CHECK(bad("1000000000 1 1"));
  CHECK(bad("9223372036854775806 1 1"));
  CHECK(bad("9223372036854775807 1 1"));
  CHECK(bad("0 1 31622401"));    // 366 days are 31622400 s
  CHECK(bad("366 1 86400"));
  CHECK(bad("1 1 9223372036854775807"));
  CHECK(Five(host.Send("cl.throttle a 0 1 31622400\n")) == "0 1 0 -1 31622400");
  CHECK(Five(host.Send("cl.throttle b 999999999 1000000000 1\n")) == "0 1000000000 999999999 -1 1");
  CHECK(Five(host.Send("cl.throttle c 4 1 1 9223372036854775807\n")) == "1 5 5 -1 0");
  CHECK(Five(host.Send("cl.throttle c 4 1 1 4294967297\n")) == "1 5 5 -1 0");
  CHECK(Five(host.Send("cl.throttle c 4 1 1 -9223372036854775808\n")) == "0 5 5 -1 0");
}

// ---- The table of limits that are brought ----

struct Region {
  alignas(64) std::byte bytes[Table::kRegionBytesMin] = {};
};

struct BroughtHost {
  explicit BroughtHost(Region& region) : limits(region.bytes, {}, TableKeys{{1, 2}, {}}, kNow) {}

  bool Serves(std::string_view tag, const BroughtLimit& limit, Cost cost = 1, Instant now = kNow) {
    Standing standing;
    return limits.Answer({{tag, false}, cost}, limit.ToShape().value(), standing, now) == Verdict::kServe;
  }

  BroughtLimits limits;
};

TEST_CASE("brought: memory is bounded, and who has spent most of his burst is remembered longest") {
  const auto region = std::make_unique<Region>();
  BroughtHost host(*region);
  const BroughtLimit fast{10, 1, 1}, slow{1000, 1, 1000};
  for (int i = 0; i < 100; ++i) CHECK(host.Serves(fmt::format("fast {}", i), fast, 10));
  // Each fills in 1000 s, and is a thousandth away from it.
  for (int i = 0; i < 100'000; ++i) REQUIRE(host.Serves(fmt::format("slow {}", i), slow));
  CHECK(host.limits.table().counts().evicted > 50'000);
  int forgotten = 0;
  for (int i = 0; i < 100; ++i) forgotten += host.Serves(fmt::format("fast {}", i), fast);
  CHECK(forgotten == 0);
}

TEST_CASE("brought: empty buckets are not debts, and make room for each other") {
  const auto region = std::make_unique<Region>();
  BroughtHost host(*region);
  for (int i = 0; i < 50'000; ++i) REQUIRE(host.Serves(fmt::format("tag {}", i), {7, 3, 10}, 7));
}

TEST_CASE("brought: another process finds the buckets in the region") {
  const auto region = std::make_unique<Region>();
  {
    BroughtHost host(*region);
    CHECK(host.Serves("k", {10, 1, 1}, 10));
  }
  BroughtHost host(*region);
  CHECK(host.limits.table().counts().tags == 1);
  CHECK_FALSE(host.Serves("k", {10, 1, 1}));
  CHECK(host.Serves("k", {10, 1, 1}, 1, kNow + 1s));
}

// ---- Transactions ----

// What a bucket of burst 5 has left.
std::string Left(RespHost& host) {
  return Five(host.Send("cl.throttle k 4 1 1 0\n", kNow));
}

TEST_CASE("resp: a transaction spends at EXEC, and each of its queries takes what it gets") {
  for (const bool brought : {false, true}) {
    CAPTURE(brought);
    RespHost host("[[rule]]\nburst=5\nrate=1\n", brought);
    CHECK(host.Send("multi\ncl.throttle k 4 1 1 3\n", kNow) == "+OK\r\n+QUEUED\r\n");
    CHECK(host.Send("cl.throttle k 4 1 1 3\ncl.throttle k 4 1 1 -1\n", kNow) == "+QUEUED\r\n+QUEUED\r\n");
    CHECK(host.Send("exec\n", kNow) ==
          "*3\r\n"
          "*5\r\n:0\r\n:5\r\n:2\r\n:-1\r\n:3\r\n"
          "*5\r\n:1\r\n:5\r\n:2\r\n:1\r\n:3\r\n"
          "*5\r\n:0\r\n:5\r\n:3\r\n:-1\r\n:2\r\n");
    CHECK(Left(host) == "0 5 3 -1 2");
  }
}

TEST_CASE("resp: a transaction that does not run spends nothing and changes nothing") {
  const std::string queued = "multi\nhello 3\ncl.throttle k 4 1 1 3\n";
  for (const std::string_view end : {"nonsense\nexec\n", "echo\nexec\n", "exec x\nexec\n", "discard\n", "reset\n"}) {
    CAPTURE(end);
    RespHost host("[[rule]]\nburst=5\nrate=1\n");
    host.Send(queued + std::string(end), kNow);
    CHECK(host.client.protocol == 2);
    CHECK_FALSE(host.client.transaction.open);
    CHECK(Left(host) == "0 5 5 -1 0");
  }
}

TEST_CASE("resp: commands of a transaction are bounded, and one too many breaks it") {
  RespHost host("[[rule]]\nburst=5\nrate=1\n");
  host.Send("multi\ncl.throttle k 4 1 1 3\n", kNow);
  const std::string fill = Array({"ECHO", std::string(16'000, 'x')});
  std::string replies;
  for (int i = 0; i < 17; ++i) replies += host.Send(fill, kNow);
  CHECK(replies.find("-ERR a transaction has at most 262144 bytes") != std::string::npos);
  CHECK(host.client.transaction.bytes.size() <= RespTransaction::kBytesMax);
  CHECK(host.Send("exec\n", kNow) == "-EXECABORT Transaction discarded because of previous errors.\r\n");
  CHECK(Left(host) == "0 5 5 -1 0");

  // An inline command of 16 KiB takes more with the lengths of its words.
  std::string words = "multi\ncl.throttle";
  for (int i = 0; i < 63; ++i) words += " " + std::string(258, 'x');
  CHECK(host.Send(words + "\nexec\n", kNow)
            .ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
}

TEST_CASE("resp: a transaction whose replies would be too long does not run") {
  RespHost host("[[rule]]\nburst=5\nrate=1\n");
  host.Send("multi\nhello 3\ncl.throttle k 4 1 1 3\n", kNow);
  for (int i = 0; i < 300; ++i) host.Send("command\n", kNow);
  CHECK(host.Send("exec\nping\n", kNow) ==
        "-EXECABORT Transaction discarded because its replies exceed 262144 bytes.\r\n+PONG\r\n");
  CHECK(host.client.protocol == 2);
  CHECK(Left(host) == "0 5 5 -1 0");
}

TEST_CASE("resp: a browser's words end the connection inside a transaction too") {
  RespHost host("");
  CHECK(host.Send("multi\nPOST / HTTP/1.1\r\nexec\n") == "+OK\r\n");
  CHECK(host.client.leaving);
}

// ---- Manners ----

TEST_CASE("resp: questions about several keys are those of the ask socket, whatever limits clients bring") {
  RespHost host("[[rule]]\nname=\"r\"\nburst=3\nrate=1\n", true, 8);
  CHECK(host.Send("dt.take a 2 long:key:1 1\n") == "*6\r\n:0\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n*2\r\n:1\r\n:2\r\n");
  CHECK(Five(host.Send("cl.throttle a 8 1 1 1\n")) == "0 9 8 -1 1");    // a bucket of another table
  const std::string refused = host.Send("dt.take long:key:1 1 a 2\n");
  CHECK(refused == "*6\r\n:1\r\n$5\r\nlimit\r\n$1\r\na\r\n$1\r\nr\r\n:1000\r\n*2\r\n:2\r\n:1\r\n");
  CHECK(host.turn->counts().limited == 1);
  host.Send("dt.peek a 2\n");
  CHECK(host.turn->counts().limited == 1);
}

TEST_CASE("resp: a transaction that does not run asks no questions") {
  RespHost host("[[rule]]\nname=\"r\"\nburst=3\nrate=1\n");
  host.Send("multi\ndt.take a 1\n");
  for (int i = 0; i < 500; ++i) host.Send("command\n");
  CHECK(host.Send("exec\n").starts_with("-EXECABORT"));
  CHECK(host.Send("dt.peek a 1\n").ends_with("*1\r\n:3\r\n"));
}

TEST_CASE("resp: RESP3 has maps, nulls and texts where RESP2 has arrays and strings") {
  RespHost host("");
  CHECK(host.Send("client getname\n") == "$-1\r\n");
  CHECK(host.Send("config get save\n") == "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
  CHECK(host.Send("command docs\n") == "*0\r\n");
  CHECK(host.Send("info memory\n") == "$41\r\n# Memory\r\nused_memory:1024\r\nmaxmemory:0\r\n\r\n");
  CHECK(host.Send("hello 3\n").starts_with("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"));
  CHECK(host.Send("client getname\n") == "_\r\n");
  CHECK(host.Send("config get save\n") == "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
  CHECK(host.Send("command docs\n") == "%0\r\n");
  CHECK(host.Send("info memory\n") == "=45\r\ntxt:# Memory\r\nused_memory:1024\r\nmaxmemory:0\r\n\r\n");
  CHECK(Five(host.Send("cl.throttle k 4 1 1\n")) == "0 5 5 -1 0");
  CHECK(host.Send("reset\n") == "+RESET\r\n");
  CHECK(host.Send("client getname\n") == "$-1\r\n");
}

TEST_CASE("resp: INFO has what redis-cli --stat and ioredis look for") {
  RespHost host("");
  const std::string info = host.Send("info\n");
  for (const char* field :
       {"used_memory:1024", "connected_clients:1", "blocked_clients:0", "total_commands_processed:1",
        "total_connections_received:1", "loading:0", "redis_version:7", "role:master"}) {
    CAPTURE(field);
    CHECK(info.find(fmt::format("\r\n{}", field)) != std::string::npos);
  }
  CHECK(host.Send("info nonsense\n") == "$0\r\n\r\n");
}

TEST_CASE("resp: COMMAND knows every command that is answered") {
  RespHost host("");
  CHECK(host.Send("command count\n") == ":19\r\n");
  const std::string all = host.Send("command\n");
  CHECK(all.starts_with("*19\r\n*10\r\n$4\r\nauth\r\n:-2\r\n"));
  CHECK(host.Send("command info\n") == all);
  CHECK(host.Send("command list\n").starts_with("*19\r\n$4\r\nauth\r\n$11\r\ncl.throttle\r\n"));
  CHECK(host.Send("command info nonsense cl.throttle\n") ==
        "*2\r\n$-1\r\n*10\r\n$11\r\ncl.throttle\r\n:-1\r\n*1\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n");
  CHECK(host.Send("command info DT.TAKE\n") ==
        "*1\r\n*10\r\n$7\r\ndt.take\r\n:-3\r\n*1\r\n+fast\r\n:1\r\n:-1\r\n:2\r\n*0\r\n*0\r\n*0\r\n*0\r\n");
}

TEST_CASE("resp: what a web page makes a browser send is hung up on without a word") {
  for (const char* line : {"POST / HTTP/1.1\r\nping\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\nping\r\n"}) {
    RespHost host("");
    CHECK(host.Send(line).find("PONG") == std::string::npos);
    CHECK(host.client.leaving);
  }
}

TEST_CASE("resp: errors quote little of what was sent, on one line") {
  RespHost host("");
  const std::string reply = host.Send(Array({std::string(1000, 'n'), "a\r\nb", std::string(1000, 'x')}));
  CHECK(reply.size() < 400);
  CHECK(reply.find("\r\n") == reply.size() - 2);
  CHECK(reply.find("'a  b' 'xxx") != std::string::npos);
}

}    // namespace
}    // namespace dthrottle
