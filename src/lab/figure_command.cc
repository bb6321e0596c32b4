#include "lab/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "config/values.h"
#include "io/number_option.h"
#include "io/progress.h"
#include "lab/figure_render.h"
#include "lab/figures.h"

namespace dthrottle::lab {
namespace {

struct Options {
  std::vector<std::string> figures;    // by name; none: all
  FigureOptions make;
  std::string output = ".", gnuplot = "gnuplot";
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

int Write(const Recipe& recipe, const Figure& figure, const Options& options) {
  const std::string stem = std::filesystem::path(options.output) / recipe.name;
  int status = options.csv ? WriteFile(stem + ".csv", RenderCsv(figure)) : EX_OK;
  for (const auto& [wanted, ending] : {std::pair{options.svg, ".svg"}, {options.png, ".png"}}) {
    if (!wanted || status != EX_OK) continue;
    const auto drawn = DrawPicture(RenderPicture(figure), stem + ending, options.gnuplot);
    if (!drawn) status = Complain(EX_UNAVAILABLE, "no picture: " + drawn.error().message);
  }
  return status;
}

int Make(const Recipe& recipe, const Options& options, Progress& progress) {
  Figure figure = recipe.make(options.make);
  progress.Rest();
  if (Progress::stopped()) return EX_OK;    // it may not be whole
  if (!options.make.as_printed()) {    // other numbers than the source's have other results
    for (Finding& finding : figure.findings) finding.expected.reset(), finding.printed.clear();
  }
  fmt::print("{}", RenderFindings(recipe, figure, options.make.seed));
  if (std::fflush(stdout) != 0) return Complain(EX_IOERR, "the output could not be written");
  return Write(recipe, figure, options);
}

// What was given of the options that not every figure takes.
std::vector<std::string_view> Given(const FigureOptions& make) {
  std::vector<std::string_view> given;
  for (const auto& [is_given, name] :
       {std::pair<bool, std::string_view>(make.network.has_value(), "network"), {make.alpha.has_value(), "alpha"},
        {make.gain.has_value(), "gain"}, {make.load.has_value(), "load"}, {make.nodes.has_value(), "nodes"},
        {make.rounds.has_value(), "rounds"}}) {
    if (is_given) given.push_back(name);
  }
  return given;
}

int Figures(Options options) {
  if (options.network) {
    const auto delay = ParseDuration(options.delay);
    if (!delay || *delay < Duration()) return Complain(EX_USAGE, "--delay: a duration such as \"50ms\" is needed");
    options.make.network = {.loss = options.loss, .delay = *delay};
  }
  const std::vector<std::string_view> given = Given(options.make);
  const auto takes = [](const Recipe& recipe, std::string_view option) { return recipe.Takes(option); };
  std::vector<const Recipe*> chosen;
  for (const std::string& name : options.figures) {
    chosen.push_back(FindRecipe(name));
    if (chosen.back() == nullptr) return Complain(EX_USAGE, fmt::format("no figure {}: there are {}", name, Names()));
  }
  for (const Recipe& recipe : Recipes()) {
    const bool fits = std::ranges::all_of(given, [&](std::string_view option) { return takes(recipe, option); });
    if (options.figures.empty() && fits) chosen.push_back(&recipe);
  }
  for (const Recipe* recipe : chosen) {
    for (const std::string_view option : given) {
      if (takes(*recipe, option)) continue;
      return Complain(EX_USAGE, option == "network"
                                    ? fmt::format("--network: hosts tell each other nothing in {}", recipe->name)
                                    : fmt::format("--{}: there is none in {}", option, recipe->name));
    }
  }
  if (options.list) {
    for (const Recipe* recipe : chosen) fmt::print("{:<8} {}\n", recipe->name, recipe->title);
    return EX_OK;
  }
  std::error_code error;
  if (options.files()) std::filesystem::create_directories(options.output, error);
  if (error) return Complain(EX_CANTCREAT, fmt::format("{}: {}", options.output, error.message()));
  options.make.go_on = [] { return !Progress::stopped(); };
  Progress progress("dthrottle-sim");
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!progress.At(chosen[i]->name, static_cast<double>(i) / static_cast<double>(chosen.size()))) break;
    if (const int status = Make(*chosen[i], options, progress); status != EX_OK) return status;
  }
  return UnlessInterrupted(EX_OK, Progress::stopped());
}

}    // namespace

void AddFigureCommand(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  FigureOptions& make = options->make;
  CLI::App* command = app.add_subcommand("figure", "Draw the sources' figures");
  command->add_option("FIGURE", options->figures, fmt::format("Which; by itself all: {}", Names()));
  command->add_option("--output,-o", options->output, "The directory for files")->capture_default_str();
  command->add_option("--seed", make.seed, "Seed of what is up to chance")->capture_default_str();
  command->add_option("--alpha", make.alpha, "Instead of the source's: of the filter")->check(NumberFrom(1e-9, 1));
  command->add_option("--gain", make.gain, "Instead of the source's: eta or gamma")->check(NumberFrom(1e-9, 1e3));
  command->add_option("--load", make.load, "Instead of the source's: demand, as a part of the capacity")
      ->check(NumberFrom(1e-3, 1e3));
  command->add_option("--nodes,-N", make.nodes, "Instead of the source's: limiters, or clients")
      ->check(CLI::Range(3, 1000));
  command->add_option("--rounds", make.rounds, "Instead of the source's: how far the x axis goes")
      ->check(CLI::Range(10, 10'000'000));
  CLI::Option* network =
      command->add_flag("--network", options->network, "Let hosts run the exchange of the daemon over a network");
  command->add_option("--loss", options->loss, "With --network: part of the frames that get lost")
      ->check(NumberFrom(0, 0.9))
      ->needs(network)
      ->capture_default_str();
  command->add_option("--delay", options->delay, "With --network: the longest delay of a frame")
      ->needs(network)
      ->capture_default_str();
  command->add_flag("--csv", options->csv, "Write the data of each figure to FIGURE.csv");
  command->add_flag("--svg", options->svg, "Draw FIGURE.svg");
  command->add_flag("--png", options->png, "Draw FIGURE.png");
  command->add_flag("--list", options->list, "Only list the figures");
  command->add_option("--gnuplot", options->gnuplot, "The program that draws")->capture_default_str();
  command->callback([options, &status] { status = Figures(*options); });
}

}    // namespace dthrottle::lab
