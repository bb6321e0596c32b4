// A call as lines to the daemon, and what these are answered.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dthrottle {

// What a call asks, each line with its LF, and how many lines there are. Each gets one answer.
struct CallLines {
  std::string text;
  std::size_t count = 0;
  int connection = -1;    // the descriptor of the connection that the call came by; -1: nobody knows
};

// An answer for each line, without LF.
using LineAnswers = std::vector<std::string>;

}    // namespace dthrottle
