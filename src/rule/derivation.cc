#include "rule/derivation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number.h"
#include "rule/address.h"

namespace dthrottle {

namespace {

using Kind = Derivation::Kind;

constexpr std::string_view kIpv4 = "ipv4/", kIpv6 = "ipv6/", kBefore = "before ";

std::optional<std::string_view> NetworkOf(const Derivation& derivation, TagText tag, std::size_t head,
                                          std::span<char, kTagBytesMax> text) {
  const std::optional<IpAddress> address = tag.whole ? ParseAddress(tag.bytes.substr(head)) : std::nullopt;
  if (!address.has_value() || address->is_v6 != (derivation.kind == Kind::kIpv6)) return std::nullopt;
  std::array<char, kNetworkTextMax> network;
  const std::string_view written = WriteNetwork({address->Prefix(derivation.bits), derivation.bits}, network);
  if (head + written.size() > text.size()) return std::nullopt;
  std::copy_n(tag.bytes.begin(), head, text.begin());
  std::copy(written.begin(), written.end(), text.begin() + static_cast<std::ptrdiff_t>(head));
  return std::string_view(text.data(), head + written.size());
}

}    // namespace

Result<Derivation> ParseDerivation(std::string_view text) {
  if (text.starts_with(kBefore)) {
    text.remove_prefix(kBefore.size());
    if (text.empty() || text.size() > Derivation::kSeparatorMax || text.find('\n') != text.npos) return Fail("separator");
    return Derivation{Kind::kBefore, 0, std::string(text)};
  }
  const bool is_v6 = text.starts_with(kIpv6);
  if (!is_v6 && !text.starts_with(kIpv4)) return Fail("kind");
  text.remove_prefix(kIpv4.size());
  std::uint8_t bits = 0;
  if (!ParseNumber(text, bits) || bits == 0 || bits > (is_v6 ? 128 : 32)) return Fail("bits");
  return Derivation{is_v6 ? Kind::kIpv6 : Kind::kIpv4, bits, {}};
}

std::string FormatDerivation(const Derivation& derivation) {
  if (derivation.kind == Kind::kBefore) return fmt::format("{}{}", kBefore, derivation.separator);
  return fmt::format("{}{}", derivation.kind == Kind::kIpv6 ? kIpv6 : kIpv4, derivation.bits);
}

std::optional<std::string_view> Derive(const Derivation& derivation, TagText tag, std::size_t head,
                                       std::span<char, kTagBytesMax> text) {
  if (derivation.kind != Kind::kBefore) return NetworkOf(derivation, tag, head, text);
  std::size_t at = tag.bytes.find(derivation.separator, head);
  if (at == tag.bytes.npos && tag.whole) return std::nullopt;
  at = std::min(at, tag.bytes.size());
  std::copy_n(tag.bytes.begin(), at, text.begin());
  return std::string_view(text.data(), at);
}

}    // namespace dthrottle
