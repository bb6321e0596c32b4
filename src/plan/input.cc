#include "plan/input.h"

#include <fmt/format.h>
#include <sysexits.h>

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

Input ReadGraph(const std::string& name) {
  if (IsGenerator(name)) return Take(Generate(name), name, EX_USAGE);
  const bool is_standard = name == "-";
  const auto text = is_standard ? ReadStandardInput(kGraphBytesMax) : ReadFile(name, kGraphBytesMax);
  if (!text) {
    return Refused(EX_NOINPUT, fmt::format("{}; without a file: {}", text.error().message, kGenerators));
  }
  const std::string source = is_standard ? "standard input" : name;
  return Take(ParseGraph(*text, source), source, EX_DATAERR);
}

}    // namespace dthrottle::plan
