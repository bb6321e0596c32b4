#include "gateway/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "lease/name.h"
#include "lease/resource.h"
#include "lease/store.h"

namespace dthrottle {

namespace {

constexpr std::int64_t kClaimSecondsMax = 366 * 86400;

// ---- What may be asked ----

Result<void> CheckName(std::string_view what, std::string_view name) {
  if (lease::IsName(name)) return {};
  return Fail(fmt::format("{} must have 1 to {} bytes, none of them a control", what, lease::kNameBytesMax));
}

Result<void> CheckAmount(std::string_view what, double amount) {
  if (amount >= 0 && amount <= lease::kCapacityMax) return {};
  return Fail(fmt::format("{} must be a number from 0 to {:.0e}", what, lease::kCapacityMax));
}

Result<void> CheckCount(int resources, std::size_t most) {
  if (static_cast<std::size_t>(resources) <= most) return {};
  return Fail(fmt::format("at most {} resources may be asked for at once (lease.grpc_max_resources)", most));
}

Result<void> Check(const doorman::ResourceRequest& r) {
  if (auto good = CheckName("resource_id", r.resource_id()); !good) return good;
  if (auto good = CheckAmount("wants", r.wants()); !good) return good;
  return CheckAmount("has.capacity", r.has().capacity());
}

Result<void> Check(const doorman::ServerCapacityResourceRequest& r) {
  if (auto good = CheckName("resource_id", r.resource_id()); !good) return good;
  if (auto good = CheckAmount("has.capacity", r.has().capacity()); !good) return good;
  if (static_cast<std::size_t>(r.wants_size()) > lease::Store::kBandsMax) {
    return Fail(fmt::format("wants may have at most {} bands", lease::Store::kBandsMax));
  }
  for (const doorman::PriorityBandAggregate& band : r.wants()) {
    if (auto good = CheckAmount("wants", band.wants()); !good) return good;
    if (band.num_clients() < 0 || static_cast<std::uint64_t>(band.num_clients()) > lease::kClientsMax) {
      return Fail(fmt::format("num_clients must be a number from 0 to {}", lease::kClientsMax));
    }
  }
  return CheckAmount("outstanding", r.outstanding());
}

template <class Request>
Result<void> CheckAll(const Request& request, std::string_view who, std::string_view id, std::size_t resources_max) {
  if (auto good = CheckName(who, id); !good) return good;
  if (auto good = CheckCount(request.resource_size(), resources_max); !good) return good;
  for (const auto& resource : request.resource()) {
    if (auto good = Check(resource); !good) return good;
  }
  return {};
}

// ---- Lines ----

template <class... Args>
void AddLine(CallLines& lines, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(lines.text), format, std::forward<Args>(args)...);
  lines.text += '\n';
  ++lines.count;
}

// A call without resources asks who is master: it is answered as any other by a host that is not.
CallLines NeverEmpty(CallLines lines) {
  if (lines.count == 0) AddLine(lines, "discover");
  return lines;
}

// What a client says that it holds, and for how many seconds still; nothing if that is over.
struct Claim {
  double capacity = 0;
  std::uint64_t token = 0;
  std::int64_t seconds = 0;
};

Claim ToClaim(const doorman::Lease& has, Duration asked) {
  const std::int64_t wall = std::chrono::duration_cast<std::chrono::seconds>(asked).count();
  if (has.capacity() <= 0 || has.expiry_time() <= wall) return {};
  const std::int64_t left = has.expiry_time() - wall;    // both positive
  return {has.capacity(), has.token(), std::min(left, kClaimSecondsMax)};
}

std::string BandsOf(const doorman::ServerCapacityResourceRequest& r) {
  std::string bands;
  for (const doorman::PriorityBandAggregate& band : r.wants()) {
    fmt::format_to(std::back_inserter(bands), "{}{}:{}:{}", bands.empty() ? "" : ",", band.priority(),
                   band.num_clients(), band.wants());
  }
  return bands.empty() ? "-" : bands;
}

// ---- Answers ----

// The words of an answer; those that it does not have are empty.
class Answer {
 public:
  explicit Answer(std::string_view line) {
    for (std::string_view& word : words_) {
      word = line.substr(0, line.find(' '));
      line.remove_prefix(std::min(word.size() + 1, line.size()));
    }
  }

  bool is(std::string_view verb) const { return words_[0] == verb; }
  std::string_view word(std::size_t i) const { return words_[i]; }

  template <class T>
  T number(std::size_t i) const {
    T value{};
    std::from_chars(words_[i].data(), words_[i].data() + words_[i].size(), value);
    return value;
  }
  // Rounded down.
  std::int64_t seconds(std::size_t i) const { return static_cast<std::int64_t>(number<double>(i)); }

 private:
  std::array<std::string_view, 8> words_;
};

void PutMaster(const Answer& answer, doorman::Mastership& mastership) {
  if (answer.word(1) != "-") mastership.set_master_address(std::string(answer.word(1)));
}

// True: another host is master, and the response says so and nothing else.
template <class Response>
bool IsElsewhere(const LineAnswers& answers, Response& response) {
  for (const std::string& line : answers) {
    const Answer answer(line);
    if (!answer.is("elsewhere")) continue;
    response.Clear();
    PutMaster(answer, *response.mutable_mastership());
    return true;
  }
  return false;
}

// Rounded down, so that no client holds it for longer; but a refresh interval of nothing would be no interval.
void PutLease(const Answer& answer, Duration asked, doorman::Lease& lease) {
  const auto left = std::chrono::duration<double>(answer.number<double>(2));
  const auto expiry = asked + std::chrono::duration_cast<Duration>(left);
  lease.set_capacity(answer.number<double>(1));
  lease.set_expiry_time(std::chrono::floor<std::chrono::seconds>(expiry).count());
  lease.set_refresh_interval(std::max<std::int64_t>(1, answer.seconds(3)));
  lease.set_token(answer.number<std::uint64_t>(5));
}

// Adds an answer for each resource that gets a lease; more(i, answer, one) says the rest of it. A resource has `lines`
// lines, of which the first asks for the lease.
template <class Request, class Response, class More>
void PutLeases(const Request& request, const LineAnswers& answers, std::size_t lines, Duration asked,
               Response& response, More&& more) {
  if (IsElsewhere(answers, response)) return;
  for (std::size_t i = 0; i < static_cast<std::size_t>(request.resource_size()); ++i) {
    const Answer answer(answers[i * lines]);
    if (!answer.is("lease")) continue;
    auto& one = *response.add_response();
    one.set_resource_id(request.resource(static_cast<int>(i)).resource_id());
    one.set_safe_capacity(answer.number<double>(4));
    PutLease(answer, asked, *one.mutable_gets());
    more(i, answer, one);
  }
}

doorman::Algorithm::Kind KindOf(std::string_view name) {
  if (name == Name(lease::Algorithm::kNone)) return doorman::Algorithm::NO_ALGORITHM;
  if (name == Name(lease::Algorithm::kStatic)) return doorman::Algorithm::STATIC;
  if (name == Name(lease::Algorithm::kFairShare) || name == Name(lease::Algorithm::kPriorityBand))
    return doorman::Algorithm::FAIR_SHARE;
  return doorman::Algorithm::PROPORTIONAL_SHARE;
}

void PutAlgorithm(const Answer& answer, doorman::Algorithm& algorithm) {
  algorithm.set_kind(KindOf(answer.word(1)));
  algorithm.set_lease_length(answer.seconds(2));
  algorithm.set_refresh_interval(answer.seconds(3));
  algorithm.set_learning_mode_duration(answer.seconds(4));
}

}    // namespace

// ---- Discovery ----

Result<CallLines> ToLines(const doorman::DiscoveryRequest&, std::size_t, Duration) {
  return NeverEmpty({});
}

void FromLines(const doorman::DiscoveryRequest&, const LineAnswers& answers, Duration,
               doorman::DiscoveryResponse& response) {
  const Answer answer(answers.front());
  response.set_is_master(answer.is("here"));
  PutMaster(answer, *response.mutable_mastership());
}

// ---- GetCapacity ----

Result<CallLines> ToLines(const doorman::GetCapacityRequest& request, std::size_t resources_max, Duration asked) {
  if (auto good = CheckAll(request, "client_id", request.client_id(), resources_max); !good) {
    return tl::unexpected(good.error());
  }
  CallLines lines;
  const std::string client = lease::ToWord(request.client_id());
  for (const doorman::ResourceRequest& r : request.resource()) {
    const Claim has = ToClaim(r.has(), asked);
    AddLine(lines, "get {} {} {} {} {} {} {}", client, lease::ToWord(r.resource_id()), r.wants(), has.capacity,
            r.priority(), has.token, has.seconds);
  }
  return NeverEmpty(std::move(lines));
}

void FromLines(const doorman::GetCapacityRequest& request, const LineAnswers& answers, Duration asked,
               doorman::GetCapacityResponse& response) {
  PutLeases(request, answers, 1, asked, response,
            [](std::size_t, const Answer& answer, doorman::ResourceResponse& one) {
              if (answer.word(6) == "learning") one.set_learning_seconds(answer.number<double>(7));
            });
}

// ---- GetServerCapacity ----

Result<CallLines> ToLines(const doorman::GetServerCapacityRequest& request, std::size_t resources_max,
                          Duration asked) {
  if (auto good = CheckAll(request, "server_id", request.server_id(), resources_max); !good) {
    return tl::unexpected(good.error());
  }
  CallLines lines;
  const std::string server = lease::ToWord(request.server_id());
  for (const doorman::ServerCapacityResourceRequest& r : request.resource()) {
    const Claim has = ToClaim(r.has(), asked);
    const std::string resource = lease::ToWord(r.resource_id());
    AddLine(lines, "server {} {} {} {} {} {} {} {}", server, resource, BandsOf(r), r.outstanding(),
            r.learning() ? 1 : 0, has.capacity, has.token, has.seconds);
    AddLine(lines, "algorithm {}", resource);
  }
  return NeverEmpty(std::move(lines));
}

void FromLines(const doorman::GetServerCapacityRequest& request, const LineAnswers& answers, Duration asked,
               doorman::GetServerCapacityResponse& response) {
  PutLeases(request, answers, 2, asked, response,
            [&](std::size_t i, const Answer& answer, doorman::ServerCapacityResourceResponse& one) {
              one.set_share(answer.number<double>(6));
              const Answer algorithm(answers[2 * i + 1]);
              if (algorithm.is("algorithm")) PutAlgorithm(algorithm, *one.mutable_algorithm());
            });
}

// ---- ReleaseCapacity ----

Result<CallLines> ToLines(const doorman::ReleaseCapacityRequest& request, std::size_t resources_max, Duration) {
  if (auto good = CheckName("client_id", request.client_id()); !good) return tl::unexpected(good.error());
  if (auto good = CheckCount(request.resource_id_size(), resources_max); !good) return tl::unexpected(good.error());
  CallLines lines;
  const std::string client = lease::ToWord(request.client_id());
  for (const std::string& resource : request.resource_id()) {
    // Nobody holds anything of a name that cannot be.
    if (lease::IsName(resource)) AddLine(lines, "release {} {}", client, lease::ToWord(resource));
  }
  return NeverEmpty(std::move(lines));
}

void FromLines(const doorman::ReleaseCapacityRequest&, const LineAnswers& answers, Duration,
               doorman::ReleaseCapacityResponse& response) {
  IsElsewhere(answers, response);
}

}    // namespace dthrottle
