#include "lab/access_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace dthrottle::lab {
namespace {

constexpr std::size_t kDateBytes = 26;    // "10/Oct/2000:13:55:36 -0700"
constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool AllDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit);
}

// REQUIRES: text has `count` bytes from `at` on. -1 if one of them is no digit.
int Digits(std::string_view text, std::size_t at, std::size_t count) {
  int number = 0;
  for (std::size_t i = at; i < at + count; ++i) {
    if (!IsDigit(text[i])) return -1;
    number = number * 10 + (text[i] - '0');
  }
  return number;
}

bool IsLeap(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

int DaysIn(int month, int year) {
  constexpr std::array<int, 12> kDays = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return month == 2 && IsLeap(year) ? 29 : kDays[static_cast<std::size_t>(month - 1)];
}

// Days since 1970-01-01 in the Gregorian calendar; years begin in March so that the odd day is the last one.
std::int64_t DaysSince1970(int year, int month, int day) {
  const int y = month <= 2 ? year - 1 : year;
  const int from_march = (month + 9) % 12;
  const std::int64_t of_years = std::int64_t{365} * y + y / 4 - y / 100 + y / 400;
  return of_years + (153 * from_march + 2) / 5 + day - 1 - 719468;
}

struct Civil {
  int year, month, day;
};

// The other way round, by the same calendar.
Civil CivilOf(std::int64_t days) {
  const std::int64_t since_0000 = days + 719468;
  const std::int64_t era = (since_0000 >= 0 ? since_0000 : since_0000 - 146096) / 146097;
  const std::int64_t of_era = since_0000 - era * 146097;
  const std::int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const std::int64_t of_year = of_era - (365 * year + year / 4 - year / 100);
  const std::int64_t from_march = (5 * of_year + 2) / 153;
  const int month = static_cast<int>(from_march < 10 ? from_march + 3 : from_march - 9);
  return {static_cast<int>(year + era * 400 + (month <= 2)), month,
          static_cast<int>(of_year - (153 * from_march + 2) / 5 + 1)};
}

// What stands between quotes from `at` on, where the opening one is; `at` moves behind the closing one. A quote behind
// a backslash is not the end.
std::optional<std::string_view> Quoted(std::string_view line, std::size_t& at) {
  if (at >= line.size() || line[at] != '"') return std::nullopt;
  for (std::size_t end = at + 1; end < line.size(); ++end) {
    if (line[end] == '\\') {
      ++end;
    } else if (line[end] == '"') {
      const std::string_view text = line.substr(at + 1, end - at - 1);
      at = end + 1;
      return text;
    }
  }
  return std::nullopt;
}

// The word behind the blank at `at`, which moves behind the word.
std::string_view Word(std::string_view line, std::size_t& at) {
  if (at >= line.size() || line[at] != ' ') return {};
  const std::size_t end = std::min(line.find(' ', at + 1), line.size());
  const std::string_view word = line.substr(at + 1, end - at - 1);
  at = end;
  return word;
}

// A field of the combined format, if it is there.
std::string_view Further(std::string_view line, std::size_t& at) {
  if (at >= line.size() || line[at] != ' ') return "-";
  std::size_t next = at + 1;
  const auto text = Quoted(line, next);
  if (!text) return "-";
  at = next;
  return *text;
}

}    // namespace

Result<std::int64_t> ParseLogTime(std::string_view text) {
  if (text.size() != kDateBytes || text[2] != '/' || text[6] != '/' || text[11] != ':' || text[14] != ':' ||
      text[17] != ':' || text[20] != ' ' || (text[21] != '+' && text[21] != '-')) {
    return Fail("the date is not like 10/Oct/2000:13:55:36 -0700");
  }
  const std::size_t name = kMonths.find(text.substr(3, 3));
  const int month = name == kMonths.npos || name % 3 != 0 ? 0 : static_cast<int>(name / 3) + 1;
  const int day = Digits(text, 0, 2), year = Digits(text, 7, 4);
  const int hour = Digits(text, 12, 2), minute = Digits(text, 15, 2), second = Digits(text, 18, 2);
  const int zone_hours = Digits(text, 22, 2), zone_minutes = Digits(text, 24, 2);
  const auto within = [](int n, int low, int high) { return n >= low && n <= high; };
  if (month == 0 || !within(year, 1, 9999) || !within(day, 1, DaysIn(month, year)) || !within(hour, 0, 23) ||
      !within(minute, 0, 59) || !within(second, 0, 60) || !within(zone_hours, 0, 23) || !within(zone_minutes, 0, 59)) {
    return Fail("there is no such date");
  }
  const int zone_s = (zone_hours * 60 + zone_minutes) * 60;
  return DaysSince1970(year, month, day) * 86400 + (hour * 60 + minute) * 60 + second -
         (text[21] == '-' ? -zone_s : zone_s);
}

Result<std::int64_t> LogDates::Read(std::string_view text) {
  if (text == text_ && !text_.empty()) return time_s_;
  const auto read = ParseLogTime(text);
  if (!read) return read;
  text_ = text;
  return time_s_ = *read;
}

Result<LogLine> ParseLogLine(std::string_view line, LogDates& dates) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  LogLine parsed;
  // The first bracket that a quote follows ends the date: servers escape the quotes in what clients send.
  const std::size_t close = line.find("] \"");
  if (close == line.npos) return Fail("no date in brackets with a request in quotes behind it");
  if (close < kDateBytes + 1 || line[close - kDateBytes - 1] != '[') return Fail("no date in brackets");
  const auto time = dates.Read(line.substr(close - kDateBytes, kDateBytes));
  if (!time) return tl::unexpected(time.error());
  parsed.time_s = *time;

  // "host ident user ", where the user may have blanks.
  const std::string_view who = line.substr(0, close - kDateBytes - 1);
  const std::size_t host_end = who.find(' ');
  const std::size_t ident_end = host_end == who.npos ? who.npos : who.find(' ', host_end + 1);
  if (ident_end == who.npos || host_end == 0 || ident_end == host_end + 1 || ident_end + 3 > who.size() ||
      who.back() != ' ') {
    return Fail("not an address, an identity and a user before the date");
  }
  parsed.host = who.substr(0, host_end);
  parsed.ident = who.substr(host_end + 1, ident_end - host_end - 1);
  parsed.user = who.substr(ident_end + 1, who.size() - ident_end - 2);

  std::size_t at = close + 2;
  const auto request = Quoted(line, at);
  if (!request) return Fail("the request has no end");
  parsed.request = *request;
  parsed.status = Word(line, at);
  if (parsed.status != "-" && (parsed.status.size() != 3 || !AllDigits(parsed.status))) {
    return Fail("no status behind the request");
  }
  parsed.size = Word(line, at);
  if (parsed.size != "-" && !AllDigits(parsed.size)) return Fail("no size behind the status");
  parsed.referer = Further(line, at);
  parsed.agent = Further(line, at);
  return parsed;
}

RequestParts SplitRequest(std::string_view request) {
  const std::size_t first = request.find(' ');
  const std::size_t last = request.rfind(' ');
  if (first == request.npos || first == 0) return {"-", "-", ""};
  // HTTP/0.9 names no version.
  const bool versioned = last != first && request.substr(last + 1).starts_with("HTTP/");
  const std::string_view target = request.substr(first + 1, versioned ? last - first - 1 : request.npos);
  const std::size_t mark = std::min(target.find('?'), target.size());
  return {request.substr(0, first), target.substr(0, mark), target.substr(mark)};
}

std::string FormatTime(std::int64_t time_s) {
  const std::int64_t days = (time_s >= 0 ? time_s : time_s - 86399) / 86400;
  const std::int64_t of_day = time_s - days * 86400;
  const Civil date = CivilOf(days);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", date.year, date.month, date.day, of_day / 3600,
                     of_day / 60 % 60, of_day % 60);
}

Result<TagTemplate> TagTemplate::Parse(std::string_view text) {
  struct Name {
    std::string_view name;
    Field field;
  };
  constexpr Name kNames[] = {{"h", Field::kHost},
                             {"l", Field::kIdent},
                             {"u", Field::kUser},
                             {"r", Field::kRequest},
                             {"m", Field::kMethod},
                             {"U", Field::kPath},
                             {"q", Field::kQuery},
                             {"s", Field::kStatus},
                             {">s", Field::kStatus},
                             {"b", Field::kSize},
                             {"{Referer}i", Field::kReferer},
                             {"{User-Agent}i", Field::kAgent}};
  const auto same = [](std::string_view a, std::string_view b) {    // names of headers have no case
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](unsigned char x, unsigned char y) {
      return a.starts_with('{') ? std::tolower(x) == std::tolower(y) : x == y;
    });
  };
  TagTemplate made;
  std::string literal;
  while (!text.empty()) {
    if (text[0] != '%' || text.starts_with("%%")) {
      literal += text[0];
      text.remove_prefix(text[0] == '%' ? 2 : 1);
      continue;
    }
    text.remove_prefix(1);
    const auto* name = std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) {
      return text.size() >= n.name.size() && same(n.name, text.substr(0, n.name.size()));
    });
    if (name == std::end(kNames)) {
      return Fail(fmt::format("%{}: must be one of %h %l %u %r %m %U %q %s %b %{{Referer}}i %{{User-Agent}}i %%",
                              text.substr(0, 1)));
    }
    if (!literal.empty()) made.parts_.push_back({Field::kText, std::exchange(literal, {})});
    made.parts_.push_back({name->field, {}});
    text.remove_prefix(name->name.size());
  }
  if (literal.find('\n') != literal.npos) return Fail("a line feed: no tag can have one");
  if (!literal.empty()) made.parts_.push_back({Field::kText, literal});
  return made;
}

void TagTemplate::Expand(const LogLine& line, std::string& out) const {
  for (const Part& part : parts_) {
    switch (part.field) {
      case Field::kText:
        out += part.text;
        break;
      case Field::kHost:
        out += line.host;
        break;
      case Field::kIdent:
        out += line.ident;
        break;
      case Field::kUser:
        out += line.user;
        break;
      case Field::kRequest:
        out += line.request;
        break;
      case Field::kMethod:
        out += SplitRequest(line.request).method;
        break;
      case Field::kPath:
        out += SplitRequest(line.request).path;
        break;
      case Field::kQuery:
        out += SplitRequest(line.request).query;
        break;
      case Field::kStatus:
        out += line.status;
        break;
      case Field::kSize:
        out += line.size;
        break;
      case Field::kReferer:
        out += line.referer;
        break;
      case Field::kAgent:
        out += line.agent;
        break;
    }
  }
}

}    // namespace dthrottle::lab
