#include "base/on_demand.h"

#include <catch2/catch.hpp>

#include <utility>
#include <vector>

namespace dthrottle {
namespace {

using Numbers = OnDemand<std::vector<int>>;

TEST_CASE("a value on demand is a default one until it is written to") {
  Numbers numbers;
  CHECK((!numbers.any() && numbers->empty()));
  numbers.Made().push_back(1);
  CHECK((numbers.any() && numbers->size() == 1));
  numbers.Clear();
  CHECK((!numbers.any() && numbers->empty()));
}

TEST_CASE("a copy of a value on demand is its own") {
  Numbers numbers;
  numbers.Made() = {1, 2};
  Numbers copy = numbers;
  copy.Made().push_back(3);
  CHECK(*numbers == std::vector{1, 2});
  Numbers other;
  other = copy;
  CHECK(*other == std::vector{1, 2, 3});
  other = std::move(copy);
  CHECK(*other == std::vector{1, 2, 3});
  CHECK(!copy.any());
}

}    // namespace
}    // namespace dthrottle
