#include "lab/command.h"

#include <fmt/format.h>

#include <cstdio>

#include "io/files.h"

namespace dthrottle::lab {

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
