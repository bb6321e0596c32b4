// Graphs of neighbours that every host works out for itself, the same from the same members.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "capacity/graph.h"

namespace dthrottle {

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Pairs PathPairs(std::uint32_t nodes);
Pairs RingPairs(std::uint32_t nodes);
Pairs CompletePairs(std::uint32_t nodes);

// A random connected graph in which every node has `degree` links. Fails if there is none, or none is found.
Result<Pairs> RegularPairs(std::uint32_t nodes, std::uint64_t degree, Prng& prng);

// In random order, all orders alike.
void Shuffle(std::vector<std::uint32_t>& values, Prng& prng);

// Links of weight 1.
Result<Graph> GraphOf(std::uint32_t nodes, const Pairs& pairs);

// For a fleet of any size: `degree` links a node, one more where nodes and degree are odd; complete where there are too
// few members for that, a ring for a degree of 2 or less. Always connected, and always the same.
Graph RegularTopology(std::uint32_t nodes, std::uint32_t degree);
Graph RingTopology(std::uint32_t nodes);
Graph CompleteTopology(std::uint32_t nodes);

}    // namespace dthrottle
