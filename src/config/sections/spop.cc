// The section [spop] of the settings.
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section SpopSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "spop",
      "Questions of HAProxy, by its filter SPOE; see dthrottle-protocol(7). Nobody listens unless there is an address.",
      {
          SocketPath<S>("unix", "\"\"", MEMBER(S, spop.unix_path),
                        "The Unix stream socket for HAProxy, such as \"/run/dthrottle/spop.sock\"."),
          FileMode<S>("unix_mode", "\"0660\"", MEMBER(S, spop.unix_mode),
                      "The permissions of that socket. A user that may write to it may spend the tokens of any tag."),
          Address<S>("tcp", "\"\"", false, MEMBER(S, spop.tcp),
                     "The TCP address for the same. There is no password and nothing is encrypted: the network has to "
                     "keep strangers away. Port 0 takes any free port and logs it."),
          Reloads(Integer<S>("max_connections", "1024", 1, 1'000'000, MEMBER(S, spop.max_connections),
                             "The most connections at once. One more is closed at once, and counted. HAProxy opens as "
                             "many as it has requests at once, and uses them again. Each takes about 1 KiB, and up to "
                             "16 KiB more for an unfinished frame.")),
          Reloads(DurationKey<S>("idle_timeout", "\"5m\"", 1s, 24h * 365, MEMBER(S, spop.idle_timeout),
                                 "A connection on which nothing arrives for as long is closed. HAProxy should close "
                                 "it first, by its *timeout idle*.")),
      }};
}

}    // namespace dthrottle
