// Pictures by gnuplot, as a child process.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace dthrottle {

struct Picture {
  int width = 900, height = 420;    // pixels
  // Data and plot commands, without terminal and output. Nothing of outside, such as a name, may be in it as it is:
  // gnuplot would obey.
  std::string script;
};

// Draws into an .svg or .png file. Fails where gnuplot is missing, for another ending, or if the file cannot be
// written.
Result<void> DrawPicture(const Picture& picture, const std::filesystem::path& file, const std::string& gnuplot);

}    // namespace dthrottle
