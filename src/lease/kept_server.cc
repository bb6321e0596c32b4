// What a lease server keeps for the next process of its node.
#include <utility>

#include "base/state.h"
#include "lease/server_resource.h"

namespace dthrottle::lease {

namespace {

constexpr std::uint32_t kKeptVersion = 4;
constexpr Duration kLearningMost = std::chrono::hours(24 * 366);

struct KeptResource {
  std::string name;
  std::optional<Lease> held;
  double share = 0, safe = 0;
  Epoch epoch = 0;
  BootInstant ask{};
  std::vector<Holder> holders;

  static void Fields(auto& state, auto& self) {
    state(self.name, self.held, self.share, self.safe, self.epoch, self.ask, self.holders);
    state.Check(IsName(self.name) && IsAmount(self.share) && self.safe <= kCapacityMax);
    state.Check(!self.held || IsAmount(self.held->capacity));
    for (const Holder& h : self.holders) {
      state.Check(IsName(h.id) && IsValid(std::nullopt, h.wants, h.has.capacity) && h.kind <= HolderKind::kServer);
      state.Check(IsAmount(h.share));
    }
  }
};

struct KeptServer {
  Mastership mastership;
  bool awaits_templates = false;
  std::vector<std::pair<std::string, Duration>> learning;    // by globs
  std::vector<KeptResource> resources;

  static void Fields(auto& state, auto& self) {
    state(self.mastership, self.awaits_templates, self.learning, self.resources);
    state.Check(self.mastership.epoch != 0 && self.mastership.since <= BootInstant::max() - kLearningMost);
    for (const auto& [glob, lasts] : self.learning) state.Check(lasts >= Duration::zero() && lasts <= kLearningMost);
  }
};

}    // namespace

std::string LeaseServer::Keep() const {
  if (!granting_) return {};
  KeptServer kept{mastership_, awaits_templates_, {}, {}};
  for (const ResourceTemplate& how : began_.list()) kept.learning.emplace_back(how.identifier_glob, how.learning());
  for (const ResourceMap* const map : {&resources_, &aside_}) {
    for (const auto& [name, r] : *map) {
      KeptResource& resource =
          kept.resources.emplace_back(KeptResource{name, r->held, r->share, r->safe, r->epoch, r->ask, {}});
      r->store.InOrder([&](const Holder& holder, const Demand&) {
        resource.holders.push_back(holder);
        return true;
      });
    }
  }
  return WriteState(kKeptVersion, kept);
}

bool LeaseServer::Resume(std::string_view bytes) {
  KeptServer kept;
  if (!ReadState(bytes, kKeptVersion, kept)) return false;
  std::vector<ResourceTemplate> learning;
  for (auto& [glob, lasts] : kept.learning) {
    learning.push_back({.identifier_glob = std::move(glob), .learning_mode_duration = lasts});
  }
  auto began = Templates::Make(std::move(learning));
  if (!began) return false;
  BecomeMaster(kept.mastership);
  if (!kept.awaits_templates) began_ = std::move(*began);
  awaits_templates_ = awaits_templates_ && kept.awaits_templates;
  for (const KeptResource& k : kept.resources) {
    Grant::Outcome why{};
    Resource* resource = Find(k.name, k.ask, why);
    if (resource == nullptr && why != Grant::Outcome::kNoTemplate) continue;
    if (resource == nullptr) {    // its template may come yet
      auto& aside = aside_[k.name];
      if (aside == nullptr) aside = New(k.name, k.ask);
      resource = aside.get();
    }
    resource->held = k.held;
    resource->share = k.share;
    resource->safe = k.safe;
    resource->epoch = k.epoch;
    for (const Holder& holder : k.holders) {
      if (HoldersWith(*resource) >= options_.clients_max) break;
      if (resource->store.Find(holder.kind, holder.id)) continue;
      const Store::Slot slot = resource->store.Put(holder.kind, holder.id, holder.wants);
      resource->store.Grant(slot, holder.has, holder.share, holder.asked);
      ++HoldersWith(*resource);
    }
  }
  return true;
}

}    // namespace dthrottle::lease
