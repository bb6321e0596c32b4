#include "config/listeners.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/worker_page.h"
#include "config/findings.h"
#include "config/values.h"

namespace dthrottle {

namespace {

constexpr std::string_view kPageSuffix = DTHROTTLE_PAGE_SUFFIX;
constexpr std::size_t kUnixPathBytesMax = 107;
constexpr std::size_t kBytesMaxWithPages = kUnixPathBytesMax - kPageSuffix.size();

template <auto kSection>
Endpoints SocketsOf(const Settings& settings) {
  const auto& its = settings.*kSection;
  return {its.unix_path, its.unix_mode, its.tcp};
}

// Beside a socket for queries or questions, so that everybody who may ask there may have a page. A path without room
// for it has none.
template <auto kSection>
Endpoints PagesOf(const Settings& settings) {
  const auto& its = settings.*kSection;
  const bool has_room = !its.unix_path.empty() && its.unix_path.size() <= kBytesMaxWithPages;
  if (settings.page.entries == 0 || !has_room) return {"", 0, {}, false, true};
  return {its.unix_path + std::string(kPageSuffix), its.unix_mode, {}, false, true};
}

Endpoints ByTls(const Settings& settings, const Endpoint& tcp) {
  return {"", 0, tcp, !settings.tls.client_ca_file.empty()};
}

Endpoints OfHosts(bool listens, const Endpoint& bind) {
  return {"", 0, listens ? bind : Endpoint()};
}

}    // namespace

std::span<const ListenerKeys> AllListeners() {
  using S = Settings;
  static constexpr ListenerKeys kAll[] = {
      {"query", "query.unix", "query.tcp", "spend tokens", SocketsOf<&S::query>},
      {"admin", "admin.unix", "", "", [](const S& s) { return Endpoints{s.admin.unix_path, s.admin.unix_mode}; }},
      {"http", "admin.http_unix", "admin.http", "",
       [](const S& s) {
         return Endpoints{s.admin.http_unix_path, s.admin.http_unix_mode, s.admin.http};
       }},
      {"peers", "", "peers.bind", "", [](const S& s) { return OfHosts(s.peers.listens(), s.peers.bind); }},
      {"sites", "", "sites.bind", "", [](const S& s) { return OfHosts(s.sites.enabled(), s.sites.bind); }},
      {"resp", "resp.unix", "resp.tcp", "", SocketsOf<&S::resp>},
      {"ask", "ask.unix", "ask.tcp", "spend tokens", SocketsOf<&S::ask>},
      {"spop", "spop.unix", "spop.tcp", "spend tokens", SocketsOf<&S::spop>},
      {"page", "page.entries", "", "", PagesOf<&S::query>},
      {"page-questions", "page.entries", "", "", PagesOf<&S::ask>},
      {"envoy", "", "envoy.tcp", "spend tokens", [](const S& s) { return ByTls(s, s.envoy.tcp); }},
      {"lease", "lease.unix", "lease.tcp", "take leases", SocketsOf<&S::lease>},
      {"tls", "", "lease.tls", "take leases", [](const S& s) { return ByTls(s, s.lease.tls); }},
      {"grpc", "", "lease.grpc", "take leases", [](const S& s) { return ByTls(s, s.lease.grpc); }},
  };
  return kAll;
}

Endpoints EndpointsOf(const Settings& settings, std::string_view name) {
  const auto all = AllListeners();
  const auto found = std::find_if(all.begin(), all.end(), [name](const ListenerKeys& l) { return l.name == name; });
  DT_CHECK(found != all.end());
  return found->at(settings);
}

void CheckListeners(Findings& findings) {
  const Settings& settings = findings.settings();
  using At = std::pair<const char*, std::string>;
  for (const auto& [key, path] : {At("query.unix", settings.query.unix_path), At("ask.unix", settings.ask.unix_path)}) {
    if (settings.page.entries == 0 || path.size() <= kBytesMaxWithPages) continue;
    findings.Warn("page.entries", fmt::format("page.entries = {}: {} has more than {} bytes: no pages there",
                                              settings.page.entries, key, kBytesMaxWithPages));
  }
  if (settings.query.unix_path.empty() && !settings.query.tcp.enabled()) {
    findings.Error("", "query.unix and query.tcp are both \"\": must be one at least, or nobody can ask");
  }
  const auto complain = [&](const ListenerKeys& a, const Endpoint& x, const ListenerKeys& b, const Endpoint& y) {
    const std::string one = FormatEndpoint(x), other = FormatEndpoint(y);
    findings.Error(
        b.tcp_key, one == other
                       ? fmt::format("{} and {} are both \"{}\": must differ", a.tcp_key, b.tcp_key, one)
                       : fmt::format("{} = \"{}\" and {} = \"{}\" overlap: must differ", a.tcp_key, one, b.tcp_key, other));
  };
  const auto all = AllListeners();
  for (auto b = all.begin(); b != all.end(); ++b) {
    const Endpoints y = b->at(settings);
    for (auto a = all.begin(); a != b; ++a) {
      const Endpoints x = a->at(settings);
      if (Overlap(x.tcp, y.tcp)) complain(*a, x.tcp, *b, y.tcp);
    }
    if (b->strangers.empty() || y.knows_clients || !y.tcp.enabled() || IsLoopback(y.tcp)) continue;
    findings.Warn(b->tcp_key, fmt::format("{} = \"{}\" is not loopback: whoever reaches it may {}", b->tcp_key,
                                          FormatEndpoint(y.tcp), b->strangers));
  }
}

}    // namespace dthrottle
