// Another program, run to its end: no shell, a folder of its own, a deadline.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle {

// A folder under TMPDIR, or /tmp, that goes away with everything in it. While it lives a SIGINT waits, so that no
// Ctrl-C leaves the folder behind; Run ends then.
class TemporaryFolder {
 public:
  // REQUIRES: it dies in the thread that makes it.
  static Result<TemporaryFolder> Make();
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder(std::filesystem::path path, const sigset_t& before) : path_(std::move(path)), before_(before) {}

  std::filesystem::path path_;    // empty: moved from
  sigset_t before_;               // the signals that were blocked
};

struct Finished {
  int status = 0;        // of exit
  std::string output;    // what it said, standard output and errors, at most kChildOutputMax bytes
};

// Runs `command` (found in PATH unless it has a slash) inside `folder`, with nothing on its standard input and one
// thread for OpenMP. Fails if it cannot be started, dies of a signal, or is not done after `patience`: then it is
// ended. A program that is not there is "X is not installed" with `package` to install.
Result<Finished> Run(const std::vector<std::string>& command, const std::filesystem::path& folder,
                     std::chrono::milliseconds patience, std::string_view package);

}    // namespace dthrottle
