// What a request's first line and Host field mean: text in, plain data out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace dthrottle {

// "/check?tag=a%20b&cost=2" taken apart. Names and values are any bytes.
struct HttpTarget {
  std::string_view path;         // as it was written, without what is behind the "?"
  std::string_view authority;    // of "http://authority/path", which then counts instead of the Host field
  std::vector<std::pair<std::string, std::string>> parameters;

  // The first value of a parameter, or null; or all of them.
  const std::string* Find(std::string_view name) const;
  std::vector<std::string_view> All(std::string_view name) const;
};

// Decodes %XX, and "+" as a blank, as forms write them. Fails on a "%" without two digits and on a name given twice
// that is none of `repeatable`: guessing would let the author of a part of a target decide what the rest means. The
// views are into `target`.
Result<HttpTarget> ParseTarget(std::string_view target, std::span<const std::string_view> repeatable = {});

// Whether two names are the same but for the case of ASCII letters.
bool SameName(std::string_view a, std::string_view b);

// Whether a Host field names this machine in a way that no stranger's DNS can: by an address, as localhost or by
// `own_name`, or by one of the `others`. Empty does too: there was none.
bool NamesThisHost(std::string_view host, std::string_view own_name, std::span<const std::string> others = {});

}    // namespace dthrottle
