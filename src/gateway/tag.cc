#include "gateway/tag.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kNameDigestBytes = 16;
constexpr std::size_t kMiddleBytes = 2 * kNameDigestBytes + 4;

}    // namespace

void TagMaker::Add(std::string_view key, std::string_view value) {
  name_ += '|';
  Append(key, true);
  name_ += '=';
  Append(value, false);
}

// Appends plain bytes together, up to the next one that is not plain.
void TagMaker::Append(std::string_view text, bool is_key) {
  const auto is_plain = [is_key](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != 0x7f && c != '%' && c != '|' && c != '\\' && !(is_key && c == '=');
  };
  while (!text.empty()) {
    const auto plain = static_cast<std::size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
    name_ += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) return;
    fmt::format_to(std::back_inserter(name_), "%{:02X}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
}

// Two percent signs are in no other name. The head has two thirds of what the digest leaves.
std::string TagMaker::Make(std::size_t bytes_max) && {
  if (name_.size() <= bytes_max) return std::move(name_);
  DT_CHECK(bytes_max >= 64);
  std::array<unsigned char, kNameDigestBytes> digest;
  crypto_generichash(digest.data(), digest.size(), reinterpret_cast<const unsigned char*>(name_.data()), name_.size(),
                     nullptr, 0);
  std::string middle = "%%";
  for (const unsigned char byte : digest) fmt::format_to(std::back_inserter(middle), "{:02x}", byte);
  middle += "%%";
  const std::size_t tail = (bytes_max - kMiddleBytes) / 3, head = bytes_max - kMiddleBytes - tail;
  name_.replace(head, name_.size() - head - tail, middle);
  return std::move(name_);
}

}    // namespace dthrottle
