// Tokens: what a bucket holds and a query spends.
#pragma once

#include <cstdint>

namespace dthrottle {

// An amount of tokens that may be a fraction. Negative means debt.
using Tokens = double;

// Tokens that one query spends. 0 asks without spending (peek).
using Cost = std::uint32_t;

}    // namespace dthrottle
