// A plan for people (text), programs (JSON), graph tools (DOT) and gnuplot.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "plan/plan.h"

namespace dthrottle::plan {

// Lines for a terminal, with the first 40 nodes and the first 40 links.
std::string RenderText(const Plan& plan);

// One JSON object, all that there is; what is infinite or was not computed is null. man/dthrottle-plan.1 lists members.
std::string RenderJson(const Plan& plan);

// An undirected graph that ParseDot reads back: links with their weight, best weights and resistance as attributes,
// nodes with their centrality.
std::string RenderDot(const Plan& plan);

// Draws Phi_cr and Phi_ss over gamma, with the best cycles marked, into an .svg or .png file by gnuplot. Fails where
// gnuplot is missing, for another ending, or if the file cannot be written.
Result<void> Plot(const Plan& plan, const std::filesystem::path& file, const std::string& gnuplot);

}    // namespace dthrottle::plan
