// The section [ask] of the settings.
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section AskSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "ask",
      "Questions about several tags, each with a cost, that are decided all or nothing; see dthrottle-protocol(7). "
      "Nobody listens unless there is an address.",
      {
          SocketPath<S>("unix", "\"\"", MEMBER(S, ask.unix_path),
                        "The Unix stream socket for questions, such as \"/run/dthrottle/ask.sock\"."),
          FileMode<S>("unix_mode", "\"0660\"", MEMBER(S, ask.unix_mode),
                      "The permissions of that socket. A user that may write to it may spend the tokens of any tag."),
          Address<S>("tcp", "\"\"", false, MEMBER(S, ask.tcp),
                     "The TCP address for the same. There is no password and nothing is encrypted: the network has to "
                     "keep strangers away. Port 0 takes any free port and logs it."),
          Reloads(Integer<S>(
              "max_connections", "1024", 1, 1'000'000, MEMBER(S, ask.max_connections),
              "The most connections at once. One more is closed at once, and counted. Each takes about 1 KiB, up to 8 "
              "KiB more for an unfinished line, and up to half a MiB while its answers are not read.")),
          Reloads(DurationKey<S>("idle_timeout", "\"5m\"", 1s, 24h * 365, MEMBER(S, ask.idle_timeout),
                                 "A connection on which nothing arrives for as long is closed.")),
      }};
}

}    // namespace dthrottle
