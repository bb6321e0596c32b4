// Capacity that moves over links: GDRL eq (7) and DST eq (3), one link of one round, or a round of all links.
//
// What one end gains the other loses, so the sum of shares is constant (GDRL and DST Lemma 1). Neither paper keeps a
// share from falling below zero; here each link's flow is cut instead, which keeps the sum as well.
//
// A daemon sees its own links only, and may lose messages: it uses Gift, in whole units, giver first. The rounds are
// for the simulator, the planner and the tests, which see everything at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capacity/graph.h"

namespace dthrottle {

// eq (7)/(3): capacity that comes over one link in one round, requests/s; negative: it goes. `gain` is eta, or
// gamma times the link's weight: requests/s for a difference of one in the indicator; >= 0. Two limiters that are
// equally badly off exchange nothing, even if both are at infinity.
double Transfer(double own, double neighbour, double gain);

// The same for a ledger of whole units in which only the giver moves: what to give a neighbour, at most `available`,
// rounded down; 0 unless the neighbour is worse off. `gain` is in units for a difference of one.
std::uint64_t Gift(double own, double neighbour, double gain, std::uint64_t available);

// One flow a link, toward its end `a`, requests/s. `q` holds an indicator a node.
std::vector<double> Flows(const Graph& graph, std::span<const double> q, double gain);

// Shares after the flows. `shares` holds one a node.
void Apply(const Graph& graph, std::span<const double> flows, std::span<double> shares);

// Cuts flows so that Apply leaves every share between 0 and `most`, one a node. What a node gives is cut in proportion
// to what it has before the round, what it gets in proportion to its room before the round, and a link takes the
// smaller cut. Not in the papers (a case I equilibrium r_i - p can be negative).
// REQUIRES: shares within those bounds, but for rounding.
void CutFlows(const Graph& graph, std::span<const double> shares, std::span<const double> most,
              std::span<double> flows);

// A round of DST case IV, eq (48) with its constraints: capacity flows to where more is allowed already, until a node
// has its demand or nothing. A node at such a bound that would leave it takes no part, nor do its links. The paper
// tests for x_i = r_i, which no finite step meets, and freezes nodes once, though every freeze changes the others'
// moves; so here at the bound is what is within rounding of it, nodes are frozen until none is left to freeze, and the
// last step to a bound is cut. `shares` and `demands` hold one a node.
void AllowedAmountRound(const Graph& graph, std::span<const double> demands, double gain, std::span<double> shares);

}    // namespace dthrottle
