// The sources' figures, by the rounds, indicators, filter, divisions and curves that hosts run (src/capacity, src/shed).
//
// Everybody hears everybody at once, as the papers assume. Or, where there is a network, hosts run the whole exchange
// of the daemon over it, a round in each second. No share falls below 0, which the papers do not see to. Neither paper
// prints its demand, so that of DST is ours.
#pragma once

#include <cstdint>
#include <functional>
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

// What a figure is made with. A number that is not given is the source's.
struct FigureOptions {
  std::uint64_t seed = 1;
  FigureNetwork network{};
  std::optional<double> alpha{};            // of GDRL's filter
  std::optional<double> gain{};             // GDRL's eta, DST's gamma
  std::optional<double> load{};             // what is asked for in all, as a part of the capacity
  std::optional<std::uint32_t> nodes{};     // N: limiters, or clients
  std::optional<std::uint32_t> rounds{};    // how far the x axis goes
  // False: the figure is not wanted any more, and its rounds may do nothing from now on.
  std::function<bool()> go_on = [] { return true; };

  bool as_printed() const { return !alpha && !gain && !load && !nodes && !rounds; }
};

struct Recipe {
  std::string_view name;     // as on the command line: source and number, "dst-5"
  std::string_view title;    // of the figure, a phrase
  Figure (*make)(const FigureOptions& options);
  std::string_view takes;    // of the options above, with blanks between: "seed network alpha gain load nodes rounds"

  bool Takes(std::string_view option) const { return takes.find(option) != std::string_view::npos; }
};

std::span<const Recipe> Recipes();
const Recipe* FindRecipe(std::string_view name);    // nullptr: none

// Siami and Skaf, "Structural analysis and optimal design of distributed system throttlers". Figure 5 over a network
// has beside it what the rounds of the paper accept of the same requests.
Figure DstFigure5(const FigureOptions& options);
Figure DstFigure7(const FigureOptions& options);

// Stanojevic and Shorten, "Generalized distributed rate limiting".
Figure GdrlFigure3(const FigureOptions& options);
Figure GdrlFigure4(const FigureOptions& options);
Figure GdrlFigure5(const FigureOptions& options);
Figure GdrlFigure6(const FigureOptions& options);
Figure GdrlFigure7(const FigureOptions& options);

// "Graceful degradation with the logistic function": its three plots, in order.
Figure ShedFigure1(const FigureOptions& options);
Figure ShedFigure2(const FigureOptions& options);
Figure ShedFigure3(const FigureOptions& options);

}    // namespace dthrottle::lab
