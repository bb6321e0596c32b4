// The papers' figures, by the rounds, indicators, filter and divisions that hosts run (src/capacity).
//
// Everybody hears everybody at once, as the papers assume. Or, where there is a network, hosts run the whole exchange
// of the daemon over it, a round in each second. No share falls below 0, which the papers do not see to. Neither paper
// prints its demand, so that of DST is ours.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/time.h"
#include "lab/figure.h"
#include "lab/network.h"

namespace dthrottle::lab {

// What frames between hosts suffer.
struct FrameTrouble {
  double loss = 0;     // part of them that does not arrive
  Duration delay{};    // at most; they overtake each other

  LaneOptions lanes() const {
    return {.delay = std::chrono::microseconds(1), .jitter = delay, .lossy = true, .loss = loss};
  }
  bool mild() const { return loss <= 0.01 && delay <= std::chrono::milliseconds(50); }
};

using FigureNetwork = std::optional<FrameTrouble>;    // none: everybody hears everybody at once

struct Recipe {
  std::string_view name;     // as on the command line: paper and number, "dst-5"
  std::string_view title;    // of the figure, a phrase
  Figure (*make)(std::uint64_t seed, const FigureNetwork& network);
  bool over_network;    // whether hosts tell each other anything in it; else there is no network to be given
};

std::span<const Recipe> Recipes();
const Recipe* FindRecipe(std::string_view name);    // nullptr: none

// Siami and Skaf, "Structural analysis and optimal design of distributed system throttlers". Figure 5 over a network
// has beside it what the rounds of the paper accept of the same requests.
Figure DstFigure5(std::uint64_t seed, const FigureNetwork& network = {});
Figure DstFigure7(std::uint64_t seed, const FigureNetwork& none = {});

// Stanojevic and Shorten, "Generalized distributed rate limiting".
Figure GdrlFigure3(std::uint64_t seed, const FigureNetwork& network = {});
Figure GdrlFigure4(std::uint64_t seed, const FigureNetwork& network = {});
Figure GdrlFigure5(std::uint64_t seed, const FigureNetwork& none = {});
Figure GdrlFigure6(std::uint64_t seed, const FigureNetwork& network = {});
Figure GdrlFigure7(std::uint64_t seed, const FigureNetwork& network = {});

}    // namespace dthrottle::lab
