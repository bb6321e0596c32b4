#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "config/keys.h"
#include "frontend/http/page.h"
#include "frontend/http/service.h"
#include "query/named_tag.h"
#include "share/ways.h"
#include "tally/tally.h"
#include "test/support/host.h"
#include "test/support/quiet_daemon.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

class FakeDaemon final : public testing::QuietDaemon {
 public:
  explicit FakeDaemon(std::string_view toml) : host_(toml) {}

  Limiter& limiter() override { return *host_.limiter; }
  Settings& configure() { return settings_; }
  void AuditOfAnyone(std::string_view text) const override { audited.emplace_back(text); }

  HttpReply Get(std::string_view target, Instant now = kNow) {
    HttpRequest request;
    request.method = "GET";
    request.target = target;
    request.host = "localhost";
    return Answer(request, now);
  }

  HttpReply Answer(const HttpRequest& request, Instant now) {
    service.Add(request);
    return service.Answer(now).front();
  }

 private:
  testing::Host host_;

 public:
  HttpService service{*this, Prng(1), "web-1"};
  mutable std::vector<std::string> audited;
};

std::string Field(const HttpReply& reply, std::string_view name) {
  const std::string begin = std::string(name) + ": ";
  for (std::string_view rest = reply.fields; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1)) {
    if (rest.starts_with(begin)) return std::string(rest.substr(begin.size(), rest.find('\r') - begin.size()));
  }
  return "(none)";
}

TEST_CASE("a target is a path and parameters of any bytes") {
  const HttpTarget t = ParseTarget("/check?tag=a%20b%2Bc+d%00%ff&cost=2&empty=&bare&&=x").value();
  CHECK(t.path == "/check");
  CHECK(*t.Find("tag") == std::string("a b+c d\0\xff", 9));
  CHECK(*t.Find("cost") == "2");
  CHECK(t.Find("empty")->empty());
  CHECK(t.Find("bare")->empty());
  CHECK(*t.Find("") == "x");
  CHECK(t.Find("nothing") == nullptr);
  CHECK(*ParseTarget("/check?a=b=c?d#e").value().Find("a") == "b=c?d#e");
  CHECK(ParseTarget("").value().path == "/");
  CHECK(ParseTarget("HTTP://Host:80/x?y=z").value().authority == "Host:80");
  CHECK(ParseTarget("http://host").value().path == "/");
  for (const char* bad : {"/?%", "/?a=%1", "/?a=%1g", "/?a=%%41", "/?a=1&a=2", "/?a=1&%61=2", "/?a=%+1", "/?a=%-1"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseTarget(bad).has_value());
  }
}

TEST_CASE("every byte comes through a target, encoded or, where it has no meaning there, as it is") {
  Prng prng(2);
  for (int round = 0; round < 500; ++round) {
    std::string bytes, target = "/check?tag=";
    for (std::uint64_t i = prng.Below(60); i > 0; --i) {
      const auto byte = static_cast<unsigned char>(prng.Next());
      bytes += static_cast<char>(byte);
      const bool plain = byte != '%' && byte != '+' && byte != '&' && prng.Below(2) == 0;
      constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
      const std::size_t upper = 16 * prng.Below(2);
      target += plain ? std::string(1, static_cast<char>(byte))
                      : std::string("%") + kDigits[upper + byte / 16] + kDigits[upper + byte % 16];
    }
    CHECK(*ParseTarget(target).value().Find("tag") == bytes);
  }
}

TEST_CASE("a Host field names this host by an address, as localhost or by its own name") {
  for (const char* good : {"", "127.0.0.1", "127.0.0.1:7313", "10.1.2.3:80", "[::1]:7313", "[fe80::1]", "localhost",
                           "LocalHost:7313", "web-1", "WEB-1:80"}) {
    CAPTURE(good);
    CHECK(NamesThisHost(good, "web-1"));
  }
  for (const char* bad : {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "web-1.evil.example",
                          "[::1", "[evil]", "1.2.3", "0x7f.1", "127.0.0.1@evil.example", "web-2", "::1"}) {
    CAPTURE(bad);
    CHECK_FALSE(NamesThisHost(bad, "web-1"));
  }
  CHECK_FALSE(NamesThisHost("x", ""));
}

TEST_CASE("check states the bucket as of the verdict, to the microsecond in the body and in whole seconds above it") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=10\nrate=4\n");
  HttpReply reply = daemon.Get("/check?tag=C");
  CHECK(reply.status == 200);
  CHECK(reply.body == R"({"allowed":true,"limit":10,"remaining":9,"retry_after":0,"reset_after":0.25})"
                      "\n");
  CHECK(Field(reply, "RateLimit-Policy") == "\"r\";q=10;w=3");
  CHECK(Field(reply, "RateLimit") == "\"r\";r=9;t=1");

  reply = daemon.Get("/check?tag=C&cost=9");
  CHECK(Field(reply, "RateLimit") == "\"r\";r=0;t=1");
  reply = daemon.Get("/check?tag=C&cost=5", kNow + 100ms);
  CHECK(reply.status == 429);
  CHECK(Field(reply, "Retry-After") == "2");    // 5 tokens take 1.25 s, of which 0.1 have passed
  const Json body = Json::parse(reply.body);
  CHECK(body["retry_after"] == 1.15);
  CHECK(body["reset_after"] == 2.4);
  CHECK(body["violated-policies"] == Json::array({"r"}));

  CHECK(daemon.Get("/check?tag=C&cost=5", kNow + 1250ms).status == 200);
  CHECK(Field(daemon.Get("/check?tag=full&cost=0"), "RateLimit") == "\"r\";r=10;t=0");
  CHECK(daemon.limiter().tally().GrandTotals().served == 4);
}

TEST_CASE("one request about several tags is one question, and says which of them refuses") {
  FakeDaemon daemon(
      "[[rule]]\nname=\"user\"\nmatch=\"user:*\"\nburst=10\nrate=4\n"
      "[[rule]]\nname=\"net\"\nmatch=\"net:*\"\nburst=3\nrate=1\n");
  HttpReply reply = daemon.Get("/check?tag=user:a&tag=net:%001&tag=free&cost=1&cost=2&cost=7");
  CHECK(reply.status == 200);
  CHECK(Field(reply, "RateLimit-Policy") == "\"net\";q=3;w=3");    // it has least left
  CHECK(Field(reply, "RateLimit") == "\"net\";r=1;t=1");
  CHECK(reply.body ==
        R"({"allowed":true,"limit":3,"remaining":1,"retry_after":0,"reset_after":2,"tags":[)"
        R"({"tag":"user:a","rule":"user","limit":10,"remaining":9,"reset_after":0.25},)"
        R"({"tag":"net:\\x001","rule":"net","limit":3,"remaining":1,"reset_after":2},{"tag":"free"}]})"
        "\n");

  reply = daemon.Get("/check?tag=user:a&tag=net:%001&cost=2");    // that of each
  CHECK(reply.status == 429);
  CHECK(Field(reply, "Retry-After") == "1");
  Json body = Json::parse(reply.body);
  CHECK(body["refused_by"] == "net:\\x001");
  CHECK(body["violated-policies"] == Json::array({"net"}));
  CHECK(body["retry_after"] == 1.0);
  CHECK(body["tags"][0]["remaining"] == 9);    // which has not paid
  CHECK(daemon.Get("/auth?tag=user:a&tag=net:%001&cost=2").status == 403);
  CHECK(Json::parse(daemon.Get("/check?tag=free&tag=off").body)["tags"].size() == 2);
}

TEST_CASE("a peek is told what a take would be, and changes nothing") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=2\nrate=1\n");
  CHECK(daemon.Get("/check?tag=C&cost=2&peek=1").status == 200);
  CHECK(daemon.Get("/check?tag=C&cost=3&peek=1").status == 429);
  CHECK(daemon.Get("/auth?tag=C&cost=2&peek=1").status == 204);
  CHECK(daemon.limiter().tally().GrandTotals().served == 0);
  CHECK(daemon.limiter().tally().GrandTotals().throttled == 0);
  CHECK(daemon.Get("/check?tag=C&cost=2&peek=0").status == 200);
  CHECK(daemon.Get("/check?tag=C&peek=1").status == 429);
}

TEST_CASE("what is no question is told so and spends nothing") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=2\nrate=1\n");
  std::string seventeen = "/check?tag=0";
  for (int i = 1; i <= 16; ++i) seventeen += "&tag=" + std::to_string(i);
  for (const std::string& target :
       {std::string("/check"), std::string("/check?cost=1"), std::string("/check?tag=a&tag=b&tag=c&cost=1&cost=1"),
        std::string("/check?tag=a&cost=1&cost=0"), std::string("/check?tag=a&tag=b&cost=1&cost=-1"),
        std::string("/check?tag=a&cost=4294967296"), std::string("/check?tag=a&peek=yes"),
        std::string("/check?tag=a&peek=1&peek=1"), std::string("/check?tag=a&why=1"), seventeen}) {
    CAPTURE(target);
    CHECK(daemon.Get(target).status == 400);
  }
  CHECK(daemon.limiter().tally().GrandTotals().served == 0);
  CHECK(daemon.limiter().tally().GrandTotals().throttled == 0);
}

TEST_CASE("debt is no tokens, and the time until there is one") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=2\nrate=1\n");
  daemon.limiter().ways().Get<Debits>().ShareWith(1, 1s);
  REQUIRE(daemon.Get("/check?tag=C&cost=2").status == 200);
  Entries theirs;
  const NamedTag tag("C", 255, daemon.limiter().keys().digest);
  theirs.Add(tag.query().tag, 3, 0);
  daemon.limiter().ways().Get<Debits>().Debit(theirs, 0, 1, kNow - 1s, kNow, kNow);
  const HttpReply reply = daemon.Get("/check?tag=C");
  CHECK(reply.status == 429);
  CHECK(Field(reply, "RateLimit") == "\"r\";r=0;t=3");    // wasted refill has paid for one hit
  CHECK(Field(reply, "Retry-After") == "3");
}

TEST_CASE("auth has no other answers than nginx understands") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=1\nrate=1\n");
  CHECK(daemon.Get("/auth?tag=C").status == 204);
  const HttpReply refused = daemon.Get("/auth?tag=C");
  CHECK(refused.status == 403);
  CHECK(Field(refused, "Retry-After") == "1");
  // Neither 401 nor 403: nginx would take it for a verdict.
  CHECK(daemon.Get("/auth").status == 400);
  CHECK(daemon.Get("/auth?tag=%").status == 400);
}

TEST_CASE("the history has a point every five seconds, of a quarter of an hour at most") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=2\nrate=0.001\n");
  const auto past = [&](Instant now) { return Json::parse(daemon.Get("/history", now).body); };
  Instant now = kNow;
  daemon.service.Tick(now);
  CHECK(past(now)["served"].empty());    // it knows where counts stand, and nothing else
  for (int i = 0; i < 3; ++i) daemon.Get("/check?tag=C", now);
  daemon.service.Tick(now += std::chrono::seconds(4));
  CHECK(past(now)["served"].empty());
  daemon.service.Tick(now += std::chrono::seconds(1));
  const auto first = past(now + std::chrono::seconds(2));
  CHECK(first["served"] == Json({2}));
  CHECK(first["throttled"] == Json({1}));
  CHECK(first["latency_us"] == Json({nullptr}));
  CHECK(first["last_s_ago"] == 2);
  CHECK(first["rules"] == Json::parse(R"([{"rule":"r","served":[2],"throttled":[1]}])"));
  for (int i = 0; i < 200; ++i) daemon.service.Tick(now += std::chrono::seconds(5));
  CHECK(past(now)["served"].size() == History::kPoints);
  CHECK(past(now)["served"] == Json(std::vector<int>(History::kPoints, 0)));
}

TEST_CASE("all who look within half a second see the same, and a new look is made after it") {
  FakeDaemon daemon("[[rule]]\nburst=9\nrate=1\n");
  const std::string seen = daemon.Get("/live").body;
  daemon.Get("/check?tag=C");
  CHECK(daemon.Get("/live", kNow + std::chrono::milliseconds(499)).body == seen);
  CHECK(daemon.Get("/live", kNow + std::chrono::milliseconds(500)).body != seen);
}

TEST_CASE("what is wrong with a request spends nothing") {
  FakeDaemon daemon("[[rule]]\nburst=1\nrate=1\n");
  HttpRequest request;
  request.method = "POST";
  request.target = "/top";
  request.host = "localhost";
  CHECK(daemon.Answer(request, kNow).status == 405);
  request.target = "/check?tag=C";
  request.has_body = true;
  CHECK(daemon.Answer(request, kNow).status == 413);
  request.has_body = false;
  request.host = "evil.example";
  CHECK(daemon.Answer(request, kNow).status == 421);
  request.through_tcp = false;
  request.tag = "C";
  CHECK(daemon.Answer(request, kNow).status == 400);
  request.tag.reset();
  request.fetch_site = "cross-site";
  request.through_tcp = true;
  request.host = "localhost";
  CHECK(daemon.Answer(request, kNow).status == 400);
  CHECK(daemon.service.misdirected() == 2);
  CHECK(daemon.limiter().tally().GrandTotals().served == 0);
  request.fetch_site = "same-origin";
  CHECK(daemon.Answer(request, kNow).status == 200);
}

TEST_CASE("the audit has the first bytes of a tag that anybody on this host forgives") {
  FakeDaemon daemon("[[rule]]\nname=\"r\"\nburst=1\nrate=1\n");
  daemon.configure().admin.http_forgives = true;
  HttpRequest request;
  request.method = "POST";
  request.host = "localhost";
  for (const std::string& tag : {std::string("a%0a"), std::string(5000, 'x')}) {
    const std::string target = "/forgive?tag=" + tag;
    request.target = target;
    CHECK(daemon.Answer(request, kNow).status == 200);
  }
  CHECK(daemon.audited == std::vector<std::string>{"HTTP: forgive a\\x0a",
                                                   "HTTP: forgive " + std::string(96, 'x') + "..."});
}

TEST_CASE("a page of another site is told by its Origin, where a browser says no more") {
  FakeDaemon daemon("[[rule]]\nburst=10\nrate=1e-3\n");
  HttpRequest request;
  request.method = "GET";
  request.target = "/check?tag=C";
  request.host = "localhost:7313";
  for (const char* foreign : {"http://evil.example", "http://localhost", "https://localhost:7313", "null", ""}) {
    CAPTURE(foreign);
    request.origin = foreign;
    CHECK(daemon.Answer(request, kNow).status == 400);
  }
  request.origin = "http://localhost:7313";
  CHECK(daemon.Answer(request, kNow).status == 200);
  CHECK(daemon.limiter().tally().GrandTotals().served == 1);
}

TEST_CASE("over TCP a request names this host, and decides only if the settings say so") {
  FakeDaemon daemon("[[rule]]\nburst=10\nrate=1e-3\n");
  HttpRequest request;
  request.method = "GET";
  request.target = "/check?tag=C";
  CHECK(daemon.Answer(request, kNow).status == 400);    // HTTP/1.1 without Host
  request.is_1_1 = false;
  CHECK(daemon.Answer(request, kNow).status == 200);
  request.is_1_1 = true;
  request.host = "web-1.example.org:7313";
  CHECK(daemon.Answer(request, kNow).status == 421);
  daemon.configure().admin.http_hosts = {"web-1.example.org"};
  CHECK(daemon.Answer(request, kNow).status == 200);
  daemon.configure().admin.http_decides = false;
  for (const char* target : {"/check?tag=C", "/auth?tag=C"}) {
    request.target = target;
    CHECK(daemon.Answer(request, kNow).status == 404);
  }
  request.target = "/rules";
  CHECK(daemon.Answer(request, kNow).status == 200);
  CHECK(daemon.limiter().tally().GrandTotals().served == 2);
  request.target = "/check?tag=C";
  request.through_tcp = false;
  CHECK(daemon.Answer(request, kNow).status == 200);
}

TEST_CASE("health follows the daemon") {
  FakeDaemon daemon("[[rule]]\nburst=1\nrate=1\n");
  CHECK(daemon.Get("/healthz").status == 200);
  daemon.service.Stop();
  CHECK(daemon.Get("/healthz").status == 503);
}

TEST_CASE("the page allows its own script and style and nothing else") {
  CHECK(kPage.find("<script>") != std::string_view::npos);
  CHECK(kPagePolicy.find("default-src 'none'") == 0);
  CHECK(kPagePolicy.find("unsafe") == std::string_view::npos);
  CHECK(kPagePolicy.find('*') == std::string_view::npos);
  CHECK(kPage.find("innerHTML") == std::string_view::npos);
  CHECK(kPage.find("document.write") == std::string_view::npos);
}

}    // namespace
}    // namespace dthrottle
