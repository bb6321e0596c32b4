// Becoming another user for good.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace dthrottle {

struct User {
  std::string name;
  uid_t uid;
  gid_t gid;
};

// An account of this host, by its name.
Result<User> FindUser(const std::string& name);

// This process gets the user, the group and the supplementary groups of `user`, and nothing that it executes gets more.
// An error where it may not, or where a way back to root would be left.
// REQUIRES: the process is root.
Result<void> BecomeUser(const User& user);

}    // namespace dthrottle
