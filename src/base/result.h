// A value, or the reason why there is none. Stands in for std::expected until the compiler has it.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace dthrottle {

// One sentence for a person, without a full stop.
struct Error {
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> Fail(std::string message) {
  return tl::unexpected(Error{std::move(message)});
}

}    // namespace dthrottle
