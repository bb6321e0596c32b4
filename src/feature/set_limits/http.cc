// POST /limit.
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <iterator>

#include "feature/set_limits/feature.h"

namespace dthrottle {

namespace {

constexpr std::string_view kParameters[] = {"tag", "rule", "burst", "rate", "for", "clear"};
constexpr std::string_view kNumbers[] = {"burst", "rate", "for"};

}    // namespace

std::span<const std::string_view> SetLimitsFeature::parameters() const {
  return kParameters;
}

Extension::Answer SetLimitsFeature::Post(const Posted& posted) {
  constexpr std::string_view kBearer = "Bearer ";
  if (token_.empty()) return {404, "set operator.http_token_file"};
  std::string_view shown = posted.authorization;
  if (!shown.starts_with(kBearer)) return {401, "the field Authorization has to show the token"};
  shown.remove_prefix(kBearer.size());
  if (shown.size() != token_.size() || sodium_memcmp(shown.data(), token_.data(), token_.size()) != 0) {
    return {401, "that is not the token of operator.http_token_file"};
  }
  const std::string *const tag = posted.parameter("tag"), *const rule = posted.parameter("rule");
  if ((tag == nullptr) == (rule == nullptr)) return {400, "one of the parameters tag and rule has to be given"};
  const auto given = [&](std::string_view name) {
    const std::string* const text = posted.parameter(name);
    return text != nullptr ? std::string_view(*text) : std::string_view();
  };
  for (const std::string_view name : kNumbers) {
    if (posted.parameter(name) != nullptr && given(name).empty()) return {400, fmt::format("{} is empty", name)};
  }
  const bool clears = given("clear") == "1";
  if (posted.parameter("clear") != nullptr && !clears) return {400, "clear must be 1"};
  if (clears && std::ranges::any_of(kNumbers, posted.parameter)) {
    return {400, "clear=1 goes without burst, rate and for"};
  }
  if (!clears && (given("burst").empty() || given("rate").empty())) {
    return {400, "the parameters burst and rate have to be given, or clear=1"};
  }
  const LimitOf of = rule != nullptr ? LimitOf::kRule : LimitOf::kTag;
  const std::string& name = rule != nullptr ? *rule : *tag;
  const SetAt now = NowFor(of, name);
  const auto asked = clears ? LimitAsked(of, name, "", "", "", now)
                            : LimitAsked(of, name, given("burst"), given("rate"), given("for"), now);
  if (!asked) return {400, asked.error().message};
  const auto authorized = Authorized(*asked, true);
  if (!authorized) return {409, authorized.error().message};
  if (const auto accepted = Accept(*authorized); !accepted) return {409, accepted.error().message};
  host_.tasks.Post([this] { OnNews(); });
  return {202, Describe(*authorized)};
}

}    // namespace dthrottle
