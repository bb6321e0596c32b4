// Well-known graphs by name.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/prng.h"
#include "capacity/dst_graphs.h"
#include "capacity/topology.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {
namespace {

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

Pairs Star(std::uint32_t n) {
  Pairs pairs;
  for (std::uint32_t i = 1; i < n; ++i) pairs.emplace_back(0, i);
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
  Result<Graph> graph = GraphOf(static_cast<std::uint32_t>(n), pairs);
  if (!graph) return tl::unexpected(graph.error());
  NamedGraph named{*std::move(graph), {}, {}};
  for (std::uint64_t i = 0; i < n; ++i) named.names.push_back(std::to_string(i));
  return named;
}

Result<NamedGraph> Regular(std::uint64_t n, std::uint64_t degree, std::uint64_t seed) {
  Prng prng(seed);
  const Result<Pairs> pairs = RegularPairs(static_cast<std::uint32_t>(n), degree, prng);
  if (!pairs) return tl::unexpected(pairs.error());
  return Named(n, *pairs);
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
    return Named(kDstNodes, DstPairs(static_cast<int>(numbers[0])));
  }
  const std::uint64_t n = kind == "grid" && numbers.size() == 2 && numbers[0] <= kNodesMax && numbers[1] <= kNodesMax
                              ? numbers[0] * numbers[1]
                              : numbers[0];
  if (n < 2 || n > kNodesMax) return wrong(fmt::format("2 to {} nodes are allowed", kNodesMax));
  const auto nodes = static_cast<std::uint32_t>(n);
  const std::uint64_t links = kind == "complete"                        ? n * (n - 1) / 2
                              : kind == "regular" && numbers.size() > 1 ? n * std::min(numbers[1], n) / 2
                              : kind == "random" && numbers.size() > 1  ? numbers[1]
                                                                        : n;
  if (links > kLinksMax) return wrong(fmt::format("at most {} links are allowed", kLinksMax));
  if (numbers.size() == 1) {
    if (kind == "ring") return Named(n, RingPairs(nodes));
    if (kind == "path") return Named(n, PathPairs(nodes));
    if (kind == "star") return Named(n, Star(nodes));
    if (kind == "complete") return Named(n, CompletePairs(nodes));
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
