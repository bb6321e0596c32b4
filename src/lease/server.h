// A lease server without sockets and clocks: who holds how much of which resource, and until when.
//
// A front end calls GetCapacity for every request of a client and GetServerCapacity for one of a server, and sends back
// what it gets; everything else follows from `now`. Only the master of a node answers. A new master knows nothing of
// the leases that are out; so it begins in learning mode, in which it gives everybody what they had, until every lease
// of its predecessor has been refreshed or has expired (Doorman "On learning mode").
//
//     LeaseServer server(options, templates);
//     server.BecomeMaster({.epoch = revision, .since = now, .until = now + ttl, .former = former_revision});
//     if (auto grants = server.GetCapacity("host:4711", requests, now)) { ... } else { redirect to server.master() }
//
// A server with a parent is a lease client itself: when NextAsk() has come, send AskParent() and give every answer to
// HearParent(). It hands out only what it holds, and for no longer.
//
// A request costs O(log clients). Not for several threads.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lease/lease.h"
#include "lease/name.h"
#include "lease/resource.h"
#include "lease/store.h"

namespace dthrottle::lease {

struct ServerOptions {
  std::string id;             // of the node, not of the process: a new master asks the parent under the same one
  std::uint32_t level = 0;    // 0: the root
  bool has_parent = false;    // capacity comes from there, and not from the templates
  // When its own lease has ended without news from the parent, it goes on with the safe capacity that came with it; the
  // document's servers have nothing then.
  bool falls_to_safe = false;
  Duration min_request_interval = std::chrono::seconds(1);
  std::size_t clients_max = 200'000;    // of all resources together; servers count as one
  std::size_t resources_max = 10'000;
  std::uint64_t seed = 0;    // random, so that nobody can choose how the store is balanced
  bool awaits_templates = false;    // the first ones stand in for others, which SetTemplates is to bring
};

// The right to grant.
struct Mastership {
  Epoch epoch = 1;
  BootInstant since{};                       // when the election was won
  BootInstant until = BootInstant::max();    // from then on nothing is granted, unless it is extended
  // The epoch of the master before. Claims of another one are held to be no better than the safe capacity: such a
  // client has missed a whole mastership, or knows no epochs. 0: unknown; then any epoch below ours may be its, since
  // what one client claims says nothing about the claim of another.
  Epoch former = 0;

  static void Fields(auto& state, auto& self) { state(self.epoch, self.since, self.until, self.former); }
};

// What happened, ever.
struct ServerCounts {
  std::uint64_t requests = 0;    // for one resource each, of clients and servers
  std::uint64_t too_soon = 0;
  std::uint64_t no_template = 0;
  std::uint64_t honoured = 0;    // though there is no template
  std::uint64_t full = 0;    // refused for clients_max or resources_max
  std::uint64_t invalid = 0;
  std::uint64_t not_master = 0;    // calls
  std::uint64_t expired = 0;       // leases that nobody refreshed
  std::uint64_t released = 0;
  std::uint64_t capped_claims = 0;
  std::uint64_t stale_grants = 0;      // of the parent, of a smaller epoch than that of the lease that is held
  std::uint64_t shortfalls = 0;        // times that what is leased out came to be more than what is held
};

// For `leases` on the admin socket.
struct ResourceStatus {
  std::string resource;
  const ResourceTemplate* how = nullptr;    // valid until the next SetTemplates
  double capacity = 0;                      // held; 0 where the server's own lease has expired
  std::optional<BootInstant> capacity_expiry{};
  std::string_view from;        // whom capacity is from: "settings", "capacity", "parent", or "safe": it is silent
  double wants = 0, has = 0;    // of all clients together
  double shortfall = 0;         // by how much has is above capacity
  std::uint64_t holders = 0;    // clients and servers
  std::uint64_t clients = 0;    // those behind servers counted, and not the servers
  double safe_capacity = 0;
  std::optional<BootInstant> learning_until{};    // none: not in learning mode
};

struct HolderStatus {
  std::string id;
  bool is_server = false;
  std::int64_t priority = 0;    // of a client
  std::uint64_t clients = 1;
  double wants = 0;
  Lease has;
};

class LeaseServer {
 public:
  LeaseServer(ServerOptions options, Templates templates);
  ~LeaseServer();

  // ---- Mastership ----

  // From now on this is the master, with empty state.
  void BecomeMaster(const Mastership& mastership);
  // The election has been won again, or a keepalive been answered.
  void ExtendMastership(BootInstant until) { mastership_.until = until; }
  // Not the master any more: state is deleted. `address`: who is, empty if nobody knows.
  void Resign(std::string address);
  // All that is leased out, and the mastership under which it is, for the next process of this node on this boot.
  // Empty: this is not the master.
  std::string Keep() const;
  // Is the master that Keep() was called on, with its leases. False, and nothing has changed, if `kept` is of another
  // version or makes no sense. Resources and holders beyond the bounds of now are left out. A resource without a
  // template is as one that has lost it.
  bool Resume(std::string_view kept);

  // What clients are to be told, also while this is the master.
  void SetMasterAddress(std::string address) { master_ = std::move(address); }

  bool IsMaster(BootInstant now) const { return granting_ && now < mastership_.until; }
  Epoch epoch() const { return granting_ ? mastership_.epoch : 0; }
  const std::string& master() const { return master_; }
  const std::string& id() const { return options_.id; }

  // ---- What clients and servers ask. nullopt: not the master ----

  // One grant for every request, in their order.
  std::optional<std::vector<Grant>> GetCapacity(std::string_view client, std::span<const ResourceRequest> requests,
                                                BootInstant now);
  std::optional<std::vector<Grant>> GetServerCapacity(std::string_view server,
                                                      std::span<const ServerResourceRequest> requests, BootInstant now);
  // Forgets what a client, or a server, holds of these; false: not the master.
  bool ReleaseCapacity(HolderKind kind, std::string_view holder, std::span<const std::string_view> resources,
                       BootInstant now);

  // ---- As a client of the parent ----

  // When to ask the parent next; max(): never, as for a root or where nobody has asked for anything yet.
  BootInstant NextAsk() const;
  // What to ask for every resource that somebody here wants. The next time comes after a refresh interval, or as soon
  // as HearParent says so.
  std::vector<ParentRequest> AskParent(BootInstant now);
  // It did not answer: NextAsk() is now.
  void AskParentAgain(BootInstant now);
  // False: it is of a smaller epoch than the lease that is still held, and was dropped.
  bool HearParent(std::string_view resource, const Grant& grant, BootInstant now);
  // The same for resources with Source::kCapacity: this host holds so much until then, and may divide `share` of it.
  void SetHeld(std::string_view resource, double capacity, double share, BootInstant expiry, BootInstant now);

  // ---- Settings and inspection ----

  // New settings; every holder gets to know of them at its next request. A resource without a template any more is
  // refused; what is leased out of it counts again if it has a template before that has ended. Learning mode ends when
  // it was to end as mastership began, or sooner where learning_mode_duration is shorter now. Templates that were
  // awaited count as those of the beginning; `stand_in`: these are still not the ones, if any are awaited.
  void SetTemplates(Templates templates, BootInstant now, bool stand_in = false);
  const Templates& templates() const { return templates_; }

  // Drops what has expired. Every request does so for the resource that it asks for. Where very many end together, some
  // are dropped at a time, and true says that there are more. What is left counts as leased out until then, but its
  // holder comes as a new one.
  bool Expire(BootInstant now);

  std::vector<ResourceStatus> Resources(BootInstant now);
  // The holders of one resource, at most `most`, in the order in which their leases expire.
  std::vector<HolderStatus> Holders(std::string_view resource, std::size_t most) const;
  const ServerCounts& counts() const { return counts_; }

 private:
  struct Resource;
  struct Held;
  struct Asked;
  using ResourceMap = std::map<std::string, std::unique_ptr<Resource>, std::less<>>;

  Resource* Find(std::string_view name, BootInstant now, Grant::Outcome& why);
  Held HeldBy(const Resource& resource, BootInstant now) const;
  void BeginLearning();
  Duration LongestLearning() const;
  BootInstant LearnsUntil(std::string_view name, const ResourceTemplate& how) const;
  bool IsLearning(const Resource& resource, BootInstant now) const;
  double SupposedWants(std::string_view client, std::string_view resource, BootInstant now) const;
  double SafeCapacity(const Resource& resource, BootInstant now) const;
  bool IsFormer(const Claim& claim) const;
  Grant Answer(HolderKind kind, std::string_view id, const Asked& asked, BootInstant now);
  Grant Learned(const Resource& resource, Store::Slot slot, const Asked& asked, BootInstant now);
  Grant Kept(const Resource& resource, Store::Slot slot, BootInstant now);
  Grant Divided(const Resource& resource, Store::Slot slot, const Asked& asked, BootInstant now);
  void Forget();
  std::unique_ptr<Resource> New(std::string_view name, BootInstant ask) const;
  std::size_t& HoldersWith(const Resource& resource);
  void PutAside(std::unique_ptr<Resource> resource);
  bool Expire(Resource& resource, BootInstant now, std::size_t least = 0);

  ServerOptions options_;
  Templates templates_;
  bool awaits_templates_;
  Templates began_;    // with these globs and times of learning the mastership
  bool granting_ = false;
  Mastership mastership_;
  std::string master_;
  ResourceMap resources_;
  ResourceMap aside_;    // without a template, until what is leased out of them has ended
  std::size_t holders_ = 0, holders_aside_ = 0;
  BootInstant dropped_at_{};       // expired leases, last
  std::size_t dropped_then_ = 0;
  ServerCounts counts_;
};

}    // namespace dthrottle::lease
