#include "lab/capacity_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "config/values.h"
#include "lab/figure_render.h"
#include "lab/figures.h"

namespace dthrottle::lab {
namespace {

struct FigureOptions {
  std::vector<std::string> figures;    // by name; none: all
  std::string output = ".", gnuplot = "gnuplot";
  std::uint64_t seed = 1;
  std::string delay = "50ms";    // over the network
  double loss = 0.01;
  bool network = false;
  bool csv = false, svg = false, png = false, list = false;

  bool files() const { return csv || svg || png; }
};

std::string Names() {
  std::string names;
  for (const Recipe& recipe : Recipes()) names += fmt::format("{}{}", names.empty() ? "" : ", ", recipe.name);
  return names;
}

int Write(const Recipe& recipe, const Figure& figure, const FigureOptions& options) {
  const std::string stem = std::filesystem::path(options.output) / recipe.name;
  int status = options.csv ? WriteFile(stem + ".csv", RenderCsv(figure)) : EX_OK;
  for (const auto& [wanted, ending] : {std::pair{options.svg, ".svg"}, {options.png, ".png"}}) {
    if (!wanted || status != EX_OK) continue;
    const auto drawn = DrawPicture(RenderPicture(figure), stem + ending, options.gnuplot);
    if (!drawn) status = Complain(EX_UNAVAILABLE, "no picture: " + drawn.error().message);
  }
  return status;
}

int Make(const Recipe& recipe, const FigureOptions& options) {
  FigureNetwork network;
  if (options.network) {
    const auto delay = ParseDuration(options.delay);
    if (!delay || *delay < Duration()) return Complain(EX_USAGE, "--delay: a duration such as \"50ms\" is needed");
    network = {.loss = options.loss, .delay = *delay};
  }
  const Figure figure = recipe.make(options.seed, network);
  fmt::print("{}", RenderFindings(recipe, figure, options.seed));
  if (std::fflush(stdout) != 0) return Complain(EX_IOERR, "the output could not be written");
  return Write(recipe, figure, options);
}

int Capacity(const FigureOptions& options) {
  std::vector<const Recipe*> chosen;
  for (const std::string& name : options.figures) {
    chosen.push_back(FindRecipe(name));
    if (chosen.back() == nullptr) return Complain(EX_USAGE, fmt::format("no figure {}: there are {}", name, Names()));
  }
  for (const Recipe& recipe : Recipes()) {
    if (options.figures.empty() && (recipe.over_network || !options.network)) chosen.push_back(&recipe);
  }
  for (const Recipe* recipe : chosen) {
    if (!options.network || recipe->over_network) continue;
    return Complain(EX_USAGE, fmt::format("--network: hosts tell each other nothing in {}", recipe->name));
  }
  if (options.list) {
    for (const Recipe* recipe : chosen) fmt::print("{:<8} {}\n", recipe->name, recipe->title);
    return EX_OK;
  }
  std::error_code error;
  if (options.files()) std::filesystem::create_directories(options.output, error);
  if (error) return Complain(EX_CANTCREAT, fmt::format("{}: {}", options.output, error.message()));
  for (const Recipe* recipe : chosen) {
    if (const int status = Make(*recipe, options); status != EX_OK) return status;
  }
  return EX_OK;
}

}    // namespace

void AddCapacityCommand(CLI::App& app, int& status) {
  const auto options = std::make_shared<FigureOptions>();
  CLI::App* command = app.add_subcommand("capacity", "Draw the papers' figures on sharing capacity");
  command->add_option("FIGURE", options->figures, fmt::format("Which; by itself all: {}", Names()));
  command->add_option("--output,-o", options->output, "The directory for files")->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of what is up to chance")->capture_default_str();
  command->add_flag("--network", options->network, "Let hosts run the exchange of the daemon over a network");
  command->add_option("--loss", options->loss, "With --network: part of the frames that get lost")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  command->add_option("--delay", options->delay, "With --network: the longest delay of a frame")->capture_default_str();
  command->add_flag("--csv", options->csv, "Write the data of each figure to FIGURE.csv");
  command->add_flag("--svg", options->svg, "Draw FIGURE.svg");
  command->add_flag("--png", options->png, "Draw FIGURE.png");
  command->add_flag("--list", options->list, "Only list the figures");
  command->add_option("--gnuplot", options->gnuplot, "The program that draws")->capture_default_str();
  command->callback([options, &status] { status = Capacity(*options); });
}

}    // namespace dthrottle::lab
