#include "frontend/http/target.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <optional>

#include "admin/escape.h"
#include "base/number.h"

namespace dthrottle {

namespace {

constexpr std::string_view kScheme = "http://";

std::optional<std::string> Decode(std::string_view text) {
  std::string bytes(text);
  std::size_t size = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char byte = text[i] == '+' ? ' ' : text[i];
    if (byte == '%') {
      const std::string_view digits = text.substr(i + 1, 2);
      unsigned value = 0;
      if (digits.size() != 2 || !ParseNumber(digits, value, 16)) return std::nullopt;
      byte = static_cast<char>(value);
      i += 2;
    }
    bytes[size++] = byte;
  }
  bytes.resize(size);
  return bytes;
}

bool IsAddress(int family, std::string_view text) {
  char address[sizeof(in6_addr)];
  return ::inet_pton(family, std::string(text).c_str(), address) == 1;
}

}    // namespace

bool SameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

const std::string* HttpTarget::Find(std::string_view name) const {
  for (const auto& [key, value] : parameters) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::vector<std::string_view> HttpTarget::All(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : parameters) {
    if (key == name) values.push_back(value);
  }
  return values;
}

Result<HttpTarget> ParseTarget(std::string_view target, std::span<const std::string_view> repeatable) {
  HttpTarget result;
  if (SameName(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    result.authority = target.substr(0, end);
    target.remove_prefix(end);
  }
  const std::size_t mark = std::min(target.find('?'), target.size());
  result.path = target.substr(0, mark);
  if (result.path.empty()) result.path = "/";

  std::string_view rest = target.substr(std::min(mark + 1, target.size()));
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.empty()) continue;
    const std::size_t equals = std::min(one.find('='), one.size());
    auto name = Decode(one.substr(0, equals));
    auto value = Decode(one.substr(std::min(equals + 1, one.size())));
    if (!name || !value) return Fail("a % in the query has to be followed by two hexadecimal digits");
    const bool may_repeat = std::ranges::find(repeatable, *name) != repeatable.end();
    if (!may_repeat && result.Find(*name) != nullptr) {
      return Fail(fmt::format("{} is given twice", EscapeTag(name->substr(0, 64))));
    }
    result.parameters.emplace_back(std::move(*name), std::move(*value));
  }
  return result;
}

bool NamesThisHost(std::string_view host, std::string_view own_name, std::span<const std::string> others) {
  if (host.empty()) return true;
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return end != std::string_view::npos && IsAddress(AF_INET6, host.substr(1, end - 1));
  }
  host = host.substr(0, host.find(':'));
  if (std::ranges::any_of(others, [&](const auto& other) { return SameName(host, other); })) return true;
  return IsAddress(AF_INET, host) || SameName(host, "localhost") || (!own_name.empty() && SameName(host, own_name));
}

}    // namespace dthrottle
