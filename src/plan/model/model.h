// `dthrottle-plan model`: the sources' own calculations for numbers that somebody gives, round by round.
//
// Each family of models is a file with a function AddX, which AddModelCommand calls: it adds subcommands, and the one
// that is chosen answers with a table. The calculations are those of the core; nothing is computed here but what the
// daemon, the planner or the simulator computes too.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "plan/graph_reader.h"

namespace CLI {
class App;
}

namespace dthrottle::plan {

using Values = std::vector<double>;

// What a model answers: facts that hold throughout, and a row for each round, client or point.
struct Table {
  struct Row {
    std::variant<double, std::string> name;    // below the first column
    Values values;                             // below the others
  };
  std::vector<std::pair<std::string, double>> facts;
  std::vector<std::string> columns;
  std::vector<Row> rows;
};

// Aligned with six digits; facts, an empty line, the table.
std::string RenderText(const Table& table);
// The columns and rows alone, all digits.
std::string RenderCsv(const Table& table);
// An object of the members facts (an object), columns and rows (arrays), all digits; what is infinite is null.
std::string RenderJson(const Table& table);

// The command `model`. `status` is of the subcommand that was chosen (sysexits.h).
void AddModelCommand(CLI::App& app, int& status);

// How a family's subcommand answers: it prints the table as the options of `model` want it, or a word to standard
// error.
using Answer = std::function<void(const Result<Table>& table)>;

void AddDstModels(CLI::App& model, const Answer& answer);      // DST
void AddGdrlModels(CLI::App& model, const Answer& answer);     // GDRL
void AddDebitModels(CLI::App& model, const Answer& answer);    // DThrottle README
void AddCurveModels(CLI::App& model, const Answer& answer);    // graceful degradation
void AddLeaseModels(CLI::App& model, const Answer& answer);    // Doorman

// The parts of a text between colons or commas.
std::vector<std::string> Split(std::string_view text, char separator);
// Numbers between commas; fails naming `what`.
Result<Values> Numbers(std::string_view text, std::string_view what);
// Fails where rounds have diverged so far that figures of these numbers would be none.
Result<void> CheckRound(const Values& values, std::size_t round);
// `prefix` before each name.
void AddColumns(Table& table, std::string_view prefix, const std::vector<std::string>& names);
// The graph, if there is a number a node, and if so many rounds of it are few enough for a table.
Result<NamedGraph> ModelGraph(const std::string& name, std::size_t nodes, std::size_t rounds);

}    // namespace dthrottle::plan
