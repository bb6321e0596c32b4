#include "config/values.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

#include "base/host_name.h"
#include "base/number.h"

namespace dthrottle {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kDurations[] = {{"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                               {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
constexpr Unit kSizes[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                           {"TiB", 0x1p40}, {"kB", 1e3}, {"MB", 1e6},     {"GB", 1e9}};
constexpr Unit kRates[] = {{"/s", 1}, {"/m", 1.0 / 60}, {"/h", 1.0 / 3600}, {"/d", 1.0 / 86400}};

// A non-negative decimal number and one of the units.
Result<double> ParseWithUnit(std::string_view text, std::span<const Unit> units) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return Fail("not a number with a unit");
  const std::string_view name(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.name == name) return number * unit.factor;
  }
  return Fail(fmt::format("unknown unit \"{}\"", name));
}

// The largest unit that leaves a whole number.
std::string FormatWithUnit(std::uint64_t value, std::span<const Unit> units) {
  const Unit* best = &units[0];
  for (const Unit& unit : units) {
    const auto factor = static_cast<std::uint64_t>(unit.factor);
    if (value != 0 && value % factor == 0 && unit.factor > best->factor) best = &unit;
  }
  return fmt::format("{}{}", value / static_cast<std::uint64_t>(best->factor), best->name);
}

}    // namespace

Result<Duration> ParseDuration(std::string_view text) {
  const Result<double> ns = ParseWithUnit(text, kDurations);
  if (!ns) return tl::unexpected(ns.error());
  if (*ns > 1e18) return Fail("too long");
  return Duration(std::llround(*ns));
}

std::string FormatDuration(Duration d) {
  if (d == Duration::zero()) return "0s";
  return FormatWithUnit(static_cast<std::uint64_t>(d.count()), kDurations);
}

Result<std::uint64_t> ParseBytes(std::string_view text) {
  const Result<double> bytes = ParseWithUnit(text, kSizes);
  if (!bytes) return tl::unexpected(bytes.error());
  if (*bytes > 0x1p60) return Fail("too large");
  return static_cast<std::uint64_t>(std::llround(*bytes));
}

std::string FormatBytes(std::uint64_t bytes) {
  return FormatWithUnit(bytes, std::span(kSizes).subspan(1, 5));
}

Result<ShedBound> ParseShedBound(std::string_view text) {
  constexpr Unit kPercent[] = {{"%", 1}};
  if (text.empty()) return ShedBound{};
  if (const auto percent = ParseWithUnit(text, kPercent)) {
    if (*percent > 100) return Fail("more than 100%");
    return ShedBound{ShedBound::Kind::kPercent, *percent};
  }
  const auto bytes = ParseBytes(text);
  if (!bytes) return tl::unexpected(bytes.error());
  return ShedBound{ShedBound::Kind::kBytes, static_cast<double>(*bytes)};
}

Result<double> ParseRate(std::string_view text) {
  return ParseWithUnit(text, kRates);
}

Result<Endpoint> ParseEndpoint(std::string_view text) {
  if (text.empty()) return Endpoint{};
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Fail("no port");
  std::string_view host = text.substr(0, colon), port_text = text.substr(colon + 1);
  Endpoint endpoint;
  if (!ParseNumber(port_text, endpoint.port)) return Fail("port is not 0 to 65535");
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  endpoint.host = host;
  unsigned char address[sizeof(in6_addr)];
  // inet_pton reads to a zero byte, and what stands behind it would pass unseen.
  if (host.find('\0') != std::string_view::npos ||
      inet_pton(bracketed ? AF_INET6 : AF_INET, endpoint.host.c_str(), address) != 1) {
    return Fail("host is not a numeric address (IPv6 in brackets)");
  }
  return endpoint;
}

std::string FormatEndpoint(const Endpoint& e) {
  if (!e.enabled()) return "";
  const bool v6 = e.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", e.host, e.port) : fmt::format("{}:{}", e.host, e.port);
}

bool IsLoopback(const Endpoint& e) {
  return e.host.starts_with("127.") || e.host == "::1";
}

bool Overlap(const Endpoint& a, const Endpoint& b) {
  if (!a.enabled() || !b.enabled() || a.port == 0 || a.port != b.port) return false;
  const auto address_of = [](const Endpoint& e) {
    std::string bytes(e.host.find(':') != std::string::npos ? sizeof(in6_addr) : sizeof(in_addr), '\0');
    inet_pton(bytes.size() == sizeof(in6_addr) ? AF_INET6 : AF_INET, e.host.c_str(), bytes.data());
    return bytes;
  };
  const std::string x = address_of(a), y = address_of(b), any(x.size(), '\0');
  return x.size() == y.size() && (x == y || x == any || y == any);
}

bool IsDnsName(std::string_view name) {
  return !name.empty() && name.size() <= 253 && std::ranges::all_of(name, IsNameByte) &&
         name.find_first_not_of("0123456789.") != std::string_view::npos;
}

Result<PeerEntry> ParsePeerEntry(std::string_view text) {
  PeerEntry entry;
  if (const auto hash = text.find('#'); hash != std::string_view::npos) {
    entry.key_name = text.substr(hash + 1);
    text = text.substr(0, hash);
    if (!IsHostName(entry.key_name)) return Fail("what follows # is not the name of a host");
  }
  if (text.starts_with("srv://")) {
    entry.kind = PeerEntry::Kind::kService;
    entry.host = text.substr(6);
    if (!IsDnsName(entry.host) || !entry.host.starts_with('_')) return Fail("not of the form srv://_service._tcp.name");
    return entry;
  }
  if (!text.starts_with("tcp://")) return Fail("begins with neither tcp:// nor srv://");
  text.remove_prefix(6);
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return Fail("has no port");
  // The parser of numeric addresses knows ports; a name is put aside for it.
  const auto numeric = ParseEndpoint(text);
  const auto port = ParseEndpoint("0.0.0.0" + std::string(text.substr(colon)));
  if (!port || port->port == 0) return Fail("the port is not 1 to 65535");
  entry.port = port->port;
  entry.kind = numeric ? PeerEntry::Kind::kNumeric : PeerEntry::Kind::kName;
  entry.host = numeric ? numeric->host : std::string(text.substr(0, colon));
  if (!numeric && !IsDnsName(entry.host)) return Fail("the host is neither an address nor a name");
  return entry;
}

bool IsPeerAddress(std::string_view text) {
  const auto entry = ParsePeerEntry(text);
  return entry && entry->kind != PeerEntry::Kind::kService && entry->key_name.empty();
}

Result<NatsServer> ParseNatsServer(std::string_view text) {
  NatsServer server;
  server.tls = text.starts_with("tls://");
  if (!server.tls && !text.starts_with("nats://")) return Fail("begins with neither nats:// nor tls://");
  auto at = ParsePeerEntry("tcp" + std::string(text.substr(text.find(':'))));
  if (!at) return Fail(at.error().message);
  if (!at->key_name.empty()) return Fail("has a #");
  server.at = std::move(*at);
  return server;
}

bool PeerEntry::is_loopback() const {
  return kind == Kind::kNumeric ? IsLoopback(Endpoint{host, port}) : kind == Kind::kName && host == "localhost";
}

Result<Endpoint> ParseBind(std::string_view text) {
  if (text.empty()) return Endpoint{};
  if (!text.starts_with("tcp://")) return Fail("does not begin with tcp://");
  auto endpoint = ParseEndpoint(text.substr(6));
  if (endpoint && endpoint->port == 0) return Fail("the port is not 1 to 65535");
  return endpoint;
}

std::string FormatBind(const Endpoint& e) {
  return e.enabled() ? "tcp://" + FormatEndpoint(e) : "";
}

Result<CapacityLink> ParseCapacityLink(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) words.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  if (words.size() < 2 || words.size() > 3 || words[0] == words[1]) return Fail("not two hosts and a weight");
  CapacityLink link{words[0], words[1]};
  for (const std::string& name : {link.a, link.b}) {
    if (!IsHostName(name)) return Fail("no name of a host: " + name);
  }
  if (words.size() == 3 && !(ParseNumber(words[2], link.weight) && link.weight > 0 && link.weight <= 1000)) {
    return Fail("no weight");
  }
  return link;
}

Result<OperatorKey> ParseOperatorKey(std::string_view text) {
  constexpr std::size_t kChars = 43;    // of 32 bytes in base64, without the "=" behind them
  const std::size_t blank = text.find(' ');
  const std::string_view name = text.substr(0, blank);
  const std::string_view key = blank != text.npos ? text.substr(blank + 1) : std::string_view();
  const auto is_digit = [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '/'; };
  if (!IsHostName(name) || key.size() != kChars + 1 || key.back() != '=' ||
      !std::all_of(key.begin(), key.end() - 1, is_digit)) {
    return Fail("must be a name and a public key");
  }
  return OperatorKey{std::string(name), std::string(key)};
}

Result<std::uint32_t> ParseFileMode(std::string_view text) {
  std::uint32_t mode = 0;
  if (!ParseNumber(text, mode, 8) || mode > 0777) return Fail("not permission bits");
  return mode;
}

std::string FormatFileMode(std::uint32_t mode) {
  return fmt::format("{:04o}", mode);
}

std::string FormatNumber(double number) {
  return fmt::format("{}", number);
}

}    // namespace dthrottle
