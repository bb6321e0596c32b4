#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <utility>

#include "config/keys.h"
#include "config/listeners.h"
#include "config/load.h"
#include "config/values.h"
#include "rule/rulebook.h"
#include "share/accuracy/certificate.h"
#include "share/check.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kNoRule = "f: warning: there is no [[rule]]: every query will be answered OK";

// The problems of a part of a file, which need not have a rule.
std::vector<std::string> Problems(std::string_view toml) {
  std::vector<std::string> lines;
  for (const Problem& p : ParseSettings(toml, "f").problems) lines.push_back(Format(p));
  std::erase(lines, kNoRule);
  return lines;
}

// "section.key".
bool IsKey(std::string_view path) {
  for (const Section& section : Sections()) {
    for (const auto& key : section.keys) {
      if (fmt::format("{}.{}", section.name, key.name) == path) return true;
    }
  }
  return false;
}

TEST_CASE("resources of another text are checked like those of the file, and nothing else may be in it") {
  const Settings settings = ParseSettings("[lease]\nunix = \"/run/lease\"\nlevel = 3\n", "f").settings;
  const std::string glob = "[[resource]]\nidentifier_glob = \"a\"\ncapacity = 5\n";
  const LoadedSettings good = ParseResources(glob, "etcd:k", settings);
  REQUIRE(good.ok());
  CHECK(good.settings.resources.front().capacity == 5);
  for (const auto& [text, complaint] :
       {std::pair<std::string, const char*>("[query]\nunix = \"\"\n", "error: unknown key query; must be [[resource]]"),
        {"[[resource]]\ncapacity = 5\n", "etcd:k:1:1: error: resource without identifier_glob"},
        {glob + "refresh_interval = \"8s\"\n", "on lease.level = 3"},
        {"[[resource", "error: not TOML"}}) {
    const LoadedSettings bad = ParseResources(text, "etcd:k", settings);
    CAPTURE(text);
    REQUIRE_FALSE(bad.ok());
    CHECK(Format(bad.problems.front()).find(complaint) != std::string::npos);
  }
}

TEST_CASE("rules of another text are checked like those of the file, with the settings of the daemon") {
  const std::string quota = "[[rule]]\nburst = 5\nrate = 1.0\nquota = 10\nper = \"day\"\n";
  const Settings settings = ParseSettings("[quota]\nfile = \"/var/lib/q\"\n" + quota, "f").settings;
  CHECK(ParseRules(quota, "rules", settings, {}).ok());
  const std::string other = "[[override]]\ntag = \"x\"\nburst = 2\nrate = 1.0\n";
  const LoadedSettings two = ParseRules(quota + other, "rules", settings, {});
  REQUIRE(two.ok());
  CHECK(two.settings.rules.size() == 1);
  CHECK(two.settings.overrides.size() == 1);
  CHECK(two.settings.quota.file == "/var/lib/q");
  for (const auto& [text, complaint] :
       {std::pair<std::string, const char*>("[query]\nunix = \"\"\n",
                                            "error: unknown key query; must be [[rule]] or [[override]]"),
        {"[[rule]]\nburst = 0\nrate = 1.0\n", "rules:2:9: error: rule.burst = 0: must be"},
        {"[[rule", "error: not TOML"}}) {
    const LoadedSettings bad = ParseRules(text, "rules", settings, {});
    CAPTURE(text);
    REQUIRE_FALSE(bad.ok());
    CHECK(Format(bad.problems.front()).find(complaint) != std::string::npos);
  }
  const LoadedSettings none = ParseRules(quota, "rules", DefaultSettings(), {});
  CHECK(none.ok() == ParseSettings(quota, "f").ok());
}

TEST_CASE("rules that are written without their defaults read back as the same rules") {
  const std::string text = R"([[rule]]
match = "login:*"
burst = 2.5
rate = "60/m"
mode = "shadow"
delay = "500ms"
penalty.after = 20
penalty.within = "1m"
penalty.lasts = "10m"
penalty.doubling = true
[[rule]]
name = "nets"
match_cidrs = ["192.0.2.0/24", "2001:db8::/32"]
burst = 10
rate = 1e-3
share = "local"
in_flight = 7
fail_closed = true
shed = true
shed_priority = 2
[[rule]]
name = "quoted"
match = "\"a\\*\tb"
burst = 1e9
rate = 1e6
max_debt = 0
horizon = "20s"
tolerance = 5
quota = 12
per = "week"
weight = 2.5
[[rule]]
burst = 1
rate = 1.0
share = "forecast"
max_unheard = 3
[[override]]
tag = "login:bob"
burst = 7
rate = 0.25
mode = "off"
)";
  const LoadedSettings first = ParseSettings(text, "f");
  for (const Problem& p : first.problems) UNSCOPED_INFO(Format(p));
  REQUIRE(first.ok());
  const std::string written = RenderRules(first.settings.rules, first.settings.overrides);
  CAPTURE(written);
  CHECK(written.size() < text.size() + 100);
  const LoadedSettings again = ParseRules(written, "rules", DefaultSettings(), {});
  REQUIRE(again.ok());
  CHECK(RenderRules(again.settings.rules, again.settings.overrides) == written);
  CHECK(Rulebook(again.settings.rules, again.settings.overrides).fingerprint() ==
        Rulebook(first.settings.rules, first.settings.overrides).fingerprint());
  for (const auto& key : RuleKeys()) {
    for (std::size_t i = 0; i < first.settings.rules.size(); ++i) {
      CAPTURE(key.name, i);
      CHECK(key.get(again.settings.rules[i]) == key.get(first.settings.rules[i]));
    }
  }
}

TEST_CASE("values are read with their units and written back") {
  CHECK(ParseDuration("250ms").value() == 250ms);
  CHECK(ParseDuration("1.5m").value() == 90s);
  CHECK(FormatDuration(5s) == "5s");
  CHECK(FormatDuration(90s) == "90s");
  CHECK(FormatDuration(300s) == "5m");
  CHECK(ParseBytes("2.8GiB").value() == 3006477107u);
  CHECK(ParseBytes("64MiB").value() == 64u << 20);
  CHECK(FormatBytes(64u << 20) == "64MiB");
  CHECK(ParseRate("60/m").value() == Approx(1));
  CHECK(ParseRate("86400/d").value() == Approx(1));
  CHECK(ParseEndpoint("127.0.0.1:7311").value() == Endpoint{"127.0.0.1", 7311});
  CHECK(FormatEndpoint(ParseEndpoint("[::1]:80").value()) == "[::1]:80");
  CHECK(ParseFileMode("0660").value() == 0660);
}

TEST_CASE("values that are not are refused") {
  for (const char* bad : {"", "5", "s", "-5s", "5 s", "5x", "1e5s", "nan", "infs"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseDuration(bad).has_value());
  }
  for (const char* bad : {"60/w", "/s", "60", "-1/s"}) CHECK_FALSE(ParseRate(bad).has_value());
  for (const char* bad : {"localhost:1", "1.2.3.4", "1.2.3.4:", "1.2.3.4:65536", "::1:80", "[1.2.3.4]:80"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseEndpoint(bad).has_value());
  }
  CHECK_FALSE(ParseEndpoint(std::string_view("10.0.0.7\0:1", 11)).has_value());
  for (const char* bad : {"", "8", "01000", "rw"}) CHECK_FALSE(ParseFileMode(bad).has_value());
}

TEST_CASE("an empty file has every default") {
  const LoadedSettings loaded = ParseSettings("", "f");
  REQUIRE(loaded.ok());
  const Settings& s = loaded.settings;
  CHECK(s.query.unix_path == "/run/dthrottle/query.sock");
  CHECK(s.query.unix_mode == 0660);
  CHECK_FALSE(s.query.tcp.enabled());
  CHECK(s.query.threads == 1);
  CHECK(s.query.max_tag_bytes == 255);
  CHECK(s.query.max_connections == 16384);
  CHECK(s.query.idle_timeout == 5min);
  CHECK(s.admin.unix_path == "/run/dthrottle/admin.sock");
  CHECK_FALSE(s.admin.http_decides);
  CHECK(s.admin.http == Endpoint{"127.0.0.1", 7313});
  CHECK(s.admin.http_unix_path.empty());
  CHECK(s.admin.http_unix_mode == 0660);
  CHECK(s.admin.http_connections == 256);
  CHECK(s.admin.http_timeout == 75s);
  CHECK(s.admin.http_headers == HttpHeaders::kDraft10);
  CHECK(s.table.memory == 64u << 20);
  CHECK(s.table.file == "/run/dthrottle/table");
  CHECK(FormatBind(s.peers.bind) == "tcp://127.0.0.1:7314");
  CHECK(s.peers.period == 5s);
  CHECK(s.rules.empty());
}

TEST_CASE("default paths move to the runtime directory, given ones do not") {
  const LoadedSettings loaded = ParseSettings("[admin]\nunix=\"/run/dthrottle/a.sock\"\n", "f", "/home/u/run");
  CHECK(loaded.settings.query.unix_path == "/home/u/run/query.sock");
  CHECK(loaded.settings.table.file == "/home/u/run/table");
  CHECK(loaded.settings.admin.unix_path == "/run/dthrottle/a.sock");
}

TEST_CASE("commands over TCP are an error that names the Unix socket") {
  CHECK(Problems("[admin]\ntcp=\"\"\n").empty());
  CHECK(Problems("[admin]\ntcp=\"127.0.0.1:7312\"\n").at(0) ==
        "f:2:5: error: admin.tcp = \"127.0.0.1:7312\": must be \"\": commands are taken on admin.unix only, whose "
        "permissions say by whom");
}

// The settings of the first design, which users know.
TEST_CASE("the settings of the design are read") {
  const LoadedSettings loaded = ParseSettings(R"(
[query]   
unix="/run/dthrottle/query.sock"
unix_mode="0660"
tcp="127.0.0.1:7311"
threads=1
max_tag_bytes=255
max_connections=16384
idle_timeout="5m"
[admin]
unix="/run/dthrottle/admin.sock"
tcp=""
http="127.0.0.1:7313"
[table]
memory="64MiB"
file="/run/dthrottle/table"
[peers]
name=""
bind="tcp://127.0.0.1:7314"
connect=["tcp://10.0.0.2:7314"]
period="5s"
key_file=""
authorized_keys=""
[shed]
low="2.8GiB"
high="3GiB"
signal="cgroup"
[[rule]]
name="login"
match="login:*"
burst=10
rate=1.0
share="debit"
mode="enforce"
[[override]]
tag="login:partner-7"
burst=100
rate=20.0
)",
                                              "f");
  // The one thing wrong with it: a peer that is not on this host, and no keys.
  for (const Problem& p : loaded.problems) {
    if (p.severity == Problem::Severity::kError) {
      CHECK(p.message.starts_with("peers.connect = \"tcp://10.0.0.2:7314\" is not loopback: must have"));
    }
  }
  CHECK_FALSE(loaded.ok());
  REQUIRE(loaded.settings.rules.size() == 1);
  CHECK(loaded.settings.rules[0].match == "login:*");
  CHECK(loaded.settings.overrides.at(0).tag == "login:partner-7");
  CHECK(loaded.settings.peers.connect == std::vector<std::string>{"tcp://10.0.0.2:7314"});
  CHECK(loaded.settings.shed.low == ShedBound{ShedBound::Kind::kBytes, 3006477107});
  CHECK(loaded.settings.shed.high == ShedBound{ShedBound::Kind::kBytes, 3221225472});
  CHECK(loaded.settings.shed.signal == ShedSignal::kCgroup);
}

TEST_CASE("everything wrong is said at once, with its place, value and what is allowed") {
  const auto problems = Problems(
      "[query]\n"
      "threads = 0\n"
      "tcp = \"localhost:1\"\n"
      "thread = 2\n"
      "[[rule]]\n"
      "burst = \"many\"\n"
      "rate = \"60/w\"\n"
      "[[rule]]\n"
      "name = \"b\"\n"
      "match = \"[\"\n"
      "rate = 1\n"
      "[shed]\n"
      "low = 5\n"
      "[tabel]\n");
  REQUIRE(problems.size() == 9);
  CHECK(problems[0] == "f:2:11: error: query.threads = 0: must be a whole number from 1 to 64");
  CHECK(problems[1] ==
        "f:3:7: error: query.tcp = \"localhost:1\": must be a numeric address and port such as \"127.0.0.1:7311\" or "
        "\"[::1]:7311\", or \"\" for none");
  CHECK(problems[2] ==
        "f:4:1: error: unknown key query.thread; must be one of unix, unix_mode, tcp, threads, max_tag_bytes, "
        "max_connections, idle_timeout");
  CHECK(problems[3] == "f:6:9: error: rule.burst = \"many\": must be a number of tokens from 1 to 1e+09");
  CHECK(problems[4].starts_with("f:7:8: error: rule.rate = \"60/w\": must be tokens a second from 1e-06 to 1e+09"));
  CHECK(problems[5].starts_with("f:8:1: error: rule without burst; must be"));
  CHECK(problems[6].starts_with("f:10:9: error: rule.match = \"[\": must be a glob"));
  CHECK(problems[7].starts_with("f:13:7: error: shed.low = 5: must be a size"));
  CHECK(problems[8].starts_with("f:14:1: error: unknown key tabel; must be one of"));
}

TEST_CASE("an unknown key stands on one line, in quotes where TOML wants them") {
  const auto problems = Problems("\"a b\\nMAINPID=1\" = 1\n[query]\n\"\" = 1\n[[rule]]\nburst = 5\nrate = 1\n"
                                 "penalty = { \"for ever\" = 1 }\n");
  REQUIRE(problems.size() == 3);
  CHECK(problems[0].starts_with("f:1:20: error: unknown key \"a b\\u000AMAINPID=1\"; must be one of [query], "));
  CHECK(problems[1].starts_with("f:3:1: error: unknown key query.\"\"; must be one of unix, "));
  CHECK(problems[2].starts_with("f:7:13: error: unknown key rule.penalty.\"for ever\"; must be one of name, "));
}

TEST_CASE("a section that is unknown is an error") {
  const auto problems = Problems("[tabel]\nmemory = \"1MiB\"\n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] ==
        "f:1:1: error: unknown key tabel; must be one of [query], [admin], [table], [peers], [sites], [capacity], "
        "[shed], [resp], [ask], [hold], [quota], [page], [spop], [envoy], [lease], [tls], [operator], [process], "
        "[[rule]], [[override]], "
        "[[resource]]");
}

TEST_CASE("a setting that is gone is an error that says what replaces it") {
  const auto problems = Problems(
      "[peers]\neager = false\n[capacity]\non_isolation = \"reserve\"\ngraph = \"ring\"\n"
      "[capacity2]\n");
  REQUIRE(problems.size() == 4);
  CHECK(problems[0].starts_with("f:2:9: error: peers.eager = false: no longer there; rules with share = \"forecast\""));
  CHECK(problems[1].starts_with("f:4:16: error: capacity.on_isolation = \"reserve\": no longer there; "));
  CHECK(problems[2].starts_with("f:5:9: error: capacity.graph = \"ring\": no longer there; graph = \"regular\" with"));
  CHECK(problems[3].starts_with("f:6:1: error: unknown key capacity2; must be"));
  CHECK(Problems("[capacity]\ngraph = \"star\"\n").at(0).find("no longer") == std::string::npos);
}

TEST_CASE("names, defaults and override tags are unique, and the earlier line is named") {
  const auto problems = Problems(
      "[[rule]]\nname=\"a\"\nburst=10\nrate=1\n"
      "[[rule]]\nname=\"a\"\nmatch=\"x\"\nburst=10\nrate=1\n"
      "[[rule]]\nburst=10\nrate=1\n"
      "[[override]]\ntag=\"t\"\nburst=10\nrate=1\n"
      "[[override]]\ntag=\"t\"\nburst=10\nrate=1\n");
  REQUIRE(problems.size() == 3);
  CHECK(problems[0] == "f:5:1: error: rule.name = \"a\": must be unique, and line 1 has it");
  CHECK(problems[1] == "f:10:1: error: rule \"rule-3\" without match; must be one rule at most, and that of line 1 is");
  CHECK(problems[2] == "f:17:1: error: override.tag = \"t\": must be unique, and line 13 has it");
}

TEST_CASE("a long value is cut between characters") {
  std::string toml = "[query]\nunix = \"";
  for (int i = 0; i < 60; ++i) toml += "\xc3\xa9";
  const std::string problem = Problems(toml + "\"\n").at(0);
  CHECK(problem.find("\xc3\xa9...: must be an absolute path") != std::string::npos);
}

TEST_CASE("settings that contradict each other are refused") {
  CHECK(Problems("[query]\nunix=\"\"\ntcp=\"\"\n").size() == 1);
  CHECK(Problems("[query]\nunix=\"/a\"\n[admin]\nunix=\"/a\"\n").size() == 1);
  CHECK(Problems("[shed]\nlow=\"2GiB\"\nhigh=\"1GiB\"\n").at(0).find("shed.low") != std::string::npos);
  CHECK(Problems("[[rule]]\nburst=1000000000\nrate=\"1/d\"\nshare=\"local\"\n").size() == 1);
  CHECK(Problems("[query]\nmax_tag_bytes=3\n[[override]]\ntag=\"four\"\nburst=1\nrate=1\n").size() == 1);
  CHECK(Problems("[admin]\ntcp=\"0.0.0.0:1\"\n").size() == 1);
}

TEST_CASE("bounds of shedding are sizes, percentages or numbers, as the signal has it") {
  const auto shed = [](const std::string& keys) {
    return ParseSettings("[[rule]]\nburst=10\nrate=1\nshed=true\nshed_priority=9\n[shed]\n" + keys, "f");
  };
  using Kind = ShedBound::Kind;
  for (const char* good :
       {"", "low=\"2GiB\"\nhigh=\"3GiB\"", "low=\"80%\"\nhigh=\"90.5%\"", "signal=\"host\"",
        "low=\"1GiB\"\nhigh=\"1GiB\"", "signal=\"pressure\"\nlow=\"0%\"\nhigh=\"40%\"",
        "signal=\"reported\"\nlow=-5\nhigh=0.5", "interval=\"50ms\"\nexpiry=\"100ms\"", "cgroup=\"/any/where\""}) {
    CAPTURE(good);
    const LoadedSettings loaded = shed(good);
    CHECK(loaded.problems.empty());
    CHECK(loaded.settings.rules.at(0).shed);
    CHECK(loaded.settings.rules[0].shed_priority == 9);
    // As `config` shows it, it reads the same.
    const LoadedSettings again = ParseSettings(RenderSettings(loaded.settings, loaded.settings.rules, {}), "f");
    CHECK(again.problems.empty());
    CHECK(again.settings.shed.low == loaded.settings.shed.low);
    CHECK(again.settings.shed.high == loaded.settings.shed.high);
    CHECK(again.settings.rules.at(0).shed);
    CHECK(again.settings.rules[0].shed_priority == 9);
  }
  CHECK(shed("low=\"80%\"\nhigh=\"90.5%\"").settings.shed.high == ShedBound{Kind::kPercent, 90.5});
  CHECK(shed("signal=\"reported\"\nlow=-5\nhigh=0.5").settings.shed.low == ShedBound{Kind::kNumber, -5});

  const std::pair<const char*, const char*> bad[] = {
      {"low=7\nhigh=\"3GiB\"",
       "f:7:5: error: shed.low = 7: must be a size such as \"2.8GiB\" or a percentage such as "
       "\"90%\" with shed.signal = \"cgroup\""},
      {"low=\"101%\"",
       "f:7:5: error: shed.low = \"101%\": must be a size such as \"2.8GiB\", a percentage such as "
       "\"90%\", or a number from -1e+15 to 1e+15"},
      {"low=true", "f:7:5: error: shed.low = true: must be"},
      {"low=nan", "f:7:5: error: shed.low = nan: must be"},
      {"low=1e16", "f:7:5: error: shed.low = 1e+16: must be"},
      {"low=\"2GiB\"", "f:7:5: error: shed.low = \"2GiB\": must be of the same kind as shed.high = \"\""},
      {"low=\"2GiB\"\nhigh=\"90%\"", "f:7:5: error: shed.low = \"2GiB\": must be of the same kind as"},
      {"low=\"91%\"\nhigh=\"90%\"", "f:7:5: error: shed.low = \"91%\": must be at most shed.high = \"90%\""},
      {"low=\"0B\"\nhigh=\"0B\"", "f:8:6: error: shed.high = \"0B\": must be more than 0"},
      {"signal=\"pressure\"\nlow=\"1GiB\"\nhigh=\"50%\"",
       "f:8:5: error: shed.low = \"1GiB\": must be a percentage such as \"20%\" with shed.signal = \"pressure\""},
      {"signal=\"reported\"\nlow=1\nhigh=\"2\"",
       "f:9:6: error: shed.high = \"2\": must be a number such as 250 with shed.signal = \"reported\""},
      {"signal=\"heat\"",
       "f:7:8: error: shed.signal = \"heat\": must be one of \"cgroup\", \"host\", \"pressure\", "
       "\"reported\""},
      {"interval=\"10s\"\nexpiry=\"19s\"",
       "f:8:8: error: shed.expiry = \"19s\": must be at least twice shed.interval = \"10s\""},
      {"interval=\"1ms\"", "f:7:10: error: shed.interval = \"1ms\": must be a duration"},
  };
  for (const auto& [keys, problem] : bad) {
    CAPTURE(keys);
    const LoadedSettings loaded = shed(keys);
    REQUIRE(loaded.problems.size() == 1);
    CHECK(Format(loaded.problems[0]).substr(0, std::string(problem).size()) == problem);
  }
  // Both bounds are missing, and each is told.
  CHECK(shed("signal=\"reported\"").problems.size() == 2);
}

TEST_CASE("a rule sheds or not, with a priority from 0 to 9") {
  const std::string rule = "[[rule]]\nburst=10\nrate=1\n";
  CHECK(Problems(rule + "shed=1\n").at(0) == "f:4:6: error: rule.shed = 1: must be true or false");
  CHECK(Problems(rule + "shed_priority=10\n").at(0) ==
        "f:4:15: error: rule.shed_priority = 10: must be a whole number from 0 to 9");
  const LoadedSettings idle = ParseSettings(rule + "[shed]\nlow=\"1GiB\"\nhigh=\"2GiB\"\n", "f");
  CHECK(idle.ok());
  REQUIRE(idle.problems.size() == 1);
  CHECK(idle.problems[0].message == "[shed] has bounds but no rule has shed = true: nothing is shed");
}

TEST_CASE("what the physics does not allow is a warning") {
  const LoadedSettings loaded = ParseSettings("[[rule]]\nname=\"r\"\nburst=10\nrate=3\n", "f");
  CHECK(loaded.ok());
  REQUIRE(loaded.problems.size() == 1);
  CHECK(loaded.problems[0].message.starts_with("rule \"r\": burst = 10 is less than rate x peers.period = 15"));
  CHECK(ParseSettings("[[rule]]\nburst=10\nrate=3\nshare=\"local\"\n", "f").problems.empty());
}

// The warnings about one rule that so many hosts on loopback share.
std::string WarningsOf(std::string_view rule, int hosts, std::string_view period = "1s") {
  std::string connect, members = "\"host-1\"";
  for (int i = 2; i <= hosts; ++i) {
    connect += fmt::format("{}\"tcp://127.0.0.{}:7314\"", i > 2 ? "," : "", i);
    members += fmt::format(",\"host-{}\"", i);
  }
  const LoadedSettings loaded =
      ParseSettings(fmt::format("[peers]\nconnect=[{}]\nperiod=\"{}\"\n[capacity]\nmembers=[{}]\nstate_file=\"/x\"\n"
                                "[[rule]]\nname=\"r\"\n{}\n",
                                connect, period, members, rule),
                    "f");
  std::string warnings;
  for (const Problem& p : loaded.problems) {
    if (p.severity == Problem::Severity::kWarning) warnings += Format(p) + "\n";
  }
  return warnings;
}

TEST_CASE("a share that does not fit the numbers of its rule is a warning that says what would") {
  const auto says = [](const std::string& warnings, std::string_view what) {
    INFO(warnings);
    CHECK(warnings.starts_with("f:7:1: warning: rule \"r\": "));
    CHECK(warnings.find(what) != std::string::npos);
  };
  says(WarningsOf("burst=100\nrate=1\n", 16),
       "share = \"debit\" with 16 hosts: they may serve 1517 beyond the limit, 15 x (burst + rate x peers.period) + "
       "2 x rate x peers.period, before all know, where it allows 160 in a minute; share = \"forecast\" fits");
  says(WarningsOf("burst=1000\nrate=5\n", 5), "share = \"capacity\" fits");
  says(WarningsOf("burst=5\nrate=0.1\n", 5), "a shorter period or a smaller burst fits");
  says(WarningsOf("burst=3\nrate=0.1\n", 5), "a shorter period or a smaller burst fits");
  CHECK(WarningsOf("burst=100\nrate=100\n", 16) == "");
  CHECK(WarningsOf("burst=10\nrate=1\n", 3) == "");

  says(WarningsOf("burst=100\nrate=100\nshare=\"forecast\"\n", 4, "30s"),
       "share = \"forecast\" with a report every 30 s: the demand of a host that is gone is believed for 90 s; a "
       "peers.period of 1s to 10s fits");
  says(WarningsOf("burst=3\nrate=10\nshare=\"forecast\"\n", 16),
       "with burst = 3 and 16 hosts: each serves 3 before the others know, 48 at once; a burst of 8 fits, or max_unheard "
       "= 1");
  says(WarningsOf("burst=5\nrate=100\nshare=\"forecast\"\n", 2, "1s"),
       "with burst = 5, rate = 100 and 2 hosts: each sends some 5.6 entries a second of a tag that is asked for at its "
       "rate, where 1 is usual; a burst of 10 fits");
  CHECK(WarningsOf("burst=10\nrate=100\nshare=\"forecast\"\n", 2, "1s") == "");
  CHECK(WarningsOf("burst=7\nrate=10\nshare=\"forecast\"\n", 16) != "");
  CHECK(WarningsOf("burst=8\nrate=10\nshare=\"forecast\"\n", 16) == "");
  CHECK(WarningsOf("burst=3\nrate=10\nshare=\"forecast\"\nmax_unheard=1\n", 16) == "");
  CHECK(WarningsOf("burst=100\nrate=100\nshare=\"forecast\"\n", 16) == "");

  says(WarningsOf("burst=100\nrate=5\nshare=\"capacity\"\n", 10),
       "rate = 5 and 10 hosts: each begins with 0.5 tokens a second, less than one");
  CHECK(WarningsOf("burst=100\nrate=10\nshare=\"capacity\"\n", 10) == "");

  says(WarningsOf("burst=10\nrate=2\nshare=\"local\"\n", 3),
       "share = \"local\" with 3 hosts: each has burst = 10 and rate = 2 to itself, together 30 and 6");
  CHECK(WarningsOf("burst=100\nrate=1\nmode=\"off\"\n", 16) == "");
}

TEST_CASE("a tolerance below what theory allows is a warning") {
  const std::string rule = "burst=100\nrate=100\n";
  const std::string warnings = WarningsOf(rule + "tolerance=9\n", 4);
  CHECK(warnings ==
        "f:7:1: warning: rule \"r\": tolerance = 9 but 4 hosts may serve 800 beyond the 6100 of a minute, 13 %: fewer "
        "hosts, a smaller burst, share = \"forecast\" or share = \"capacity\" fits\n");
  CHECK(WarningsOf(rule + "tolerance=14\n", 4) == "");
  CHECK(WarningsOf(rule + "tolerance=5\nshare=\"forecast\"\n", 4) == "");    // 3 x 100
  CHECK(WarningsOf(rule + "tolerance=4\nshare=\"forecast\"\n", 4).find("a smaller max_unheard") != std::string::npos);
  CHECK(WarningsOf(rule + "tolerance=1\nshare=\"forecast\"\nmax_unheard=10\n", 4) == "");
  CHECK(!ParseSettings("[[rule]]\nburst=1\nrate=1\ntolerance=-1\n", "f").ok());
}

TEST_CASE("what hosts may serve beyond a limit is what their certificate allows") {
  const BoundTerms terms{100, 100, std::nullopt, 5s};
  Rule rule;
  rule.burst = rule.rate = 100;
  for (const int hosts : {1, 2, 16}) {
    CAPTURE(hosts);
    const std::vector<PeerAge> peers(static_cast<std::size_t>(hosts) - 1);
    const FleetTerms fleet{static_cast<double>(hosts), 5s};
    CHECK(ExcessOf(Share::kDebit, rule, fleet) == ExcessBound(terms, peers));
  }
}

TEST_CASE("capacity is not what fits where a host's part would be less than a token") {
  const auto warnings = [](int burst, int rate) {
    return WarningsOf(fmt::format("burst={}\nrate={}\ntolerance=5\n", burst, rate), 64);
  };
  CHECK_THAT(warnings(40, 200), Catch::Contains("a smaller burst or share = \"forecast\" fits"));
  CHECK(warnings(40, 200).find("capacity") == std::string::npos);
  CHECK(warnings(200, 40).find("capacity") == std::string::npos);
  CHECK_THAT(warnings(64, 200), Catch::Contains("share = \"forecast\" or share = \"capacity\" fits"));
}

TEST_CASE("debt that hosts forget is a warning, from where the limit breaks") {
  const std::string rule = "burst=100\nrate=100\nmax_debt=";
  CHECK_THAT(WarningsOf(rule + "999\n", 4, "5s"),
             Catch::Contains("max_debt = 999 and 4 hosts: they forget what others served beyond it, so that the limit "
                             "does not hold where more is asked for; 1000, which is 2 x rate x peers.period, fits, or "
                             "no max_debt\n"));
  CHECK(WarningsOf(rule + "1000\n", 4, "5s").find("max_debt") == std::string::npos);
  CHECK_THAT(WarningsOf(rule + "499\n", 2, "5s"), Catch::Contains("500, which is 1 x rate x peers.period, fits"));
  CHECK(WarningsOf(rule + "500\n", 2, "5s").find("max_debt") == std::string::npos);
  for (const char* share : {"local", "forecast", "capacity"}) {
    CHECK(WarningsOf(rule + fmt::format("0\nshare=\"{}\"\n", share), 4).find("they forget") == std::string::npos);
  }
}

TEST_CASE("a rule that no tag finds is a warning") {
  const auto said = [](const std::string& rules) {
    std::string all;
    for (const std::string& problem : Problems(rules)) all += problem + "\n";
    return all;
  };
  const auto rule = [](const std::string& name, const std::string& more) {
    return fmt::format("[[rule]]\nname=\"{}\"\nburst=10\nrate=1\n{}\n", name, more);
  };
  const std::string wide = "match=\"ip:*\"\nmatch_cidrs=[\"10.0.0.0/8\"]";
  const std::string more = "match=\"ip:*\"\nmatch_cidrs=[\"10.0.0.0/8\",\"11.0.0.0/8\"]";
  CHECK(said(rule("a", "match=\"x*\"") + rule("b", "match=\"x?\"") + rule("c", "")) == "");
  CHECK(said(rule("a", "match=\"x*\"") + rule("b", "match=\"x*\"")) ==
        "f:6:1: warning: rule \"b\": never applies, because rule \"a\" before it has the same match\n");
  CHECK(said(rule("a", "match=\"*\"") + rule("b", "match=\"x\"")) ==
        "f:6:1: warning: rule \"b\": never applies, because rule \"a\" before it takes every tag\n");
  CHECK(said(rule("d", "") + rule("a", "match=\"*\"")) ==
        "f:1:1: warning: rule \"d\": never applies, because rule \"a\" takes every tag\n");
  CHECK(said(rule("a", wide) + rule("b", wide)) ==
        "f:7:1: warning: rule \"b\": never applies, because rules before it have the same match and all of its "
        "networks\n");
  CHECK(said(rule("a", wide) + rule("b", more)) == "");
  CHECK_THAT(said(rule("a", more) + rule("b", wide)), Catch::Contains("rule \"b\": never applies"));
  // Networks go before what has the same match, and are tried where the first of them stands.
  CHECK(said(rule("a", wide) + rule("b", "match=\"ip:*\"")) == "");
  CHECK(said(rule("a", wide) + rule("b", "match=\"ip:*\"") + rule("c", more)) == "");
  CHECK_THAT(said(rule("a", "match=\"ip:*\"") + rule("b", wide)), Catch::Contains("rule \"b\": never applies"));
  CHECK(said(rule("a", "match_cidrs=[\"10.0.0.0/8\"]") + rule("b", "match=\"x\"") + rule("c", "")) == "");
}

TEST_CASE("a key of a rule that changes nothing beside another one is a warning") {
  const auto said = [](const std::string& keys, const std::string& more = "") {
    std::string all;
    for (const std::string& problem : Problems("[[rule]]\nname=\"a\"\nburst=10\nrate=1\n" + keys + "\n" + more)) {
      all += problem + "\n";
    }
    return all;
  };
  const auto idle = [](const std::string& key, const std::string& because) {
    return fmt::format("f:1:1: warning: rule \"a\": {} changes nothing, because {}\n", key, because);
  };
  CHECK(said("penalty={within=\"2m\"}") == idle("penalty.within", "penalty.after = 0"));
  CHECK(said("penalty={lasts=\"2m\",doubling=true}") ==
        idle("penalty.lasts", "penalty.after = 0") + idle("penalty.doubling", "penalty.after = 0"));
  CHECK(said("penalty={after=3,within=\"2m\",lasts=\"2m\",doubling=true}") == "");
  CHECK(said("per=\"week\"") == idle("per", "quota = 0"));
  CHECK(said("time_zone=\"Europe/Paris\"") == idle("time_zone", "quota = 0"));
  CHECK(said("per=\"week\"", "[[override]]\ntag=\"x\"\nburst=10\nrate=1\nquota=50\n[quota]\nfile=\"/var/lib/q\"\n") == "");
  for (const std::string key : {"max_debt", "tolerance"}) {
    CHECK(said(key + "=5\nshare=\"local\"") == idle(key, "share = \"local\""));
    CHECK(said(key + "=5\nshare=\"capacity\"").ends_with(idle(key, "share = \"capacity\"")));
    CHECK(said(key + "=5\nshare=\"forecast\"") == "");
  }
  CHECK(said("horizon=\"20s\"\nshare=\"local\"") == idle("horizon", "share = \"local\""));
  CHECK(said("horizon=\"20s\"\nshare=\"capacity\"").ends_with(idle("horizon", "share = \"capacity\"")));
  CHECK(said("horizon=\"20s\"\nmax_debt=5\ntolerance=5") == "");
  CHECK(said("max_unheard=5") == idle("max_unheard", "share is not \"forecast\""));
  CHECK(said("max_unheard=5\nshare=\"forecast\"") == "");
  CHECK(said("fail_closed=true\nmode=\"shadow\"") == idle("fail_closed", "mode is not \"enforce\""));
  CHECK(said("fail_closed=true") == "");
  CHECK(said("shed_priority=2") == idle("shed_priority", "shed = false"));
  CHECK(said("weight=2") == idle("weight", "no rule has among = \"level\""));
  CHECK(said("penalty={within=\"2m\"}\nmode=\"off\"") == "");
}

TEST_CASE("a rule for the empty tag alone is a warning") {
  const std::string rule = "[[rule]]\nname=\"a\"\nburst=10\nrate=1\n";
  CHECK(Problems(rule + "match=\"\"\n") ==
        std::vector<std::string>{"f:1:1: warning: rule \"a\": match = \"\" is the empty tag alone; without match the rule "
                                 "is the default"});
  CHECK(Problems(rule).empty());
  CHECK(Problems(rule + "match_cidrs=[\"10.0.0.0/8\"]\n").empty());
}

TEST_CASE("text that is not TOML is one error with its place") {
  const auto problems = Problems("[query]\nthreads = \n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].starts_with("f:2:"));
  CHECK(problems[0].find("not TOML") != std::string::npos);
}

TEST_CASE("what would crash the parser never reaches it") {
  std::string deep = "a";
  for (int i = 0; i < 200'000; ++i) deep += ".b";
  const auto problems = Problems("x = 1\n" + deep + " = 1\n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].find("f:2:1: error: a line of 400005 bytes; must be at most 4096") != std::string::npos);
}

TEST_CASE("a hundred problems are enough") {
  std::string toml;
  for (int i = 0; i < 500; ++i) toml += fmt::format("[[override]]\ntag=\"{}\"\nburst=0\nrate=1\n", i);
  const auto problems = Problems(toml);
  CHECK(problems.size() == 101);
  CHECK(problems.back() == "f: error: and 400 more problems");
}

TEST_CASE("a hundred thousand overrides are read") {
  std::string toml;
  for (int i = 0; i < 100'000; ++i) toml += fmt::format("[[override]]\ntag=\"p-{}\"\nburst={}\nrate=2.5\n", i, i + 1);
  const LoadedSettings loaded = ParseSettings(toml, "f");
  REQUIRE(loaded.ok());
  CHECK(loaded.settings.overrides.size() == 100'000);
  CHECK(loaded.settings.overrides[777].tag == "p-777");
  CHECK(loaded.settings.overrides[777].burst == 778);
}

TEST_CASE("rendered settings read back as themselves") {
  const LoadedSettings loaded = ParseSettings(
      "[query]\nthreads=3\n[peers]\nbind=\"tcp://127.0.0.1:1\"\nconnect=[\"tcp://127.0.0.1:7314#b\"]\n"
      "[[rule]]\nname=\"r\"\nmatch=\"a\\\"b*\"\nburst=1.5\nrate=\"10/m\"\nmax_debt=7\nhorizon=\"2m\"\n"
      "[[override]]\ntag=\"\\u0001\\\\x\"\nburst=100\nrate=20.0\nmode=\"off\"\n"
      "[lease]\nelector=\"etcd\"\netcd=[\"https://a:2379\"]\naddress=\"tcp:[::1]:7315\"\n"
      "[[resource]]\nidentifier_glob=\"d*\"\ncapacity=7.5\nsafe_capacity=-1\nstrict=true\n",
      "f");
  REQUIRE(loaded.ok());
  const Settings& s = loaded.settings;
  const std::string text = RenderSettings(s, s.rules, s.overrides);
  const LoadedSettings again = ParseSettings(text, "g");
  REQUIRE(again.ok());
  CHECK(RenderSettings(again.settings, again.settings.rules, again.settings.overrides) == text);
  CHECK(again.settings.overrides.at(0).tag == s.overrides.at(0).tag);
  CHECK(again.settings.rules.at(0).rate == s.rules.at(0).rate);
  CHECK(again.settings.rules.at(0).max_debt == 7);
  CHECK(again.settings.rules.at(0).horizon == 2min);
  CHECK(FormatBind(again.settings.peers.bind) == "tcp://127.0.0.1:1");
  CHECK(again.settings.lease.etcd == std::vector<std::string>{"https://a:2379"});
  CHECK(again.settings.resources.at(0).safe_capacity == -1);
}

TEST_CASE("peers beyond this host need keys") {
  const auto errors = [](const std::string& peers) {
    std::vector<std::string> texts;
    for (const Problem& p : ParseSettings("[peers]\n" + peers, "f").problems) {
      if (p.severity == Problem::Severity::kError) texts.push_back(p.message);
    }
    return texts;
  };
  CHECK(errors("connect=[\"tcp://127.0.0.1:1\", \"tcp://[::1]:2\", \"tcp://localhost:3\"]").empty());
  CHECK(errors("bind=\"tcp://0.0.0.0:7314\"").empty());    // nobody to share with: nothing is opened
  CHECK(errors("bind=\"tcp://0.0.0.0:7314\"\nconnect=[\"tcp://web2:7314\", \"srv://_d._tcp.x\"]").size() == 3);
  CHECK(errors("key_file=\"/k\"\nauthorized_keys=\"/a\"\nconnect=[\"tcp://web2:7314\"]").empty());
  CHECK(errors("key_file=\"/k\"\nconnect=[\"tcp://127.0.0.1:7314\"]").size() == 1);
  CHECK(errors("bind=\"\"\nconnect=[\"tcp://127.0.0.1:7314\"]").size() == 1);
  for (const char* bad :
       {"10.0.0.2:7314", "tcp://10.0.0.2", "tcp://10.0.0.2:0", "tcp://10.0.0.2:65536", "tcp://1.2.3:4", "tcp://h:7314#",
        "tcp://h:7314#a b", "srv://x", "pgm://h:1", "tcp://:1", ""}) {
    CAPTURE(bad);
    CHECK_FALSE(ParsePeerEntry(bad).has_value());
  }
}

TEST_CASE("hosts that divide limits are named, and their links are theirs") {
  const std::string rule = "[[rule]]\nburst=100\nrate=500\nshare=\"capacity\"\n";
  const std::string peers = "[peers]\nname=\"a\"\nconnect=[\"tcp://127.0.0.1:7316\"]\n";
  const auto first = [](const std::string& toml) {
    const auto problems = Problems(toml);
    return problems.empty() ? std::string() : problems.front();
  };
  CHECK_THAT(first(rule), Catch::Contains("warning") && Catch::Contains("no other host"));
  CHECK_THAT(first(rule + peers), Catch::Contains("capacity.members is []: must name all hosts"));
  CHECK(first(rule + peers + "[capacity]\nmembers=[\"a\",\"b\"]\n") == "");    // and no word on burst and period
  CHECK_THAT(first(rule + peers + "[capacity]\nmembers=[\"b\",\"c\"]\n"), Catch::Contains("must have this host in it"));
  CHECK_THAT(first("[capacity]\nmembers=[\"b\",\"b\"]\n"), Catch::Contains("each host once"));
  CHECK_THAT(first("[capacity]\nmembers=[\"b c\"]\n"), Catch::Contains("must be a list of hosts' names"));
  CHECK_THAT(first("[capacity]\ngraph=\"list\"\n"), Catch::Contains("must have capacity.links"));
  CHECK_THAT(first("[capacity]\ngraph=\"file\"\n"), Catch::Contains("must have capacity.graph_file"));
  CHECK_THAT(first("[capacity]\ngraph_file=\"graph\"\ngraph=\"file\"\n"), Catch::Contains("an absolute path"));
  CHECK(first("[capacity]\ngraph=\"file\"\ngraph_file=\"/etc/dthrottle/graph\"\n") == "");
  CHECK_THAT(first("[capacity]\nmembers=[\"a\",\"b\"]\nlinks=[\"a c\"]\n"), Catch::Contains("\"c\" is none"));
  CHECK_THAT(first("[capacity]\nlinks=[\"a\"]\n"), Catch::Contains("must be a list of links"));
  CHECK_THAT(first("[capacity]\nlease=\"3s\"\n"), Catch::Contains("at least four times capacity.interval"));
  CHECK_THAT(first("[capacity]\ngain=0\n"), Catch::Contains("\"auto\", or a number above 0"));
  CHECK_THAT(first("[capacity]\nindicator=\"response-time\"\n"), Catch::Contains("one of \"throttled-amount\""));
  CHECK(first("[capacity]\ngain=0.125\nreserve=0\n") == "");
  CHECK_THAT(first(rule + peers + "[table]\nfile=\"\"\n[capacity]\nmembers=[\"a\"]\n"),
             Catch::Contains("capacity.state_file and table.file"));
  CHECK_THAT(
      first("[[rule]]\nburst=2\nrate=1\nshare=\"capacity\"\n" + peers + "[capacity]\nmembers=[\"a\",\"b\",\"c\"]\n"),
      Catch::Contains("warning") && Catch::Contains("less than a token for each"));
}

TEST_CASE("links that make no graph of the members are an error that names the hosts") {
  const std::string rule = "[[rule]]\nburst=100\nrate=500\n";
  const std::string peers = "[peers]\nname=\"a\"\nconnect=[\"tcp://127.0.0.1:7316\"]\n";
  const std::string members = "[capacity]\nmembers=[\"d\",\"c\",\"b\",\"a\"]\n";
  const auto first = [](const std::string& toml, const std::string& links) {
    const auto problems = Problems(toml + "graph=\"list\"\nlinks=[" + links + "]\n");
    return problems.empty() ? std::string() : problems.front();
  };
  const std::string list = rule + "share=\"capacity\"\n" + peers + members;
  CHECK(first(list, "\"a b\",\"b c\",\"c d\"") == "");
  CHECK(first(list, "\"a b\",\"c d\"") == "f:11:7: error: capacity.links: some members have no way to each other");
  CHECK_THAT(first(list, "\"a b\",\"b c\",\"c d\",\"b a 2\""),
             Catch::Contains("\"b a 2\": b and a are linked already"));
  CHECK_THAT(first(list, "\"a b\",\"b c\""), Catch::Contains("d has no link"));
  CHECK(first(rule + "share=\"local\"\n" + peers + members, "\"a b\",\"c d\"").find("error") == std::string::npos);

  const std::string keys = "key_file=\"/k\"\nauthorized_keys=\"/a\"\n[capacity]\n";    // whose owners are the members
  const std::string keyed = rule + "share=\"capacity\"\n" + peers + keys;
  CHECK(first(keyed, "\"a b\",\"c b\"") == "");
  CHECK_THAT(first(keyed, "\"a b\",\"c d\""), Catch::Contains("no way to each other"));
}

TEST_CASE("a link is two hosts, and a weight if need be") {
  CHECK(ParseCapacityLink("web-1 web-2").value().weight == 1);
  const CapacityLink link = ParseCapacityLink(" web-1   web-2 0.5").value();
  CHECK((link.a == "web-1" && link.b == "web-2" && link.weight == 0.5));
  for (const char* bad : {"", "a", "a a", "a b 0", "a b -1", "a b x", "a b nan", "a b 1 2", "a/ b", "a b 1e9"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseCapacityLink(bad).has_value());
  }
}

TEST_CASE("the example shows every key at its default") {
  LoadedSettings loaded = ParseSettings(RenderExample(), "example");
  for (const Problem& p : loaded.problems) FAIL(Format(p));
  CHECK(std::exchange(loaded.settings.resources, {}).size() == 1);
  const Settings defaults = DefaultSettings();
  CHECK(RenderSettings(loaded.settings, {}, {}) == RenderSettings(defaults, {}, {}));
  const std::string example = RenderExample();
  for (const Section& section : Sections()) {
    for (const auto& key : section.keys) CHECK(example.find(fmt::format("\n{} = ", key.name)) != std::string::npos);
  }
}

TEST_CASE("clients of Redis are heard only where the settings say, and on sockets of their own") {
  const Settings defaults = ParseSettings("", "f").settings;
  CHECK_FALSE(defaults.resp.enabled());
  CHECK_FALSE(defaults.resp.accept_limits);
  CHECK(defaults.resp.max_connections == 1024);
  CHECK(defaults.resp.memory == 16u << 20);
  const Settings set = ParseSettings("[resp]\nunix=\"/r\"\naccept_limits=true\nidle_timeout=\"0s\"\n", "f").settings;
  CHECK(set.resp.enabled());
  CHECK((defaults.ask.unix_path.empty() && !defaults.ask.tcp.enabled()));
  CHECK(ParseSettings("[ask]\nunix=\"/a\"\n", "f").settings.ask.unix_path == "/a");
  CHECK(set.resp.accept_limits);
  CHECK(Problems("[resp]\naccept_limits=1\n").at(0).find("accept_limits = 1: must be true or false") !=
        std::string::npos);
  CHECK(Problems("[resp]\ntcp=\"10.0.0.1:6379\"\n").at(0).find("must be a loopback address") != std::string::npos);
  CHECK(Problems("[query]\ntcp=\"127.0.0.1:7311\"\n[resp]\ntcp=\"127.0.0.1:7311\"\n")
            .at(0)
            .find("query.tcp and resp.tcp are both") != std::string::npos);
  CHECK(Problems("[resp]\nunix=\"/run/dthrottle/admin.sock\"\n").at(0).find("admin.unix and resp.unix are both") !=
        std::string::npos);
}

TEST_CASE("no two sockets have one address, whichever protocols they speak") {
  const auto said = [](const std::string& text) {
    const auto problems = Problems(text);
    return problems.size() == 1 ? problems.front() : fmt::format("{} problems", problems.size());
  };
  CHECK(said("[query]\ntcp=\"127.0.0.1:7313\"") ==
        "f: error: query.tcp and admin.http are both \"127.0.0.1:7313\": must differ");
  CHECK(said("[admin]\nhttp_unix=\"/run/dthrottle/query.sock\"") ==
        "f:2:11: error: query.unix and admin.http_unix are both \"/run/dthrottle/query.sock\": must differ");
  CHECK(said("[lease]\ntcp=\"127.0.0.1:7314\"") == "0 problems");    // nothing listens for peers
  CHECK(said("[lease]\ntcp=\"127.0.0.1:7315\"") == "0 problems");    // nor for other sites
  CHECK(said("[lease]\ntcp=\"127.0.0.1:7314\"\n[peers]\nconnect=[\"tcp://127.0.0.1:7324\"]") ==
        "f:2:5: error: peers.bind and lease.tcp are both \"127.0.0.1:7314\": must differ");
  CHECK(said("[peers]\nspread=\"owners\"\nowners=[\"a\"]\nbind=\"tcp://127.0.0.1:7315\"\nconnect=[\"tcp://127.0.0.1:7324\"]\n"
             "[sites]\nname=\"x\"\nothers=[\"y\"]") ==
        "f: error: peers.bind and sites.bind are both \"127.0.0.1:7315\": must differ");
  CHECK(said("[query]\ntcp=\"127.0.0.1:0\"\n[resp]\ntcp=\"127.0.0.1:0\"") == "0 problems");
  const auto is_said = [](const std::string& text, const std::string& problem) {
    return std::ranges::count(Problems(text), problem) == 1;
  };
  CHECK(is_said("[query]\ntcp=\"[0:0::1]:7000\"\n[resp]\ntcp=\"[::1]:7000\"",
                "f:4:5: error: query.tcp = \"[0:0::1]:7000\" and resp.tcp = \"[::1]:7000\" overlap: must differ"));
  CHECK(is_said("[ask]\ntcp=\"0.0.0.0:7000\"\n[resp]\ntcp=\"127.0.0.1:7000\"",
                "f:2:5: error: resp.tcp = \"127.0.0.1:7000\" and ask.tcp = \"0.0.0.0:7000\" overlap: must differ"));
  CHECK(said("[resp]\ntcp=\"127.0.0.1:7000\"\n[ask]\ntcp=\"127.0.0.2:7000\"") == "0 problems");
  CHECK(said("[query]\ntcp=\"[::1]:7000\"\n[resp]\ntcp=\"127.0.0.1:7000\"") == "0 problems");
  for (const ListenerKeys& l : AllListeners()) {
    CAPTURE(l.name);
    CHECK((l.unix_key.empty() || IsKey(l.unix_key)));
    CHECK((l.tcp_key.empty() || IsKey(l.tcp_key)));
  }
}

TEST_CASE("rules that no rulebook can be made of are complained of, where tags are charged and overrides have quotas too") {
  const std::string also = "[[rule]]\nburst=5\nrate=1\nalso=[\"ipv4/24\"]\n", rule = "[[rule]]\nburst=5\nrate=1\n";
  const std::string slow = "[[rule]]\nburst=1e9\nrate=1e-6\n", vip = "[[override]]\ntag=\"a\"\nburst=5\nrate=1\nquota=9\n";
  CHECK(Problems(also + rule).at(0).find("without match; must be one rule at most") != std::string::npos);
  CHECK(Problems(slow + "also=[\"ipv4/24\"]\n").at(0).find("a leap year") != std::string::npos);
  CHECK(Problems(rule + rule + vip).at(0).find("without match; must be one rule at most") != std::string::npos);
  CHECK(Problems(slow + vip).at(0).find("a leap year") != std::string::npos);
}

TEST_CASE("no two files or sockets that the daemon makes are one") {
  const auto errors = [](const std::string& text) {
    std::vector<std::string> found = Problems(text);
    std::erase_if(found, [](const std::string& problem) { return problem.find(": error: ") == std::string::npos; });
    return found;
  };
  using Errors = std::vector<std::string>;
  CHECK(errors("[operator]\nlimits_file=\"/d/q\"\n[quota]\nfile=\"/d/q\"") ==
        Errors{"f:4:6: error: operator.limits_file and quota.file are both \"/d/q\": must differ"});
  CHECK(errors("[table]\nfile=\"/d/t\"\n[quota]\nfile=\"/d//./t\"") ==
        Errors{"f:4:6: error: table.file and quota.file are both \"/d/t\": must differ"});
  CHECK(errors("[table]\nfile=\"/d/s\"\n[admin]\nunix=\"/d/s\"") ==
        Errors{"f:4:6: error: table.file and admin.unix are both \"/d/s\": must differ"});
  CHECK(errors("[query]\nunix=\"/d/w.q\"\n[ask]\nunix=\"/d/..//d/w.q\"\n[page]\nentries=0").size() == 1);
  for (const char* ending : {".limits", ".capacity", ".capacity.incarnation", ".incarnation", ".state", ".holds",
                             ".owners", ".sites", ".resp"}) {
    CHECK(errors(fmt::format("[table]\nfile=\"/d/t\"\n[quota]\nfile=\"/d/t{}\"", ending)) ==
          Errors{fmt::format("f:4:6: error: table.file with {0} behind it and quota.file are both \"/d/t{0}\": must "
                             "differ", ending)});
  }
  CHECK(errors("[table]\nfile=\"/d/t\"\n[operator]\nlimits_file=\"/d/l\"\n[quota]\nfile=\"/d/t.limits\"").empty());
  CHECK(errors("[table]\nfile=\"\"\n[quota]\nfile=\"/d/.holds\"").empty());
}

TEST_CASE("leases are granted only where the settings say, and their election needs what it goes by") {
  CHECK_FALSE(DefaultSettings().lease.enabled());
  CHECK(Problems("[lease]\nunix=\"/run/l.sock\"").empty());
  CHECK(Problems("[lease]\nelector=\"etcd\"").empty());    // nobody listens
  const auto only = [](const std::string& keys) {
    const auto problems = Problems("[lease]\nunix=\"/run/l.sock\"\n" + keys);
    return problems.size() == 1 ? problems.front() : fmt::format("{} problems", problems.size());
  };
  CHECK(only("elector=\"etcd\"") ==
        "f:3:9: error: lease.etcd is []: must have an address with lease.elector = \"etcd\"");
  CHECK(only("elector=\"static\"") ==
        "f:3:9: error: lease.master is \"\": must be an address with lease.elector = \"static\"");
  CHECK(only("elector=\"etcd\"\netcd=[\"http://a:1\"]\netcd_ttl=\"5500ms\"") ==
        "f:5:10: error: lease.etcd_ttl = \"5500ms\": must be whole seconds");
  CHECK(only("tcp=\"0.0.0.0:7315\"") ==
        "f:3:5: warning: lease.tcp = \"0.0.0.0:7315\" is not loopback: whoever reaches it may take leases");
  CHECK(only("tcp=\"127.0.0.1:7311\"\n[query]\ntcp=\"127.0.0.1:7311\"") ==
        "f:3:5: error: query.tcp and lease.tcp are both \"127.0.0.1:7311\": must differ");
  for (const char* bad :
       {"etcd=[\"10.0.0.1:2379\"]", "etcd=[\"http://a:1/\"]", "etcd=[\"http://a b\"]", "etcd=\"http://a\"",
        "address=\"10.0.0.1:1\"", "address=\"tcp:host:1\"", "address=\"tcp:10.0.0.1:0\"", "address=\"unix:/a b\"",
        "etcd_ttl=\"2s\"", "etcd_key=\"\"", "elector=\"zookeeper\""}) {
    CAPTURE(bad);
    CHECK(only(bad).find("must be") != std::string::npos);
  }
  for (const char* good : {"address=\"tcp:[::1]:7315\"", "address=\"unix:/run/x\"", "max_connections=1",
                           "elector=\"etcd\"\netcd=[\"https://etcd-1.example.org:2379\",\"http://10.0.0.1:2379\"]"}) {
    CAPTURE(good);
    CHECK(Problems(fmt::format("[lease]\nunix=\"/run/l.sock\"\n{}", good)).empty());
  }
}

TEST_CASE("a lease server's parent is another host's, a level nearer to the root") {
  const auto only = [](const std::string& keys) {
    const auto problems = Problems("[lease]\nunix=\"/run/l.sock\"\ntcp=\"127.0.0.1:7315\"\n" + keys);
    return problems.size() == 1 ? problems.front() : fmt::format("{} problems", problems.size());
  };
  CHECK(
      Problems("[lease]\nunix=\"/run/l.sock\"\nlevel=1\nparent=[\"tcp:10.0.0.1:7315\",\"unix:/run/p.sock\"]").empty());
  CHECK(only("parent=[\"unix:/run/p.sock\"]") ==
        "f:4:8: error: lease.level = 0: must be at least 1 with lease.parent, one more than its level");
  CHECK(only("level=1\nparent=[\"unix:/run/l.sock\"]") ==
        "f:5:8: error: lease.parent has \"unix:/run/l.sock\": must be another host's");
  CHECK(only("level=1\nparent=[\"tcp:127.0.0.1:7315\"]").find("must be another host's") != std::string::npos);
  CHECK(only("level=1\nparent=[\"tls:10.0.0.1:7318\"]") ==
        "f:5:8: error: lease.parent has \"tls:10.0.0.1:7318\": must begin with \"tcp:\" or \"unix:\", as a server speaks no "
        "TLS to its parent");
  for (const char* bad : {"parent=\"unix:/run/p.sock\"", "parent=[\"10.0.0.1:7315\"]", "parent=[\"tcp:host:1\"]",
                          "parent=[\"tcp:10.0.0.1:0\"]", "parent=[\"\"]", "parent=[\"grpc:10.0.0.1:1\"]"}) {
    CAPTURE(bad);
    CHECK(only(bad).find("must be") != std::string::npos);
  }
}

TEST_CASE("addresses of a lease server name a way for lines, for gRPC, or both") {
  const auto problems = [](const std::string& address) {
    return Problems(fmt::format("[lease]\nunix=\"/run/l.sock\"\naddress=\"{}\"", address)).size();
  };
  for (const char* good : {"tcp:10.0.0.1:7315,grpc:10.0.0.1:7316", "grpc:10.0.0.1:7316", "unix:/run/x,grpc:[::1]:1"}) {
    CAPTURE(good);
    CHECK(problems(good) == 0);
  }
  for (const char* bad : {"tcp:10.0.0.1:7315,", "grpc:", "grpc:host:1", "tcp:10.0.0.1:7315,grpc:10.0.0.1:0",
                          "tcp:10.0.0.1:7315,tcp:10.0.0.1:7316", ",grpc:10.0.0.1:7316"}) {
    CAPTURE(bad);
    CHECK(problems(bad) == 1);
  }
}

TEST_CASE("certificates come with their keys, and TLS with certificates") {
  const auto said = [](const char* keys) {
    const auto problems = Problems(std::string("[tls]\n") + keys);
    return problems.empty() ? "" : problems[0];
  };
  CHECK(said("certificate_file=\"/c\"") == "f:2:18: error: tls.key_file is \"\": must be a path too");
  CHECK(said("key_file=\"/k\"") == "f:2:10: error: tls.certificate_file is \"\": must be a path too");
  CHECK(said("client_ca_file=\"/a\"") ==
        "f:2:16: error: tls.certificate_file is \"\": must be a path with tls.client_ca_file");
  CHECK(said("certificate_file=\"/c\"\nkey_file=\"/k\"\nclient_ca_file=\"/a\"").empty());
  const auto problems = Problems("[lease]\ntls=\"127.0.0.1:7\"\n");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "f:2:5: error: tls.certificate_file is \"\": must be a path with lease.tls = \"127.0.0.1:7\"");
}

TEST_CASE("a socket whose path has no room for the ending of pages is warned of where there are pages") {
  using Strings = std::vector<std::string>;
  const auto at = [](const char* section, std::size_t bytes) {
    return fmt::format("[{}]\nunix=\"/{}\"\n", section, std::string(bytes - 1, 'x'));
  };
  CHECK(Problems("[page]\nentries=8\n" + at("query", 102) + at("ask", 101)).empty());
  CHECK(Problems(at("query", 107) + at("ask", 106)).empty());
  CHECK(Problems("[page]\nentries=8\n" + at("query", 103)) ==
        Strings{"f:2:9: warning: page.entries = 8: query.unix has more than 102 bytes: no pages there"});
  CHECK(Problems("[page]\nentries=8\n" + at("ask", 107)) ==
        Strings{"f:2:9: warning: page.entries = 8: ask.unix has more than 102 bytes: no pages there"});
}

TEST_CASE("gRPC has an address of its own, which others can reach") {
  const auto said = [](const std::string& keys, const char* what) {
    const auto problems = Problems("[lease]\n" + keys);
    return std::any_of(problems.begin(), problems.end(), [&](const auto& p) { return p.find(what) != p.npos; });
  };
  CHECK(said("grpc=\"127.0.0.1:7311\"\n[query]\ntcp=\"127.0.0.1:7311\"",
             "query.tcp and lease.grpc are both \"127.0.0.1:7311\": must differ"));
  CHECK(said("grpc=\"127.0.0.1:7\"\ntcp=\"127.0.0.1:7\"", "lease.tcp and lease.grpc are both"));
  CHECK(said("grpc=\"10.0.0.1:7\"", "lease.grpc = \"10.0.0.1:7\" is not loopback: whoever reaches it"));
  const std::string tls = "grpc=\"10.0.0.1:7\"\n[tls]\ncertificate_file=\"/c\"\nkey_file=\"/k\"\n";
  CHECK(said(tls, "is not loopback"));
  CHECK_FALSE(said(tls + "client_ca_file=\"/a\"", "is not loopback"));
  const std::string any = "grpc=\"0.0.0.0:7\"\nelector=\"static\"\nmaster=\"grpc:10.0.0.1:7\"\n";
  CHECK(said(any, "lease.address is \"\": must have grpc:HOST:PORT"));
  CHECK_FALSE(said(any + "address=\"grpc:10.0.0.1:7\"", "must have grpc:HOST:PORT"));
  for (const char* bad : {"grpc_max_calls=0", "grpc_max_resources=0", "grpc_max_resources=10001", "grpc=\"host:1\""}) {
    CAPTURE(bad);
    CHECK(said(bad, "must be"));
  }
}

TEST_CASE("capacity by consensus needs what hosts agree on, and no master") {
  const std::string rule = "[[rule]]\nmatch=\"calls\"\nburst=10\nshare=\"capacity\"\n";
  const std::string parts = "[[resource]]\nidentifier_glob=\"calls\"\ncapacity=10\nsource=\"capacity\"\n";
  const auto said = [](const std::string& text, const char* what) {
    const auto problems = Problems(text);
    return std::any_of(problems.begin(), problems.end(), [&](const auto& p) { return p.find(what) != p.npos; });
  };
  const char* const wrong = "resource \"calls\": source = \"capacity\": ";
  CHECK_FALSE(said(rule + parts, wrong));
  CHECK(said(parts, "source = \"capacity\": needs a [[rule]] with share = \"capacity\""));
  CHECK(said(rule + parts + "algorithm=\"none\"", "algorithm = \"none\": must be one that keeps to the capacity"));
  CHECK(said(rule + parts + "algorithm=\"static\"", "algorithm = \"static\": must be one"));
  CHECK(said("[lease]\nelector=\"static\"\nmaster=\"tcp:10.0.0.1:1\"\n" + rule + parts,
             "lease.elector = \"static\": must be \"none\""));
  CHECK(said("[lease]\nlevel=1\nparent=[\"tcp:10.0.0.1:1\"]\n" + rule + parts, "lease.parent: must be []"));
}

TEST_CASE("a client may ask as often as it is told to, and in time") {
  const std::string calls = "[[resource]]\nidentifier_glob=\"calls\"\ncapacity=10\nlease_length=\"20s\"\n";
  CHECK(Problems(calls).empty());
  CHECK(Problems(calls + "refresh_interval=\"20s\"") ==
        std::vector<std::string>{"f:1:1: error: resource \"calls\": refresh_interval = \"20s\": must be shorter than "
                                 "lease_length = \"20s\""});
  CHECK(Problems(calls + "refresh_interval=\"1500ms\"").size() == 1);    // less than twice lease.min_request_interval
  CHECK(Problems(calls + "refresh_interval=\"2s\"").empty());
  CHECK(Problems("[lease]\nlevel=1\n" + calls + "refresh_interval=\"2s\"").size() == 1);
  CHECK(Problems(calls + "learning_mode_duration=\"5s\"").front().find("warning: ") != std::string::npos);
  CHECK(Problems(calls + calls).front().find("must be unique, and line 1 has it") != std::string::npos);
  // Each value that a key refuses, by itself.
  const auto refused = [](const std::string& glob, const std::string& capacity, const std::string& more) {
    const auto problems =
        Problems(fmt::format("[[resource]]\nidentifier_glob={}\ncapacity={}\n{}", glob, capacity, more));
    return problems.size() == 1 && problems.front().find(": error: resource.") != std::string::npos &&
           problems.front().find("must be") != std::string::npos;
  };
  CHECK_FALSE(refused("\"c\"", "10", ""));
  for (const char* glob : {"\"\"", "\"[\"", "1", "[\"c\"]"}) {
    CAPTURE(glob);
    CHECK(refused(glob, "10", ""));
  }
  CHECK(refused('"' + std::string(256, 'c') + '"', "10", ""));
  for (const char* capacity : {"-1", "1e16", "nan", "inf", "\"10\""}) {
    CAPTURE(capacity);
    CHECK(refused("\"c\"", capacity, ""));
  }
  for (const char* bad :
       {"algorithm=\"fair\"", "algorithm=1", "source=\"consensus\"", "source=1", "lease_length=\"1s\"",
        "lease_length=\"25h\"", "lease_length=60", "refresh_interval=\"500ms\"", "refresh_interval=\"25h\"",
        "learning_mode_duration=\"-1s\"", "learning_mode_duration=\"25h\"", "learning_mode_duration=0",
        "safe_capacity=-2", "safe_capacity=1e16", "safe_capacity=\"1\"", "strict=1", "strict=\"yes\"",
        "description=\"a\\nb\"", "description=1"}) {
    CAPTURE(bad);
    CHECK(refused("\"c\"", "10", bad));
  }
  CHECK(Problems("[[resource]]\nidentifier_glob=\"c\"").front().find("capacity") != std::string::npos);
  CHECK(Problems("[[resource]]\ncapacity=1").front().find("identifier_glob") != std::string::npos);
  CHECK(Problems(calls + "colour=\"red\"").front().find("unknown key") != std::string::npos);
}

TEST_CASE("where clients cannot reach the address that is listened on, another one has to be given") {
  const std::string any = "[lease]\ntcp=\"0.0.0.0:7315\"\nelector=\"static\"\nmaster=\"tcp:10.0.0.1:7315\"\n";
  CHECK(Problems(any).size() == 2);
  CHECK(Problems(any).back().find("lease.address is \"\": must be") != std::string::npos);
  CHECK(Problems(any + "address=\"tcp:10.0.0.1:7315\"").size() == 1);
}

TEST_CASE("keys that only a start can change are kept and named") {
  const Settings running = ParseSettings("[query]\nthreads=2\nmax_connections=5\n", "f").settings;
  Settings loaded = ParseSettings("[query]\nthreads=4\nmax_connections=7\n", "f").settings;
  CHECK(KeepStartKeys(running, loaded) == std::vector<std::string>{"query.threads"});
  CHECK(loaded.query.threads == 2);
  CHECK(loaded.query.max_connections == 7);
}

namespace {

constexpr std::string_view kMesh = "[peers]\nconnect=[\"tcp://127.0.0.1:1\", \"tcp://127.0.0.1:2\"]\n";

// What a reload of the file says to a daemon that runs with the other one.
LoadedSettings Reloaded(std::string_view running, const std::string& toml) {
  return ParseReload(toml, "f", "/run/dthrottle", ParseSettings(running, "f").settings, {});
}

std::string Said(const LoadedSettings& loaded) {
  std::string said;
  for (const Problem& p : loaded.problems) said += Format(p) + "\n";
  return said;
}

}    // namespace

TEST_CASE("keys that mean something else without a key that waits for a start wait with it") {
  const std::string rule = "[[rule]]\nburst=90\nrate=1\n";
  const std::string owned = "[peers]\nspread=\"owners\"\nowners=[\"a\"]\nconnect=[\"tcp://127.0.0.1:1\"]\n";
  LoadedSettings loaded = Reloaded(kMesh, owned + rule);
  CHECK(loaded.ok());
  CHECK(loaded.settings.peers.connect.size() == 2);
  CHECK(loaded.settings.peers.owners.empty());
  CHECK(Said(loaded) == "f:2:8: warning: peers.spread changes at the next start\n"
                        "f:3:8: warning: peers.owners changes at the next start\n"
                        "f:4:9: warning: peers.connect changes at the next start\n");
  loaded = Reloaded(kMesh, "[peers]\nperiod=\"1s\"\nconnect=[\"tcp://127.0.0.1:1\"]\n" + rule);
  CHECK(loaded.settings.peers.connect.size() == 1);
  CHECK(Said(loaded) == "f:2:8: warning: peers.period changes at the next start\n");
  const std::string sites = owned + "[sites]\nname=\"x\"\n";
  loaded = Reloaded(sites + "others=[\"y\"]\nconnect=[\"tcp://127.0.0.1:3\"]\n",
                    sites + "others=[\"z\"]\nconnect=[\"tcp://127.0.0.1:4\"]\n" + rule);
  CHECK(loaded.settings.sites.connect == std::vector<std::string>{"tcp://127.0.0.1:3"});
}

TEST_CASE("a file that holds together alone, and not with what waits for the next start, is not taken") {
  const std::string divided = "[[rule]]\nname=\"r\"\nburst=90\nrate=9\nshare=\"capacity\"\n";
  const std::string owned = "[peers]\nspread=\"owners\"\nowners=[\"a\"]\nconnect=[\"tcp://127.0.0.1:1\"]\n";
  const LoadedSettings loaded = Reloaded(owned, divided);
  CHECK_FALSE(loaded.ok());
  CHECK(Said(loaded).find("f: warning: peers.spread changes at the next start\n") != std::string::npos);
  CHECK(Said(loaded).find("f:1:1: error: until the next start: rule \"r\": share = \"capacity\" with peers.spread = "
                          "\"owners\": must be \"all\"") != std::string::npos);
  const LoadedSettings secret = Reloaded(kMesh, "[peers]\nkey_file=\"/k\"\nauthorized_keys=\"/d\"\n"
                                                "connect=[\"tcp://10.0.0.1:1\"]\n[[rule]]\nburst=90\nrate=1\n");
  CHECK(secret.ok());
  CHECK(secret.settings.peers.authorized_keys.empty());
  CHECK(secret.settings.peers.connect.size() == 2);
}

TEST_CASE("settings without a rule limit nobody, which is said once and of whole files only") {
  const auto said = [](const std::string& toml) { return Said(ParseSettings(toml, "f")); };
  CHECK(said("") == std::string(kNoRule) + "\n");
  CHECK(said("[[override]]\ntag=\"a\"\nburst=1\nrate=1\n").empty());
  CHECK(said("[query]\nthreads=0\n").find("[[rule]]") == std::string::npos);    // there is enough to say
  CHECK(Said(Reloaded("[query]\nthreads=2\n", "[query]\nthreads=3\n")) ==
        std::string(kNoRule) + "\nf:2:9: warning: query.threads changes at the next start\n");
  CHECK(Said(ParseRules("", "f", DefaultSettings(), {})) ==
        "f: error: no [[rule]] and no [[override]]: every query would be served\n");
}

TEST_CASE("a list of any length is written in lines that can be read") {
  std::vector<std::string> networks;
  for (int i = 0; i < 2000; ++i) networks.push_back(fmt::format("\"10.{}.{}.0/24\"", i / 250, i % 250));
  const std::string text =
      fmt::format("[[rule]]\nburst=90\nrate=1\nmatch_cidrs=[\n{}\n]\n", fmt::join(networks, ",\n"));
  const LoadedSettings loaded = ParseRules(text, "f", DefaultSettings(), {});
  REQUIRE(Said(loaded).empty());
  const std::string written = RenderRules(loaded.settings.rules, {});
  const LoadedSettings again = ParseRules(written, "f", DefaultSettings(), {});
  CHECK(Said(again).empty());
  CHECK(Rulebook(again.settings.rules, {}).fingerprint() == Rulebook(loaded.settings.rules, {}).fingerprint());
}

}    // namespace
}    // namespace dthrottle
