#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/check.h"
#include "base/host_name.h"
#include "base/tag.h"
#include "bucket/table.h"
#include "config/values.h"
#include "rule/glob.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

// ---- Kinds of keys: each returns the two functions of a key for one member ----

template <class T, class M>
using Member = std::function<M&(T&)>;

template <class T, class M>
M Read(const Member<T, M>& member, const T& target) {
  return member(const_cast<T&>(target));    // the member function does not write
}

// A string that `parse` turns into the member and `format` turns back.
template <class T, class M, class Parse, class Format>
void Parsed(Key<T>& key, Member<T, M> member, Parse parse, Format format) {
  key.set = [=](T& target, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return false;
    const auto parsed = parse(*text);
    if (parsed) member(target) = *parsed;
    return parsed.has_value();
  };
  key.get = [=](const T& target) -> Value { return std::string(format(Read(member, target))); };
}

template <class T>
Key<T> Text(std::string_view name, std::string_view default_text, std::string allowed, Member<T, std::string> member,
            std::string_view meaning, std::function<bool(const std::string&)> valid) {
  Key<T> key{name, default_text, std::move(allowed), meaning, {}, {}};
  Parsed<T, std::string>(
      key, member,
      [=](const std::string& text) -> Result<std::string> {
        if (!valid(text)) return Fail("");
        return text;
      },
      [](const std::string& text) { return text; });
  return key;
}

bool NoControls(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool IsPath(const std::string& text) {
  return text.empty() || (text.front() == '/' && NoControls(text));
}

bool IsSocketPath(const std::string& text) {
  return IsPath(text) && text.size() < 108;
}

template <class T>
Key<T> Integer(std::string_view name, std::string_view default_text, std::int64_t min, std::int64_t max,
               Member<T, std::uint32_t> member, std::string_view meaning) {
  Key<T> key{name, default_text, fmt::format("a whole number from {} to {}", min, max), meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr || *number < min || *number > max) return false;
    member(target) = static_cast<std::uint32_t>(*number);
    return true;
  };
  key.get = [=](const T& target) -> Value { return static_cast<std::int64_t>(Read(member, target)); };
  return key;
}

template <class T>
Key<T> Flag(std::string_view name, std::string_view default_text, Member<T, bool> member, std::string_view meaning) {
  Key<T> key{name, default_text, "true or false", meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* flag = std::get_if<bool>(&value);
    if (flag != nullptr) member(target) = *flag;
    return flag != nullptr;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

template <class T>
Key<T> DurationKey(std::string_view name, std::string_view default_text, Duration min, Duration max,
                   Member<T, Duration> member, std::string_view meaning) {
  Key<T> key{
      name,
      default_text,
      fmt::format("a duration such as \"5s\" or \"250ms\" from {} to {}", FormatDuration(min), FormatDuration(max)),
      meaning,
      {},
      {}};
  Parsed<T, Duration>(
      key, member,
      [=](const std::string& text) -> Result<Duration> {
        const auto parsed = ParseDuration(text);
        if (parsed && (*parsed < min || *parsed > max)) return Fail("");
        return parsed;
      },
      FormatDuration);
  return key;
}

template <class T>
Key<T> BytesKey(std::string_view name, std::string_view default_text, std::uint64_t min, std::uint64_t max,
                Member<T, std::uint64_t> member, std::string_view meaning) {
  Key<T> key{
      name,    default_text, fmt::format("a size such as \"64MiB\" from {} to {}", FormatBytes(min), FormatBytes(max)),
      meaning, {},           {}};
  Parsed<T, std::uint64_t>(
      key, member,
      [=](const std::string& text) -> Result<std::uint64_t> {
        const auto parsed = ParseBytes(text);
        if (parsed && (*parsed < min || *parsed > max)) return Fail("");
        return parsed;
      },
      FormatBytes);
  return key;
}

template <class T>
Key<T> FileMode(std::string_view name, std::string_view default_text, Member<T, std::uint32_t> member,
                std::string_view meaning) {
  Key<T> key{name, default_text, "permission bits in octal such as \"0660\"", meaning, {}, {}};
  Parsed<T, std::uint32_t>(key, member, ParseFileMode, FormatFileMode);
  return key;
}

template <class T>
Key<T> Address(std::string_view name, std::string_view default_text, bool loopback_only, Member<T, Endpoint> member,
               std::string_view meaning) {
  Key<T> key{name,
             default_text,
             loopback_only
                 ? "a loopback address and port such as \"127.0.0.1:7312\", or \"\" for none"
                 : "a numeric address and port such as \"127.0.0.1:7311\" or \"[::1]:7311\", or \"\" for none",
             meaning,
             {},
             {}};
  Parsed<T, Endpoint>(
      key, member,
      [=](const std::string& text) -> Result<Endpoint> {
        const auto parsed = ParseEndpoint(text);
        if (parsed && loopback_only && parsed->enabled() && !IsLoopback(*parsed)) return Fail("");
        return parsed;
      },
      FormatEndpoint);
  return key;
}

// One of a few words.
template <class T, class M>
Key<T> Choice(std::string_view name, std::string_view default_text, std::vector<M> choices, Member<T, M> member,
              std::string_view meaning) {
  std::string allowed = "one of";
  for (const M& m : choices) allowed += fmt::format("{} \"{}\"", &m == &choices.front() ? "" : ",", Name(m));
  Key<T> key{name, default_text, allowed, meaning, {}, {}};
  Parsed<T, M>(
      key, member,
      [=](const std::string& text) -> Result<M> {
        for (const M m : choices) {
          if (Name(m) == text) return m;
        }
        return Fail("");
      },
      [](M m) { return Name(m); });
  return key;
}

template <class T>
Key<T> Burst(Member<T, Tokens> member) {
  Key<T> key{"burst",
             "",
             fmt::format("a number of tokens from {:g} to {:g}", kBurstMin, kBurstMax),
             "The most tokens a bucket holds: how many queries in a row a tag may make after a rest.",
             {},
             {}};
  key.set = [=](T& target, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const double burst = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : 0;
    if (!(burst >= kBurstMin && burst <= kBurstMax)) return false;
    member(target) = burst;
    return true;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

template <class T>
Key<T> Rate(Member<T, double> member) {
  Key<T> key{
      "rate",
      "",
      fmt::format("tokens a second from {:g} to {:g}, as a number or as text such as \"60/m\" (s, m, h, d)", kRateMin,
                  kRateMax),
      "How fast a bucket refills, in tokens a second, or in text with a unit, such as \"60/m\". No tag is served "
      "faster than this in the long run.",
      {},
      {}};
  key.set = [=](T& target, const Value& value) {
    double rate = 0;
    if (const auto* whole = std::get_if<std::int64_t>(&value)) rate = static_cast<double>(*whole);
    if (const auto* number = std::get_if<double>(&value)) rate = *number;
    if (const auto* text = std::get_if<std::string>(&value)) rate = ParseRate(*text).value_or(0);
    if (!(rate >= kRateMin && rate <= kRateMax)) return false;
    member(target) = rate;
    return true;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

Key<Settings> PeerList() {
  Key<Settings> key{
      "connect",
      "[]",
      "a list of addresses such as \"tcp://10.0.0.2:7314\", \"tcp://web2.example.org:7314#web2\" or "
      "\"srv://_dthrottle._tcp.example.org\"",
      "Where the other hosts' daemons listen. Names are looked up again and again, all their addresses count, and the "
      "last good answer holds. A host's own address may be in the list and is passed over, so one file serves a fleet. "
      "With keys, each address needs the name of its key: after a # here, or in its .pub file. Without entries this "
      "host limits alone.",
      {},
      {}};
  key.set = [](Settings& s, const Value& value) {
    const auto* list = std::get_if<std::vector<std::string>>(&value);
    if (list == nullptr) return false;
    if (!std::all_of(list->begin(), list->end(), [](const auto& e) { return ParsePeerEntry(e).has_value(); })) {
      return false;
    }
    s.peers.connect = *list;
    return true;
  };
  key.get = [](const Settings& s) -> Value { return s.peers.connect; };
  return key;
}

Key<Settings> Bind() {
  Key<Settings> key{"bind",
                    "\"tcp://127.0.0.1:7314\"",
                    "a numeric address such as \"tcp://127.0.0.1:7314\", or \"\" for none",
                    "Where this host listens for the others, once there are any in *connect*: reports on this port, "
                    "requests on the one above it. Anything but loopback needs keys.",
                    {},
                    {}};
  Parsed<Settings, Endpoint>(
      key, [](Settings& s) -> Endpoint& { return s.peers.bind; }, ParseBind, FormatBind);
  return key;
}

// A number, or text for what has a unit.
Key<Settings> ShedBoundKey(std::string_view name, Member<Settings, ShedBound> member, std::string_view meaning) {
  constexpr double kNumberMax = 1e15;
  Key<Settings> key{
      name,
      "\"\"",
      fmt::format("a size such as \"2.8GiB\", a percentage such as \"90%\", or a number from {:g} to {:g}", -kNumberMax,
                  kNumberMax),
      meaning,
      {},
      {}};
  key.set = [=](Settings& s, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    if (const auto* text = std::get_if<std::string>(&value)) {
      const auto parsed = ParseShedBound(*text);
      if (parsed) member(s) = *parsed;
      return parsed.has_value();
    }
    if (whole == nullptr && number == nullptr) return false;
    const double x = whole != nullptr ? static_cast<double>(*whole) : *number;
    if (!(std::abs(x) <= kNumberMax)) return false;
    member(s) = {ShedBound::Kind::kNumber, x};
    return true;
  };
  key.get = [=](const Settings& s) -> Value {
    const ShedBound bound = Read(member, s);
    switch (bound.kind) {
      case ShedBound::Kind::kUnset:
        return std::string();
      case ShedBound::Kind::kNumber:
        return bound.value;
      case ShedBound::Kind::kBytes:
        return FormatBytes(static_cast<std::uint64_t>(bound.value));
      case ShedBound::Kind::kPercent:
        return FormatNumber(bound.value) + "%";
    }
    return {};
  };
  return key;
}

constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 40;

#define MEMBER(path)          \
  [](Settings & s) -> auto& { \
    return s.path;            \
  }

// What a reload can change; everything else in a section takes a start.
constexpr std::string_view kReloadable[] = {"query.max_connections",
                                            "query.idle_timeout",
                                            "peers.connect",
                                            "peers.authorized_keys",
                                            "resp.max_connections",
                                            "resp.idle_timeout",
                                            "shed.signal",
                                            "shed.cgroup",
                                            "shed.low",
                                            "shed.high",
                                            "shed.interval",
                                            "shed.expiry"};

std::vector<Section> MakeSections() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      {"query",
       "Where applications ask, and how much they may take.",
       {
           Text<S>("unix", "\"/run/dthrottle/query.sock\"", "an absolute path of at most 107 bytes, or \"\" for none",
                   MEMBER(query.unix_path), "The Unix stream socket that answers queries.", IsSocketPath),
           FileMode<S>("unix_mode", "\"0660\"", MEMBER(query.unix_mode),
                       "The permissions of that socket. Who may write to it may ask."),
           Address<S>(
               "tcp", "\"127.0.0.1:7311\"", false, MEMBER(query.tcp),
               "The TCP address that answers queries. Port 0 takes any free port and logs it. Whoever reaches it may "
               "spend tokens: keep it on loopback unless the network is trusted."),
           Integer<S>(
               "threads", "1", 1, 64, MEMBER(query.threads),
               "Threads that answer queries. One is enough for several hundred thousand queries a second; more share "
               "many connections among processors."),
           Integer<S>("max_tag_bytes", "255", 1, static_cast<std::int64_t>(kTagBytesMax), MEMBER(query.max_tag_bytes),
                      "The longest tag that is kept as it is. A longer one is throttled under a keyed 128-bit digest "
                      "of all its "
                      "bytes."),
           Integer<S>(
               "max_connections", "16384", 1, 1'000'000, MEMBER(query.max_connections),
               "The most applications connected at once, over all query sockets. One more is closed at once, so that "
               "it "
               "can carry on without an answer; it is counted. Each takes about 0.5 KiB, and 12 KiB more while it does "
               "not read its answers."),
           DurationKey<S>("idle_timeout", "\"5m\"", 1s, 24h * 365, MEMBER(query.idle_timeout),
                          "A connection on which nothing arrives for as long is closed."),
       }},
      {"admin",
       "Where people and programs look inside.",
       {
           Text<S>("unix", "\"/run/dthrottle/admin.sock\"", "an absolute path of at most 107 bytes, or \"\" for none",
                   MEMBER(admin.unix_path), "The Unix stream socket that takes commands; see dthrottle-protocol(7).",
                   IsSocketPath),
           FileMode<S>("unix_mode", "\"0600\"", MEMBER(admin.unix_mode),
                       "The permissions of that socket. Who may write to it may forgive any tag."),
           Address<S>("tcp", "\"\"", true, MEMBER(admin.tcp),
                      "A TCP address that takes the same commands from anybody on this host."),
           Address<S>("http", "\"127.0.0.1:7313\"", true, MEMBER(admin.http),
                      "A TCP address that answers HTTP: metrics, health, decisions, and at / a page that shows what "
                      "is going on. See dthrottle-protocol(7). Everybody on this host may read and ask there."),
           Text<S>("http_unix", "\"\"", "an absolute path of at most 107 bytes, or \"\" for none",
                   MEMBER(admin.http_unix_path), "A Unix stream socket that answers HTTP, for a web server in front.",
                   IsSocketPath),
           FileMode<S>("http_unix_mode", "\"0660\"", MEMBER(admin.http_unix_mode),
                       "The permissions of that socket. Who may write to it may ask, and read who is throttled."),
           Integer<S>("http_connections", "256", 1, 10'000, MEMBER(admin.http_connections),
                      "The most HTTP connections at once. One more is closed at once, and counted. Each takes about "
                      "17 KiB."),
           DurationKey<S>("http_timeout", "\"75s\"", 1s, 1h, MEMBER(admin.http_timeout),
                          "An HTTP connection on which no request is finished for as long is closed. Longer than "
                          "what a web server in front keeps unused connections for, which is 60 s in nginx."),
           Choice<S, HttpHeaders>(
               "http_headers", "\"draft-10\"",
               {HttpHeaders::kDraft10, HttpHeaders::kDraft03, HttpHeaders::kBoth, HttpHeaders::kOff},
               MEMBER(admin.http_headers),
               "How answers to /check and /auth state the limit: \"draft-10\", in RateLimit-Policy and RateLimit; "
               "\"draft-03\", in X-RateLimit-Limit, -Remaining and -Reset; \"both\"; or \"off\"."),
       }},
      {"table",
       "The memory of the limiter. It takes what is given here and never more; when it is full, buckets nearest to "
       "full are "
       "forgotten first.",
       {
           BytesKey<S>(
               "memory", "\"64MiB\"", Table::kRegionBytesMin, kSizeMax, MEMBER(table.memory),
               "The size of the table, all of it taken at start: about 44 bytes for a tag of up to 16 bytes, 32 more "
               "for each further 32."),
           Text<S>("file", "\"/run/dthrottle/table\"", "an absolute path, or \"\" for none", MEMBER(table.file),
                   "The file that holds the table, best on a tmpfs. A daemon that is killed and starts again finds "
                   "every bucket "
                   "as it left it. From 16 MiB on it is put into huge pages, where the kernel can. With \"\" buckets "
                   "live and die with the process.",
                   IsPath),
       }},
      {"peers",
       "The other hosts, with which limits are shared. Every host tells all others each period what it served, and "
       "they "
       "debit it.",
       {
           Text<S>("name", "\"\"", "a name of up to 64 letters, digits and \"_-.\", or \"\" for the host's",
                   MEMBER(peers.name), "What the other hosts call this one. With keys, its .pub file has that name.",
                   [](const std::string& text) { return text.empty() || IsHostName(text); }),
           Bind(),
           PeerList(),
           DurationKey<S>(
               "period", "\"5s\"", 100ms, 5min, MEMBER(peers.period),
               "The time between two reports. What a host serves is unknown to the others for at most so long."),
           Text<S>("key_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(peers.key_file),
                   "The key pair of this host, which nobody else may read; dthrottlectl keygen makes one. Required "
                   "unless every address is loopback.",
                   IsPath),
           Text<S>("authorized_keys", "\"\"", "an absolute path, or \"\" for none", MEMBER(peers.authorized_keys),
                   "The directory with the public key of every host that is heard, NAME.pub. A reload reads it again.",
                   IsPath),
           BytesKey<S>("history", "\"64MiB\"", std::uint64_t{1} << 20, kSizeMax, MEMBER(peers.history),
                       "Reports that are kept to be sent again to a host that missed them; the oldest go first. What "
                       "is no longer there is lost for that host, and counted."),
           DurationKey<S>("resolve_interval", "\"30s\"", 1s, 24h, MEMBER(peers.resolve_interval),
                          "How often names in *connect* are looked up again."),
           Text<S>("name_servers", "\"\"",
                   "addresses such as \"127.0.0.1:8600\", with commas between, or \"\" for the system's",
                   MEMBER(peers.name_servers), "Who is asked for them.", NoControls),
       }},
      {"shed",
       "Refusing some queries when the host runs hot, under rules with *shed* = true. Between *low* and *high* the "
       "probability of a refusal rises along a logistic curve, from 0.01 over 0.5 in the middle to 0.99; below *low* "
       "nothing is refused, from *high* on everything. A refusal costs the tag nothing. What cannot be measured "
       "refuses "
       "nothing.",
       {
           Choice<S, ShedSignal>(
               "signal", "\"cgroup\"",
               {ShedSignal::kCgroup, ShedSignal::kHost, ShedSignal::kPressure, ShedSignal::kReported},
               MEMBER(shed.signal),
               "What is measured: \"cgroup\", the memory of a control group (version 2) against its memory.max, or the "
               "host's memory where there is no maximum; \"host\", the memory of the host that is not available for "
               "new "
               "work; \"pressure\", the percentage of the last 10 s in which something waited for memory (PSI, avg10 "
               "of "
               "\"some\"); \"reported\", a number that an application reports with the admin command shed. File pages "
               "that nobody has used lately do not count as memory of a group: the kernel drops them before anything "
               "else."),
           Text<S>(
               "cgroup", "\"\"", "a path below /sys/fs/cgroup or an absolute one, or \"\"", MEMBER(shed.cgroup),
               "The control group that \"cgroup\" and \"pressure\" look at, such as "
               "\"system.slice/nginx.service\" to protect a web server. Without it \"cgroup\" looks at the daemon's "
               "own and \"pressure\" at the whole host. A group of version 1 works by its absolute path.",
               NoControls),
           ShedBoundKey("low", MEMBER(shed.low),
                        "Where refusing begins: for memory a size, or a percentage of the maximum; a percentage for "
                        "\"pressure\"; a number for \"reported\". Without *low* and *high* memory is shed between 90 % "
                        "and 98 %."),
           ShedBoundKey(
               "high", MEMBER(shed.high),
               "Where everything is refused; of the same kind as *low* and not less. Leave room for what comes "
               "within an *interval*."),
           DurationKey<S>("interval", "\"500ms\"", 50ms, 1min, MEMBER(shed.interval),
                          "The time between two measurements. Queries never measure."),
           DurationKey<S>(
               "expiry", "\"10s\"", 100ms, 1h, MEMBER(shed.expiry),
               "A value that is older than this, because its reporter died or a file cannot be read, refuses "
               "nothing any more. At least twice the *interval*."),
       }},
      {"resp",
       "Clients of Redis: CL.THROTTLE as redis-cell answers it; see dthrottle-protocol(7). Nobody listens unless there "
       "is "
       "an address.",
       {
           Address<S>(
               "tcp", "\"\"", true, MEMBER(resp.tcp),
               "The TCP address. Port 0 takes any free port and logs it. There is no password, so it has to be on "
               "loopback."),
           Text<S>("unix", "\"\"", "an absolute path of at most 107 bytes, or \"\" for none", MEMBER(resp.unix_path),
                   "The Unix stream socket for the same.", IsSocketPath),
           FileMode<S>("unix_mode", "\"0660\"", MEMBER(resp.unix_mode),
                       "The permissions of that socket. Who may write to it may spend anybody's tokens."),
           Integer<S>("max_connections", "1024", 1, 1'000'000, MEMBER(resp.max_connections),
                      "The most clients connected at once. One more is closed at once, and counted. Each takes about 1 "
                      "KiB, up to 16 KiB more for an unfinished command, and up to 320 KiB while it does not read its "
                      "replies."),
           DurationKey<S>("idle_timeout", "\"0s\"", 0s, 24h * 365, MEMBER(resp.idle_timeout),
                          "A connection on which nothing arrives for as long is closed; with \"0s\" none is, because "
                          "clients of Redis keep idle connections in pools."),
           Flag<S>(
               "accept_limits", "false", MEMBER(resp.accept_limits),
               "With *true* the burst and rate of a limit are those that each CL.THROTTLE brings along, as in "
               "redis-cell: no rule is looked at, and no other host hears of it. With *false* rules decide, and the "
               "numbers that a client sends are not used."),
           BytesKey<S>(
               "memory", "\"16MiB\"", Table::kRegionBytesMin, kSizeMax, MEMBER(resp.memory),
               "The size of the table for limits that clients bring, beside table.memory, where accept_limits is "
               "true. It lives in table.file with .resp behind it, and is kept as that is."),
       }},
  };
}

#undef MEMBER

std::vector<Key<Rule>> MakeRuleKeys() {
  std::vector<Key<Rule>> keys;
  keys.push_back(Text<Rule>(
      "name", "\"\"", "a name of up to 64 letters, digits and \"_-.\"", [](Rule & r) -> auto& { return r.name; },
      "What the rule is called in answers, counters and logs. Without one it is called rule-*N*, by its place.",
      IsHostName));
  Key<Rule> match{
      "match",
      "\"\"",
      "a glob of at most 255 bytes: * ? [a-z] [!a-z] \\x",
      "The tags that the rule is for, as a glob over the whole tag: * stands for any bytes, ? for one, [a-z] for one "
      "of "
      "a set, [!a-z] for one not of it, and \\ takes the next byte as it is. Without *match* the rule is the default.",
      {},
      {}};
  match.set = [](Rule& rule, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || text->size() > kTagBytesMax || !Glob::Compile(*text)) return false;
    rule.match = *text;
    return true;
  };
  match.get = [](const Rule& rule) -> Value {
    return rule.match.has_value() ? Value(*rule.match) : Value(std::monostate());
  };
  keys.push_back(std::move(match));
  keys.push_back(Burst<Rule>([](Rule & r) -> auto& { return r.burst; }));
  keys.push_back(Rate<Rule>([](Rule & r) -> auto& { return r.rate; }));
  keys.push_back(Choice<Rule, Share>(
      "share", "\"debit\"", {Share::kLocal, Share::kDebit, Share::kForecast, Share::kCapacity},
      [](Rule & r) -> auto& { return r.share; },
      "How hosts share the limit: \"local\", this host alone; \"debit\", every host debits what the others served; "
      "\"forecast\", the same, with hosts predicting each other between reports; \"capacity\", each host has a part of "
      "the rate, and parts move to where the demand is. *In this version the last two do what \"debit\" does.*"));
  keys.push_back(Choice<Rule, Mode>(
      "mode", "\"enforce\"", {Mode::kEnforce, Mode::kShadow, Mode::kOff}, [](Rule & r) -> auto& { return r.mode; },
      "\"enforce\" throttles; \"shadow\" decides and counts but answers OK, to try a rule before it hurts; \"off\" "
      "answers OK and keeps "
      "nothing."));
  Key<Rule> max_debt{
      "max_debt",
      "\"\"",
      fmt::format("a number of tokens from 0 to {:g}", kBurstMax),
      "How far below zero other hosts' hits may take a bucket. Without it as far as all hosts together can serve "
      "within a period and a burst: (peers + 1) x (burst + rate x peers.period). More than that only a host that is "
      "wrong can say.",
      {},
      {}};
  max_debt.set = [](Rule& rule, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const double tokens = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : -1;
    if (!(tokens >= 0 && tokens <= kBurstMax)) return false;
    rule.max_debt = tokens;
    return true;
  };
  max_debt.get = [](const Rule& rule) -> Value {
    return rule.max_debt.has_value() ? Value(*rule.max_debt) : Value(std::monostate());
  };
  keys.push_back(std::move(max_debt));
  Key<Rule> horizon{
      "horizon",
      "\"\"",
      "a duration such as \"60s\" from 1s to 24h",
      "Other hosts' hits that are older than this when they are heard of are dropped, and counted: a client is not "
      "made "
      "to pay for a network that was down for long. Without it three periods or the time in which a bucket refills "
      "twice, whichever is longer, but at least 10 s and at most 300 s.",
      {},
      {}};
  horizon.set = [](Rule& rule, const Value& value) {
    using namespace std::chrono_literals;
    const auto* text = std::get_if<std::string>(&value);
    const auto parsed = text != nullptr ? ParseDuration(*text) : Result<Duration>(Fail(""));
    if (!parsed || *parsed < 1s || *parsed > 24h) return false;
    rule.horizon = *parsed;
    return true;
  };
  horizon.get = [](const Rule& rule) -> Value {
    return rule.horizon.has_value() ? Value(FormatDuration(*rule.horizon)) : Value(std::monostate());
  };
  keys.push_back(std::move(horizon));
  keys.push_back(Flag<Rule>(
      "shed", "false", [](Rule & r) -> auto& { return r.shed; },
      "Whether queries under the rule, and under overrides of tags that it matches, are refused when the host runs "
      "hot; "
      "see [shed]. In mode \"shadow\" a refusal is counted and answered OK, in mode \"off\" there is none."));
  keys.push_back(Integer<Rule>(
      "shed_priority", "0", 0, kShedPriorities - 1, [](Rule & r) -> auto& { return r.shed_priority; },
      "Which rules are refused first: those with the lowest number. The interval from shed.low to shed.high is cut "
      "into "
      "as many equal parts as there are priorities among rules that shed, and each has the curve over its own part: "
      "all "
      "of a priority is refused before any of the next one is."));
  return keys;
}

std::vector<Key<Override>> MakeOverrideKeys() {
  std::vector<Key<Override>> keys;
  keys.push_back(Text<Override>(
      "tag", "", "text of at most 255 bytes and query.max_tag_bytes, without LF and without CR at its end",
      [](Override & o) -> auto& { return o.tag; }, "The tag, byte by byte.",
      [](const std::string& text) {
        return text.size() <= kTagBytesMax && text.find('\n') == std::string::npos && !text.ends_with('\r');
      }));
  keys.push_back(Burst<Override>([](Override & o) -> auto& { return o.burst; }));
  keys.push_back(Rate<Override>([](Override & o) -> auto& { return o.rate; }));
  Key<Override> mode{"mode",
                     "\"\"",
                     "one of \"enforce\", \"shadow\", \"off\"",
                     "As the key of a rule; without it, the mode of the rule. \"off\" exempts the tag.",
                     {},
                     {}};
  mode.set = [](Override& o, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    for (const Mode m : {Mode::kEnforce, Mode::kShadow, Mode::kOff}) {
      if (text == nullptr || *text != Name(m)) continue;
      o.mode = m;
      return true;
    }
    return false;
  };
  mode.get = [](const Override& o) -> Value {
    return o.mode.has_value() ? Value(std::string(Name(*o.mode))) : Value(std::monostate());
  };
  keys.push_back(std::move(mode));
  return keys;
}

// The default of a key, which is written as TOML but only ever as one of these.
Value DefaultValue(std::string_view text) {
  if (text == "[]") return std::vector<std::string>();
  if (text == "false") return false;
  if (text.starts_with('"')) return std::string(text.substr(1, text.size() - 2));
  return static_cast<std::int64_t>(std::stoll(std::string(text)));
}

constexpr std::string_view kRuntimeDir = "/run/dthrottle";

}    // namespace

const std::vector<Section>& Sections() {
  static const std::vector<Section> sections = [] {
    std::vector<Section> made = MakeSections();
    for (Section& section : made) {
      for (auto& key : section.keys) {
        const std::string path = fmt::format("{}.{}", section.name, key.name);
        key.at_start = std::find(std::begin(kReloadable), std::end(kReloadable), path) == std::end(kReloadable);
      }
    }
    return made;
  }();
  return sections;
}

const std::vector<Key<Rule>>& RuleKeys() {
  static const std::vector<Key<Rule>> keys = MakeRuleKeys();
  return keys;
}

const std::vector<Key<Override>>& OverrideKeys() {
  static const std::vector<Key<Override>> keys = MakeOverrideKeys();
  return keys;
}

std::vector<std::string> KeepStartKeys(const Settings& running, Settings& loaded) {
  std::vector<std::string> differed;
  for (const Section& section : Sections()) {
    for (const auto& key : section.keys) {
      if (!key.at_start || key.get(running) == key.get(loaded)) continue;
      differed.push_back(fmt::format("{}.{}", section.name, key.name));
      DT_CHECK(key.set(loaded, key.get(running)));
    }
  }
  return differed;
}

Settings DefaultSettings(std::string_view runtime_dir) {
  Settings settings;
  for (const Section& section : Sections()) {
    for (const auto& key : section.keys) {
      Value value = DefaultValue(key.default_text);
      if (auto* text = std::get_if<std::string>(&value); text != nullptr && text->starts_with(kRuntimeDir)) {
        text->replace(0, kRuntimeDir.size(), runtime_dir);
      }
      key.set(settings, value);
    }
  }
  return settings;
}

}    // namespace dthrottle
