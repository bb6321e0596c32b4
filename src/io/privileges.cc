#include "io/privileges.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace dthrottle {

namespace {

tl::unexpected<Error> SystemError(const char* what) {
  return Fail(fmt::format("{}: {}", what, std::strerror(errno)));
}

}    // namespace

Result<User> FindUser(const std::string& name) {
  constexpr std::size_t kEntryBytesMax = std::size_t{64} << 10;
  std::vector<char> text(kEntryBytesMax);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  if (found == nullptr && error != 0) return Fail(std::strerror(error));
  if (found == nullptr) return Fail("there is no such user");
  return User{name, entry.pw_uid, entry.pw_gid};
}

Result<void> BecomeUser(const User& user) {
  if (::initgroups(user.name.c_str(), user.gid) != 0) return SystemError("cannot take its groups");
  if (::setresgid(user.gid, user.gid, user.gid) != 0) return SystemError("cannot take its group");
  if (::setresuid(user.uid, user.uid, user.uid) != 0) return SystemError("cannot become it");
  if (user.uid != 0 && ::setresuid(0, 0, 0) == 0) return Fail("there is a way back to root");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return SystemError("cannot give up new privileges");
  // The kernel hides /proc/self from a process that changed its user. Nothing was read that this user may not read.
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  return {};
}

}    // namespace dthrottle
