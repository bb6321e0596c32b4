#include "frontend/http/tag_fields.h"

#include <algorithm>

#include "base/words.h"
#include "frontend/http/target.h"

namespace dthrottle {

namespace {

constexpr std::string_view kForwardedFor = "x-forwarded-for";

std::string_view TrustedHop(std::string_view list, unsigned hops) {
  for (;; --hops) {
    const std::size_t comma = list.rfind(',');
    if (comma == list.npos || hops <= 1) return Trimmed(list.substr(comma == list.npos ? 0 : comma + 1));
    list = list.substr(0, comma);
  }
}

}    // namespace

std::string FieldValues(std::string_view name, std::string_view lines) {
  std::string values;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\r'));
    lines.remove_prefix(line.size() + 2);
    const std::size_t colon = line.find(':');
    if (!SameName(line.substr(0, colon), name)) continue;
    if (!values.empty()) values += ", ";
    values += Trimmed(line.substr(colon + 1));
  }
  return values;
}

std::string FillTag(std::string_view tag, std::string_view lines, const TagFields& fields) {
  std::string filled;
  while (!tag.empty()) {
    const std::size_t open = std::min(tag.find('{'), tag.size()), close = tag.find('}', open);
    const std::string_view name = close == tag.npos ? std::string_view() : tag.substr(open + 1, close - open - 1);
    const auto known = std::ranges::find_if(fields.names, [&](const auto& field) { return SameName(field, name); });
    filled += tag.substr(0, open);
    tag.remove_prefix(open);
    if (name.empty() || known == fields.names.end()) {
      filled += tag.substr(0, 1);
      tag.remove_prefix(std::min<std::size_t>(1, tag.size()));
      continue;
    }
    const std::string values = FieldValues(name, lines);
    filled += SameName(name, kForwardedFor) ? TrustedHop(values, fields.trusted_hops) : std::string_view(values);
    tag.remove_prefix(name.size() + 2);
  }
  return filled;
}

}    // namespace dthrottle
