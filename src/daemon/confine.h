// What the daemon gives up before it reads anything from the network: root first, then system calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "io/log.h"
#include "io/privileges.h"

namespace dthrottle {

// The user that a start under these settings is to become, if that is another. An error says what the settings have
// wrong. After an upgrade in place, `took_over`, the user stays what it is, with a warning to `log`.
tl::expected<std::optional<User>, Problem> WhomToBecome(const LoadedSettings& loaded, bool took_over, Log& log);

// Why the settings name a user that a start as root could not become.
std::optional<Problem> WhyNoUser(const LoadedSettings& loaded);

// Why a program cannot take over from the one that runs it, under whose filter of system calls it is.
std::optional<Problem> WhyNoTakeover(const LoadedSettings& loaded);

// Becomes `user`, if there is one, and then gives up system calls as process.seccomp says. `given` are the files that
// the settings have in `runtime_dir`, which becomes the user's if it was made by this start. What only root may open is
// open already. Throws StartFailure.
struct Confinement {
  const std::optional<User>& user;
  std::vector<std::string> read_again;    // at a reload or an upgrade: the settings, and files that were read with them
  const std::string& runtime_dir;
  std::vector<std::string> given;
};
void Confine(const Confinement& to, CallFilter filter, Log& log);

// Whether a text such as /proc/self/uid_map says that every user of the host has its own number in this process.
bool MapsEveryUser(std::string_view uid_map);

// Warns if clients at Unix sockets cannot be told apart, since the process is in a namespace that lacks their users.
void WarnOfStrangers(Log& log);

}    // namespace dthrottle
