// Kinds of keys: each makes the two functions of a key for one member of a T. For tables of keys: the daemon's in
// sections/, and those of programs that read more than the daemon does.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/names.h"
#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

template <class T, class M>
using Member = std::function<M&(T&)>;

// The Member at `path` in a T.
#define MEMBER(T, path)     \
  [](T & target) -> auto& { \
    return target.path;     \
  }

template <class T, class M>
M Get(const Member<T, M>& member, const T& target) {
  return member(const_cast<T&>(target));    // the member function does not write
}

// The same key, which a reload changes too.
template <class T>
Key<T> Reloads(Key<T> key) {
  key.reloads = true;
  return key;
}

// The same, but not while one of these keys of its section waits for a start.
template <class T>
Key<T> ReloadsUnless(std::span<const std::string_view> start_keys, Key<T> key) {
  key.reloads_unless = start_keys;
  return Reloads(std::move(key));
}

// The same key, with other words for what is allowed.
template <class T>
Key<T> Allowing(std::string allowed, Key<T> key) {
  key.allowed = std::move(allowed);
  return key;
}

// The same key for a member that may be missing; `key` is for the value of that member itself.
template <class T, class M>
Key<T> Optional(std::type_identity_t<Member<T, std::optional<M>>> member, Key<M> key) {
  Key<T> optional{key.name, "\"\"", key.allowed, key.meaning, {}, {}};
  optional.set = [=, set = key.set](T& target, const Value& value) {
    M given{};
    if (!set(given, value)) return false;
    member(target) = std::move(given);
    return true;
  };
  optional.get = [=, get = key.get](const T& target) {
    const std::optional<M> given = Get(member, target);
    return given.has_value() ? get(*given) : Value();
  };
  return optional;
}

// The member for such a `key`.
template <class M>
M& Itself(M& target) {
  return target;
}

// A value that `read` turns into the member, if it is allowed, and `show` turns back.
template <class T, class M, class Read, class Show>
Key<T> Made(std::string_view name, std::string_view default_text, std::string allowed, Member<T, M> member,
            std::string_view meaning, Read read, Show show) {
  Key<T> key{name, default_text, std::move(allowed), meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    std::optional<M> given = read(value);
    if (given) member(target) = std::move(*given);
    return given.has_value();
  };
  key.get = [=](const T& target) -> Value { return show(Get(member, target)); };
  return key;
}

// A string that `parse` turns into the member and `format` turns back.
template <class T, class M, class Parse, class Format>
Key<T> Parsed(std::string_view name, std::string_view default_text, std::string allowed, Member<T, M> member,
              std::string_view meaning, Parse parse, Format format) {
  const auto read = [=](const Value& value) -> std::optional<M> {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return std::nullopt;
    const auto parsed = parse(*text);
    return parsed ? std::optional<M>(*parsed) : std::nullopt;
  };
  return Made<T, M>(name, default_text, std::move(allowed), member, meaning, read,
                    [=](const M& m) { return std::string(format(m)); });
}

// `parse`, which fails beyond the bounds.
template <class M, class Parse>
auto Within(M min, M max, Parse parse) {
  return [=](const std::string& text) -> Result<M> {
    const auto parsed = parse(text);
    if (parsed && (*parsed < min || *parsed > max)) return Fail("");
    return parsed;
  };
}

template <class T>
Key<T> Text(std::string_view name, std::string_view default_text, std::string allowed, Member<T, std::string> member,
            std::string_view meaning, std::function<bool(const std::string&)> valid) {
  const auto parse = [=](const std::string& text) -> Result<std::string> {
    if (!valid(text)) return Fail("");
    return text;
  };
  return Parsed<T, std::string>(name, default_text, std::move(allowed), member, meaning, parse,
                                [](const std::string& text) { return text; });
}

// Texts that are all valid.
template <class T>
Key<T> TextList(std::string_view name, std::string allowed, Member<T, std::vector<std::string>> member,
                std::string_view meaning, std::function<bool(const std::string&)> valid) {
  using List = std::vector<std::string>;
  const auto read = [=](const Value& value) {
    const auto* list = std::get_if<List>(&value);
    const bool allowed_all = list != nullptr && std::all_of(list->begin(), list->end(), valid);
    return allowed_all ? std::optional(*list) : std::nullopt;
  };
  return Made<T, List>(name, "[]", std::move(allowed), member, meaning, read, [](const List& list) { return list; });
}

// One of a few words: `choices` written as settings allow them, and whether a text is one of them.
std::string OneOf(std::span<const std::string_view> choices);
bool IsOneOf(std::span<const std::string_view> choices, std::string_view text);

// One of the names of an enum.
template <class T, class M>
Key<T> Choice(std::string_view name, std::string_view default_text, Member<T, M> member, std::string_view meaning) {
  const auto parse = [](const std::string& text) -> Result<M> {
    const auto names = Names(M());
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) return Fail("");
    return static_cast<M>(found - names.begin());
  };
  return Parsed<T, M>(name, default_text, OneOf(Names(M())), member, meaning, parse, [](M m) { return Name(m); });
}

template <class T>
Key<T> Flag(std::string_view name, std::string_view default_text, Member<T, bool> member, std::string_view meaning) {
  const auto read = [](const Value& value) {
    const auto* flag = std::get_if<bool>(&value);
    return flag != nullptr ? std::optional(*flag) : std::nullopt;
  };
  return Made<T, bool>(name, default_text, "true or false", member, meaning, read, [](bool flag) { return flag; });
}

template <class T>
Key<T> Integer(std::string_view name, std::string_view default_text, std::int64_t min, std::int64_t max,
               Member<T, std::uint32_t> member, std::string_view meaning) {
  const auto read = [=](const Value& value) -> std::optional<std::uint32_t> {
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr || *number < min || *number > max) return std::nullopt;
    return static_cast<std::uint32_t>(*number);
  };
  return Made<T, std::uint32_t>(name, default_text, fmt::format("a whole number from {} to {}", min, max), member,
                                meaning, read, [](std::uint32_t number) { return std::int64_t{number}; });
}

// The number that a value is, whole or not.
std::optional<double> NumberIn(const Value& value);

// `what`: of which kind the number is, in the sentence of what is allowed.
template <class T>
Key<T> Number(std::string_view name, std::string_view default_text, double min, double max, Member<T, double> member,
              std::string_view meaning, std::string_view what = "a number") {
  const auto read = [=](const Value& value) {
    const std::optional<double> number = NumberIn(value);
    return number && *number >= min && *number <= max ? number : std::nullopt;
  };
  return Made<T, double>(name, default_text, fmt::format("{} from {:g} to {:g}", what, min, max), member, meaning, read,
                         [](double number) { return number; });
}

template <class T>
Key<T> DurationKey(std::string_view name, std::string_view default_text, Duration min, Duration max,
                   Member<T, Duration> member, std::string_view meaning) {
  return Parsed<T, Duration>(
      name, default_text,
      fmt::format("a duration such as \"5s\" or \"250ms\" from {} to {}", FormatDuration(min), FormatDuration(max)),
      member, meaning, Within(min, max, ParseDuration), FormatDuration);
}

template <class T>
Key<T> BytesKey(std::string_view name, std::string_view default_text, std::uint64_t min, std::uint64_t max,
                Member<T, std::uint64_t> member, std::string_view meaning) {
  return Parsed<T, std::uint64_t>(
      name, default_text, fmt::format("a size such as \"64MiB\" from {} to {}", FormatBytes(min), FormatBytes(max)),
      member, meaning, Within(min, max, ParseBytes), FormatBytes);
}

template <class T>
Key<T> FileMode(std::string_view name, std::string_view default_text, Member<T, std::uint32_t> member,
                std::string_view meaning) {
  return Parsed<T, std::uint32_t>(name, default_text, "permission bits in octal such as \"0660\"", member, meaning,
                                  ParseFileMode, FormatFileMode);
}

template <class T>
Key<T> Address(std::string_view name, std::string_view default_text, bool loopback_only, Member<T, Endpoint> member,
               std::string_view meaning) {
  const auto parse = [=](const std::string& text) -> Result<Endpoint> {
    const auto parsed = ParseEndpoint(text);
    if (parsed && loopback_only && parsed->enabled() && !IsLoopback(*parsed)) return Fail("");
    return parsed;
  };
  return Parsed<T, Endpoint>(
      name, default_text,
      loopback_only ? "a loopback address and port such as \"127.0.0.1:7312\", or \"\" for none"
                    : "a numeric address and port such as \"127.0.0.1:7311\" or \"[::1]:7311\", or \"\" for none",
      member, meaning, parse, FormatEndpoint);
}

// Absolute paths without control characters, or nothing; that of a socket fits its address.
bool IsPath(const std::string& text);
bool IsSocketPath(const std::string& text);
bool NoControls(const std::string& text);

// A member of etcd's cluster.
inline constexpr const char* kEtcdUrlsAllowed =
    "a list of addresses such as \"http://10.0.0.1:2379\", without / at their ends";
bool IsEtcdUrl(const std::string& text);

// What a section has that asks etcd over https.
template <class T>
Key<T> EtcdCaFile(Member<T, std::string> member) {
  return Text<T>("etcd_ca_file", "\"\"", "an absolute path, or \"\" for the system's", member,
                 "Certificates of the authorities that etcd's own is checked by, for https.", IsPath);
}
template <class T>
Key<T> EtcdCertificateFile(Member<T, std::string> member) {
  return Text<T>("etcd_certificate_file", "\"\"", "an absolute path, or \"\" for none", member,
                 "The certificate by which etcd knows this host, for https.", IsPath);
}
template <class T>
Key<T> EtcdKeyFile(Member<T, std::string> member) {
  return Text<T>("etcd_key_file", "\"\"", "an absolute path, or \"\" for none", member, "Its private key.", IsPath);
}

// The largest size of memory that a setting may ask for.
inline constexpr std::uint64_t kMemoryBytesMax = std::uint64_t{1} << 40;

template <class T>
Key<T> SocketPath(std::string_view name, std::string_view default_text, Member<T, std::string> member,
                  std::string_view meaning) {
  return Text<T>(name, default_text, "an absolute path of at most 107 bytes, or \"\" for none", member, meaning,
                 IsSocketPath);
}

}    // namespace dthrottle
