// A filter of system calls (seccomp) for this process and everything that it executes.
//
// A call is allowed, deadly or unknown. Allowed is what the daemon, its libraries and the dynamic linker make. Deadly
// are the calls by which an intruder would go further: they end the process with SIGSYS, and the kernel logs it.
// Everything else fails with ENOSYS, because a library that tries a newer call first then takes the older one, where
// EPERM would confuse it. So do a few allowed calls with arguments beyond their bounds.
//
// A filter outlives execve and can only be added to. So that an upgrade in place neither stacks a filter for each
// program nor runs into a filter too narrow for it, the environment says which filter there is.
#pragma once

#include <string>

#include "base/result.h"

namespace dthrottle {

enum class Unlisted { kRefused, kLogged };    // what becomes of calls that are not allowed

// Puts the filter in force, for good. Does nothing where a program before this one has put the same in force, and in a
// build with a sanitizer, whose run time makes calls of its own.
// REQUIRES: the process has one thread.
Result<void> FilterCalls(Unlisted unlisted);

// What this program needs and an inherited filter refuses: names of calls, with blanks between; empty as a rule.
std::string CallsMissing();

}    // namespace dthrottle
