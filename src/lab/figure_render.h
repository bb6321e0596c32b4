// A figure for people (text), programs (CSV) and gnuplot.
#pragma once

#include <cstdint>
#include <string>

#include "io/picture.h"
#include "lab/figure.h"
#include "lab/figures.h"

namespace dthrottle::lab {

// A heading, and a line for each finding: what it is, here, what is expected, and what the paper prints.
std::string RenderFindings(const Recipe& recipe, const Figure& figure, std::uint64_t seed);

// Names of the columns, then the rows; a field without a value is empty.
std::string RenderCsv(const Figure& figure);

Picture RenderPicture(const Figure& figure);

}    // namespace dthrottle::lab
