#include "daemon/confine.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/words.h"
#include "io/call_filter.h"
#include "io/files.h"
#include "io/part.h"

namespace dthrottle {

namespace {

// A directory that this program has made as root has to be the user's, who makes sockets and the table in it, unless
// the settings have nothing there.
void GiveDirectory(const std::string& path, const std::vector<std::string>& files, const User& user) {
  if (std::ranges::none_of(files, [&](const auto& f) { return f.starts_with(path + "/"); })) return;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != 0) return;
  if (::lchown(path.c_str(), user.uid, user.gid) != 0) {
    throw StartFailure{EX_NOPERM, fmt::format("{}: cannot be given to {}: {}", path, user.name, std::strerror(errno))};
  }
}

}    // namespace

tl::expected<std::optional<User>, Problem> WhomToBecome(const LoadedSettings& loaded, bool took_over, Log& log) {
  const std::string& name = loaded.settings.process.user;
  if (name.empty()) return std::nullopt;
  const auto wrong = [&](std::string_view why) {
    return tl::unexpected(loaded.ErrorAt("process", "user", why));
  };
  const auto user = FindUser(name);
  if (!user) return wrong(user.error().message);
  if (user->uid == ::geteuid()) return std::nullopt;
  if (took_over) {
    log.Warning("process.user = \"{}\": takes a restart; an upgrade stays with user {}", name, ::geteuid());
    return std::nullopt;
  }
  if (::geteuid() != 0) return wrong(fmt::format("needs a start as root or as that user, not as user {}", ::geteuid()));
  return *user;
}

std::optional<Problem> WhyNoUser(const LoadedSettings& loaded) {
  const std::string& name = loaded.settings.process.user;
  if (name.empty()) return std::nullopt;
  const auto user = FindUser(name);
  return user ? std::nullopt : std::optional(loaded.ErrorAt("process", "user", user.error().message));
}

std::optional<Problem> WhyNoTakeover(const LoadedSettings& loaded) {
  if (const std::string calls = CallsMissing(); !calls.empty()) {
    return loaded.ErrorAt("process", "seccomp", "the filter that is in force refuses what this program needs: " + calls +
                                                    "; a restart takes the filter away");
  }
  return std::nullopt;
}

// TCP sockets are all that root is for. What a reload, an upgrade or an orderly end needs is opened as the user from
// the beginning, so that a start that succeeds proves that those can.
void Confine(const Confinement& to, CallFilter filter, Log& log) {
  if (to.user) {
    const User& user = *to.user;
    GiveDirectory(to.runtime_dir, to.given, user);
    if (const auto became = BecomeUser(user); !became) {
      throw StartFailure{EX_NOPERM, fmt::format("process.user = \"{}\": {}", user.name, became.error().message)};
    }
    for (const std::string& path : to.read_again) {
      if (::access(path.c_str(), R_OK) == 0) continue;
      throw StartFailure{EX_NOPERM,
                         fmt::format("{}: cannot be read again at a reload: {}", path, std::strerror(errno))};
    }
    log.Notice("process: user {}, group {}", user.uid, user.gid);
  }
  if (filter == CallFilter::kOff) return;
  const auto filtered = FilterCalls(filter == CallFilter::kLog ? Unlisted::kLogged : Unlisted::kRefused);
  if (!filtered) {
    log.Warning("process.seccomp = \"{}\": {}; no filter of system calls", Name(filter), filtered.error().message);
  }
}

bool MapsEveryUser(std::string_view uid_map) {
  if (uid_map.ends_with('\n')) uid_map.remove_suffix(1);
  return NextWord(uid_map) == "0" && NextWord(uid_map) == "0" && NextWord(uid_map) == "4294967295" && uid_map.empty();
}

void WarnOfStrangers(Log& log) {
  constexpr std::size_t kMapBytesMax = 4096;
  const auto map = ReadFile("/proc/self/uid_map", kMapBytesMax);
  if (!map || MapsEveryUser(*map)) return;
  log.Warning("process: in a user namespace, where users of the host outside it count as one user: they share the "
              "connections that process.source_share gives one user, and the audit cannot name them");
}

}    // namespace dthrottle
