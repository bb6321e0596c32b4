// Numbers on a command line.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

namespace dthrottle {

// Lets finite numbers from `least` to `most` pass, each number of a list alike. CLI::Range lets "nan" pass.
class NumberFrom final : public CLI::Validator {
 public:
  NumberFrom(double least, double most) : CLI::Validator(fmt::format("from {:g} to {:g}", least, most)) {
    func_ = [least, most](const std::string& text) {
      double value = 0;
      const bool read = CLI::detail::lexical_cast(text, value);
      if (read && value >= least && value <= most) return std::string();    // false of nan
      return fmt::format("\"{}\": must be a finite number from {:g} to {:g}", text, least, most);
    };
  }
};

// Where nothing else is known of a number: no sum or product of a few of them is infinite.
inline const NumberFrom& AnyNumber() {
  static const NumberFrom any(-1e18, 1e18);
  return any;
}

}    // namespace dthrottle
