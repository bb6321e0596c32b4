// Where dthrottle-plan has a graph from, and what it says when it has none.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

// A word to standard error; returns `status`.
int Complain(int status, const std::string& message);

// What was asked for, or the status to exit with (sysexits.h), after a word to standard error.
struct Input {
  std::optional<NamedGraph> graph;
  std::string source;
  int status = 0;
};

Input Refused(int status, const std::string& message);
// A graph from `source`, or `status` where there is none.
Input Take(Result<NamedGraph> graph, const std::string& source, int status);

// A graph by name, from standard input ("-"), or else from a file.
Input ReadGraph(const std::string& name);

}    // namespace dthrottle::plan
