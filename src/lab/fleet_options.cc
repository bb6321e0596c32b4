#include "lab/fleet_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "io/files.h"
#include "io/picture.h"

namespace dthrottle::lab {
namespace {

constexpr std::size_t kFleetBytesMax = std::size_t{64} << 20;
constexpr std::size_t kTraceBytesMax = std::size_t{1} << 30;
constexpr int kDiagramHeight = 300;    // pixels

int ReadTraces(const std::string& fleet, FleetFile& file) {
  for (std::size_t i = 0; i < file.traces.size(); ++i) {
    const std::string path = std::filesystem::path(fleet).parent_path() / file.traces[i].path;
    const auto text = ReadFile(path, kTraceBytesMax);
    if (!text) return Complain(EX_NOINPUT, text.error().message);
    if (text->size() > kTraceBytesMax) {
      return Complain(EX_CONFIG, fmt::format("{}: must be at most {} bytes", path, kTraceBytesMax));
    }
    if (const auto taken = TakeTrace(file, i, *text, path); !taken) return Complain(EX_CONFIG, taken.error().message);
  }
  return EX_OK;
}

}    // namespace

void AddFleetOptions(CLI::App& command, FleetFileOptions& options) {
  command.add_option("FLEET", options.path, "The fleet, a TOML file, or \"-\"")->required();
  command.add_option("--seed", options.seed, "The first seed; by itself the file's")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{0xffffffff}));
  command.add_option("--seeds", options.seeds, "How many runs, each with a seed; by itself the file's")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  AddJobs(command, options.jobs);
}

Effort EffortOf(const FleetFileOptions& options, Progress& progress, std::string_view scheme, std::size_t index,
                std::size_t schemes) {
  return {options.jobs, [&progress, scheme, index, schemes](double part) {
            return progress.At(scheme, (static_cast<double>(index) + part) / static_cast<double>(schemes));
          }};
}

void AddOutputOptions(CLI::App& command, OutputOptions& options) {
  command.add_option("--csv", options.csv, "Write every second of every run to this file");
  command.add_option("--measures", options.measures, "Write the measures of every run to this file, as CSV");
  command.add_option("--plot", options.plot, "Draw the first run into this .svg or .png file");
  command.add_option("--gnuplot", options.gnuplot, "The program that draws")->capture_default_str();
}

int ReadFleet(const FleetFileOptions& options, FleetFile& file) {
  const std::string name = InputName(options.path);
  const auto text = options.path == "-" ? ReadStandardInput(kFleetBytesMax) : ReadFile(options.path, kFleetBytesMax);
  if (!text) return Complain(EX_NOINPUT, text.error().message);
  if (text->size() > kFleetBytesMax) {
    return Complain(EX_CONFIG, fmt::format("{}: must be at most {} bytes", name, kFleetBytesMax));
  }
  LoadedFleet loaded = ParseFleet(*text, name);
  Complain(loaded.problems);
  if (!loaded.ok()) return EX_CONFIG;
  file = std::move(loaded.file);
  if (const int status = ReadTraces(options.path, file); status != EX_OK) return status;
  if (options.seed >= 0) file.fleet.seed = static_cast<std::uint32_t>(options.seed);
  if (options.seeds >= 0) file.fleet.seeds = static_cast<std::uint32_t>(options.seeds);
  return EX_OK;
}

int CheckOutputs(const OutputOptions& options) {
  if (options.csv == "-" && options.measures == "-") {
    return Complain(EX_USAGE, "--csv -, --measures -: only one of them goes to standard output");
  }
  if (!options.plot.empty()) {
    const auto fits = CheckPicture(options.plot);
    if (!fits) return Complain(EX_USAGE, "--plot: " + fits.error().message);
  }
  for (const std::string& path : {options.csv, options.measures, options.plot}) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;
    if (folder.empty() || std::filesystem::is_directory(folder, ignored)) continue;
    return Complain(EX_CANTCREAT, fmt::format("{}: there is no directory {}", path, folder.string()));
  }
  return EX_OK;
}

int WriteOutputs(const OutputOptions& options, const std::vector<Scheme>& schemes) {
  if (std::fflush(stdout) != 0) return Complain(EX_IOERR, "the output could not be written");
  if (!options.csv.empty()) {
    if (const int status = WriteFile(options.csv, RenderSecondsCsv(schemes)); status != EX_OK) return status;
  }
  if (!options.measures.empty()) {
    if (const int status = WriteFile(options.measures, RenderMeasuresCsv(schemes)); status != EX_OK) return status;
  }
  if (options.plot.empty()) return EX_OK;
  const int height = kDiagramHeight * static_cast<int>(schemes.size());
  const auto drawn = DrawPicture({900, height, PictureScript(schemes)}, options.plot, options.gnuplot);
  return drawn ? EX_OK : Complain(EX_UNAVAILABLE, "no plot: " + drawn.error().message);
}

}    // namespace dthrottle::lab
