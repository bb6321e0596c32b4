// The commands that have more to say than one line, a file each, and what they share. An answer is JSON; answer.cc
// makes text of it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "admin/admin.h"
#include "query/named_tag.h"

namespace dthrottle::commands {

using Json = nlohmann::ordered_json;

struct Context {
  AdminHost& host;
  std::string_view argument;
  Instant now;

  Limiter& limiter() const { return host.limiter(); }
  const Rulebook& rules() const { return host.limiter().rules(); }
};

Json Stats(const Context&);
Json Show(const Context&);
Json Why(const Context&);
Json ForgiveTag(const Context&);
Json Top(const Context&);
Json RecentRefusals(const Context&);
Json AllPenalties(const Context&);
Json Rules(const Context&);
Json Peers(const Context&);
Json Shed(const Context&);
Json Capacity(const Context&);
Json Indicate(const Context&);
Json Leases(const Context&);

// How load shedding treats the rule of a limit, as a sentence.
std::string WhyShed(const Context& c, const Limit& limit, double probability);

Json ErrorAnswer(std::string_view message);

// A whole answer, its empty line included: JSON in one line, or text.
std::string Finish(const Json& answer, bool as_json);

// A value as text shows it.
std::string Scalar(const Json& value);

// The tag that a command names, or null and the answer that says why not.
std::unique_ptr<NamedTag> TagArgument(const Context& c, Json& answer);

double Rounded(double x);       // to a millionth
double Hundredths(double x);    // to a hundredth
std::string Hex(std::string_view bytes);
std::string ShowTag(const Tag& tag);
Json Escaped(std::string_view text);    // what a peer or a client wrote; null if it is empty
std::string RuleName(const Rulebook& rules, const Limit& limit);

}    // namespace dthrottle::commands
