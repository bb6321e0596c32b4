#include "lab/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "io/files.h"

namespace dthrottle::lab {

void AddJobs(CLI::App& command, std::uint32_t& jobs) {
  jobs = std::max(std::thread::hardware_concurrency(), 1u);
  command.add_option("--jobs", jobs, "On how many threads seeds are run; by itself as many as there are processors")
      ->check(CLI::Range(1, 256));
}

int UnlessInterrupted(int status, bool interrupted) {
  constexpr int kInterrupted = 128 + SIGINT;    // as a shell has it
  if (status != EX_OK || !interrupted) return status;
  return Complain(kInterrupted, "interrupted: what was not reached is left out");
}

int Complain(int status, const std::string& message) {
  fmt::print(stderr, "dthrottle-sim: {}\n", message);
  return status;
}

void Complain(const std::vector<Problem>& problems) {
  for (const Problem& problem : problems) fmt::print(stderr, "{}\n", Format(problem));
}

std::string InputName(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

int WriteFile(const std::string& path, const std::string& text) {
  if (path.empty()) return EX_OK;
  if (path == "-") {
    fmt::print("{}", text);
    return std::fflush(stdout) == 0 ? EX_OK : Complain(EX_CANTCREAT, "the output could not be written");
  }
  const auto written = WriteOutput(path, text);
  return written ? EX_OK : Complain(EX_CANTCREAT, written.error().message);
}

}    // namespace dthrottle::lab
