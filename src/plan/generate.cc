// Well-known graphs by name.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/prng.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {
namespace {

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

constexpr int kAttemptsMax = 10'000;    // at a random graph that is simple and connected

struct Request {
  std::string_view kind;
  std::vector<std::uint64_t> numbers;
};

std::optional<Request> Split(std::string_view what) {
  Request request;
  request.kind = what.substr(0, what.find(':'));
  what.remove_prefix(request.kind.size());
  while (!what.empty()) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(what.data() + 1, what.data() + what.size(), number);
    if (error != std::errc()) return std::nullopt;
    what.remove_prefix(static_cast<std::size_t>(end - what.data()));
    if (!what.empty() && what.front() != ':') return std::nullopt;
    request.numbers.push_back(number);
  }
  return request;
}

Pairs Path(std::uint32_t n) {
  Pairs pairs;
  for (std::uint32_t i = 1; i < n; ++i) pairs.emplace_back(i - 1, i);
  return pairs;
}

Pairs Ring(std::uint32_t n) {
  Pairs pairs = Path(n);
  if (n > 2) pairs.emplace_back(n - 1, 0);
  return pairs;
}

Pairs Star(std::uint32_t n) {
  Pairs pairs;
  for (std::uint32_t i = 1; i < n; ++i) pairs.emplace_back(0, i);
  return pairs;
}

Pairs Complete(std::uint32_t n) {
  Pairs pairs;
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t j = i + 1; j < n; ++j) pairs.emplace_back(i, j);
  }
  return pairs;
}

Pairs Grid(std::uint32_t rows, std::uint32_t columns) {
  Pairs pairs;
  for (std::uint32_t i = 0; i < rows * columns; ++i) {
    if (i % columns + 1 < columns) pairs.emplace_back(i, i + 1);
    if (i / columns + 1 < rows) pairs.emplace_back(i, i + columns);
  }
  return pairs;
}

Pairs Paper(bool second) {
  Pairs pairs{{0, 6}, {0, 1}, {1, 2}, {1, 4}, {2, 3}, {4, 5}, {6, 7}, {6, 9}, {7, 8}};
  const Pairs more{{0, 2}, {0, 3}, {0, 4}, {0, 5}, {2, 7}, {3, 6}, {3, 7}, {5, 6}, {5, 9}, {6, 8}, {8, 9}};
  if (second) pairs.insert(pairs.end(), more.begin(), more.end());
  return pairs;
}

void Shuffle(std::vector<std::uint32_t>& values, Prng& prng) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[prng.Below(i)]);
}

// Each node `degree` times, drawn in pairs; pairs that would be a loop or double are drawn again, among what is left
// (Steger and Wormald 1999). Empty: it did not come out even.
Pairs RegularOnce(std::uint32_t n, std::uint64_t degree, Prng& prng) {
  std::vector<std::uint32_t> ends;
  for (std::uint32_t i = 0; i < n; ++i) ends.insert(ends.end(), degree, i);
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  while (!ends.empty()) {
    Shuffle(ends, prng);
    std::vector<std::uint32_t> left;
    for (std::size_t i = 0; i + 1 < ends.size(); i += 2) {
      const auto [a, b] = std::minmax(ends[i], ends[i + 1]);
      if (a == b || !pairs.emplace(a, b).second) left.insert(left.end(), {a, b});
    }
    if (left.size() == ends.size()) return {};
    ends = std::move(left);
  }
  return {pairs.begin(), pairs.end()};
}

// A random tree by attaching each node to an earlier one, labels shuffled, then links anywhere.
Pairs Random(std::uint32_t n, std::uint64_t links, Prng& prng) {
  std::vector<std::uint32_t> label(n);
  for (std::uint32_t i = 0; i < n; ++i) label[i] = i;
  Shuffle(label, prng);
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (std::uint32_t i = 1; i < n; ++i) pairs.insert(std::minmax(label[i], label[prng.Below(i)]));
  while (pairs.size() < links) {
    const auto a = static_cast<std::uint32_t>(prng.Below(n)), b = static_cast<std::uint32_t>(prng.Below(n));
    if (a != b) pairs.insert(std::minmax(a, b));
  }
  return {pairs.begin(), pairs.end()};
}

Result<NamedGraph> Named(std::uint64_t n, const Pairs& pairs) {
  std::vector<Link> links;
  for (const auto& [a, b] : pairs) links.push_back({a, b, 1});
  Result<Graph> graph = Graph::Make(static_cast<std::uint32_t>(n), std::move(links));
  if (!graph) return tl::unexpected(graph.error());
  NamedGraph named{*std::move(graph), {}, {}};
  for (std::uint64_t i = 0; i < n; ++i) named.names.push_back(std::to_string(i));
  return named;
}

Result<NamedGraph> Regular(std::uint64_t n, std::uint64_t degree, std::uint64_t seed) {
  if (degree < 1 || degree >= n || n * degree % 2 != 0 || (degree == 1 && n > 2)) {
    return Fail(fmt::format("regular:{}:{}: a connected graph needs a degree from 2 to {} and an even number of ends",
                            n, degree, n - 1));
  }
  if (degree + 1 == n) return Named(n, Complete(static_cast<std::uint32_t>(n)));
  Prng prng(seed);
  for (int i = 0; i < kAttemptsMax; ++i) {
    const Pairs pairs = RegularOnce(static_cast<std::uint32_t>(n), degree, prng);
    if (pairs.empty()) continue;
    Result<NamedGraph> graph = Named(n, pairs);
    if (!graph || graph->graph.Connected()) return graph;
  }
  return Fail(fmt::format("regular:{}:{}: no connected graph in {} attempts; try ring:{} or a higher degree", n, degree,
                          kAttemptsMax, n));
}

}    // namespace

bool IsGenerator(std::string_view what) {
  const std::string_view kind = what.substr(0, what.find(':'));
  return kind.size() < what.size() &&
         std::ranges::any_of(
             std::vector<std::string_view>{"ring", "path", "star", "complete", "grid", "regular", "random", "dst"},
             [kind](std::string_view known) { return kind == known; });
}

Result<NamedGraph> Generate(std::string_view what) {
  const std::optional<Request> request = Split(what);
  const auto wrong = [what](std::string_view why) { return Fail(fmt::format("{}: {}", what, why)); };
  if (!request || request->numbers.empty()) return wrong(fmt::format("known are {}", kGenerators));
  const auto& [kind, numbers] = *request;
  if (kind == "dst" && numbers.size() == 1 && (numbers[0] == 1 || numbers[0] == 2)) {
    return Named(10, Paper(numbers[0] == 2));
  }
  const std::uint64_t n = kind == "grid" && numbers.size() == 2 && numbers[0] <= kNodesMax && numbers[1] <= kNodesMax
                              ? numbers[0] * numbers[1]
                              : numbers[0];
  if (n < 2 || n > kNodesMax) return wrong(fmt::format("2 to {} nodes are allowed", kNodesMax));
  const auto nodes = static_cast<std::uint32_t>(n);
  if (numbers.size() == 1) {
    if (kind == "ring") return Named(n, Ring(nodes));
    if (kind == "path") return Named(n, Path(nodes));
    if (kind == "star") return Named(n, Star(nodes));
    if (kind == "complete") return Named(n, Complete(nodes));
  }
  if (kind == "grid" && numbers.size() == 2) {
    return Named(n, Grid(static_cast<std::uint32_t>(numbers[0]), static_cast<std::uint32_t>(numbers[1])));
  }
  const std::uint64_t seed = numbers.size() == 3 ? numbers[2] : 1;
  if (kind == "regular" && (numbers.size() == 2 || numbers.size() == 3)) return Regular(n, numbers[1], seed);
  if (kind == "random" && (numbers.size() == 2 || numbers.size() == 3)) {
    if (numbers[1] < n - 1 || numbers[1] > n * (n - 1) / 2) {
      return wrong(fmt::format("{} to {} links are allowed", n - 1, n * (n - 1) / 2));
    }
    Prng prng(seed);
    return Named(n, Random(nodes, numbers[1], prng));
  }
  return wrong(fmt::format("known are {}", kGenerators));
}

}    // namespace dthrottle::plan
