#include "feature/set_limits/operators.h"

#include <fmt/format.h>
#include <sodium.h>

#include <utility>

#include "config/values.h"

namespace dthrottle {

namespace {

constexpr std::size_t kTokenBytesMin = 16;

}    // namespace

Operators ReadOperators(const Settings& settings, SecretOwner of, std::vector<std::string>& problems) {
  const auto& its = settings.operators;
  Operators operators;
  for (const std::string& text : its.keys) {
    if (const auto key = ParseOperatorKey(text)) operators.keys.emplace(key->key, key->name);
  }
  const auto read = [&](const char* name, const std::string& path) -> std::optional<std::string> {
    if (path.empty()) return std::nullopt;
    auto text = ReadSecret(path, of);
    if (text) return std::move(*text);
    problems.push_back(fmt::format("operator.{}: warning: {}", name, text.error().message));
    return std::nullopt;
  };
  if (auto text = read("http_key_file", its.http_key_file)) {
    auto secret = ParseOperatorSecret(*text);
    sodium_memzero(text->data(), text->size());
    if (secret && operators.keys.contains(secret->key)) {
      operators.own_key = std::move(*secret);
    } else {
      problems.push_back(fmt::format("operator.http_key_file: warning: {}: {}", its.http_key_file,
                                     secret ? "its public key is not in operator.keys" : secret.error().message));
    }
  }
  if (auto text = read("http_token_file", its.http_token_file)) {
    operators.token = text->substr(0, text->find('\n'));
    if (operators.token.size() < kTokenBytesMin) {
      operators.token.clear();
      problems.push_back(fmt::format("operator.http_token_file: warning: {}: a token has at least {} characters",
                                     its.http_token_file, kTokenBytesMin));
    }
  }
  return operators;
}

}    // namespace dthrottle
