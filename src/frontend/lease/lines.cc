#include "frontend/lease/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "base/number.h"
#include "base/words.h"
#include "lease/address.h"
#include "lease/name.h"

namespace dthrottle {

namespace {

using lease::Claim;
using lease::Grant;
using lease::LeaseServer;

constexpr double kSecondsMax = 366 * 86400.0;

void Complain(std::string& answers, std::string_view what) {
  fmt::format_to(std::back_inserter(answers), "error {}\n", what);
}

bool ParseAmount(std::string_view text, double& amount) {
  return ParseNumber(text, amount) && std::isfinite(amount) && amount >= 0 && amount <= lease::kCapacityMax;
}

// The lines of one turn: whom they ask, when, and where the answers go.
struct Turn {
  LeaseServer& server;
  const BootInstant now;
  GatewayCalls* const gateway;    // null: the lines are a client's
  std::string& answers;
};

// A client is told six digits after the point, less the zeros at its end, rounded down so that nobody takes more than
// it has. The gateway's clients are told the number as it is.
void AppendNumber(const Turn& turn, double number) {
  if (turn.gateway != nullptr) return void(fmt::format_to(std::back_inserter(turn.answers), "{}", number));
  const double scaled = number * 1e6;
  const double exact = std::nearbyint(scaled);
  const double down = std::abs(scaled - exact) < 1e-3 ? exact : std::floor(scaled);
  std::string& out = turn.answers;
  fmt::format_to(std::back_inserter(out), "{:.6f}", down / 1e6);
  out.erase(out.find_last_not_of('0') + 1);
  if (out.ends_with('.')) out.pop_back();
}

void AppendSeconds(std::string& out, Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::max(d, Duration::zero())).count();
  fmt::format_to(std::back_inserter(out), "{}.{:03}", ms / 1000, ms % 1000);
}

// The address of the master for clients behind this connection, which speak lines or gRPC.
std::string_view MasterAddress(const Turn& turn) {
  const std::string& master = turn.server.master();
  const std::string_view address =
      turn.gateway != nullptr ? lease::GrpcAddress(master) : lease::LineAddress(master);
  return address.empty() ? "-" : address;
}

void AnswerElsewhere(const Turn& turn) {
  fmt::format_to(std::back_inserter(turn.answers), "elsewhere {}\n", MasterAddress(turn));
}

void ComplainOfTemplate(const Turn& turn, std::string_view resource) {
  Complain(turn.answers, fmt::format("no [[resource]] is for {}", Shown(resource)));
}

// `share`: a server's, which gets to know what of its lease it may divide.
void AnswerGrant(const Turn& turn, const Grant& grant, std::string_view resource, bool share) {
  std::string& answers = turn.answers;
  switch (grant.outcome) {
    case Grant::Outcome::kLeased:
    case Grant::Outcome::kTooSoon:
      break;
    case Grant::Outcome::kNoTemplate:
      return ComplainOfTemplate(turn, resource);
    case Grant::Outcome::kFull:
      return Complain(answers, "the server holds as many clients or resources as it may");
    case Grant::Outcome::kInvalid:
      return Complain(answers, "the request cannot be");
  }
  answers += "lease ";
  AppendNumber(turn, grant.lease.capacity);
  answers += ' ';
  AppendSeconds(answers, grant.lease.expiry - turn.now);
  answers += ' ';
  AppendSeconds(answers, grant.lease.refresh_interval);
  answers += ' ';
  AppendNumber(turn, grant.safe_capacity);
  fmt::format_to(std::back_inserter(answers), " {}", grant.epoch);
  if (share) {
    answers += ' ';
    AppendNumber(turn, grant.share);
  } else if (grant.learning) {
    answers += " learning ";
    AppendSeconds(answers, grant.learns_for);
  }
  answers += '\n';
}

// Reads the names that a line begins with, called `roles`; complains of a wrong one.
template <std::size_t n>
bool ReadNames(const Turn& turn, std::span<const std::string_view> words,
               const std::array<std::string_view, n>& roles, std::array<std::string, n>& names) {
  for (std::size_t i = 0; i < n; ++i) {
    names[i] = lease::FromWord(words[i]);
    if (lease::IsName(names[i])) continue;
    Complain(turn.answers, fmt::format("{} must have at most {} bytes, none of them a control", roles[i],
                                       lease::kNameBytesMax));
    return false;
  }
  return true;
}

constexpr std::string_view kGetUsage = "get CLIENT RESOURCE WANTS [HAS [PRIORITY [TOKEN [SECONDS]]]]";

void Get(const Turn& turn, std::span<const std::string_view> words) {
  if (words.size() < 3 || words.size() > 7) return Complain(turn.answers, kGetUsage);
  std::array<std::string, 2> names;
  if (!ReadNames<2>(turn, words, {"CLIENT", "RESOURCE"}, names)) return;
  const auto wrong = [&](std::string_view what, std::string_view must, std::string_view is) {
    Complain(turn.answers, fmt::format("{} must be {}: {}", what, must, Shown(is)));
  };
  const std::string amount = fmt::format("a number from 0 to {:.0e}", lease::kCapacityMax);
  lease::ResourceRequest request{.resource = names[1]};
  Claim claim{.expiry = BootInstant::max()};
  double seconds = 0;
  if (!ParseAmount(words[2], request.wants)) return wrong("WANTS", amount, words[2]);
  if (words.size() > 3 && !ParseAmount(words[3], claim.capacity)) return wrong("HAS", amount, words[3]);
  if (words.size() > 4 && !ParseNumber(words[4], request.priority)) return wrong("PRIORITY", "a whole number", words[4]);
  if (words.size() > 5 && !ParseNumber(words[5], claim.epoch)) return wrong("TOKEN", "one that came with a lease", words[5]);
  if (words.size() > 6) {
    if (!ParseNumber(words[6], seconds) || !(seconds >= 0 && seconds <= kSecondsMax)) {
      return wrong("SECONDS", "a number of seconds", words[6]);
    }
    claim.expiry = turn.now + DurationOf(seconds);
  }
  if (claim.capacity > 0) request.has = claim;
  const auto grants = turn.server.GetCapacity(names[0], {&request, 1}, turn.now);
  if (!grants) return AnswerElsewhere(turn);
  AnswerGrant(turn, grants->front(), names[1], false);
}

constexpr std::string_view kQuotaUsage = "quota CLIENT RESOURCE WANTS";

// The lease of a client that cannot tell what it has, and that uses what nobody else wants.
void Quota(const Turn& turn, std::span<const std::string_view> words) {
  std::array<std::string, 2> names;
  if (words.size() != 3) return Complain(turn.answers, kQuotaUsage);
  if (!ReadNames<2>(turn, words, {"CLIENT", "RESOURCE"}, names)) return;
  lease::ResourceRequest request{.resource = names[1]};
  request.spare = true;
  request.unknown = words[2] == "-";
  if (!request.unknown && !ParseAmount(words[2], request.wants)) return Complain(turn.answers, kQuotaUsage);
  const auto grants = turn.server.GetCapacity(names[0], {&request, 1}, turn.now);
  if (!grants) return AnswerElsewhere(turn);
  const Grant& grant = grants->front();
  const bool leased = grant.leased() || grant.outcome == Grant::Outcome::kTooSoon;
  if (!leased) return AnswerGrant(turn, grant, names[1], false);
  if (grant.learning) return void(turn.answers += "learning\n");
  turn.answers += "quota ";
  AppendNumber(turn, grant.lease.capacity);
  turn.answers += ' ';
  AppendSeconds(turn.answers, grant.lease.expiry - turn.now);
  turn.answers += '\n';
}

constexpr std::string_view kServerUsage = "server NODE RESOURCE BANDS OUTSTANDING LEARNING [HAS TOKEN SECONDS]";

// "PRIORITY:CLIENTS:WANTS", with commas between; false if they are not.
bool ParseBands(std::string_view text, std::vector<lease::Band>& bands) {
  while (bands.size() < lease::Store::kBandsMax) {
    const std::string_view one = text.substr(0, text.find(','));
    const std::size_t first = one.find(':'), second = first == one.npos ? one.npos : one.find(':', first + 1);
    lease::Band band;
    if (second == one.npos || !ParseNumber(one.substr(0, first), band.priority) ||
        !ParseNumber(one.substr(first + 1, second - first - 1), band.clients) ||
        !ParseAmount(one.substr(second + 1), band.wants)) {
      return false;
    }
    bands.push_back(band);
    if (one.size() == text.size()) return true;
    text.remove_prefix(one.size() + 1);
  }
  return false;
}

void ServeServer(const Turn& turn, std::span<const std::string_view> words) {
  if (words.size() != 5 && words.size() != 8) return Complain(turn.answers, kServerUsage);
  std::array<std::string, 2> names;
  if (!ReadNames<2>(turn, words, {"NODE", "RESOURCE"}, names)) return;
  lease::ServerResourceRequest request{.resource = names[1]};
  std::vector<lease::Band> bands;
  Claim claim;
  double seconds = 0;
  const bool good = (words[2] == "-" || ParseBands(words[2], bands)) && ParseAmount(words[3], request.outstanding) &&
                    (words[4] == "0" || words[4] == "1") &&
                    (words.size() == 5 || (ParseAmount(words[5], claim.capacity) && ParseNumber(words[6], claim.epoch) &&
                                           ParseNumber(words[7], seconds) && seconds >= 0 && seconds <= kSecondsMax));
  if (!good) return Complain(turn.answers, kServerUsage);
  request.wants = bands;
  request.learning = words[4] == "1";
  claim.expiry = turn.now + DurationOf(seconds);
  if (claim.capacity > 0) request.has = claim;
  const auto grants = turn.server.GetServerCapacity(names[0], {&request, 1}, turn.now);
  if (!grants) return AnswerElsewhere(turn);
  AnswerGrant(turn, grants->front(), names[1], true);
}

void Release(const Turn& turn, std::span<const std::string_view> words) {
  if (words.size() < 2) return Complain(turn.answers, "release CLIENT RESOURCE...");
  std::vector<std::string> names(words.size());
  std::transform(words.begin(), words.end(), names.begin(), lease::FromWord);
  const std::vector<std::string_view> resources(names.begin() + 1, names.end());
  if (!turn.server.ReleaseCapacity(lease::HolderKind::kClient, names[0], resources, turn.now)) {
    return AnswerElsewhere(turn);
  }
  turn.answers += "released\n";
}

void Discover(const Turn& turn) {
  if (!turn.server.IsMaster(turn.now)) return AnswerElsewhere(turn);
  fmt::format_to(std::back_inserter(turn.answers), "here {} {}\n", MasterAddress(turn), turn.server.epoch());
}

void SayAlgorithm(const Turn& turn, std::string_view word) {
  const std::string resource = lease::FromWord(word);
  const lease::ResourceTemplate* const how = turn.server.templates().Find(resource);
  if (how == nullptr) return ComplainOfTemplate(turn, resource);
  std::string& answers = turn.answers;
  fmt::format_to(std::back_inserter(answers), "algorithm {}", Name(how->algorithm));
  for (const Duration d : {how->lease_length, how->refresh_interval, how->learning()}) {
    answers += ' ';
    AppendSeconds(answers, d);
  }
  answers += '\n';
}

void Count(const Turn& turn, std::string_view line) {
  const auto answer = turn.gateway->Count(line.substr(GatewayCalls::kCount.size()));
  if (!answer) return Complain(turn.answers, "count CALLS REFUSED INVALID");
  turn.answers += *answer;
  turn.answers += '\n';
}

void AnswerLine(const Turn& turn, std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::vector<std::string_view> all = SplitWords(line);
  const std::span<const std::string_view> words(all);
  if (words.empty()) return Complain(turn.answers, "get, release or discover");
  if (words[0] == "get") return Get(turn, words.subspan(1));
  if (words[0] == "server") return ServeServer(turn, words.subspan(1));
  if (words[0] == "quota" && turn.gateway != nullptr) return Quota(turn, words.subspan(1));
  if (words[0] == "release") return Release(turn, words.subspan(1));
  if (words[0] == "discover" && words.size() == 1) return Discover(turn);
  if (words[0] == "algorithm" && words.size() == 2) return SayAlgorithm(turn, words[1]);
  if (turn.gateway != nullptr && line.starts_with(GatewayCalls::kCount)) return Count(turn, line);
  Complain(turn.answers, fmt::format("get, release or discover, not {}", Shown(words[0])));
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
                             std::string& answers, GatewayCalls* gateway) {
  const Turn turn{server, now, gateway, answers};
  std::size_t count = 0;
  for (std::string_view left = lines.whole; !left.empty(); ++count) {
    const std::size_t lf = left.find('\n');
    AnswerLine(turn, left.substr(0, lf));
    left.remove_prefix(lf + 1);
  }
  if (!lines.too_long) return count;
  Complain(answers, fmt::format("a line has at most {} bytes", kLeaseLineBytesMax));
  return count + 1;
}

std::string ParentLine(std::string_view node, const lease::ParentRequest& request, BootInstant now) {
  std::string line = fmt::format("server {} {} ", lease::ToWord(node), lease::ToWord(request.resource));
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
  const std::vector<std::string_view> words = SplitWords(answer);
  Grant grant{.outcome = Grant::Outcome::kLeased};
  double seconds = 0, refresh = 0;
  if (words.size() != 7 || words[0] != "lease" || !ParseAmount(words[1], grant.lease.capacity) ||
      !ParseNumber(words[2], seconds) || !(seconds >= 0 && seconds <= kSecondsMax) || !ParseNumber(words[3], refresh) ||
      !(refresh >= 0 && refresh <= kSecondsMax) || !ParseNumber(words[4], grant.safe_capacity) ||
      !(grant.safe_capacity <= lease::kCapacityMax) || !ParseNumber(words[5], grant.epoch) ||
      !ParseAmount(words[6], grant.share)) {
    return Fail(fmt::format("said \"{}\"", Shown(answer, 80)));
  }
  grant.lease.expiry = asked + DurationOf(seconds);
  grant.lease.refresh_interval = DurationOf(refresh);
  return grant;
}

}    // namespace dthrottle
