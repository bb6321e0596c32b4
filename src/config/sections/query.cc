// The section [query] of the settings.
#include "base/tag.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section QuerySection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "query",
      "Where applications ask, and how much they may take.",
      {
          SocketPath<S>("unix", "\"/run/dthrottle/query.sock\"", MEMBER(S, query.unix_path),
                        "The Unix stream socket that answers queries."),
          FileMode<S>("unix_mode", "\"0660\"", MEMBER(S, query.unix_mode),
                      "The permissions of that socket. A user that may write to it may ask."),
          Address<S>("tcp", "\"\"", false, MEMBER(S, query.tcp),
                     "A TCP address that answers queries as well, such as \"127.0.0.1:7311\". Port 0 takes any free "
                     "port and logs it. Everybody who reaches it may spend tokens, on loopback every user of this "
                     "host, whatever *unix_mode* says: keep it off, or on loopback, unless the network is trusted."),
          Integer<S>("threads", "1", 1, 64, MEMBER(S, query.threads),
                     "Threads that answer queries. One is enough for several hundred thousand queries a second; more "
                     "share many connections among processors."),
          Integer<S>("max_tag_bytes", "255", 1, static_cast<std::int64_t>(kTagBytesMax), MEMBER(S, query.max_tag_bytes),
                     "The longest tag that is kept as it is. A longer one is throttled under a keyed 128-bit digest of "
                     "all its bytes."),
          Reloads(Integer<S>("max_connections", "16384", 1, 1'000'000, MEMBER(S, query.max_connections),
                             "The most applications connected at once, over all query sockets. One more is closed at "
                             "once, so that it can carry on without an answer; it is counted. Each takes about 0.5 "
                             "KiB, and 12 KiB more while it does not read its answers.")),
          Reloads(DurationKey<S>("idle_timeout", "\"5m\"", 1s, 24h * 365, MEMBER(S, query.idle_timeout),
                                 "A connection on which nothing arrives for as long is closed.")),
      }};
}

}    // namespace dthrottle
