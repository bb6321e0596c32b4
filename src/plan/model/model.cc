#include "plan/model/model.h"

#include <fmt/format.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/csv.h"
#include "io/number_option.h"
#include "plan/input.h"

namespace dthrottle::plan {
namespace {

constexpr std::size_t kCellsMax = 10'000'000;    // rounds times nodes

std::string Cell(double value, bool all_digits) {
  return all_digits ? fmt::format("{}", value) : fmt::format("{:.6g}", value);
}

std::string NameOf(const Table::Row& row, bool all_digits) {
  const auto* text = std::get_if<std::string>(&row.name);
  return text != nullptr ? *text : Cell(std::get<double>(row.name), all_digits);
}

// The table as cells, its head first.
std::vector<std::vector<std::string>> Cells(const Table& table, bool all_digits) {
  std::vector<std::vector<std::string>> cells;
  if (!table.columns.empty()) cells.push_back(table.columns);
  for (const Table::Row& row : table.rows) {
    cells.push_back({NameOf(row, all_digits)});
    for (const double value : row.values) cells.back().push_back(Cell(value, all_digits));
  }
  return cells;
}

}    // namespace

std::string RenderText(const Table& table) {
  std::string out;
  for (const auto& [name, value] : table.facts) {
    fmt::format_to(std::back_inserter(out), "{:<18} {}\n", name, Cell(value, false));
  }
  const auto cells = Cells(table, false);
  if (!cells.empty() && !out.empty()) out += '\n';
  std::vector<std::size_t> widths(table.columns.size(), 0);
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      fmt::format_to(std::back_inserter(out), "{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

// CSV by RFC 4180. A table without rows shows its facts.
std::string RenderCsv(const Table& table) {
  std::vector<std::vector<std::string>> rows = Cells(table, true);
  if (rows.empty()) {
    rows.push_back({"name", "value"});
    for (const auto& [name, value] : table.facts) rows.push_back({name, fmt::format("{}", value)});
  }
  std::string out;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = CsvField(cell);
    out += fmt::format("{}\n", fmt::join(row, ","));
  }
  return out;
}

std::string RenderJson(const Table& table) {
  nlohmann::ordered_json out{{"facts", nlohmann::ordered_json::object()}, {"columns", table.columns}};
  for (const auto& [name, value] : table.facts) out["facts"][name] = value;
  out["rows"] = nlohmann::ordered_json::array();
  for (const Table::Row& row : table.rows) {
    nlohmann::ordered_json cells = nlohmann::ordered_json::array();
    std::visit([&](const auto& name) { cells.push_back(name); }, row.name);
    for (const double value : row.values) cells.push_back(value);
    out["rows"].push_back(std::move(cells));
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  return parts;
}

Result<Values> Numbers(std::string_view text, std::string_view what) {
  Values values;
  for (const std::string& part : Split(text, ',')) {
    if (const std::string wrong = AnyNumber()(part); !wrong.empty()) return Fail(fmt::format("{}: {}", what, wrong));
    values.push_back(std::strtod(part.c_str(), nullptr));
  }
  return values;
}

Result<void> CheckRound(const Values& values, std::size_t round) {
  constexpr double kMost = 1e100;    // its square is a number
  if (std::ranges::all_of(values, [](double value) { return std::abs(value) <= kMost; })) return {};
  return Fail(fmt::format("round {}: numbers have grown beyond all bounds, because the gain is too large", round));
}

void AddColumns(Table& table, std::string_view prefix, const std::vector<std::string>& names) {
  for (const std::string& name : names) table.columns.push_back(fmt::format("{}:{}", prefix, name));
}

Result<NamedGraph> ModelGraph(const std::string& name, std::size_t nodes, std::size_t rounds) {
  if (nodes * (rounds + 1) > kCellsMax) return Fail(fmt::format("{} rounds of {} nodes are too many", rounds, nodes));
  Input input = ReadGraph(name);
  if (!input.graph) return Fail("there is no graph");
  if (input.graph->graph.size() != nodes) {
    return Fail(
        fmt::format("{} has {} nodes, and there are {} numbers", input.source, input.graph->graph.size(), nodes));
  }
  return *std::move(input.graph);
}

void AddModelCommand(CLI::App& app, int& status) {
  CLI::App* model = app.add_subcommand("model", "Compute what a source says for numbers of one's own");
  struct Format {
    bool json = false, csv = false;
  };
  const auto format = std::make_shared<Format>();
  CLI::Option* json = model->add_flag("--json,-j", format->json, "Print JSON");
  model->add_flag("--csv", format->csv, "Print CSV")->excludes(json);
  model->require_subcommand(1);
  model->fallthrough();
  const Answer answer = [format, &status](const Result<Table>& table) {
    if (!table) {
      status = Complain(EX_USAGE, table.error().message);
      return;
    }
    fmt::print("{}", format->json ? RenderJson(*table) : format->csv ? RenderCsv(*table) : RenderText(*table));
    status = std::fflush(stdout) == 0 ? EX_OK : Complain(EX_IOERR, "the output could not be written");
  };
  AddDstModels(*model, answer);
  AddGdrlModels(*model, answer);
  AddDebitModels(*model, answer);
  AddCurveModels(*model, answer);
  AddLeaseModels(*model, answer);
}

}    // namespace dthrottle::plan
