#include "lease/server.h"

#include <algorithm>
#include <array>

#include "lease/server_resource.h"

namespace dthrottle::lease {

namespace {

constexpr std::size_t kDropsMost = 200;                // expired leases: half a millisecond
constexpr Duration kSoon = std::chrono::seconds(2);     // twice the default of min_request_interval

}    // namespace

struct LeaseServer::Asked {
  std::string_view resource;
  std::span<const Band> wants;
  double outstanding;
  std::optional<Claim> has;
  bool learning;    // the asker is
  bool spare = false;
};

LeaseServer::LeaseServer(ServerOptions options, Templates templates)
    : options_(std::move(options)), templates_(std::move(templates)), awaits_templates_(options_.awaits_templates) {}

LeaseServer::~LeaseServer() = default;

// ---- Mastership ----

void LeaseServer::Forget() {
  resources_.clear();
  aside_.clear();
  holders_ = holders_aside_ = 0;
}

void LeaseServer::BecomeMaster(const Mastership& mastership) {
  Forget();
  mastership_ = mastership;
  granting_ = true;
  BeginLearning();
}

void LeaseServer::Resign(std::string address) {
  Forget();
  granting_ = false;
  master_ = std::move(address);
}

// ---- Requests ----

LeaseServer::Resource* LeaseServer::Find(std::string_view name, BootInstant now, Grant::Outcome& why) {
  if (const auto found = resources_.find(name); found != resources_.end()) return found->second.get();
  const ResourceTemplate* how = templates_.Find(name);
  why = how == nullptr ? Grant::Outcome::kNoTemplate : Grant::Outcome::kFull;
  if (how == nullptr || resources_.size() >= options_.resources_max) return nullptr;
  const auto left = aside_.find(name);    // `name` may be its key, which goes over with it
  if (left != aside_.end()) {
    holders_aside_ -= left->second->store.size();
    holders_ += left->second->store.size();
  }
  const auto at = left != aside_.end() ? resources_.insert(aside_.extract(left)).position
                                       : resources_.emplace(name, New(name, now)).first;
  Resource& resource = *at->second;
  resource.how = how;
  resource.learns_until = LearnsUntil(name, *how);
  resource.store.KeepBands(how->algorithm == Algorithm::kPriorityBand);
  return &resource;
}

std::unique_ptr<LeaseServer::Resource> LeaseServer::New(std::string_view name, BootInstant ask) const {
  return std::make_unique<Resource>(
      Resource{.name = std::string(name), .how = nullptr, .store = Store(options_.seed), .ask = ask});
}

std::size_t& LeaseServer::HoldersWith(const Resource& resource) {
  return resource.how == nullptr ? holders_aside_ : holders_;
}

// Resources without a template have as many holders together as those with one, at most. One that is beyond this is
// forgotten.
void LeaseServer::PutAside(std::unique_ptr<Resource> resource) {
  const std::size_t holders = resource->store.size();
  holders_ -= holders;
  resource->how = nullptr;
  if (holders == 0 || holders > options_.clients_max - holders_aside_) return;
  holders_aside_ += holders;
  aside_.insert_or_assign(resource->name, std::move(resource));
}

LeaseServer::Held LeaseServer::HeldBy(const Resource& resource, BootInstant now) const {
  const ResourceTemplate& how = *resource.how;
  if (!options_.has_parent && how.source == Source::kSettings) return {how.capacity, how.capacity, {}, true};
  if (!resource.held.has_value()) return {};
  if (resource.held->expiry > now) return {resource.held->capacity, resource.share, resource.held->expiry, true};
  if (!options_.has_parent || !options_.falls_to_safe) return {};
  const double safe = resource.safe < 0 ? how.capacity : resource.safe;
  return {safe, safe, {}, true, true};
}

void LeaseServer::BeginLearning() {
  std::vector<ResourceTemplate> list;
  for (const ResourceTemplate& how : templates_.list()) {
    list.push_back({.identifier_glob = how.identifier_glob, .learning_mode_duration = how.learning()});
  }
  began_ = std::move(*Templates::Make(std::move(list)));
}

// The longest that any resource of the beginning learns. Without any it is what is usual.
Duration LeaseServer::LongestLearning() const {
  const auto& list = began_.list();
  if (list.empty()) return ResourceTemplate().learning();
  return std::ranges::max(list, {}, &ResourceTemplate::learning).learning();
}

// The master before leased out by the settings of then, as far as anybody knows. It may have had a resource that they do
// not have; its leases are taken to be no longer than those of others, so an old mastership has nothing to learn of it.
BootInstant LeaseServer::LearnsUntil(std::string_view name, const ResourceTemplate& how) const {
  const ResourceTemplate* const before = began_.Find(name);
  if (before == nullptr && how.learning() == Duration::zero()) return BootInstant::min();
  if (before == nullptr) return mastership_.since + std::min(LongestLearning(), how.learning());
  return mastership_.since + std::min(before->learning(), how.learning_mode_duration.value_or(Duration::max()));
}

// The document leaves open whether the last instant belongs to it (its server and its simulation differ): it does.
bool LeaseServer::IsLearning(const Resource& resource, BootInstant now) const {
  return now <= resource.learns_until;
}

double LeaseServer::SafeCapacity(const Resource& resource, BootInstant now) const {
  if (resource.how->safe_capacity.has_value()) return *resource.how->safe_capacity;
  const Held held = HeldBy(resource, now);
  const double capacity = held.any ? held.share : resource.how->capacity;
  return capacity / static_cast<double>(std::max<std::uint64_t>(resource.store.clients(), 1));
}

// What a client wants that does not know it yet: what it wanted for the lease that it has, or, as one more client, an
// equal part of everything.
double LeaseServer::SupposedWants(std::string_view client, std::string_view name, BootInstant now) const {
  const auto found = resources_.find(name);
  if (found == resources_.end()) {
    const ResourceTemplate* const how = templates_.Find(name);
    return how == nullptr ? 0 : how->capacity;
  }
  const Store& store = found->second->store;
  const auto known = store.Find(HolderKind::kClient, client);
  if (known.has_value() && store.holder(*known).has.expiry > now) return store.Wants(*known);
  return HeldBy(*found->second, now).share / static_cast<double>(store.clients() + 1);
}

// Whether the lease was granted by this master or the one before it, as far as anybody knows.
bool LeaseServer::IsFormer(const Claim& claim) const {
  if (claim.epoch == 0 || claim.epoch > mastership_.epoch) return false;
  return claim.epoch == mastership_.epoch || mastership_.former == 0 || claim.epoch == mastership_.former;
}

// Doorman "Processing the GetCapacity RPC", steps 1 to 4.
Grant LeaseServer::Answer(HolderKind kind, std::string_view id, const Asked& asked, BootInstant now) {
  ++counts_.requests;
  if (!IsName(id) || !IsName(asked.resource) || !IsValid(asked.has, asked.wants, asked.outstanding)) {
    ++counts_.invalid;
    return {.outcome = Grant::Outcome::kInvalid};
  }
  Grant::Outcome why{};
  Resource* const resource = Find(asked.resource, now, why);
  if (resource == nullptr) {
    ++(why == Grant::Outcome::kFull ? counts_.full : counts_.no_template);
    return {.outcome = why};
  }
  counts_.honoured += templates_.IsUnknown(resource->how);
  Expire(*resource, now, 1);
  Store& store = resource->store;
  std::optional<Store::Slot> known = store.Find(kind, id);
  if (known.has_value() && store.holder(*known).has.expiry <= now) {
    store.Erase(kind, id);
    --holders_;
    ++counts_.expired;
    known.reset();
  }
  const bool learning = IsLearning(*resource, now);
  if (!known.has_value() && holders_ >= options_.clients_max) {
    ++counts_.full;
    return {.outcome = Grant::Outcome::kFull};
  }
  const auto answered = [&](Grant grant) {
    grant.safe_capacity = SafeCapacity(*resource, now);
    // An equal part for each client that has come back so far is more than what there is for all of them.
    if (learning && !resource->how->safe_capacity) {
      grant.safe_capacity = std::min(grant.safe_capacity, grant.lease.capacity);
    }
    grant.learning = learning;
    if (learning) grant.learns_for = resource->learns_until - now;
    grant.epoch = mastership_.epoch;
    return grant;
  };
  if (known.has_value() && now - store.holder(*known).asked < options_.min_request_interval) {
    ++counts_.too_soon;
    const Holder& holder = store.holder(*known);
    return answered({.outcome = Grant::Outcome::kTooSoon, .lease = holder.has, .share = holder.share});
  }
  holders_ += !known.has_value();
  const bool keeps = !learning && asked.learning && known.has_value();
  const Store::Slot slot = keeps ? *known : store.Put(kind, id, asked.wants);
  const Grant grant = answered(keeps      ? Kept(*resource, slot, now)
                               : learning ? Learned(*resource, slot, asked, now)
                                          : Divided(*resource, slot, asked, now));
  store.Grant(slot, grant.lease, grant.share, now);
  return grant;
}

// In learning mode everybody keeps what he has, and who has nothing gets nothing. What the document leaves open: a
// claim may be wrong. One from before the last master counts for no more than the safe capacity. And as long as this
// server has nothing itself, or less than is claimed, a lease is not prolonged: it ends when the claim does.
Grant LeaseServer::Learned(const Resource& resource, Store::Slot slot, const Asked& asked, BootInstant now) {
  const Held held = HeldBy(resource, now);
  double capacity = 0;
  std::optional<BootInstant> expiry = held.expiry;
  if (asked.has.has_value() && asked.has->expiry > now) {
    capacity = asked.has->capacity;
    const double safe = SafeCapacity(resource, now);
    if (!IsFormer(*asked.has) && safe >= 0 && safe < capacity) {
      capacity = safe;
      ++counts_.capped_claims;
    }
    // A server that is learning itself claims what it has heard of so far, maybe less than its predecessor did here.
    if (asked.learning) capacity = std::max(capacity, resource.store.Has(slot));
    const bool covered = resource.store.HasBut(slot) + capacity <= held.capacity;
    const bool strict = resource.how->strict || resource.how->source == Source::kCapacity;
    if (!held.any || (strict && !covered)) expiry = asked.has->expiry;
  }
  Lease lease = MakeLease(*resource.how, options_.level, capacity, expiry, now);
  // A client that would come back after the end of learning mode comes back in half the time from then on: sooner, but
  // still not all clients at once.
  const Duration after = now + lease.refresh_interval - resource.learns_until;
  if (after > Duration::zero()) lease.refresh_interval -= after / 2;
  return {.lease = lease, .share = capacity};
}

// A server that is known here and is in learning mode has a new master: it cannot say yet what its clients want or
// have. Dividing by what it does say would take from them what they are using, so it keeps what it had.
Grant LeaseServer::Kept(const Resource& resource, Store::Slot slot, BootInstant now) {
  const Held held = HeldBy(resource, now);
  const double had = resource.store.Has(slot);
  const double capacity =
      resource.how->strict ? had : std::clamp(held.capacity - resource.store.HasBut(slot), 0.0, had);
  return {.lease = MakeLease(*resource.how, options_.level, capacity, held.expiry, now), .share = capacity};
}

// What the algorithm gives, as far as it is not leased out to others. Strict: a server that has more leased out than
// its share keeps that much until it comes back, and is told the share, which is what it then divides.
Grant LeaseServer::Divided(const Resource& resource, Store::Slot slot, const Asked& asked, BootInstant now) {
  const ResourceTemplate& how = *resource.how;
  const Held held = HeldBy(resource, now);
  const bool counts = how.algorithm != Algorithm::kNone && how.algorithm != Algorithm::kStatic;
  const double share = resource.store.Share(how.algorithm, counts ? held.share : how.capacity, slot);
  const double free = std::max(0.0, held.capacity - resource.store.HasBut(slot));
  const double unwanted = asked.spare ? std::max(0.0, held.share - resource.store.wants()) : 0;
  const double part = unwanted / static_cast<double>(std::max<std::uint64_t>(resource.store.clients(), 1));
  double capacity = counts ? std::min(share + part, free) : share;
  if (how.strict && resource.store.holder(slot).kind == HolderKind::kServer) {
    capacity = std::max(capacity, std::min(asked.outstanding, resource.store.Has(slot)));
  }
  Lease lease = MakeLease(how, options_.level, capacity, held.expiry, now);
  // A client that comes before this server has anything itself is to come again when it may have.
  if (!held.any && options_.falls_to_safe) lease.refresh_interval = std::min(lease.refresh_interval, kSoon);
  return {.lease = lease, .share = std::min(share, capacity)};
}

std::optional<std::vector<Grant>> LeaseServer::GetCapacity(std::string_view client,
                                                           std::span<const ResourceRequest> requests, BootInstant now) {
  if (!IsMaster(now)) {
    ++counts_.not_master;
    return {};
  }
  std::vector<Grant> grants;
  grants.reserve(requests.size());
  for (const ResourceRequest& request : requests) {
    const double wants = request.unknown ? SupposedWants(client, request.resource, now) : request.wants;
    const std::array band{Band{request.priority, 1, wants}};
    grants.push_back(
        Answer(HolderKind::kClient, client, {request.resource, band, 0, request.has, false, request.spare}, now));
  }
  return grants;
}

std::optional<std::vector<Grant>> LeaseServer::GetServerCapacity(std::string_view server,
                                                                 std::span<const ServerResourceRequest> requests,
                                                                 BootInstant now) {
  if (!IsMaster(now)) {
    ++counts_.not_master;
    return {};
  }
  std::vector<Grant> grants;
  grants.reserve(requests.size());
  for (const ServerResourceRequest& request : requests) {
    const std::array nobody{Band{}};
    const std::span<const Band> wants = request.wants.empty() ? nobody : request.wants;
    grants.push_back(Answer(HolderKind::kServer, server,
                            {request.resource, wants, request.outstanding, request.has, request.learning}, now));
  }
  return grants;
}

bool LeaseServer::ReleaseCapacity(HolderKind kind, std::string_view holder, std::span<const std::string_view> resources,
                                  BootInstant now) {
  if (!IsMaster(now)) {
    ++counts_.not_master;
    return false;
  }
  for (const std::string_view name : resources) {
    for (const ResourceMap* const map : {&resources_, &aside_}) {
      const auto found = map->find(name);
      if (found == map->end() || !found->second->store.Erase(kind, holder)) continue;
      ++counts_.released;
      --HoldersWith(*found->second);
    }
  }
  return true;
}

// ---- As a client of the parent ----

BootInstant LeaseServer::NextAsk() const {
  BootInstant next = BootInstant::max();
  if (!options_.has_parent || !granting_) return next;
  for (const auto& [name, resource] : resources_) next = std::min(next, resource->ask);
  return next;
}

std::vector<ParentRequest> LeaseServer::AskParent(BootInstant now) {
  std::vector<ParentRequest> requests;
  if (!options_.has_parent || !IsMaster(now)) return requests;
  Expire(now);
  for (const auto& [name, resource] : resources_) {
    const Store& store = resource->store;
    const double has = std::min(store.has(), kCapacityMax);
    ParentRequest request{.resource = name,
                          .outstanding = has,
                          .wants = store.Aggregate(),
                          .has = {},
                          .learning = IsLearning(*resource, now)};
    const Held held = HeldBy(*resource, now);
    if (held.any && !held.safe) request.has = Claim{held.capacity, *held.expiry, resource->epoch};
    // What clients have by now is no part of a lease of ours, but they use it.
    if (held.safe && has > 0) request.has = Claim{has, store.last_expiry(), resource->epoch};
    // The parent may be new as well: then what clients have claimed here is claimed there.
    if (request.learning && has > held.capacity) {
      request.has = Claim{has, store.last_expiry(), resource->epoch};
    }
    resource->ask = now + RefreshInterval(*resource->how, options_.level - 1);
    requests.push_back(std::move(request));
  }
  return requests;
}

void LeaseServer::AskParentAgain(BootInstant now) {
  for (auto& [name, resource] : resources_) resource->ask = now;
}

bool LeaseServer::HearParent(std::string_view name, const Grant& grant, BootInstant now) {
  const auto found = resources_.find(name);
  if (found == resources_.end() || !grant.leased()) return true;
  Resource& resource = *found->second;
  if (grant.epoch < resource.epoch && resource.held.has_value() && resource.held->expiry > now) {
    ++counts_.stale_grants;
    return false;
  }
  Expire(resource, now);
  resource.held = grant.lease;
  resource.share = std::min(grant.share, grant.lease.capacity);
  resource.safe = grant.safe_capacity;
  resource.epoch = grant.epoch;
  resource.ask = now + grant.lease.refresh_interval;
  counts_.shortfalls += grant.lease.capacity < resource.store.has();
  return true;
}

void LeaseServer::SetHeld(std::string_view name, double capacity, double share, BootInstant expiry, BootInstant now) {
  Grant::Outcome why{};
  Resource* const resource = Find(name, now, why);
  if (resource == nullptr || resource->how->source != Source::kCapacity) return;
  Expire(*resource, now);
  resource->held = Lease{.capacity = capacity, .expiry = expiry};
  resource->share = std::min(share, capacity);
  counts_.shortfalls += capacity < resource->store.has();
}

// ---- Settings and inspection ----

void LeaseServer::SetTemplates(Templates templates, BootInstant now, bool stand_in) {
  templates_ = std::move(templates);
  const bool begins = awaits_templates_;
  awaits_templates_ = awaits_templates_ && stand_in;
  if (begins) BeginLearning();
  for (auto it = resources_.begin(); it != resources_.end();) {
    Resource& resource = *it->second;
    resource.how = templates_.Find(resource.name);
    if (resource.how == nullptr) {
      PutAside(std::move(it->second));
      it = resources_.erase(it);
      continue;
    }
    const BootInstant learns_until = LearnsUntil(resource.name, *resource.how);
    resource.learns_until = begins ? learns_until : std::min(learns_until, resource.learns_until);
    resource.store.KeepBands(resource.how->algorithm == Algorithm::kPriorityBand);
    Expire(resource, now);
    const Held held = HeldBy(resource, now);
    counts_.shortfalls += !held.expiry.has_value() && held.any && held.capacity < resource.store.has();
    ++it;
  }
  for (auto it = aside_.begin(); it != aside_.end();) {
    Grant::Outcome why{};
    Find((it++)->first, now, why);    // takes it out where there is a template
  }
}

// At one instant kDropsMost leases are dropped, or `least` more by this call. True: there are more.
bool LeaseServer::Expire(Resource& resource, BootInstant now, std::size_t least) {
  if (now != dropped_at_) dropped_then_ = 0;
  dropped_at_ = now;
  const std::size_t left = kDropsMost - std::min(kDropsMost, dropped_then_);
  const std::size_t expired = resource.store.Expire(now, std::max(left, least));
  dropped_then_ += expired;
  HoldersWith(resource) -= expired;
  counts_.expired += expired;
  return resource.store.HasExpired(now);
}

bool LeaseServer::Expire(BootInstant now) {
  bool more = false;
  for (auto it = resources_.begin(); it != resources_.end();) {
    Resource& resource = *it->second;
    more |= Expire(resource, now);
    // Clients' leases end with ours, and they will be back for the safe capacity.
    const Duration kept = options_.falls_to_safe ? resource.how->lease_length : Duration::zero();
    const bool holds = resource.held.has_value() && resource.held->expiry + kept > now && resource.held->capacity > 0;
    const bool idle = resource.store.size() == 0 && !holds;
    it = idle ? resources_.erase(it) : std::next(it);
  }
  for (auto it = aside_.begin(); it != aside_.end();) {
    more |= Expire(*it->second, now);
    it = it->second->store.size() == 0 ? aside_.erase(it) : std::next(it);
  }
  return more;
}

std::vector<ResourceStatus> LeaseServer::Resources(BootInstant now) {
  Expire(now);
  std::vector<ResourceStatus> list;
  for (const auto& [name, resource] : resources_) {
    const Store& store = resource->store;
    const Held held = HeldBy(*resource, now);
    ResourceStatus status{.resource = name,
                          .how = resource->how,
                          .capacity = held.capacity,
                          .capacity_expiry = held.expiry,
                          .from = held.safe             ? "safe"
                                  : options_.has_parent ? "parent"
                                                        : Name(resource->how->source),
                          .wants = store.wants(),
                          .has = store.has(),
                          .shortfall = std::max(0.0, store.has() - held.capacity),
                          .holders = store.size(),
                          .clients = store.clients(),
                          .safe_capacity = SafeCapacity(*resource, now),
                          .learning_until = {}};
    if (IsLearning(*resource, now)) status.learning_until = resource->learns_until;
    list.push_back(std::move(status));
  }
  return list;
}

std::vector<HolderStatus> LeaseServer::Holders(std::string_view name, std::size_t most) const {
  std::vector<HolderStatus> list;
  const auto found = resources_.find(name);
  if (found == resources_.end()) return list;
  found->second->store.InOrder([&](const Holder& holder, const Demand& demand) {
    if (list.size() >= most) return false;
    list.push_back({.id = holder.id,
                    .is_server = holder.kind == HolderKind::kServer,
                    .priority = holder.wants.front().priority,
                    .clients = static_cast<std::uint64_t>(demand.weight),
                    .wants = demand.wants,
                    .has = holder.has});
    return true;
  });
  return list;
}

}    // namespace dthrottle::lease
