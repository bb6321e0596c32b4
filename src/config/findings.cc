#include "config/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "config/values.h"

namespace dthrottle {

void Findings::Report(Problem::Severity severity, Place at, std::string message) {
  constexpr std::size_t kProblemsMax = 100;    // more help nobody, and a generated file can have a million
  if (loaded_.problems.size() < kProblemsMax) {
    loaded_.problems.push_back({severity, loaded_.file, at.line, at.column, std::move(message)});
  } else {
    dropped_ += severity == Problem::Severity::kError;
  }
}

void Findings::WholeSeconds(std::string_view key, Duration value) {
  if (value % std::chrono::seconds(1) == Duration::zero()) return;
  Error(key, fmt::format("{} = \"{}\": must be whole seconds", key, FormatDuration(value)));
}

void Findings::Gives(const std::string& key, Place at, std::string shown) {
  shown_.emplace(key, std::move(shown));
  loaded_.places.emplace(key, at);
}

Findings::Place Findings::PlaceOf(std::string_view key) const {
  const auto found = loaded_.places.find(key);
  return found != loaded_.places.end() ? found->second : Place{};
}

std::string Findings::Shown(std::string_view key) const {
  const auto found = shown_.find(key);
  return found != shown_.end() ? found->second : "\"\"";
}

void Findings::Finish() {
  auto& problems = loaded_.problems;
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  if (dropped_ == 0) return;
  problems.push_back({Problem::Severity::kError, loaded_.file, 0, 0, fmt::format("and {} more problems", dropped_)});
}

}    // namespace dthrottle
