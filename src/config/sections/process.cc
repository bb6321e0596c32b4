// The section [process] of the settings.
#include <algorithm>

#include "base/host_name.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

// Whether useradd(8) would take it.
bool IsUserName(const std::string& text) {
  constexpr std::size_t kBytesMax = 32;
  return text.size() <= kBytesMax && !text.starts_with('-') && std::ranges::all_of(text, IsNameByte);
}

}    // namespace

Section ProcessSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "process",
      "What holds for the whole process.",
      {
          Reloads(Number<S>("source_share", "0.75", 0.05, 1, MEMBER(S, process.source_share),
                            "The part of a socket's connections that one TCP address, or one local user at a Unix "
                            "socket, may have, and 16 at least. One more is closed at once, and counted in "
                            "*connections_crowded*. 1 is no bound. Of IPv6 a network of 64 bits is one address.")),
          Text<S>(
              "user", "\"\"", "the name of a user of this host, or \"\" for the user who starts the daemon",
              MEMBER(S, process.user),
              "The user that a daemon started as root becomes for good, with the groups of that user, before it reads "
              "anything from the network. Root opens the TCP sockets, whose ports may then be below 1024, but for "
              "*peers.bind*. Everything else is opened as the user, who has to be able to read the settings, the "
              "files of *match_cidrs* and the keys, and to write where the table and the Unix sockets are; root gives "
              "/run/dthrottle to the user. An upgrade in place stays with the user that there is. For hosts without a service manager to do this.",
              IsUserName),
          Choice<S, CallFilter>(
              "seccomp", "\"on\"", MEMBER(S, process.seccomp),
              "Whether the kernel refuses system calls that the daemon has no use for, also to programs that it "
              "executes. With \"on\" a call that only an intruder would make, such as *ptrace* or *mount*, ends the "
              "process, and others fail as in a kernel that does not know them. With \"log\" they are done and written "
              "to the kernel's log. A filter stays over upgrades in place; only a restart takes it away."),
      },
  };
}

}    // namespace dthrottle
