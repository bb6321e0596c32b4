#include "admin/admin.h"

#include <catch2/catch.hpp>

#include "admin/counts.h"
#include "admin/escape.h"
#include "base/prng.h"
#include "config/keys.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "test/support/host.h"
#include "test/support/quiet_daemon.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

class FakeDaemon final : public testing::QuietDaemon {
 public:
  FakeDaemon()
      : host_(
            "[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=3\nrate=0.5\n"
            "[[rule]]\nname=\"default\"\nburst=10\nrate=1\n"
            "[[override]]\ntag=\"vip\"\nburst=100\nrate=50\n") {}

  Limiter& limiter() override { return *host_.limiter; }
  ShedStatus Shed() const override { return shed; }
  LeaseStatus Leases(std::string_view resource) override {
    LeaseStatus status = leases;
    if (resource.empty()) status.holders.clear();
    return status;
  }
  Result<void> ReportShed(double value) override {
    if (shed.signal != ShedSignal::kReported) return Fail("not wanted");
    shed.value = value;
    return {};
  }
  void Reload(std::function<void(const ReloadOutcome&)> done) override { done(outcome); }
  void Upgrade(std::function<void(const Result<std::string>&)> done) override { done(upgraded); }

  std::string Ask(std::string_view line) {
    std::string answer;
    int answers = 0;
    RunCommand(
        line, *this, [&](std::string text) { answer = std::move(text), ++answers; }, kNow);
    CHECK(answers == 1);
    // The empty line ends an answer and is nowhere else.
    CHECK(answer.find("\n\n") == answer.size() - 2);
    return answer;
  }

  Host& host() { return host_; }
  ReloadOutcome outcome{true, {}};
  Result<std::string> upgraded = "/usr/sbin/dthrottled";
  ShedStatus shed;
  LeaseStatus leases;

 private:
  Host host_;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("tags are shown as printable ASCII and read back") {
  CHECK(EscapeTag("plain tag") == "plain tag");
  CHECK(EscapeTag(std::string("\x1b[2J\\\0\xff", 7)) == "\\x1b[2J\\\\\\x00\\xff");
  Prng prng(1);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes(prng.Below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(prng.Next());
    CHECK(UnescapeTag(EscapeTag(bytes)).value() == bytes);
  }
  for (const char* bad : {"\\", "\\x", "\\x1", "\\xg0", "\\n", "a\\"}) {
    CAPTURE(bad);
    CHECK_FALSE(UnescapeTag(bad).has_value());
  }
}

TEST_CASE("help comes first and names every command") {
  FakeDaemon daemon;
  const std::string help = daemon.Ask("help");
  for (const char* c : {"help", "stats", "metrics", "show TAG", "why TAG", "top [N]", "rules", "shed [VALUE]", "config",
                        "forgive TAG", "reload", "upgrade", "json"}) {
    CHECK(Has(help, c));
  }
}

TEST_CASE("show tells rule, level, debt and when the tag is served again") {
  FakeDaemon daemon;
  for (int i = 0; i < 5; ++i) daemon.host().Serves("login:x", kNow);
  const std::string answer = daemon.Ask("show login:x");
  CHECK(Has(answer, "rule               login\n"));
  CHECK(Has(answer, "level              0\n"));
  CHECK(Has(answer, "debt               0\n"));
  CHECK(Has(answer, "verdict            NO\n"));
  CHECK(Has(answer, "served_again_in_s  2\n"));
  CHECK(Has(answer, "full_in_s          6\n"));
  CHECK(Has(daemon.Ask("show vip"), "override           true\n"));
  CHECK(Has(daemon.Ask("show nobody"), "recorded           false\n"));
}

TEST_CASE("why explains a verdict rule by rule") {
  FakeDaemon daemon;
  for (int i = 0; i < 11; ++i) daemon.host().Serves("web", kNow);
  const std::string answer = daemon.Ask("why web");
  CHECK(Has(answer, "No override names the tag."));
  CHECK(Has(answer, "Rule \"login\" (match \"login:*\"): does not match."));
  CHECK(Has(answer, "Rule \"default\" (default): applies."));
  CHECK(Has(answer, "The level is 0.000 tokens, less than one: the limit says NO for another 1.000 s."));
  CHECK(Has(daemon.Ask("why " + std::string(300, 'x')), "it goes by its digest"));
}

TEST_CASE("show and why know of tags that are charged with a tag, and how long they refuse it") {
  FakeDaemon daemon;
  daemon.host().limiter->Adopt(
      testing::Rules("[[rule]]\nname=\"off\"\nmatch=\"off/*\"\nburst=1\nrate=1\nmode=\"off\"\nalso=[\"before /\"]\n"
                     "[[rule]]\nname=\"user\"\nmatch=\"*/*\"\nburst=100\nrate=1\nalso=[\"before /\"]\n"
                     "[[rule]]\nname=\"tenant\"\nburst=5\nrate=0.5\n"));
  for (int i = 0; i < 5; ++i) daemon.host().Serves("acme/x", kNow);
  CHECK_FALSE(daemon.host().Serves("acme/x", kNow));
  const std::string shown = daemon.Ask("show acme/x"), why = daemon.Ask("why acme/x");
  CHECK(Has(shown, "level              95\n"));
  CHECK(Has(shown, "verdict            NO\n"));
  CHECK(Has(shown, "served_again_in_s  2\n"));
  CHECK(Has(why, "verdict  NO\n"));
  CHECK(Has(why, "The level is 95.000 tokens, one or more: the bucket says OK.\n"));
  CHECK(Has(why, "under rule \"tenant\", whose level is 0.000: that says NO for another 2.000 s.\n"));
  for (int i = 0; i < 5; ++i) daemon.host().Serves("off", kNow);
  CHECK(daemon.host().Serves("off/x", kNow));
  CHECK(Has(daemon.Ask("show off/x"), "verdict            OK\nserved_again_in_s  0\n"));
  CHECK_FALSE(Has(daemon.Ask("why off/x"), "It is charged with"));
}

TEST_CASE("show and why know how long a penalty refuses a tag") {
  FakeDaemon daemon;
  daemon.host().limiter->Adopt(testing::Rules(
      "[[rule]]\nmatch=\"pen*\"\nburst=2\nrate=1\npenalty={ after = 2, lasts = \"10m\" }\n"
      "[[rule]]\nmatch=\"shadow*\"\nburst=2\nrate=1\nmode=\"shadow\"\npenalty={ after = 2, lasts = \"10m\" }\n"));
  for (int i = 0; i < 4; ++i) daemon.host().Serves("pen", kNow - 5s), daemon.host().Serves("shadow", kNow);
  CHECK_FALSE(daemon.host().Serves("pen", kNow));
  CHECK(Has(daemon.Ask("show pen"), "verdict            NO\nserved_again_in_s  595\n"));
  CHECK(Has(daemon.Ask("show pen"), "penalty_s          595\n"));
  CHECK(Has(daemon.Ask("why pen"), "The level is 2.000 tokens, one or more: the bucket says OK.\n"));
  CHECK(Has(daemon.Ask("show shadow"), "verdict            OK\nserved_again_in_s  0\n"));
}

TEST_CASE("top lists the most throttled and the most served") {
  FakeDaemon daemon;
  for (int i = 0; i < 30; ++i) daemon.host().Serves("noisy\x1b", kNow);
  for (int i = 0; i < 4; ++i) daemon.host().Serves("login:x", kNow);
  const std::string answer = daemon.Ask("top");
  CHECK(Has(answer, "throttled:\ncount  error  rule     tag\n20     0      default  noisy\\x1b\n"));
  CHECK(
      Has(answer,
          "served:\ncount  error  rule     tag\n10     0      default  noisy\\x1b\n3      0      login    login:x\n"));
  CHECK_FALSE(Has(daemon.Ask("top 1"), "login:x\nserved"));
  for (const char* bad : {"top 0", "top x", "top 1x", "top -1", "top 257"})
    CHECK(daemon.Ask(bad).starts_with("error: "));
}

TEST_CASE("rules count what they served and throttled") {
  FakeDaemon daemon;
  for (int i = 0; i < 5; ++i) daemon.host().Serves("login:x", kNow);
  CHECK(Has(daemon.Ask("rules"),
            "login    login:*  3      0.5   debit  enforce  3       2          0         0     0        -\n"));
}

TEST_CASE("shed shows the signal and what it does to each priority, and takes values where they are wanted") {
  FakeDaemon daemon;
  daemon.host().limiter->Adopt(
      testing::Rules("[[rule]]\nname=\"login\"\nmatch=\"login:*\"\nburst=3\nrate=0.5\nshed=true\nshed_priority=3\n"
                     "[[rule]]\nname=\"quiet\"\nmatch=\"q*\"\nburst=3\nrate=0.5\nshed=true\nmode=\"shadow\"\n"
                     "[[rule]]\nname=\"default\"\nburst=10\nrate=1\nshed=true\n"));
  daemon.shed.note = "why not";
  CHECK(Has(daemon.Ask("shed"), "signal      cgroup\nsource      -\nvalue       -\n"));
  CHECK(Has(daemon.Ask("shed"), "note        why not\n"));
  CHECK(Has(daemon.Ask("why web"), "The rule sheds with priority 0, but not now: why not.\n"));
  CHECK(daemon.Ask("shed 7") == "error: not wanted\n\n");

  const ShedCurve curve(100, 300);
  const auto measure = [&](double value) {
    daemon.shed = {ShedSignal::kReported, "", value, 0, curve, 250ms, ""};
    daemon.host().limiter->shedder().Shed(daemon.host().limiter->rules().shed_priorities(), curve, value);
  };
  measure(150);
  const std::string answer = daemon.Ask("shed");
  CHECK(Has(answer, "value       150\nage_s       0.25\nmaximum     -\nlow         100\nhigh        300\n"
            "curve       logistic\n"));
  CHECK(Has(answer,
            "priority  low  high  probability  rules\n0         100  200   0.5          quiet, default\n"
            "3         200  300   0            login\n"));
  CHECK(Has(daemon.Ask("json shed"), "{\"priority\":0,\"low\":100.0,\"high\":200.0,\"probability\":0.5,"));
  CHECK(Has(daemon.Ask("show web"), "shed_probability   0.5\n"));
  CHECK(Has(daemon.Ask("show web"), "verdict            OK\n"));
  CHECK(Has(daemon.Ask("why web"),
            "and now a query with probability 0.5, before its bucket is asked: shed.signal = "
            "\"reported\" is at 150.\n"));
  CHECK(Has(daemon.Ask("why login:x"), "The rule sheds with priority 3, but not now: "));
  CHECK(Has(daemon.Ask("json stats"), "\"shed_probability\":0.5,"));
  measure(200);
  for (int i = 0; i < 7; ++i) daemon.host().Serves("web", kNow);
  CHECK(Has(daemon.Ask("show web"), "verdict            NO\nserved_again_in_s  -\n"));
  CHECK(Has(daemon.Ask("why web"), "verdict  NO\n"));
  CHECK(Has(daemon.Ask("why web"), "and now every query: "));
  CHECK(Has(daemon.Ask("show quiet"), "verdict            OK\n"));
  CHECK(Has(daemon.Ask("why quiet"), "The mode is shadow: what is shed is counted and answered OK."));
  CHECK(Has(daemon.Ask("rules"),
            "default  -        10     1     debit  enforce  0       0          0         7     0        -\n"));
  CHECK(Has(daemon.Ask("json stats"), "\"queries\":7,"));

  CHECK(Has(daemon.Ask("shed -2.5"), "value       -2.5\n"));
  for (const char* bad : {"shed x", "shed 1x", "shed  1", "shed nan", "shed inf", "shed 1e999", "shed 1 "}) {
    CHECK(daemon.Ask(bad) == "error: VALUE must be a number\n\n");
  }
  daemon.shed = {ShedSignal::kHost, "/proc/meminfo", 5e9, 16e9, ShedCurve(4e9, 6e9), 0s, ""};
  CHECK(Has(daemon.Ask("shed"),
            "value       5000000000\nage_s       0\nmaximum     16000000000\nlow         4000000000\n"));
}

TEST_CASE("forgive fills a bucket and says whether there was anything to forgive") {
  FakeDaemon daemon;
  for (int i = 0; i < 5; ++i) daemon.host().Serves("login:x", kNow);
  CHECK(Has(daemon.Ask("forgive login:x"), "forgiven  true\n"));
  CHECK(Has(daemon.Ask("forgive login:x"), "forgiven  false\n"));
  CHECK(daemon.host().Serves("login:x", kNow));
}

TEST_CASE("a tag may have blanks, bytes that are escaped, or no bytes at all") {
  FakeDaemon daemon;
  daemon.host().Serves(" a  b ", kNow);
  CHECK(Has(daemon.Ask("show  a  b "), "recorded           true\n"));
  daemon.host().Serves(std::string("\0\n", 2), kNow);
  CHECK(Has(daemon.Ask("show \\x00\\x0a"), "recorded           true\n"));
  daemon.host().Serves("", kNow);
  CHECK(Has(daemon.Ask("show "), "recorded           true\n"));
  CHECK(daemon.Ask("show") == "error: show needs a TAG\n\n");
  CHECK(daemon.Ask("show \\q") == "error: TAG: a backslash must begin \\\\ or \\xNN\n\n");
}

TEST_CASE("what is not a command is an error that helps") {
  FakeDaemon daemon;
  CHECK(daemon.Ask("bogus") == "error: unknown command \"bogus\"; try help\n\n");
  CHECK(daemon.Ask("") == "error: unknown command \"\"; try help\n\n");
  CHECK(daemon.Ask("stats now") == "error: stats takes nothing after it\n\n");
  CHECK(Has(daemon.Ask("json bogus"), "{\"error\":"));
}

TEST_CASE("upgrade tells which program it becomes, or why it does not") {
  FakeDaemon daemon;
  CHECK(daemon.Ask("upgrade") == "upgrading  true\nprogram    /usr/sbin/dthrottled\n\n");
  daemon.upgraded = Fail("it is not there");
  CHECK(daemon.Ask("upgrade") == "error: it is not there\n\n");
  CHECK(daemon.Ask("json upgrade") == "{\"error\":\"it is not there\"}\n\n");
}

TEST_CASE("reload tells how it ended") {
  FakeDaemon daemon;
  CHECK(Has(daemon.Ask("reload"), "reloaded  true\n"));
  daemon.outcome = {false, {"f:1:2: error: not UTF-8: \xc3"}};
  CHECK(Has(daemon.Ask("json reload"), "\"reloaded\":false"));
  daemon.outcome = {false, {"f:1:2: error: bad"}};
  const std::string answer = daemon.Ask("reload");
  CHECK(answer.starts_with("reloaded  false\n"));
  CHECK(Has(answer, "f:1:2: error: bad\n"));
}

TEST_CASE("stats names everything that is counted") {
  FakeDaemon daemon;
  for (int i = 0; i < 12; ++i) daemon.host().Serves("web", kNow);
  const std::string answer = daemon.Ask("stats");
  for (const Count& count : Counts()) CHECK(Has(answer, "\n" + std::string(count.name) + " "));
  CHECK(Has(daemon.Ask("json stats"), "\"queries\":12,\"served\":10,\"throttled\":2"));
}

TEST_CASE("config is the settings file in force") {
  FakeDaemon daemon;
  std::string text = daemon.Ask("config");
  text.pop_back();
  CHECK(ParseSettings(text, "f").ok());
  CHECK(Has(text, "tag = \"vip\""));
}

TEST_CASE("config shows an override that no file can have as a comment") {
  for (const char* tag : {"\xff", "a\nb", "a\r", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "caf\xc3",
                          "caf\xc3\xa9", "\xe2\x82\xac \xf0\x9f\x98\x80", "\x7f\"\\", "a\rb"}) {
    CAPTURE(EscapeTag(tag));
    FakeDaemon daemon;
    daemon.host().limiter->Adopt(
        std::make_shared<Rulebook>(std::vector<Rule>(), std::vector<Override>{{tag, 5, 0.5, {}, {}}}));
    std::string text = daemon.Ask("config");
    text.pop_back();
    const LoadedSettings again = ParseSettings(text, "f");
    CHECK(again.ok());
    const bool is_there = again.settings.overrides.size() == 1 && again.settings.overrides[0].tag == tag;
    CHECK(is_there == IsTagOfFile(tag));
    CHECK(is_there != Has(text, "\n# an override that no file can have, of the tag " + EscapeTag(tag) +
                                    ": burst = 5, rate = 0.5\n"));
  }
  CHECK(IsTagOfFile("caf\xc3\xa9"));
  CHECK_FALSE(IsTagOfFile("\xed\xa0\x80"));
}

TEST_CASE("the audit has what was done and what was refused, and why, with the answer") {
  struct Audited final : testing::QuietDaemon {
    Limiter& limiter() override { return *host.limiter; }
    void Reload(std::function<void(const ReloadOutcome&)> done) override { reloaded = std::move(done); }
    void Audit(std::string_view text) const override { said.emplace_back(text); }
    Host host{"[[rule]]\nburst=3\nrate=0.5\n"};
    std::function<void(const ReloadOutcome&)> reloaded;
    mutable std::vector<std::string> said;
  } daemon;
  for (const char* line : {"stats", "show C", "shed", "forgive a\\x0ab\r", "forgive \x1b\\\\", "json forgive \\q",
                           "shed 5", "upgrade", "reload"}) {
    RunAudited(line, "me", daemon, [](const std::string&) {}, kNow);
  }
  const std::vector<std::string> before = {"me: forgive a\\x0ab", "me: forgive \\x1b\\\\",
                                           "me: json forgive \\q: refused: TAG: a backslash must begin \\\\ or \\xNN",
                                           "me: shed 5: refused: not wanted", "me: upgrade: refused: not now"};
  CHECK(daemon.said == before);
  daemon.reloaded({false, {"f:1:2: error: bad"}});
  CHECK(daemon.said.back() == "me: reload: refused: the settings in force have not changed");
  daemon.reloaded({true, {}});
  CHECK(daemon.said.back() == "me: reload");
  const std::string tag(5000, 'x');
  RunAudited("forgive " + tag, "me", daemon, [](const std::string&) {}, kNow);
  CHECK(daemon.said.back() == "me: " + ("forgive " + tag).substr(0, 1200) + "...");
  RunAudited("forgive " + tag + "\\q", "me", daemon, [](const std::string&) {}, kNow);
  CHECK(daemon.said.back().ends_with("...: refused: TAG: a backslash must begin \\\\ or \\xNN"));
}

TEST_CASE("leases are shown with their master, and what strangers wrote is escaped") {
  FakeDaemon daemon;
  CHECK(Has(daemon.Ask("leases"),
            "note            lease.unix, lease.tcp and lease.grpc are \"\": this host leases nothing\n"));
  const BootInstant now(100s);
  lease::ResourceTemplate how;
  how.algorithm = lease::Algorithm::kProportionalShare;
  daemon.leases.elector = "etcd";
  daemon.leases.now = now;
  daemon.leases.master = "tcp:10.0.0.2:7315";
  daemon.leases.node = "leaf";
  daemon.leases.level = 1;
  daemon.leases.parent = "tcp:10.0.0.1:7315";
  daemon.leases.parent_heard = 2s;
  daemon.leases.parent_trouble = "tcp:10.0.0.1:7315 did not answer in time";
  daemon.leases.trouble = "http://10.0.0.9:2379: Connection \x1b refused";
  lease::ResourceStatus calls{.resource = "calls\n",
                              .how = &how,
                              .capacity = 100,
                              .from = "parent",
                              .wants = 170,
                              .has = 90.5,
                              .clients = 2,
                              .safe_capacity = -1};
  calls.capacity_expiry = now + 9s;
  calls.learning_until = now + 1500ms;
  daemon.leases.resources = {calls};
  daemon.leases.holders = {{.id = "a\xff", .priority = -1, .wants = 80, .has = {.capacity = 50, .expiry = now + 44s}}};
  CHECK(
      daemon.Ask("leases") ==
      "elector         etcd\n"
      "master          tcp:10.0.0.2:7315\n"
      "here            false\n"
      "token           0\n"
      "valid_s         -\n"
      "node            leaf\n"
      "level           1\n"
      "parent          tcp:10.0.0.1:7315\n"
      "parent_heard_s  2\n"
      "parent_note     tcp:10.0.0.1:7315 did not answer in time\n"
      "resources_from  settings\n"
      "note            http://10.0.0.9:2379: Connection \\x1b refused\n"
      "resources:\n"
      "resource   algorithm           capacity  from    has   wants  clients  shortfall  safe  expires_in_s  "
      "learning_s\n"
      "calls\\x0a  proportional_share  100       parent  90.5  170    2        0          -     9             1.5\n\n");
  CHECK(Has(daemon.Ask("leases other"), "resources:\n(none)\n"));
  CHECK(Has(daemon.Ask("leases calls\\x0a"),
            "clients:\nclient  has  wants  priority  expires_in_s\na\\xff   50   80     -1        44\n"));
  CHECK(Has(daemon.Ask("json leases"), "\"valid_s\":null"));
}

}    // namespace
}    // namespace dthrottle
