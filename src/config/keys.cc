#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/check.h"
#include "base/host_name.h"
#include "base/tag.h"
#include "bucket/table.h"
#include "config/kinds.h"
#include "config/values.h"
#include "lease/address.h"
#include "rule/glob.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

// ---- Kinds of keys: each returns the two functions of a key for one member ----

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
                    "Where this host listens for the others, once there are any in *connect*. Anything but loopback needs "
                    "keys.",
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

// Texts that are all valid.
template <class T>
Key<T> TextList(std::string_view name, std::string allowed, Member<T, std::vector<std::string>> member,
                std::string_view meaning, std::function<bool(const std::string&)> valid) {
  Key<T> key{name, "[]", std::move(allowed), meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* list = std::get_if<std::vector<std::string>>(&value);
    if (list == nullptr || !std::all_of(list->begin(), list->end(), valid)) return false;
    member(target) = *list;
    return true;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

// A number of which 0 is written "auto".
Key<Settings> Gain(Member<Settings, double> member, std::string_view meaning) {
  constexpr double kGainMax = 100;
  Key<Settings> key = Number<Settings>("gain", "\"auto\"", 0, kGainMax, member, meaning);
  key.allowed = fmt::format("\"auto\", or a number above 0 and at most {:g}", kGainMax);
  key.set = [=, number = std::move(key.set)](Settings& s, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return number(s, value) && member(s) > 0;
    if (*text == "auto") member(s) = 0;
    return *text == "auto";
  };
  key.get = [=](const Settings& s) -> Value {
    const double gain = Read(member, s);
    return gain == 0 ? Value(std::string("auto")) : Value(gain);
  };
  return key;
}

// Commands forgive and upgrade, and a port of loopback is open to every user and to what web pages send.
Key<Settings> AdminTcp() {
  Key<Settings> key{"tcp",
                    "\"\"",
                    "\"\": commands are taken on admin.unix only, whose permissions say by whom",
                    "Commands are not taken over TCP. The key is there so that settings of before say so.",
                    {},
                    {}};
  key.set = [](Settings&, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    return text != nullptr && text->empty();
  };
  key.get = [](const Settings&) -> Value { return std::string(); };
  return key;
}

constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 40;

#define MEMBER(path)          \
  [](Settings & s) -> auto& { \
    return s.path;            \
  }

// What a reload can change; everything else in a section takes a start.
constexpr const char* kLeaseAddressAllowed =
    "an address such as \"tcp:10.0.0.1:7315\" or \"unix:/run/dthrottle/lease.sock\", with \",grpc:10.0.0.1:7316\" "
    "behind "
    "it or \"grpc:10.0.0.1:7316\" alone where there is gRPC, or \"\" for none";

bool IsTcpAddress(std::string_view text) {
  const auto endpoint = ParseEndpoint(text);
  return endpoint && endpoint->enabled() && endpoint->port != 0;
}

bool IsLineAddress(std::string_view text) {
  if (text.starts_with("tcp:")) return IsTcpAddress(text.substr(4));
  return text.starts_with("unix:/") && IsSocketPath(std::string(text.substr(5))) && text.find(' ') == std::string::npos;
}

bool IsLeaseAddress(const std::string& text) {
  const std::string_view line = lease::LineAddress(text), grpc = lease::GrpcAddress(text);
  return (line.empty() || IsLineAddress(line)) && (grpc.empty() || IsTcpAddress(grpc)) &&
         lease::JoinAddresses(line, grpc) == text;
}

Key<Settings> ParentList() {
  Key<Settings> key{
      "parent",
      "[]",
      "a list of addresses such as \"tcp:10.0.0.1:7315\" or \"unix:/run/dthrottle/lease.sock\"",
      "Where the lease servers of the next level toward the root listen for lines: every host that may be master "
      "there. "
      "This server then gets its capacity from them and hands out what it holds, for no longer than it holds it. Needs "
      "*level*. Without any it is a root, and capacity is that of [[resource]].",
      {},
      {}};
  key.set = [](Settings& s, const Value& value) {
    const auto* list = std::get_if<std::vector<std::string>>(&value);
    if (list == nullptr || !std::all_of(list->begin(), list->end(), IsLineAddress)) return false;
    s.lease.parent = *list;
    return true;
  };
  key.get = [](const Settings& s) -> Value { return s.lease.parent; };
  return key;
}

bool IsEtcdUrl(const std::string& text) {
  const std::size_t scheme = text.starts_with("http://") ? 7 : text.starts_with("https://") ? 8 : 0;
  return scheme > 0 && text.size() > scheme && text.size() <= 255 && NoControls(text) &&
         text.find_first_of(" ?#", scheme) == std::string::npos && !text.ends_with('/');
}

Key<Settings> EtcdList() {
  Key<Settings> key{
      "etcd",
      "[]",
      "a list of addresses such as \"http://10.0.0.1:2379\", without / at their ends",
      "Members of etcd's cluster, version 3.4 or later, for \"etcd\": the next one is asked where one does "
      "not answer.",
      {},
      {}};
  key.set = [](Settings& s, const Value& value) {
    const auto* list = std::get_if<std::vector<std::string>>(&value);
    if (list == nullptr || !std::all_of(list->begin(), list->end(), IsEtcdUrl)) return false;
    s.lease.etcd = *list;
    return true;
  };
  key.get = [](const Settings& s) -> Value { return s.lease.etcd; };
  return key;
}

constexpr std::string_view kReloadable[] = {"query.max_connections",
                                            "admin.http_decides",
                                            "admin.http_hosts",
                                            "process.source_share",
                                            "query.idle_timeout",
                                            "peers.connect",
                                            "peers.authorized_keys",
                                            "capacity.lease",
                                            "capacity.members",
                                            "capacity.graph",
                                            "capacity.degree",
                                            "capacity.links",
                                            "capacity.graph_file",
                                            "capacity.reserve",
                                            "capacity.indicator",
                                            "capacity.gain",
                                            "capacity.on_isolation",
                                            "resp.max_connections",
                                            "resp.idle_timeout",
                                            "lease.max_connections",
                                            "lease.idle_timeout",
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
               "tcp", "\"\"", false, MEMBER(query.tcp),
               "A TCP address that answers queries as well, such as \"127.0.0.1:7311\". Port 0 takes any free port and "
               "logs it. Everybody who reaches it may spend tokens, on loopback every user of this host, whatever "
               "*unix_mode* says: keep it off, or on loopback, unless the network is trusted."),
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
           AdminTcp(),
           Address<S>("http", "\"127.0.0.1:7313\"", true, MEMBER(admin.http),
                      "A TCP address that answers HTTP: metrics, health, decisions, and at / a page that shows what "
                      "is going on. See dthrottle-protocol(7). Everybody on this host may read there."),
           Flag<S>("http_decides", "false", MEMBER(admin.http_decides),
                   "Whether /check and /auth decide at that TCP address too, where every user of this host may spend "
                   "anybody's tokens. At the Unix socket they always do, for those whom its mode lets in."),
           TextList<S>(
               "http_hosts", "a list of host names such as \"web-1.example.org\"", MEMBER(admin.http_hosts),
               "Names by which a request at that TCP address may ask for this host in *Host*, beside addresses, "
               "localhost and the host's own name. Of any other name it is turned down, because a web page can "
               "point its own at this host.",
               IsHostName),
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
       "The memory of the limiter. It takes what is given here and never more; when it is full, rules share it fairly, "
       "and what never had to be refused is forgotten first.",
       {
           BytesKey<S>(
               "memory", "\"64MiB\"", Table::kRegionBytesMin, kSizeMax, MEMBER(table.memory),
               "The size of the table, all of it taken at start: about 44 bytes for a tag of up to 16 bytes, 32 more "
               "for each further 32. A rule remembers its tags for its part of these over the fresh tags that are "
               "asked under it each second; a client that returns after that has a fresh burst, which matters if "
               "burst / rate is longer. With 64MiB and one rule that is some 1.5 million tags: an hour under 400 fresh "
               "tags/s."),
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
           Flag<S>(
               "eager", "false", [](Settings & s) -> auto& { return s.peers.eager; },
               "Whether hits of tags that are asked for much are reported before the period is over, so that the limit "
               "is exceeded by less. It costs no more entries of reports: in the long run one for each tag and period, "
               "and what was reported early is not reported again. Limits under share = \"forecast\" always are."),
           Integer<S>("watched_tags", "4096", 512, 1'000'000, MEMBER(peers.watched_tags),
                      "How many tags may be reported early, or foretold, at a time; rounded up to a power of two. "
                      "Each takes 600 bytes and 32 for every peer. Others are reported once a period, and what is "
                      "refused room is counted (watches_crowded)."),
           BytesKey<S>("history", "\"64MiB\"", std::uint64_t{1} << 20, kSizeMax, MEMBER(peers.history),
                       "Reports that are kept to be sent again to a host that missed them; the oldest go first. What "
                       "is no longer there is lost for that host, and counted."),
           DurationKey<S>("resolve_interval", "\"30s\"", 1s, 24h, MEMBER(peers.resolve_interval),
                          "How often names in *connect* are looked up again."),
           Text<S>("name_servers", "\"\"",
                   "addresses such as \"127.0.0.1:8600\", with commas between, or \"\" for the system's",
                   MEMBER(peers.name_servers), "Who is asked for them.", NoControls),
       }},
      {"capacity",
       "Dividing limits among hosts, under rules with *share* = \"capacity\". Each host has a part of the rate and of "
       "the "
       "burst, and neighbours move parts to where more is asked for, round by round. The parts of a tag never sum to "
       "more than the whole. All hosts need the same of *members*, *graph*, *degree*, *links*, *reserve*, *lease* and "
       "*indicator*, and the same "
       "rates under rules that divide.",
       {
           DurationKey<S>("interval", "\"1s\"", 50ms, 1min, MEMBER(capacity.interval),
                          "The time between two rounds, in which neighbours tell each other how they fare and give."),
           DurationKey<S>("lease", "\"10s\"", 200ms, 10min, MEMBER(capacity.lease),
                          "A host that nobody hears for so long is taken for dead, and its parts go to others; by then "
                          "it has gone down to its reserve by itself. At least four times the *interval*."),
           TextList<S>("members", "a list of hosts' names", MEMBER(capacity.members),
                       "The names of all hosts that divide limits, this one's too. With keys it may be left out: then "
                       "they are the hosts whose keys are authorized.",
                       [](const std::string& text) { return !text.empty() && IsHostName(text); }),
           Choice<S, CapacityGraph>("graph", "\"regular\"",
                                    {CapacityGraph::kRing, CapacityGraph::kRegular, CapacityGraph::kComplete,
                                     CapacityGraph::kList, CapacityGraph::kFile},
                                    MEMBER(capacity.graph),
                                    "Who are neighbours: \"ring\"; \"regular\", a random graph in which every host has "
                                    "*degree* neighbours, the same on all hosts; \"complete\", all; \"list\", those in "
                                    "*links*; \"file\", those in *graph_file*. All hosts need the same. "
                                    "dthrottle-plan(1) says how fast each evens out."),
           Integer<S>("degree", "4", 2, 64, MEMBER(capacity.degree), "Neighbours of a host in a \"regular\" graph."),
           TextList<S>(
               "links", "a list of links such as \"web-1 web-2\" or \"web-1 web-2 0.5\"", MEMBER(capacity.links),
               "For the graph \"list\": two hosts each, and the weight of what moves between them, which is 1 if "
               "nothing is said.",
               [](const std::string& text) { return ParseCapacityLink(text).has_value(); }),
           Text<S>(
               "graph_file", "\"\"", "an absolute path", MEMBER(capacity.graph_file),
               "For the graph \"file\": links between members as dthrottle-plan(1) reads them, a line \"web-1 web-2\" "
               "or \"web-1 web-2 0.5\" each, or DOT. Read at start and at each reload.",
               IsPath),
           Number<S>("reserve", "0.1", 0, 1, MEMBER(capacity.reserve),
                     "The part of its equal share that a host never gives away, and that is left to it when it is cut "
                     "off."),
           Text<S>(
               "indicator", "\"throttled-amount\"",
               "one of \"throttled-amount\", \"spare-bandwidth\", \"throttled-ratio\", \"log-ratio\"",
               MEMBER(capacity.indicator),
               "What neighbours make equal: \"throttled-amount\", how much more is asked for than a host has, which "
               "is also its spare bandwidth with the other sign; \"throttled-ratio\", the same as a part of what is "
               "asked for; \"log-ratio\", the logarithm of demand over share.",
               [](const std::string& text) {
                 return text == "throttled-amount" || text == "spare-bandwidth" || text == "throttled-ratio" ||
                        text == "log-ratio";
               }),
           Gain(MEMBER(capacity.gain),
                "The part of the difference between two neighbours' indicators that moves in a round. \"auto\" is half "
                "of "
                "what is certain to be stable."),
           Choice<S, IsolatedShare>("on_isolation", "\"reserve\"", {IsolatedShare::kReserve, IsolatedShare::kKeep},
                                    MEMBER(capacity.on_isolation),
                                    "What a host keeps that reaches too few others to know who is dead: its *reserve*, "
                                    "or all, and then the sum may exceed the limit by what the others hold."),
           Integer<S>("tags_max", "10000", 1, 1'000'000, MEMBER(capacity.tags_max),
                      "The most tags that take part at once. One more keeps the equal share, and is counted. Only tags "
                      "of which some host was asked for more than its part take part."),
           Text<S>(
               "state_file", "\"\"", "an absolute path, or \"\" for table.file with .capacity behind it",
               MEMBER(capacity.state_file),
               "What a host must not forget about who is dead, some hundred bytes, written when a host dies or members "
               "change. On a disk it outlives a reboot.",
               IsPath),
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
      {"lease",
       "Leases for batch clients, who ask how fast they may go instead of being refused; see dthrottle-protocol(7). "
       "Nobody is served unless there is an address. What there is to lease says [[resource]].",
       {
           Text<S>("unix", "\"\"", "an absolute path of at most 107 bytes, or \"\" for none", MEMBER(lease.unix_path),
                   "The Unix stream socket for lease clients of this host.", IsSocketPath),
           FileMode<S>("unix_mode", "\"0660\"", MEMBER(lease.unix_mode),
                       "The permissions of that socket. Who may write to it may take and release anybody's leases."),
           Address<S>("tcp", "\"\"", false, MEMBER(lease.tcp),
                      "The TCP address for those of other hosts. There is no password and nothing is encrypted: the "
                      "network has to keep strangers away. Port 0 takes any free port and logs it."),
           Address<S>("grpc", "\"\"", false, MEMBER(lease.grpc),
                      "The TCP address for clients that ask by gRPC, the interface doorman.Capacity of "
                      "protocol/doorman.proto, with the field numbers of the public system. Only in a build with gRPC. "
                      "There is no password and nothing is encrypted here either."),
           Integer<S>("grpc_max_calls", "1000", 1, 100'000, MEMBER(lease.grpc_max_calls),
                      "The most gRPC calls that wait for their answers; one more is told RESOURCE_EXHAUSTED, and "
                      "counted. A call has at most 1 MiB, and a connection 100 calls at once."),
           Integer<S>("grpc_max_resources", "500", 1, 10'000, MEMBER(lease.grpc_max_resources),
                      "The most resources that one gRPC call may ask for; a larger one is told INVALID_ARGUMENT, and "
                      "counted. Each takes some 2 us, in which no query of the main thread is answered."),
           Integer<S>("max_connections", "2048", 1, 1'000'000, MEMBER(lease.max_connections),
                      "The most lease clients connected at once. One more is closed at once, and counted. Each takes "
                      "about 1 KiB, and up to 1 MiB while it does not read its answers."),
           DurationKey<S>("idle_timeout", "\"5m\"", 0s, 24h * 365, MEMBER(lease.idle_timeout),
                          "A connection on which nothing arrives for as long is closed; with \"0s\" none is. Leases go "
                          "on without a connection."),
           Text<S>("address", "\"\"", kLeaseAddressAllowed, MEMBER(lease.address),
                   "Where lease clients reach this host, as it stands in the election and in answers of hosts that are "
                   "not master. Without it *tcp*, or *unix* where there is no *tcp*, and *grpc*.",
                   IsLeaseAddress),
           Choice<S, LeaseElector>(
               "elector", "\"none\"", {LeaseElector::kNone, LeaseElector::kStatic, LeaseElector::kEtcd},
               MEMBER(lease.elector),
               "Which of several hosts grants leases: \"none\", each host by itself, for a single one or where hosts "
               "have parts of the capacity; \"static\", the one whose address is *master*; \"etcd\", whoever etcd "
               "elects, one at most at any time."),
           Text<S>("master", "\"\"", kLeaseAddressAllowed, MEMBER(lease.master),
                   "The address of the master, for \"static\".", IsLeaseAddress),
           EtcdList(),
           Text<S>("etcd_key", "\"dthrottle/lease/master\"", "text of 1 to 255 bytes", MEMBER(lease.etcd_key),
                   "The key that stands for mastership there. Hosts with the same key elect one master among them.",
                   [](const std::string& text) { return !text.empty() && text.size() <= 255 && NoControls(text); }),
           DurationKey<S>("etcd_ttl", "\"5s\"", 3s, 1h, MEMBER(lease.etcd_ttl),
                          "How long mastership lasts without news from the master, in whole seconds. A master that is "
                          "lost is replaced within this and a second; one that etcd does not answer stops granting a "
                          "second before it is over."),
           Text<S>("etcd_ca_file", "\"\"", "an absolute path, or \"\" for the system's", MEMBER(lease.etcd_ca_file),
                   "Certificates of the authorities that etcd's own is checked by, for https.", IsPath),
           Text<S>("etcd_certificate_file", "\"\"", "an absolute path, or \"\" for none",
                   MEMBER(lease.etcd_certificate_file), "The certificate by which etcd knows this host, for https.",
                   IsPath),
           Text<S>("etcd_key_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(lease.etcd_key_file),
                   "Its private key.", IsPath),
           Text<S>(
               "node", "\"\"", "a name of up to 64 letters, digits and \"_-.\", or \"\"", MEMBER(lease.node),
               "The node of the server tree that this server is of, the same for all that may become its master; the "
               "parent knows it by that. Without it, the host's name.",
               [](const std::string& text) { return text.empty() || IsHostName(text); }),
           ParentList(),
           Integer<S>(
               "level", "0", 0, lease::kLevelMax, MEMBER(lease.level),
               "How far the node is from the root of the tree, which is 0. With every level a refresh interval is "
               "half as long."),
           DurationKey<S>(
               "min_request_interval", "\"1s\"", 0s, 1h, MEMBER(lease.min_request_interval),
               "A client that asks again for the same resource within this time gets the answer that it has. "
               "At most half of the shortest refresh interval on this *level*, or punctual clients would be "
               "turned away."),
           Integer<S>(
               "max_clients", "200000", 1, 10'000'000, MEMBER(lease.max_clients),
               "The most leases at once, of all resources together; whoever comes then gets none, and is counted. "
               "Each takes some 400 bytes."),
           Integer<S>("max_resources", "10000", 1, 1'000'000, MEMBER(lease.max_resources),
                      "The most resources with leases at once."),
       }},
      {"process",
       "What holds for the whole process.",
       {
           Number<S>("source_share", "0.75", 0.05, 1, MEMBER(process.source_share),
                     "The part of a socket's connections that one TCP address, or one local user at a Unix socket, may "
                     "have, and 16 at least. One more is closed at once, and counted in *connections_crowded*. 1 is "
                     "no bound. Of IPv6 a network of 64 bits is one address."),
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
      "\"forecast\", the same, but reports go out as soon as a host leaves what the others foretell of it, so that the "
      "limit holds in every second and not only in the long run; \"capacity\", each host has a part of the rate, and "
      "parts move to where the demand is; see [capacity]."));
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
  Key<Rule> max_unheard{
      "max_unheard",
      "\"\"",
      fmt::format("a number of tokens from 1 to {:g}", kBurstMax),
      "Under share = \"forecast\": the most that this host serves of a tag that its peers can neither have foretold "
      "nor "
      "heard of; a query beyond it is refused until they have heard, some 20 ms. It bounds what a crowd that comes to "
      "all hosts at once gets: so many tokens from each. A burst on one host alone is served in parts of it. Without "
      "it "
      "2 x burst / the square root of the number of hosts, and at least 4.",
      {},
      {}};
  max_unheard.set = [](Rule& rule, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const double tokens = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : -1;
    if (!(tokens >= 1 && tokens <= kBurstMax)) return false;
    rule.max_unheard = tokens;
    return true;
  };
  max_unheard.get = [](const Rule& rule) -> Value {
    return rule.max_unheard.has_value() ? Value(*rule.max_unheard) : Value(std::monostate());
  };
  keys.push_back(std::move(max_unheard));
  keys.push_back(Number<Rule>(
      "tolerance", "0", 0, 1e6, [](Rule & r) -> auto& { return r.tolerance; },
      "How much of what hosts serve under the rule may be beyond the limit, in % of what one bucket for all would have "
      "served in the last minute: when more of it has been seen the log says so, and again when that is over; "
      "accuracy_alerts counts. With 0 nothing is said. See CHOOSING A SHARE."));
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

using lease::ResourceTemplate;

// A number of units that may be missing.
template <class M>
Key<ResourceTemplate> Amount(std::string_view name, std::string_view default_text, double least, std::string allowed,
                             M ResourceTemplate::*member, std::string_view meaning) {
  Key<ResourceTemplate> key{name, default_text, std::move(allowed), meaning, {}, {}};
  key.set = [=](ResourceTemplate& r, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const double units = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : std::nan("");
    if (!((units >= 0 && units <= lease::kCapacityMax) || (units == lease::kUnlimited && least < 0))) return false;
    r.*member = units;
    return true;
  };
  key.get = [=](const ResourceTemplate& r) -> Value {
    const std::optional<double> units = r.*member;
    return units.has_value() ? Value(*units) : Value(std::monostate());
  };
  return key;
}

std::vector<Key<ResourceTemplate>> MakeResourceKeys() {
  using namespace std::chrono_literals;
  using lease::Algorithm;
  using R = ResourceTemplate;
  constexpr Duration kLongest = 24h;
  std::vector<Key<R>> keys;
  keys.push_back(Text<R>(
      "identifier_glob", "", "a glob of 1 to 255 bytes: * ? [a-z] [!a-z] \\x",
      [](R & r) -> auto& { return r.identifier_glob; }, "The names of the resources, as a glob over the whole name.",
      [](const std::string& text) {
        return !text.empty() && text.size() <= kTagBytesMax && Glob::Compile(text).has_value();
      }));
  keys.push_back(
      Amount("capacity", "", 0, fmt::format("a number from 0 to {:g}", lease::kCapacityMax), &R::capacity,
             "How much there is, in whatever unit clients and the resource agree on, such as queries a second "
             "or open transactions. With \"static\", how much there is for each client."));
  keys.push_back(Choice<R, Algorithm>(
      "algorithm", "\"fair_share\"",
      {Algorithm::kNone, Algorithm::kStatic, Algorithm::kProportionalShare, Algorithm::kProportionalScaling,
       Algorithm::kFairShare},
      [](R & r) -> auto& { return r.algorithm; },
      "How it is divided where more is wanted than there is: \"none\", everybody gets what he wants all the same; "
      "\"static\", everybody gets up to *capacity*; \"proportional_share\", an equal share, and of what others leave "
      "of "
      "theirs a part in proportion to what is wanted beyond it; \"proportional_scaling\", the same part of what is "
      "wanted for everybody; \"fair_share\", an equal share, and equal shares of what others leave until nothing is "
      "left."));
  keys.push_back(Choice<R, lease::Source>(
      "source", "\"settings\"", {lease::Source::kSettings, lease::Source::kCapacity},
      [](R & r) -> auto& { return r.source; },
      "Where the capacity of a root server comes from: \"settings\", *capacity*; \"capacity\", this host's part of it, "
      "as it has that part of the tag with the resource's name under a rule with share = \"capacity\". Then every host "
      "leases out its own part and needs no master, and parts follow what is wanted."));
  keys.push_back(DurationKey<R>(
      "lease_length", "\"60s\"", 2s, kLongest, [](R & r) -> auto& { return r.lease_length; },
      "How long a lease lasts unless it is refreshed; less where the server's own lease ends before."));
  keys.push_back(DurationKey<R>(
      "refresh_interval", "\"16s\"", 1s, kLongest, [](R & r) -> auto& { return r.refresh_interval; },
      "How often clients of the root are to refresh it. Shorter than *lease_length*."));
  Key<R> learning{
      "learning_mode_duration",
      "\"\"",
      "a duration such as \"60s\" from 0s to 24h",
      "How long a new master gives everybody what he has, and nothing to others, because it does not know the leases "
      "that are out. Without it *lease_length*; a shorter time relies on clients that refresh in time.",
      {},
      {}};
  learning.set = [=](R& r, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    const auto parsed = text != nullptr ? ParseDuration(*text) : Result<Duration>(Fail(""));
    if (!parsed || *parsed < 0s || *parsed > kLongest) return false;
    r.learning_mode_duration = *parsed;
    return true;
  };
  learning.get = [](const R& r) -> Value {
    return r.learning_mode_duration.has_value() ? Value(FormatDuration(*r.learning_mode_duration))
                                                : Value(std::monostate());
  };
  keys.push_back(std::move(learning));
  keys.push_back(Amount("safe_capacity", "\"\"", lease::kUnlimited,
                        fmt::format("a number from 0 to {:g}, or -1", lease::kCapacityMax), &R::safe_capacity,
                        "What a client in safe mode may use when no server answers; 0 is nothing and -1 everything. "
                        "Without it an equal part of the capacity for each client that the server knows."));
  keys.push_back(Flag<R>(
      "strict", "false", [](R & r) -> auto& { return r.strict; },
      "With *true* capacity moves from one server to another only after it has come back from the clients of the "
      "first: "
      "never is more leased out than there is, and it takes some refresh intervals more to follow the demand."));
  keys.push_back(Text<R>(
      "description", "\"\"", "text without control characters", [](R & r) -> auto& { return r.description; },
      "For people.", NoControls));
  return keys;
}

// The default of a key, which is written as TOML but only ever as one of these.
Value DefaultValue(std::string_view text) {
  if (text == "[]") return std::vector<std::string>();
  if (text == "false") return false;
  if (text.starts_with('"')) return std::string(text.substr(1, text.size() - 2));
  if (text.find('.') != text.npos) return std::stod(std::string(text));
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

const std::vector<Key<lease::ResourceTemplate>>& ResourceKeys() {
  static const std::vector<Key<lease::ResourceTemplate>> keys = MakeResourceKeys();
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
