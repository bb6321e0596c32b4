// How large a gain may be: GDRL's bounds (9), (15) and (17), DST's Lemma 2.
//
// A gain at its bound is stable but a poor choice: it is where the proof ends, half of where linear rounds diverge.
#pragma once

#include <span>

#include "capacity/graph.h"

namespace dthrottle {

// What a limiter can keep to by itself, whatever the others do: gain <= -g'(q) / (2 strength), with -g' taken at the
// largest indicator that it knows of. The step of GDRL's proof that needs the bound, without the minimum over nodes.
// `inverse_slope` > 0, requests/s for a difference of one; `strength` the sum of its links' weights (GDRL: d_i).
double LocalGainMax(double inverse_slope, double strength);

// GDRL eq (9): the gain must stay below half the smallest -g_i' over the largest strength (GDRL: degree).
//
// Departure: the paper takes g_i' at q_i(0). That is false in general. g' is negative and rises, so between m and
// m + lambda its absolute value is smallest at the upper end, and the mean value step of the proof needs the slope
// there: at M(0) = max q_i(0). Counter-example: g_1(q) = ln(1 + e^-q) - 0.01 q, g_2(q) = 10 - q, q(0) = (0, 10).
// `inverse_slopes` holds -g_i'(M(0)), one a node.
double GdrlGainMax(const Graph& graph, std::span<const double> inverse_slopes);

// GDRL eq (15): the bound (9) for the throttled amount alias spare bandwidth, where g' = -1: 1 / (2 strength). May be
// met with equality there, though (9) says "less than".
double SpareBandwidthGainMax(const Graph& graph);

// GDRL eq (17), for exchanges over one link at a time: half the smallest -g_i', at M(0) as above. `weight_max` is 1 in
// GDRL.
double PairwiseGainMax(std::span<const double> inverse_slopes, double weight_max = 1);

// DST Lemma 2: rounds (14) converge if and only if gamma < 2 / lambda_n, for a connected graph. A gamma that is nearer
// to the limit than an eigenvalue is known counts as at it.
bool Stable(double gamma, double lambda_max);

// A gamma below this is stable by Lemma 2, without eigenvalues: lambda_n is at most the largest sum of strengths of two
// linked nodes (Anderson and Morley 1985). Infinite without links.
double StableGammaWithoutSpectrum(const Graph& graph);

}    // namespace dthrottle
