#include "plan/input.h"

#include <fmt/format.h>
#include <sysexits.h>

#include <iostream>
#include <utility>

#include "io/files.h"

namespace dthrottle::plan {

int Complain(int status, const std::string& message) {
  fmt::print(stderr, "dthrottle-plan: {}\n", message);
  return status;
}

Input Refused(int status, const std::string& message) {
  return {std::nullopt, "", Complain(status, message)};
}

Input Take(Result<NamedGraph> graph, const std::string& source, int status) {
  if (!graph) return Refused(status, graph.error().message);
  return {*std::move(graph), source, EX_OK};
}

namespace {

Input ReadStandardInput() {
  std::string text(kGraphBytesMax + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  return Take(ParseGraph(text, "standard input"), "standard input", EX_DATAERR);
}

}    // namespace

Input ReadGraph(const std::string& name) {
  if (IsGenerator(name)) return Take(Generate(name), name, EX_USAGE);
  if (name == "-") return ReadStandardInput();
  const auto text = ReadFile(name, kGraphBytesMax);
  if (!text) {
    return Refused(EX_NOINPUT, fmt::format("{}; without a file: {}", text.error().message, kGenerators));
  }
  return Take(ParseGraph(*text, name), name, EX_DATAERR);
}

}    // namespace dthrottle::plan
