#include "lab/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "config/values.h"
#include "io/csv.h"

namespace dthrottle::lab {
namespace {

// "12.3 +- 0.4", or without spread if there is one run.
std::string Value(const Series& series, const MeasureKind& kind) {
  const double mean = series.Mean(kind.value);
  if (series.runs.size() < 2) return fmt::format("{:.{}f}", mean, kind.decimals);
  return fmt::format("{:.{}f} +- {:.{}f}", mean, kind.decimals, series.Deviation(kind.value), kind.decimals);
}

// "seed 1", "seeds 1 to 4", and of how many.
std::string Seeds(std::uint64_t first, std::uint64_t runs, std::uint64_t of) {
  std::string out = runs == 1 ? fmt::format("seed {}", first) : fmt::format("seeds {} to {}", first, first + runs - 1);
  return runs == of ? out : fmt::format("{}, {} of {}", out, runs, of);
}

std::string Plural(std::uint64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}    // namespace

std::string RenderFleet(const FleetFile& file, std::string_view name, const Series* series) {
  std::string out = fmt::format("fleet          {}: {}", name, Plural(file.fleet.hosts, "host"));
  if (const std::size_t owners = OwnersOf(file).size(); owners > 0) {
    fmt::format_to(std::back_inserter(out), ", {} of which own all tags", owners);
  }
  fmt::format_to(std::back_inserter(out), ", period {}, ", FormatDuration(file.settings.peers.period));
  if (series != nullptr && !series->whole()) {
    fmt::format_to(std::back_inserter(out), "{} of ", FormatDuration(series->runs.front().lasted));
  }
  const std::uint64_t seeds = file.fleet.seeds, runs = series != nullptr ? series->runs.size() : seeds;
  fmt::format_to(std::back_inserter(out), "{}, {}{}\n", FormatDuration(file.fleet.duration),
                 Seeds(file.fleet.seed, runs, seeds), runs > 1 ? ": mean +- standard deviation" : "");
  const LaneOptions& network = file.network;
  fmt::format_to(std::back_inserter(out), "network        delay {}, jitter {}, loss {:g}, duplicate {:g}\n",
                 FormatDuration(network.delay), FormatDuration(network.jitter), network.loss, network.duplication);
  return out;
}

std::string MissingRuns(const FleetFile& file, const Series& series) {
  const std::uint64_t seeds = file.fleet.seeds, runs = series.runs.size();
  return runs == seeds ? "" : "only " + Seeds(file.fleet.seed, runs, seeds);
}

std::string RenderRun(const Series& series, std::size_t rows_max) {
  std::string out;
  for (const MeasureKind& kind : MeasureKinds()) {
    if (kind.where != nullptr && series.Mean(kind.where) == 0) continue;
    fmt::format_to(std::back_inserter(out), "{:<14} {:>18} {:<6}  {}\n", kind.name, Value(series, kind), kind.unit,
                   kind.meaning);
  }
  const std::vector<Second>& seconds = series.runs.front().seconds;
  const std::size_t rows = std::min(rows_max, seconds.size());
  if (rows == 0) return out;
  fmt::format_to(std::back_inserter(out), "\n{:>7} {:>9} {:>9} {:>9} {:>9} {:>9}   seed {}\n", "second", "asked",
                 "served", "ideal", "over", "under", series.first_seed);
  for (std::size_t i = 0; i < rows; ++i) {
    const Second& s = seconds[i];
    fmt::format_to(std::back_inserter(out), "{:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n", i, s.asked, s.served, s.ideal,
                   s.over, s.under);
  }
  if (rows < seconds.size()) {
    fmt::format_to(std::back_inserter(out), "and {} more\n", Plural(seconds.size() - rows, "second"));
  }
  return out;
}

std::string RenderComparison(const std::vector<Scheme>& schemes) {
  constexpr std::size_t kWidth = 20;
  std::string out = fmt::format("{:<14} {:<6}", "", "");
  for (const Scheme& scheme : schemes) fmt::format_to(std::back_inserter(out), " {:>{}}", scheme.name, kWidth);
  out += '\n';
  for (const MeasureKind& kind : MeasureKinds()) {
    const auto without = [&](const Scheme& scheme) { return scheme.series.Mean(kind.where) == 0; };
    if (kind.where != nullptr && std::ranges::all_of(schemes, without)) continue;
    fmt::format_to(std::back_inserter(out), "{:<14} {:<6}", kind.name, kind.unit);
    for (const Scheme& scheme : schemes) {
      fmt::format_to(std::back_inserter(out), " {:>{}}", Value(scheme.series, kind), kWidth);
    }
    out += '\n';
  }
  for (const Scheme& scheme : schemes) {
    if (!scheme.note.empty()) fmt::format_to(std::back_inserter(out), "\n{}: {}\n", scheme.name, scheme.note);
  }
  return out;
}

std::string RenderSecondsCsv(const std::vector<Scheme>& schemes) {
  Csv csv;
  csv.Row("scheme", "seed", "second", "asked", "served", "ideal", "over", "under");
  for (const Scheme& scheme : schemes) {
    std::uint64_t seed = scheme.series.first_seed;
    for (const Outcome& run : scheme.series.runs) {
      for (std::size_t i = 0; i < run.seconds.size(); ++i) {
        const Second& s = run.seconds[i];
        csv.Row(scheme.name, seed, i, s.asked, s.served, s.ideal, s.over, s.under);
      }
      ++seed;
    }
  }
  return csv.text();
}

std::string RenderMeasuresCsv(const std::vector<Scheme>& schemes) {
  std::string out = "scheme,seed";
  for (const MeasureKind& kind : MeasureKinds()) fmt::format_to(std::back_inserter(out), ",{}", kind.name);
  out += '\n';
  for (const Scheme& scheme : schemes) {
    std::uint64_t seed = scheme.series.first_seed;
    for (const Outcome& run : scheme.series.runs) {
      if (!run.whole) continue;
      fmt::format_to(std::back_inserter(out), "{},{}", CsvField(scheme.name), seed++);
      for (const MeasureKind& kind : MeasureKinds()) {
        fmt::format_to(std::back_inserter(out), ",{}", run.measures.*kind.value);
      }
      out += '\n';
    }
  }
  return out;
}

std::string PictureScript(const std::vector<Scheme>& schemes) {
  std::string out;
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "$scheme{} << EOD\n", i);
    const std::vector<Second>& seconds = schemes[i].series.runs.front().seconds;
    for (std::size_t s = 0; s < seconds.size(); ++s) {
      fmt::format_to(std::back_inserter(out), "{} {} {}\n", s, seconds[s].served, seconds[s].ideal);
    }
    out += "EOD\n";
  }
  fmt::format_to(std::back_inserter(out),
                 "set multiplot layout {},1\nset grid\nset xlabel 'second'\nset ylabel 'tokens a second'\n"
                 "set yrange [0:*]\nset key outside right top\n",
                 schemes.size());
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    fmt::format_to(std::back_inserter(out),
                   "plot $scheme{0} using 1:2 with steps linewidth 2 title '{1}', $scheme{0} using 1:3 with steps "
                   "linewidth 2 dashtype 2 title 'one bucket'\n",
                   i, schemes[i].name);
  }
  return out + "unset multiplot\n";
}

}    // namespace dthrottle::lab
