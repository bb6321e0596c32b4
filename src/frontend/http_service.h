// What is answered to an HTTP request, without sockets: /check and /auth decide, everything else looks inside.
//
// protocol/http.md is the contract. Two things shape it. A browser on this host must not become somebody else's hand:
// a request through TCP has to name this host by an address or a name of its own (so that no page can rebind a name
// to loopback and read), and one that another site makes a browser send decides nothing. And nginx takes 403 from
// /auth for "throttled" and anything but 2xx, 401 and 403 for our own trouble, so what is wrong with a request is
// never said with 403, nor with 429.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admin/admin.h"
#include "base/prng.h"
#include "frontend/http_target.h"

namespace dthrottle {

struct HttpRequest {
  std::string_view method;
  std::string_view target;                // "/check?tag=C"
  std::string_view host;                  // the field Host; empty: none
  std::string_view fetch_site;            // Sec-Fetch-Site, which only browsers send
  std::optional<std::string_view> tag;    // Dthrottle-Tag: a tag that needs no encoding
  bool has_body = false;
  bool too_large = false;    // its line and fields
  bool through_tcp = true;
};

struct HttpReply {
  unsigned status = 200;
  std::string_view content_type;
  std::string body;
  std::vector<std::pair<std::string_view, std::string>> fields;
};

// The most that one query may cost.
inline constexpr Cost kHttpCostMax = 1'000'000;

class HttpService {
 public:
  // Decides on lane 0, so all calls are for the thread of lane 0. `own_name` is the host's.
  HttpService(AdminHost& host, Prng prng, std::string own_name);

  HttpReply Answer(const HttpRequest& request, Instant now);
  // To a target that is too long to be looked at.
  static HttpReply TargetTooLong();

  // From now on /healthz says that the daemon is leaving.
  void Stop() { stopping_ = true; }

  // Requests that were turned down for naming another host or coming from another site.
  std::uint64_t misdirected() const { return misdirected_; }
  // Tags longer than query.max_tag_bytes.
  std::uint64_t over_long() const { return over_long_; }

 private:
  struct Route;
  struct Decision;
  static const Route kRoutes[];

  HttpReply Page(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Metrics(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Health(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Check(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Auth(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Top(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Peers(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Rules(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Stats(const HttpRequest&, const HttpTarget&, Instant now);
  HttpReply Live(const HttpRequest&, const HttpTarget&, Instant now);

  std::string Ask(std::string_view command, Instant now);
  Result<Decision> Decide(const HttpRequest&, const HttpTarget&, Instant now);
  void AddLimitFields(HttpReply&, const Decision&) const;

  AdminHost& host_;
  Prng prng_;
  const std::string own_name_;
  bool stopping_ = false;
  std::uint64_t misdirected_ = 0, over_long_ = 0;
};

}    // namespace dthrottle
