#include "lab/figures.h"

#include <algorithm>
#include <array>

namespace dthrottle::lab {

std::span<const Recipe> Recipes() {
  static constexpr std::array<Recipe, 7> kRecipes{{
      {"dst-5", "requests, limit, and what graphs #1 and #2 accept", DstFigure5, true},
      {"dst-7", "one server's clients under Algorithms 1 and 2", DstFigure7, false},
      {"gdrl-3", "indicators of a ring of 10", GdrlFigure3, true},
      {"gdrl-4", "Jain's index of a ring of 10", GdrlFigure4, true},
      {"gdrl-5", "changing demand and its estimates", GdrlFigure5, false},
      {"gdrl-6", "indicators and Jain's index while demand changes", GdrlFigure6, true},
      {"gdrl-7", "Jain's index in random regular graphs of 10, 100 and 1000", GdrlFigure7, true},
  }};
  return kRecipes;
}

const Recipe* FindRecipe(std::string_view name) {
  const auto found = std::ranges::find(Recipes(), name, &Recipe::name);
  return found == Recipes().end() ? nullptr : &*found;
}

}    // namespace dthrottle::lab
