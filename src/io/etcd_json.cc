#include "io/etcd_json.h"

#include <fmt/format.h>
#include <sodium.h>

#include <charconv>

namespace dthrottle::etcd {

std::string Base64(std::string_view bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                    sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();    // its NUL
  return text;
}

std::string FromBase64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  std::size_t size = 0;
  const int bad = sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                                    text.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL);
  bytes.resize(bad == 0 ? size : 0);
  return bytes;
}

const Json& Member(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found != object.end() ? *found : null;
}

std::int64_t Number(const Json& object, const char* name) {
  const Json& member = Member(object, name);
  if (member.is_number_integer()) return member.get<std::int64_t>();
  std::int64_t number = 0;
  if (!member.is_string()) return number;
  const auto& text = member.get_ref<const std::string&>();
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

const Json& First(const Json& list) {
  static const Json null;
  return list.is_array() && !list.empty() ? list.front() : null;
}

std::string Text(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

std::string Trouble(int status, const Json& answer) {
  const std::string error = Text(Member(answer, "error"));
  if (!error.empty()) return error;
  return status == 200 && answer.is_object() && !answer.contains("error") ? "" : fmt::format("status {}", status);
}

}    // namespace dthrottle::etcd
