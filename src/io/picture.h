// Pictures by gnuplot, as a child process: on a white ground, so that they can be read on a dark page too, and in colours
// that those who do not see all colours tell apart (Okabe and Ito 2008).
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

// Whether the name of a file says what to draw: .svg or .png.
Result<void> CheckPicture(const std::filesystem::path& file);

// Draws into an .svg or .png file. Fails where gnuplot is missing, for another ending, or if the file cannot be
// written.
Result<void> DrawPicture(const Picture& picture, const std::filesystem::path& file, const std::string& gnuplot);

}    // namespace dthrottle
