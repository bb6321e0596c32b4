#include "frontend/grpc_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lease/address.h"

namespace dthrottle {

namespace {

using lease::Claim;
using lease::Grant;
using lease::kNameBytesMax;
using lease::LeaseServer;

constexpr std::int64_t kClaimSecondsMax = 366 * 86400;

// ---- What may be asked ----

Result<void> CheckName(std::string_view what, std::string_view name) {
  const bool good = !name.empty() && name.size() <= kNameBytesMax &&
                    std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (!good) return Fail(fmt::format("{} must have 1 to {} bytes, none of them a control", what, kNameBytesMax));
  return {};
}

Result<void> CheckAmount(std::string_view what, double amount) {
  if (!(amount >= 0 && amount <= lease::kCapacityMax)) {
    return Fail(fmt::format("{} must be a number from 0 to {:.0e}", what, lease::kCapacityMax));
  }
  return {};
}

Result<void> CheckCount(int resources, std::size_t most) {
  if (static_cast<std::size_t>(resources) > most) {
    return Fail(fmt::format("at most {} resources may be asked for at once (lease.grpc_max_resources)", most));
  }
  return {};
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
    if (band.num_clients() < 0) return Fail("num_clients must not be negative");
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

// ---- Leases on the wire ----

// What a client says that it holds; nothing if that is over.
std::optional<Claim> ToClaim(const doorman::Lease& has, GrpcInstant at) {
  const std::int64_t wall = std::chrono::duration_cast<std::chrono::seconds>(at.since_1970).count();
  if (has.capacity() <= 0 || has.expiry_time() <= wall) return std::nullopt;
  const std::int64_t left = has.expiry_time() - wall;    // both positive
  return Claim{has.capacity(), at.now + std::chrono::seconds(std::min(left, kClaimSecondsMax)), has.token()};
}

std::int64_t WholeSeconds(Duration d) {
  return std::chrono::floor<std::chrono::seconds>(d).count();
}

// Rounded down, so that no client holds it for longer; but a refresh interval of nothing would be no interval.
void Put(const Grant& grant, GrpcInstant at, doorman::Lease& lease) {
  lease.set_capacity(grant.lease.capacity);
  lease.set_expiry_time(WholeSeconds(at.since_1970 + (grant.lease.expiry - at.now)));
  lease.set_refresh_interval(std::max<std::int64_t>(1, WholeSeconds(grant.lease.refresh_interval)));
  lease.set_token(grant.epoch);
}

// Adds an answer to each request that gets a lease; more(grant, answer) says the rest of it.
template <class Request, class Response, class More>
void PutLeases(const Request& request, const std::vector<Grant>& grants, GrpcInstant at, Response& response,
               More&& more) {
  for (std::size_t i = 0; i < grants.size(); ++i) {
    const Grant& grant = grants[i];
    if (!grant.leased() && grant.outcome != Grant::Outcome::kTooSoon) continue;
    auto& one = *response.add_response();
    one.set_resource_id(request.resource(static_cast<int>(i)).resource_id());
    one.set_safe_capacity(grant.safe_capacity);
    Put(grant, at, *one.mutable_gets());
    more(grant, one);
  }
}

void PutMaster(const LeaseServer& server, doorman::Mastership& mastership) {
  const std::string_view address = lease::GrpcAddress(server.master());
  if (!address.empty()) mastership.set_master_address(std::string(address));
}

doorman::Algorithm::Kind KindOf(lease::Algorithm algorithm) {
  switch (algorithm) {
    case lease::Algorithm::kNone:
      return doorman::Algorithm::NO_ALGORITHM;
    case lease::Algorithm::kStatic:
      return doorman::Algorithm::STATIC;
    case lease::Algorithm::kFairShare:
      return doorman::Algorithm::FAIR_SHARE;
    case lease::Algorithm::kProportionalShare:
    case lease::Algorithm::kProportionalScaling:
      break;
  }
  return doorman::Algorithm::PROPORTIONAL_SHARE;
}

void Put(const lease::ResourceTemplate& how, doorman::Algorithm& algorithm) {
  algorithm.set_kind(KindOf(how.algorithm));
  algorithm.set_lease_length(WholeSeconds(how.lease_length));
  algorithm.set_refresh_interval(WholeSeconds(how.refresh_interval));
  if (how.learning_mode_duration) algorithm.set_learning_mode_duration(WholeSeconds(*how.learning_mode_duration));
}

}    // namespace

Result<void> Answer(const doorman::GetCapacityRequest& request, std::size_t resources_max, LeaseServer& server,
                    GrpcInstant at, doorman::GetCapacityResponse& answer) {
  if (auto good = CheckAll(request, "client_id", request.client_id(), resources_max); !good) return good;
  std::vector<lease::ResourceRequest> asked;
  for (const doorman::ResourceRequest& r : request.resource()) {
    asked.push_back(
        {.resource = r.resource_id(), .priority = r.priority(), .wants = r.wants(), .has = ToClaim(r.has(), at)});
  }
  const auto grants = server.GetCapacity(request.client_id(), asked, at.now);
  if (!grants) {
    PutMaster(server, *answer.mutable_mastership());
    return {};
  }
  PutLeases(request, *grants, at, answer, [](const Grant&, doorman::ResourceResponse&) {});
  return {};
}

Result<void> Answer(const doorman::GetServerCapacityRequest& request, std::size_t resources_max, LeaseServer& server,
                    GrpcInstant at, doorman::GetServerCapacityResponse& answer) {
  if (auto good = CheckAll(request, "server_id", request.server_id(), resources_max); !good) return good;
  std::vector<std::vector<lease::Band>> bands;
  std::vector<lease::ServerResourceRequest> asked;
  for (const doorman::ServerCapacityResourceRequest& r : request.resource()) {
    std::vector<lease::Band>& wants = bands.emplace_back();
    for (const doorman::PriorityBandAggregate& band : r.wants()) {
      wants.push_back({band.priority(), static_cast<std::uint64_t>(band.num_clients()), band.wants()});
    }
    asked.push_back({r.resource_id(), r.outstanding(), wants, ToClaim(r.has(), at), r.learning()});
  }
  const auto grants = server.GetServerCapacity(request.server_id(), asked, at.now);
  if (!grants) {
    PutMaster(server, *answer.mutable_mastership());
    return {};
  }
  PutLeases(request, *grants, at, answer, [&](const Grant& grant, doorman::ServerCapacityResourceResponse& one) {
    one.set_share(grant.share);
    const lease::ResourceTemplate* const how = server.templates().Find(one.resource_id());
    if (how != nullptr) Put(*how, *one.mutable_algorithm());
  });
  return {};
}

Result<void> Answer(const doorman::ReleaseCapacityRequest& request, std::size_t resources_max, LeaseServer& server,
                    GrpcInstant at, doorman::ReleaseCapacityResponse& answer) {
  if (auto good = CheckName("client_id", request.client_id()); !good) return good;
  if (auto good = CheckCount(request.resource_id_size(), resources_max); !good) return good;
  const std::vector<std::string_view> resources(request.resource_id().begin(), request.resource_id().end());
  if (!server.ReleaseCapacity(lease::HolderKind::kClient, request.client_id(), resources, at.now)) {
    PutMaster(server, *answer.mutable_mastership());
  }
  return {};
}

Result<void> Answer(const doorman::DiscoveryRequest&, std::size_t, LeaseServer& server, GrpcInstant at,
                    doorman::DiscoveryResponse& answer) {
  answer.set_is_master(server.IsMaster(at.now));
  PutMaster(server, *answer.mutable_mastership());
  return {};
}

}    // namespace dthrottle
