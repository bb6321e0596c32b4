// A limit as an operator sets it while daemons run, or all rules at once: one line of text with a signature, which
// every host can check and pass on (protocol/limit.md).
//
// The signed text carries dates of the wall clock, unlike anything else between hosts: a host that was off must be able
// to judge it later, and nobody who only passes it on may make it younger.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/names.h"
#include "base/result.h"
#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

enum class LimitOf : std::uint8_t { kTag, kRule, kRules };
DT_NAMES(LimitOf, "tag", "rule", "rules")

struct SetLimit {
  LimitOf of{};
  std::string name{};     // the tag's bytes, or the rule's name; of kRules their TOML (ParseRules), empty if it clears
  bool clears = false;    // what settings say holds again; no burst and rate then
  Tokens burst = 0;
  double rate = 0;     // tokens/s
  Duration stamp{};    // when it was set, since 1970, in whole microseconds; the newest counts
  Duration until{};    // when it ends, since 1970; 0: when it is cleared
  friend bool operator==(const SetLimit&, const SetLimit&) = default;
};

inline constexpr std::int64_t kDateMicrosecondsMax = std::int64_t{1} << 52;    // since 1970; in the year 2112
inline constexpr std::size_t kLimitLineBytesMax = 1400;    // of a signed line; a name of 255 bytes takes up to 1020
inline constexpr std::size_t kRulesLineBytesMax = 60'000;
inline constexpr std::size_t LineBytesMax(LimitOf of) {
  return of == LimitOf::kRules ? kRulesLineBytesMax : kLimitLineBytesMax;
}

// A date as such texts have it: microseconds since 1970. False: `word` is none.
bool ReadDate(std::string_view word, Duration& date);

// Fails on a word that is no name of one.
Result<LimitOf> LimitOfNamed(std::string_view word);

// The text that is signed. A limit has one text.
std::string TextOf(const SetLimit& limit);

// Fails on anything that TextOf does not write, and on numbers that settings do not allow.
Result<SetLimit> ParseLimit(std::string_view text);

// When a limit is set, since 1970. The stamp is ahead of the clock where the limit replaces one with such a stamp.
struct SetAt {
  Duration stamp{}, wall{};
};

// A limit as somebody asks for it: `burst` a number, `rate` a number or text such as "60/m", `time` how long it holds
// from `at.wall` on, or empty. Without burst and rate it clears; rules do if there are none.
Result<SetLimit> LimitAsked(LimitOf of, std::string_view name, std::string_view burst, std::string_view rate,
                            std::string_view time, SetAt at);

// A limit, and who has set it. A host's own operator may set limits without a key, for that host alone: `key` and
// `signature` are empty.
struct SignedLimit {
  SetLimit limit;
  std::string key, signature;    // Ed25519, base64
  bool local() const { return key.empty(); }
  // "KEY SIGNATURE TEXT", "-" where there is none.
  std::string Line() const;
};

// The key of a line that begins with a key and a signature; empty: it does not. Costs the same however long the line is.
std::string_view KeyOf(std::string_view line);

// Takes a line apart; says nothing about its signature.
Result<SignedLimit> ParseSigned(std::string_view line);

// Whether the signature is that of the key. Takes some 60 us.
bool IsGenuine(const SignedLimit& limit);

// Which of two limits of one name counts: the newer one, and of two with one stamp the same one on every host.
bool IsNewer(const SignedLimit& limit, const SignedLimit& than);

// ---- Keys ----

// The operators whose limits count, by public key.
using OperatorKeys = std::map<std::string, std::string, std::less<>>;

// An operator's secret, as text for a file of its own, and the public half of it.
struct OperatorSecret {
  std::string seed;    // base64
  std::string key;
};
OperatorSecret MakeOperatorSecret();
Result<OperatorSecret> ParseOperatorSecret(std::string_view text);

SignedLimit Sign(SetLimit limit, const OperatorSecret& secret);

}    // namespace dthrottle
