// What dthrottle-grpc tells of the calls that it has got, and what it is told, over its own connections for lines
// (lease.md "The gateway").
#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dthrottle {

struct GatewayCalls {
  static constexpr std::string_view kCount = "count ";    // a line that tells begins so

  std::uint32_t calls_max = 0;
  std::vector<std::uint32_t> further = {0};    // what else it is told, a matter of those who are behind it
  std::uint64_t calls = 0;
  std::uint64_t refused = 0;    // of them, because of calls_max
  std::uint64_t invalid = 0;    // of them, because of what they ask

  // Takes "CALLS REFUSED INVALID", and returns the answer. None: the line says something else.
  std::optional<std::string> Count(std::string_view line) {
    std::array<std::uint64_t, 3> numbers{};
    for (std::uint64_t& number : numbers) {
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
      if (error != std::errc()) return std::nullopt;
      line.remove_prefix(static_cast<std::size_t>(end - line.data()));
      const bool last = &number == &numbers.back();
      if (last ? !line.empty() : !line.starts_with(' ')) return std::nullopt;
      if (!last) line.remove_prefix(1);
    }
    calls += numbers[0];
    refused += numbers[1];
    invalid += numbers[2];
    return fmt::format("bounds {} {}", calls_max, fmt::join(further, " "));
  }
};

}    // namespace dthrottle
