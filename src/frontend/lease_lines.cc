#include "frontend/lease_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "lease/address.h"

namespace dthrottle {

namespace {

using lease::Claim;
using lease::Grant;
using lease::kNameBytesMax;
using lease::LeaseServer;

constexpr std::size_t kWordsMax = 16;
constexpr std::size_t kShownBytes = 40;    // of what is wrong
constexpr double kSecondsMax = 366 * 86400.0;

// The words between single blanks, or more; none if there are more than kWordsMax.
struct Words {
  std::array<std::string_view, kWordsMax> words;
  std::size_t count = 0;

  explicit Words(std::string_view line) {
    while (true) {
      const std::size_t begin = line.find_first_not_of(' ');
      if (begin == std::string_view::npos) return;
      const std::size_t end = std::min(line.find(' ', begin), line.size());
      if (count == kWordsMax) {
        count = 0;
        return;
      }
      words[count++] = line.substr(begin, end - begin);
      line.remove_prefix(end);
    }
  }
};

void Complain(std::string& answers, std::string_view what) {
  fmt::format_to(std::back_inserter(answers), "error {}\n", what);
}

// What somebody wrote, short and harmless.
std::string Printable(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}
std::string Shown(std::string_view text) {
  return Printable(text.substr(0, kShownBytes));
}

bool IsName(std::string_view text) {
  return text.size() <= kNameBytesMax &&
         std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x21 || c == 0x7f; });
}

// A plain number: digits, and perhaps a fraction or an exponent.
template <class T>
bool Parse(std::string_view text, T& number) {
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()};
}

bool ParseAmount(std::string_view text, double& amount) {
  return Parse(text, amount) && std::isfinite(amount) && amount >= 0 && amount <= lease::kCapacityMax;
}

// With six digits after the point, less the zeros at its end; rounded down, so that no client takes more than it has.
void AppendNumber(std::string& out, double number) {
  const double scaled = number * 1e6;
  const double exact = std::nearbyint(scaled);
  const double down = std::abs(scaled - exact) < 1e-3 ? exact : std::floor(scaled);
  fmt::format_to(std::back_inserter(out), "{:.6f}", down / 1e6);
  out.erase(out.find_last_not_of('0') + 1);
  if (out.ends_with('.')) out.pop_back();
}

void AppendSeconds(std::string& out, Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::max(d, Duration::zero())).count();
  fmt::format_to(std::back_inserter(out), "{}.{:03}", ms / 1000, ms % 1000);
}

void AnswerElsewhere(const LeaseServer& server, std::string& answers) {
  const std::string_view address = lease::LineAddress(server.master());
  fmt::format_to(std::back_inserter(answers), "elsewhere {}\n", address.empty() ? "-" : address);
}

// `share`: a server's, which gets to know what of its lease it may divide.
void AnswerGrant(const Grant& grant, std::string_view resource, bool share, BootInstant now, std::string& answers) {
  switch (grant.outcome) {
    case Grant::Outcome::kLeased:
    case Grant::Outcome::kTooSoon:
      break;
    case Grant::Outcome::kNoTemplate:
      return Complain(answers, fmt::format("no [[resource]] is for {}", Shown(resource)));
    case Grant::Outcome::kFull:
      return Complain(answers, "the server holds as many clients or resources as it may");
    case Grant::Outcome::kInvalid:
      return Complain(answers, "the request cannot be");
  }
  answers += "lease ";
  AppendNumber(answers, grant.lease.capacity);
  answers += ' ';
  AppendSeconds(answers, grant.lease.expiry - now);
  answers += ' ';
  AppendSeconds(answers, grant.lease.refresh_interval);
  answers += ' ';
  AppendNumber(answers, grant.safe_capacity);
  fmt::format_to(std::back_inserter(answers), " {}", grant.epoch);
  if (share) {
    answers += ' ';
    AppendNumber(answers, grant.share);
  }
  answers += '\n';
}

constexpr std::string_view kGetUsage = "get CLIENT RESOURCE WANTS [HAS [PRIORITY [TOKEN [SECONDS]]]]";

void Get(std::span<const std::string_view> words, LeaseServer& server, BootInstant now, std::string& answers) {
  if (words.size() < 3 || words.size() > 7) return Complain(answers, kGetUsage);
  if (!IsName(words[0])) return Complain(answers, "CLIENT must have at most 255 bytes, none of them a control");
  if (!IsName(words[1])) return Complain(answers, "RESOURCE must have at most 255 bytes, none of them a control");
  const auto wrong = [&](std::string_view what, std::string_view must, std::string_view is) {
    Complain(answers, fmt::format("{} must be {}: {}", what, must, Shown(is)));
  };
  const std::string amount = fmt::format("a number from 0 to {:.0e}", lease::kCapacityMax);
  lease::ResourceRequest request{.resource = words[1]};
  Claim claim{.expiry = BootInstant::max()};
  double seconds = 0;
  if (!ParseAmount(words[2], request.wants)) return wrong("WANTS", amount, words[2]);
  if (words.size() > 3 && !ParseAmount(words[3], claim.capacity)) return wrong("HAS", amount, words[3]);
  if (words.size() > 4 && !Parse(words[4], request.priority)) return wrong("PRIORITY", "a whole number", words[4]);
  if (words.size() > 5 && !Parse(words[5], claim.epoch)) return wrong("TOKEN", "one that came with a lease", words[5]);
  if (words.size() > 6) {
    if (!Parse(words[6], seconds) || !(seconds >= 0 && seconds <= kSecondsMax)) {
      return wrong("SECONDS", "a number of seconds", words[6]);
    }
    claim.expiry = now + Duration(static_cast<Duration::rep>(seconds * 1e9));
  }
  if (claim.capacity > 0) request.has = claim;
  const auto grants = server.GetCapacity(words[0], {&request, 1}, now);
  if (!grants) return AnswerElsewhere(server, answers);
  AnswerGrant(grants->front(), words[1], false, now, answers);
}

constexpr std::string_view kServerUsage = "server NODE RESOURCE BANDS OUTSTANDING LEARNING [HAS TOKEN SECONDS]";

// "PRIORITY:CLIENTS:WANTS", with commas between; false if they are not.
bool ParseBands(std::string_view text, std::vector<lease::Band>& bands) {
  while (bands.size() < lease::Store::kBandsMax) {
    const std::string_view one = text.substr(0, text.find(','));
    const std::size_t first = one.find(':'), second = first == one.npos ? one.npos : one.find(':', first + 1);
    lease::Band band;
    if (second == one.npos || !Parse(one.substr(0, first), band.priority) ||
        !Parse(one.substr(first + 1, second - first - 1), band.clients) ||
        !ParseAmount(one.substr(second + 1), band.wants)) {
      return false;
    }
    bands.push_back(band);
    if (one.size() == text.size()) return true;
    text.remove_prefix(one.size() + 1);
  }
  return false;
}

void ServeServer(std::span<const std::string_view> words, LeaseServer& server, BootInstant now, std::string& answers) {
  if (words.size() != 5 && words.size() != 8) return Complain(answers, kServerUsage);
  if (!IsName(words[0])) return Complain(answers, "NODE must have at most 255 bytes, none of them a control");
  if (!IsName(words[1])) return Complain(answers, "RESOURCE must have at most 255 bytes, none of them a control");
  lease::ServerResourceRequest request{.resource = words[1]};
  std::vector<lease::Band> bands;
  Claim claim;
  double seconds = 0;
  const bool good = (words[2] == "-" || ParseBands(words[2], bands)) && ParseAmount(words[3], request.outstanding) &&
                    (words[4] == "0" || words[4] == "1") &&
                    (words.size() == 5 || (ParseAmount(words[5], claim.capacity) && Parse(words[6], claim.epoch) &&
                                           Parse(words[7], seconds) && seconds >= 0 && seconds <= kSecondsMax));
  if (!good) return Complain(answers, kServerUsage);
  request.wants = bands;
  request.learning = words[4] == "1";
  claim.expiry = now + Duration(static_cast<Duration::rep>(seconds * 1e9));
  if (claim.capacity > 0) request.has = claim;
  const auto grants = server.GetServerCapacity(words[0], {&request, 1}, now);
  if (!grants) return AnswerElsewhere(server, answers);
  AnswerGrant(grants->front(), words[1], true, now, answers);
}

void Release(std::span<const std::string_view> words, LeaseServer& server, BootInstant now, std::string& answers) {
  if (words.size() < 2) return Complain(answers, "release CLIENT RESOURCE...");
  if (!server.ReleaseCapacity(lease::HolderKind::kClient, words[0], words.subspan(1), now)) {
    return AnswerElsewhere(server, answers);
  }
  answers += "released\n";
}

void Discover(const LeaseServer& server, BootInstant now, std::string& answers) {
  if (!server.IsMaster(now)) return AnswerElsewhere(server, answers);
  const std::string_view address = lease::LineAddress(server.master());
  fmt::format_to(std::back_inserter(answers), "here {} {}\n", address.empty() ? "-" : address, server.epoch());
}

void AnswerLine(std::string_view line, LeaseServer& server, BootInstant now, std::string& answers) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const Words all(line);
  const std::span<const std::string_view> words(all.words.data(), all.count);
  if (words.empty()) return Complain(answers, "get, release or discover");
  if (words[0] == "get") return Get(words.subspan(1), server, now, answers);
  if (words[0] == "server") return ServeServer(words.subspan(1), server, now, answers);
  if (words[0] == "release") return Release(words.subspan(1), server, now, answers);
  if (words[0] == "discover" && words.size() == 1) return Discover(server, now, answers);
  Complain(answers, fmt::format("get, release or discover, not {}", Shown(words[0])));
}

}    // namespace

LeaseLines SplitLeaseLines(std::string_view bytes) {
  std::size_t whole = 0;
  std::size_t end = bytes.find('\n');
  while (end != std::string_view::npos && end - whole <= kLeaseLineBytesMax) {
    whole = end + 1;
    end = bytes.find('\n', whole);
  }
  const bool too_long = std::min(end, bytes.size()) - whole > kLeaseLineBytesMax;
  return {bytes.substr(0, whole), too_long ? std::string_view() : bytes.substr(whole), too_long};
}

std::size_t AnswerLeaseLines(const LeaseLines& lines, lease::LeaseServer& server, BootInstant now,
                             std::string& answers) {
  std::size_t count = 0;
  for (std::string_view left = lines.whole; !left.empty(); ++count) {
    const std::size_t lf = left.find('\n');
    AnswerLine(left.substr(0, lf), server, now, answers);
    left.remove_prefix(lf + 1);
  }
  if (!lines.too_long) return count;
  Complain(answers, fmt::format("a line has at most {} bytes", kLeaseLineBytesMax));
  return count + 1;
}

std::string ParentLine(std::string_view node, const lease::ParentRequest& request, BootInstant now) {
  std::string line = fmt::format("server {} {} ", node, request.resource);
  for (const lease::Band& band : request.wants) {
    fmt::format_to(std::back_inserter(line), "{}:{}:{},", band.priority, band.clients, band.wants);
  }
  request.wants.empty() ? line.push_back('-') : line.pop_back();
  fmt::format_to(std::back_inserter(line), " {} {}", request.outstanding, request.learning ? 1 : 0);
  if (request.has.has_value() && request.has->expiry > now) {
    fmt::format_to(std::back_inserter(line), " {} {} ", request.has->capacity, request.has->epoch);
    AppendSeconds(line, request.has->expiry - now);
  }
  return line + '\n';
}

Result<Grant> ReadParentAnswer(std::string_view answer, BootInstant asked) {
  const Words all(answer);
  const std::span<const std::string_view> words(all.words.data(), all.count);
  Grant grant{.outcome = Grant::Outcome::kLeased};
  double seconds = 0, refresh = 0;
  if (words.size() != 7 || words[0] != "lease" || !ParseAmount(words[1], grant.lease.capacity) ||
      !Parse(words[2], seconds) || !(seconds >= 0 && seconds <= kSecondsMax) || !Parse(words[3], refresh) ||
      !(refresh >= 0 && refresh <= kSecondsMax) || !Parse(words[4], grant.safe_capacity) ||
      !(grant.safe_capacity <= lease::kCapacityMax) || !Parse(words[5], grant.epoch) ||
      !ParseAmount(words[6], grant.share)) {
    return Fail(fmt::format("said \"{}\"", Printable(answer.substr(0, 2 * kShownBytes))));
  }
  grant.lease.expiry = asked + Duration(static_cast<Duration::rep>(seconds * 1e9));
  grant.lease.refresh_interval = Duration(static_cast<Duration::rep>(refresh * 1e9));
  return grant;
}

}    // namespace dthrottle
