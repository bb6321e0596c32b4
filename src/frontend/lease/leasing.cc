#include "frontend/lease/leasing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "admin/escape.h"
#include "io/clock.h"
#include "io/etcd_elector.h"
#include "io/process.h"
#include "lease/address.h"

namespace dthrottle {

namespace {

constexpr Duration kTick = std::chrono::seconds(1);
constexpr std::size_t kHoldersShown = 1000;

lease::ServerOptions Options(const Settings& settings, std::uint64_t seed) {
  lease::ServerOptions options;
  options.id = settings.lease.node.empty() ? NameOfMachine() : settings.lease.node;
  options.level = settings.lease.level;
  options.has_parent = !settings.lease.parent.empty();
  options.falls_to_safe = true;
  options.min_request_interval = settings.lease.min_request_interval;
  options.clients_max = settings.lease.max_clients;
  options.resources_max = settings.lease.max_resources;
  options.seed = seed;
  options.awaits_templates = !settings.lease.etcd_resources.empty();
  return options;
}

// Grows from one start of a host to the next, as long as nobody sets its clock back.
std::uint64_t StartToken() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(WallClock()).count());
}

}    // namespace

Leasing::Leasing(uv_loop_t* loop, const Settings& settings, Log& log, std::uint64_t seed)
    : loop_(loop),
      settings_(settings),
      log_(log),
      tick_(loop, [this] { OnTick(); }),
      expiring_(loop, {[this](Instant) { return server_.Expire(BootNow()); }, [] { return Instant::max(); }}),
      resources_(loop, settings, log, [this] { UseResources(); }),
      server_(Options(settings, seed), resources_.Now()),
      socket_(loop, server_, settings.lease.idle_timeout, [this](BootInstant now) { Follow(now); }) {
  if (!settings.lease.parent.empty()) borrowing_.emplace(loop, server_, log, settings.lease.parent);
}

std::unique_ptr<Elector> Leasing::MakeElector(const std::string& address) {
  const auto& s = settings_.lease;
  const std::uint64_t token = server_.epoch() != 0 ? server_.epoch() : StartToken();    // it goes on, or begins
  switch (s.elector) {
    case LeaseElector::kNone:
      return std::make_unique<StaticElector>(address, address, token);
    case LeaseElector::kStatic:
      // Perhaps named there by fewer ways than it has.
      return std::make_unique<StaticElector>(lease::SameServer(s.master, address) ? address : s.master, address, token);
    case LeaseElector::kEtcd:
      break;
  }
  return std::make_unique<EtcdElector>(loop_, EtcdCluster::Of(s),
                                       EtcdElection::Candidate{s.etcd_key, address, s.etcd_ttl}, [this] { OnTick(); });
}

void Leasing::Resume(std::string_view kept) {
  if (elected() || kept.empty()) return;
  if (server_.Resume(kept)) {
    log_.Notice("leases: goes on with what is leased out");
  } else {
    log_.Warning("leases: what was kept is of another version: learning what is leased out");
  }
}

std::string Leasing::Keep() const {
  return elected() ? "" : kept_.empty() ? server_.Keep() : kept_;
}

void Leasing::Campaign(const std::string& address) {
  if (elector_ == nullptr) elector_ = MakeElector(address);
  elector_->Campaign();
  resources_.Start();
  expiring_.Start();
  tick_.StartNowAndEvery(kTick);
}

void Leasing::Resign(std::function<void()> done) {
  if (elector_ == nullptr) return done();
  elector_->Resign(std::move(done));
  Follow(BootNow());
}

// Brings the server's mastership up to the election's. What it may grant until is a question of time, and asked before
// every grant; so nothing depends on how soon this is called.
void Leasing::Follow(BootInstant now) {
  const ElectionState& state = elector_->state();
  if (state.token == 0) {
    if (server_.epoch() != 0) server_.Resign({});
  } else if (state.token != server_.epoch()) {
    ++terms_;
    server_.BecomeMaster({.epoch = state.token, .since = now, .until = state.valid_until, .former = state.former});
  } else {
    server_.ExtendMastership(state.valid_until);
  }
  // A host that just lost its mastership does not know its successor yet.
  static const std::string nobody;
  const std::string& master = state.token != 0 && !state.IsMaster(now) ? nobody : state.address;
  if (server_.master() != master) server_.SetMasterAddress(master);
}

void Leasing::OnTick() {
  const BootInstant now = BootNow();
  Follow(now);
  resources_.Follow(now);
  if (server_.Expire(now)) expiring_.Wake();
  SayElection();
  HoldParts(now);
  if (borrowing_) borrowing_->AskIfDue(now);
}

void Leasing::SayElection() {
  const ElectionState& state = elector_->state();
  const std::string trouble = elector_->trouble();
  const bool here = state.IsMaster(BootNow());
  std::string said = here                    ? fmt::format("this host is master, with token {}", state.token)
                     : state.token != 0      ? std::string("this host may not grant until etcd answers again")
                     : state.address.empty() ? std::string("nobody is known to be master")
                                             : "the master is " + state.address;
  if (said == said_) return;
  if (here || trouble.empty()) {
    log_.Notice("leases: {}", said);
  } else {
    log_.Warning("leases: {}; {}", said, trouble);
  }
  said_ = std::move(said);
}

void Leasing::UseResources() {
  server_.SetTemplates(resources_.Now(), BootNow(), resources_.awaited());
}

void Leasing::Reload() {
  UseResources();
  socket_.set_idle_timeout(settings_.lease.idle_timeout);
}

void Leasing::HoldParts(BootInstant now) {
  const auto divided = [](const lease::ResourceTemplate& how) { return how.source == lease::Source::kCapacity; };
  const auto& templates = server_.templates().list();
  if (part_of_ == nullptr || std::ranges::none_of(templates, divided)) return;
  for (const lease::ResourceStatus& r : server_.Resources(now)) {
    const double whole = r.how->capacity;
    if (!divided(*r.how) || whole <= 0) continue;
    const auto held = part_of_(r.resource, {r.wants / whole, r.has / whole});
    if (!held.has_value()) {
      if (std::exchange(without_part_, r.resource) != r.resource) {
        log_.Warning("leases: \"{}\" gets nothing: this host has no part of a tag of that name (share = \"capacity\")",
                     EscapeTag(r.resource));
      }
      continue;
    }
    const BootInstant until = std::min(held->until, now + r.how->lease_length * 2);    // as good as forever
    server_.SetHeld(r.resource, held->part * whole, held->share * whole, until, now);
  }
}

void Leasing::Leave(std::function<void()> done) {
  kept_ = Keep();
  Resign([this, done = std::move(done)] { socket_.Drain(done); });
}

void Leasing::Close() {
  tick_.Close();
  expiring_.Close();
  if (elector_ != nullptr) elector_->Close();
  resources_.Close();
  if (borrowing_) borrowing_->Close();
  socket_.Close();
}

LeaseStatus Leasing::Status(std::string_view resource) {
  LeaseStatus status;
  const BootInstant now = BootNow();
  if (elector_ == nullptr) return status;
  Follow(now);
  const ElectionState& state = elector_->state();
  status.elector = Name(settings_.lease.elector);
  status.now = now;
  status.here = server_.IsMaster(now);
  status.master = server_.master();
  status.token = state.token;
  if (state.token != 0 && state.valid_until != BootInstant::max()) status.valid = state.valid_until - now;
  status.trouble = elector_->trouble();
  status.resources_from = resources_.from();
  if (status.trouble.empty()) status.trouble = resources_.trouble();
  status.node = server_.id();
  status.level = settings_.lease.level;
  if (borrowing_) borrowing_->AddTo(status);
  status.resources = server_.Resources(now);
  if (!resource.empty()) status.holders = server_.Holders(resource, kHoldersShown);
  return status;
}

LeaseCounts Leasing::Counts() const {
  LeaseCounts counts;
  counts.lines = socket_.lines();
  counts.master = elector_ != nullptr && elector_->state().IsMaster(BootNow());
  counts.terms = terms_;
  if (borrowing_) borrowing_->AddTo(counts);
  counts.server = server_.counts();
  return counts;
}

}    // namespace dthrottle
