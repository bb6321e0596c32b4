// Kinds of keys: each makes the two functions of a key for one member of a T. For tables of keys: the daemon's in
// keys.cc, and those of programs that read more than the daemon does.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/keys.h"
#include "config/values.h"

namespace dthrottle {

template <class T, class M>
using Member = std::function<M&(T&)>;

template <class T, class M>
M Read(const Member<T, M>& member, const T& target) {
  return member(const_cast<T&>(target));    // the member function does not write
}

// A string that `parse` turns into the member and `format` turns back.
template <class T, class M, class Parse, class Format>
void Parsed(Key<T>& key, Member<T, M> member, Parse parse, Format format) {
  key.set = [=](T& target, const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return false;
    const auto parsed = parse(*text);
    if (parsed) member(target) = *parsed;
    return parsed.has_value();
  };
  key.get = [=](const T& target) -> Value { return std::string(format(Read(member, target))); };
}

template <class T>
Key<T> Text(std::string_view name, std::string_view default_text, std::string allowed, Member<T, std::string> member,
            std::string_view meaning, std::function<bool(const std::string&)> valid) {
  Key<T> key{name, default_text, std::move(allowed), meaning, {}, {}};
  Parsed<T, std::string>(
      key, member,
      [=](const std::string& text) -> Result<std::string> {
        if (!valid(text)) return Fail("");
        return text;
      },
      [](const std::string& text) { return text; });
  return key;
}

template <class T>
Key<T> Integer(std::string_view name, std::string_view default_text, std::int64_t min, std::int64_t max,
               Member<T, std::uint32_t> member, std::string_view meaning) {
  Key<T> key{name, default_text, fmt::format("a whole number from {} to {}", min, max), meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr || *number < min || *number > max) return false;
    member(target) = static_cast<std::uint32_t>(*number);
    return true;
  };
  key.get = [=](const T& target) -> Value { return static_cast<std::int64_t>(Read(member, target)); };
  return key;
}

template <class T>
Key<T> Flag(std::string_view name, std::string_view default_text, Member<T, bool> member, std::string_view meaning) {
  Key<T> key{name, default_text, "true or false", meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* flag = std::get_if<bool>(&value);
    if (flag != nullptr) member(target) = *flag;
    return flag != nullptr;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

template <class T>
Key<T> DurationKey(std::string_view name, std::string_view default_text, Duration min, Duration max,
                   Member<T, Duration> member, std::string_view meaning) {
  Key<T> key{
      name,
      default_text,
      fmt::format("a duration such as \"5s\" or \"250ms\" from {} to {}", FormatDuration(min), FormatDuration(max)),
      meaning,
      {},
      {}};
  Parsed<T, Duration>(
      key, member,
      [=](const std::string& text) -> Result<Duration> {
        const auto parsed = ParseDuration(text);
        if (parsed && (*parsed < min || *parsed > max)) return Fail("");
        return parsed;
      },
      FormatDuration);
  return key;
}

// One of a few words.
template <class T, class M>
Key<T> Choice(std::string_view name, std::string_view default_text, std::vector<M> choices, Member<T, M> member,
              std::string_view meaning) {
  std::string allowed = "one of";
  for (const M& m : choices) allowed += fmt::format("{} \"{}\"", &m == &choices.front() ? "" : ",", Name(m));
  Key<T> key{name, default_text, allowed, meaning, {}, {}};
  Parsed<T, M>(
      key, member,
      [=](const std::string& text) -> Result<M> {
        for (const M m : choices) {
          if (Name(m) == text) return m;
        }
        return Fail("");
      },
      [](M m) { return Name(m); });
  return key;
}

template <class T>
Key<T> Number(std::string_view name, std::string_view default_text, double min, double max, Member<T, double> member,
              std::string_view meaning) {
  Key<T> key{name, default_text, fmt::format("a number from {:g} to {:g}", min, max), meaning, {}, {}};
  key.set = [=](T& target, const Value& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    const auto* part = std::get_if<double>(&value);
    if (whole == nullptr && part == nullptr) return false;
    const double number = whole != nullptr ? static_cast<double>(*whole) : *part;
    if (!(number >= min && number <= max)) return false;
    member(target) = number;
    return true;
  };
  key.get = [=](const T& target) -> Value { return Read(member, target); };
  return key;
}

}    // namespace dthrottle
