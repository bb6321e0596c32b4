#include "feature/set_limits/set_limit.h"

#include <fmt/format.h>
#include <sodium.h>

#include <array>
#include <chrono>
#include <tuple>

#include "admin/escape.h"
#include "base/number.h"
#include "base/tag.h"
#include "base/words.h"
#include "bucket/bucket.h"
#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

namespace {

using std::chrono::microseconds;

constexpr std::string_view kBegin = "dthrottle-limit 1 ";
constexpr std::size_t kSignatureBytes = 44 + 1 + 88 + 1;    // the key and the signature before the text of a line
constexpr std::size_t kRulesHeadBytes = kBegin.size() + 2 * (16 + 1) + std::string_view("rules - - ").size();
static_assert(kSignatureBytes + kRulesHeadBytes + kRulesEscapedBytesMax <= kRulesLineBytesMax);

using PublicKey = std::array<unsigned char, crypto_sign_PUBLICKEYBYTES>;
using SecretKey = std::array<unsigned char, crypto_sign_SECRETKEYBYTES>;
using Seed = std::array<unsigned char, crypto_sign_SEEDBYTES>;
using Signature = std::array<unsigned char, crypto_sign_BYTES>;

template <std::size_t n>
std::string Base64(const std::array<unsigned char, n>& bytes) {
  std::string text(sodium_base64_ENCODED_LEN(n, sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), n, sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();    // its NUL
  return text;
}

// False unless the text is exactly so many bytes, in the one way to write them.
template <std::size_t n>
bool FromBase64(std::string_view text, std::array<unsigned char, n>& bytes) {
  std::size_t size = 0;
  return sodium_base642bin(bytes.data(), n, text.data(), text.size(), nullptr, &size, nullptr,
                           sodium_base64_VARIANT_ORIGINAL) == 0 &&
         size == n && Base64(bytes) == text;
}

std::int64_t MicrosecondsOf(Duration date) {
  return std::chrono::duration_cast<microseconds>(date).count();
}

OperatorSecret SecretOf(const Seed& seed) {
  PublicKey key;
  SecretKey secret;
  crypto_sign_seed_keypair(key.data(), secret.data(), seed.data());
  sodium_memzero(secret.data(), secret.size());
  return {Base64(seed), Base64(key)};
}

}    // namespace

std::string TextOf(const SetLimit& limit) {
  const bool numberless = limit.clears || limit.of == LimitOf::kRules;
  const std::string numbers = numberless ? "- -" : fmt::format("{} {}", limit.burst, limit.rate);
  return fmt::format("{}{} {} {} {} {}", kBegin, MicrosecondsOf(limit.stamp), MicrosecondsOf(limit.until),
                     Name(limit.of), numbers, EscapeTag(limit.name));
}

bool ReadDate(std::string_view word, Duration& date) {
  std::int64_t count = 0;
  if (!ParseNumber(word, count) || count < 0 || count > kDateMicrosecondsMax) return false;
  date = microseconds(count);
  return true;
}

Result<LimitOf> LimitOfNamed(std::string_view word) {
  for (const LimitOf of : {LimitOf::kTag, LimitOf::kRule, LimitOf::kRules}) {
    if (word == Name(of)) return of;
  }
  return Fail("a limit is of a tag or of a rule, or of all rules");
}

Result<SetLimit> ParseLimit(std::string_view text) {
  const std::string_view whole = text;
  if (!text.starts_with(kBegin)) return Fail(fmt::format("must begin with \"{}\"", kBegin));
  text.remove_prefix(kBegin.size());
  SetLimit limit;
  if (!ReadDate(NextField(text), limit.stamp) || !ReadDate(NextField(text), limit.until)) {
    return Fail("the dates must be microseconds since 1970");
  }
  const std::string_view of = NextField(text);
  const auto kind = LimitOfNamed(of);
  if (!kind) return tl::unexpected(kind.error());
  limit.of = *kind;
  if (const std::size_t most = LineBytesMax(*kind) - kSignatureBytes; whole.size() > most) {
    return Fail(fmt::format("{} bytes; must be at most {}", whole.size(), most));
  }
  const std::string_view burst = NextField(text), rate = NextField(text);
  const bool numberless = burst == "-" && rate == "-";
  if (limit.of == LimitOf::kRules && !numberless) return Fail("rules have burst and rate in their text");
  limit.clears = limit.of == LimitOf::kRules ? text.empty() : numberless;
  if (!numberless) {
    if (!ParseNumber(burst, limit.burst) || !(limit.burst >= kBurstMin && limit.burst <= kBurstMax)) {
      return Fail(fmt::format("burst must be a number of tokens from {:g} to {:g}", kBurstMin, kBurstMax));
    }
    if (!ParseNumber(rate, limit.rate) || !(limit.rate >= kRateMin && limit.rate <= kRateMax)) {
      return Fail(fmt::format("rate must be tokens a second from {:g} to {:g}", kRateMin, kRateMax));
    }
    if (limit.burst / limit.rate > kRefillSecondsMax) {
      return Fail(fmt::format("burst / rate must be at most {:.0f} seconds, a leap year", kRefillSecondsMax));
    }
  }
  auto name = UnescapeTag(text);
  if (!name) return Fail(name.error().message);
  if (limit.of != LimitOf::kRules && name->size() > kTagBytesMax) {
    return Fail(fmt::format("the name must be at most {} bytes", kTagBytesMax));
  }
  limit.name = std::move(*name);
  if (TextOf(limit) != whole) return Fail("must be written in the one way that there is");
  return limit;
}

Result<SetLimit> LimitAsked(LimitOf of, std::string_view name, std::string_view burst, std::string_view rate,
                            std::string_view time, SetAt at) {
  const bool of_rules = of == LimitOf::kRules;
  SetLimit limit{.of = of, .name = std::string(name)};
  limit.clears = of_rules ? name.empty() : burst.empty() && rate.empty();
  limit.stamp = std::chrono::floor<microseconds>(at.stamp);
  if (of == LimitOf::kTag && !limit.clears && (name.find('\n') != std::string_view::npos || name.ends_with('\r'))) {
    return Fail("the tag must be without LF and without CR at its end");
  }
  if (const std::size_t bytes = of_rules ? EscapeTag(name).size() : 0; bytes > kRulesEscapedBytesMax) {
    return Fail(fmt::format("the rules take {} bytes, where the end of a line and every other byte that is not "
                            "printable ASCII takes four, and a backslash two; must be at most {}: {} too many",
                            bytes, kRulesEscapedBytesMax, bytes - kRulesEscapedBytesMax));
  }
  if (!limit.clears && !of_rules) {
    if (!ParseNumber(burst, limit.burst)) return Fail("burst must be a number of tokens");
    if (const auto per_second = ParseRate(rate)) {
      limit.rate = *per_second;
    } else if (!ParseNumber(rate, limit.rate)) {
      return Fail("rate must be tokens a second, or text such as \"60/m\"");
    }
  }
  if (!time.empty()) {
    const auto span = ParseDuration(time);
    if (!span || *span < std::chrono::seconds(1) || *span > std::chrono::hours(24 * 366)) {
      return Fail("the time must be a duration such as \"90s\" or \"1h\" from 1s to 366d");
    }
    limit.until = std::chrono::floor<microseconds>(at.wall + *span);
  }
  return ParseLimit(TextOf(limit));    // which looks at the numbers
}

std::string SignedLimit::Line() const {
  return fmt::format("{} {} {}", local() ? "-" : key, local() ? "-" : signature, TextOf(limit));
}

std::string_view KeyOf(std::string_view line) {
  const std::string_view key = NextField(line), signature = NextField(line);
  PublicKey public_key;
  Signature of_it;
  return FromBase64(key, public_key) && FromBase64(signature, of_it) ? key : std::string_view();
}

Result<SignedLimit> ParseSigned(std::string_view line) {
  if (line.size() > kRulesLineBytesMax) return Fail(fmt::format("must be at most {} bytes", kRulesLineBytesMax));
  SignedLimit read;
  read.key = NextField(line), read.signature = NextField(line);
  PublicKey key;
  Signature signature;
  if (read.key == "-" && read.signature == "-") {
    read.key.clear(), read.signature.clear();
  } else if (!FromBase64(read.key, key) || !FromBase64(read.signature, signature)) {
    return Fail("must begin with a public key and a signature in base64");
  }
  auto limit = ParseLimit(line);
  if (!limit) return tl::unexpected(limit.error());
  read.limit = std::move(*limit);
  return read;
}

bool IsGenuine(const SignedLimit& limit) {
  PublicKey key;
  Signature signature;
  if (!FromBase64(limit.key, key) || !FromBase64(limit.signature, signature)) return false;
  const std::string text = TextOf(limit.limit);
  return crypto_sign_verify_detached(signature.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                     key.data()) == 0;
}

bool IsNewer(const SignedLimit& limit, const SignedLimit& than) {
  if (limit.limit.stamp != than.limit.stamp) return limit.limit.stamp > than.limit.stamp;
  return std::make_tuple(TextOf(limit.limit), limit.key) > std::make_tuple(TextOf(than.limit), than.key);
}

// ---- Keys ----

OperatorSecret MakeOperatorSecret() {
  Seed seed;
  randombytes_buf(seed.data(), seed.size());
  return SecretOf(seed);
}

Result<OperatorSecret> ParseOperatorSecret(std::string_view text) {
  while (text.starts_with('#')) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  Seed seed;
  if (!FromBase64(text, seed)) return Fail("must be lines that begin with # and then a secret in base64");
  return SecretOf(seed);
}

SignedLimit Sign(SetLimit limit, const OperatorSecret& with) {
  Seed seed;
  PublicKey key;
  SecretKey secret;
  Signature signature;
  const std::string text = TextOf(limit);
  FromBase64(with.seed, seed);
  crypto_sign_seed_keypair(key.data(), secret.data(), seed.data());
  crypto_sign_detached(signature.data(), nullptr, reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       secret.data());
  sodium_memzero(secret.data(), secret.size());
  return {std::move(limit), with.key, Base64(signature)};
}

}    // namespace dthrottle
