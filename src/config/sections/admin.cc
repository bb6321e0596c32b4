// The section [admin] of the settings.
#include "base/host_name.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section AdminSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "admin",
      "Where people and programs look inside.",
      {
          SocketPath<S>("unix", "\"/run/dthrottle/admin.sock\"", MEMBER(S, admin.unix_path),
                        "The Unix stream socket that takes commands; see dthrottle-protocol(7)."),
          FileMode<S>("unix_mode", "\"0600\"", MEMBER(S, admin.unix_mode),
                      "The permissions of that socket. A user that may write to it may forgive any tag."),
          // Commands forgive and upgrade, and a port of loopback is open to every user and to what web pages send.
          {"tcp", "\"\"", "\"\": commands are taken on admin.unix only, whose permissions say by whom",
           "Commands are not taken over TCP. The key is there so that settings of before say so.",
           [](S&, const Value& value) { return value == Value(std::string()); },
           [](const S&) -> Value { return std::string(); }},
          Address<S>("http", "\"127.0.0.1:7313\"", true, MEMBER(S, admin.http),
                     "A TCP address that answers HTTP: metrics, health, decisions, and at / a page that shows what is "
                     "going on. See dthrottle-protocol(7). Everybody on this host may read there."),
          Reloads(
              Flag<S>("http_decides", "false", MEMBER(S, admin.http_decides),
                      "Whether /check and /auth decide at that TCP address too, where every user of this host may "
                      "spend anybody's tokens. At the Unix socket they always do, for those whom its mode lets in.")),
          Reloads(TextList<S>("http_hosts", "a list of host names such as \"web-1.example.org\"",
                              MEMBER(S, admin.http_hosts),
                              "Names by which a request at that TCP address may ask for this host in *Host*, beside "
                              "addresses, localhost and the host's own name. A request for any other name is turned "
                              "down, because a web page can point its own name at this host.",
                              IsHostName)),
          Reloads(TextList<S>("http_fields", "a list of header fields such as \"x-forwarded-for\"",
                              MEMBER(S, admin.http_fields),
                              "Fields of a request that *tag* of /check and /auth may name in braces, as in "
                              "/check?tag=ip:{x-forwarded-for}, for proxies that can only be told a URL. Clients must "
                              "not have a part in such a tag.",
                              IsHostName)),
          Reloads(Integer<S>("http_trusted_hops", "1", 1, 16, MEMBER(S, admin.http_trusted_hops),
                             "How many proxies add to *X-Forwarded-For* on the way to this host. The field stands for "
                             "the address that the first of them added; what stands before it is the client's own "
                             "word.")),
          Reloads(Flag<S>("http_forgives", "false", MEMBER(S, admin.http_forgives),
                          "Whether POST /forgive forgives a tag, as the page then offers, at the TCP address for every "
                          "user of this host and at the Unix socket for those whom its mode lets in.")),
          Reloads(Flag<S>("audit", "false", MEMBER(S, admin.audit),
                          "Whether a line of the log says who changed something, and what: forgive, reload, upgrade, "
                          "and shed with a value, by the user and process at the other end of the socket.")),
          SocketPath<S>("http_unix", "\"\"", MEMBER(S, admin.http_unix_path),
                        "A Unix stream socket that answers HTTP, for a web server in front."),
          FileMode<S>("http_unix_mode", "\"0660\"", MEMBER(S, admin.http_unix_mode),
                      "The permissions of that socket. A user that may write to it may ask, and read which tags are "
                      "throttled."),
          Integer<S>(
              "http_connections", "256", 1, 10'000, MEMBER(S, admin.http_connections),
              "The most HTTP connections at once. One more is closed at once, and counted. Each takes about 17 KiB."),
          DurationKey<S>("http_timeout", "\"75s\"", 1s, 1h, MEMBER(S, admin.http_timeout),
                         "An HTTP connection on which no request is finished for as long is closed. Longer than what a "
                         "web server in front keeps unused connections for, which is 60 s in nginx."),
          Choice<S, HttpHeaders>(
              "http_headers", "\"draft-10\"", MEMBER(S, admin.http_headers),
              "How answers to /check and /auth state the limit: \"draft-10\", in RateLimit-Policy and RateLimit; "
              "\"draft-03\", in X-RateLimit-Limit, -Remaining and -Reset; \"both\"; or \"off\"."),
      }};
}

}    // namespace dthrottle
