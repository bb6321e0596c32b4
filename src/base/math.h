// Arithmetic that the standard library lacks.
#pragma once

namespace dthrottle {

constexpr double Square(double x) {
  return x * x;
}

}    // namespace dthrottle
