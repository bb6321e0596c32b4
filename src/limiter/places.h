// Places of rules that have a number of them (Rule::in_flight), as holders give them back.
#pragma once

#include <cstdint>

namespace dthrottle {

class Limiter;

// Takes back places of the tag with this hash of the limiter's table, or takes some that a process before has let
// somebody take. Nothing, if no rule has places. Any thread.
void GivePlaces(Limiter& limiter, std::uint64_t hash, std::uint32_t places);
void RestorePlaces(Limiter& limiter, std::uint64_t hash, std::uint32_t places);

}    // namespace dthrottle
