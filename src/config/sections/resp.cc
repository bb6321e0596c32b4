// The section [resp] of the settings.
#include "bucket/table.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section RespSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "resp",
      "Clients of Redis: CL.THROTTLE as redis-cell answers it; see dthrottle-protocol(7). Nobody listens unless there "
      "is an address.",
      {
          Address<S>("tcp", "\"\"", true, MEMBER(S, resp.tcp),
                     "The TCP address. Port 0 takes any free port and logs it. There is no password, so it has to be "
                     "on loopback."),
          SocketPath<S>("unix", "\"\"", MEMBER(S, resp.unix_path), "The Unix stream socket for the same."),
          FileMode<S>("unix_mode", "\"0660\"", MEMBER(S, resp.unix_mode),
                      "The permissions of that socket. A user that may write to it may spend the tokens of any tag."),
          Reloads(Integer<S>(
              "max_connections", "1024", 1, 1'000'000, MEMBER(S, resp.max_connections),
              "The most clients connected at once. One more is closed at once, and counted. Each takes about 1 KiB, up "
              "to 16 KiB more for an unfinished command, and up to 320 KiB while it does not read its replies.")),
          Reloads(DurationKey<S>("idle_timeout", "\"0s\"", 0s, 24h * 365, MEMBER(S, resp.idle_timeout),
                                 "A connection on which nothing arrives for as long is closed; with \"0s\" none is, "
                                 "because clients of Redis keep idle connections in pools.")),
          Flag<S>("accept_limits", "false", MEMBER(S, resp.accept_limits),
                  "With *true* the burst and rate of a limit are those that each CL.THROTTLE brings along, as in "
                  "redis-cell: no rule is looked at, and no other host hears of it. With *false* rules decide, and the "
                  "numbers that a client sends are not used."),
          BytesKey<S>("memory", "\"16MiB\"", Table::kRegionBytesMin, kMemoryBytesMax, MEMBER(S, resp.memory),
                      "The size of the table for limits that clients bring, beside table.memory, where accept_limits "
                      "is true. It lives in table.file with .resp behind it, and is kept as that is."),
      }};
}

}    // namespace dthrottle
