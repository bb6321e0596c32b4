// Runs for people (text), programs (CSV) and gnuplot (a script for io/picture.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment.h"

namespace dthrottle::lab {

// One way of sharing, by its name in texts: of ours, nothing of outside.
struct Scheme {
  std::string name;
  std::string note;    // said below the table; may be empty
  Series series;
};

// What the fleet is, in a line or two, and how much of it has been run where `series` is what there is of it.
std::string RenderFleet(const FleetFile& file, std::string_view name, const Series* series = nullptr);
// Says which runs of a comparison were not made; empty: all were.
std::string MissingRuns(const FleetFile& file, const Series& series);

// Every measure with its meaning, then the first run second by second, at most so many rows.
std::string RenderRun(const Series& series, std::size_t rows_max);

// Measures in rows, schemes in columns, then notes.
std::string RenderComparison(const std::vector<Scheme>& schemes);

// A row for each second of each run.
std::string RenderSecondsCsv(const std::vector<Scheme>& schemes);

// A row for each run that is whole.
std::string RenderMeasuresCsv(const std::vector<Scheme>& schemes);

// Tokens served and one bucket for all, over the seconds of the first run: one diagram a scheme, below each other.
std::string PictureScript(const std::vector<Scheme>& schemes);

}    // namespace dthrottle::lab
