#include "lab/figures.h"

#include <algorithm>
#include <array>

namespace dthrottle::lab {

std::span<const Recipe> Recipes() {
  static constexpr std::array<Recipe, 10> kRecipes{{
      {"dst-5", "requests, limit, and what graphs #1 and #2 accept", DstFigure5, "seed network gain load rounds"},
      {"dst-7", "one server's clients under Algorithms 1 and 2", DstFigure7, "seed load nodes"},
      {"gdrl-3", "indicators of a ring of 10", GdrlFigure3, "seed network alpha gain load nodes rounds"},
      {"gdrl-4", "Jain's index of a ring of 10", GdrlFigure4, "seed network alpha gain load nodes rounds"},
      {"gdrl-5", "changing demand and its estimates", GdrlFigure5, "seed alpha nodes rounds"},
      {"gdrl-6", "indicators and Jain's index while demand changes", GdrlFigure6,
       "seed network alpha gain load nodes rounds"},
      {"gdrl-7", "Jain's index in random regular graphs of 10, 100 and 1000", GdrlFigure7,
       "seed network alpha gain load nodes rounds"},
      {"shed-1", "the linear curve, beside the step", ShedFigure1, ""},
      {"shed-2", "the logistic function by itself", ShedFigure2, ""},
      {"shed-3", "the logistic curve between its bounds, the others, and the code as printed", ShedFigure3, ""},
  }};
  return kRecipes;
}

const Recipe* FindRecipe(std::string_view name) {
  const auto found = std::ranges::find(Recipes(), name, &Recipe::name);
  return found == Recipes().end() ? nullptr : &*found;
}

}    // namespace dthrottle::lab
