#include "lab/lease_fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "lab/sampling.h"
#include "lab/world.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;
using lease::Claim;
using lease::Grant;
using lease::LeaseServer;

constexpr const char* kResource = "resource0";
constexpr double kRounding = 1e-9;    // relative: sums of leases are not exact

// What an elector and a network do for one node of the tree.
struct Node {
  std::string name;
  Node* parent = nullptr;
  std::unique_ptr<LeaseServer> server;
  std::uint64_t life = 0;    // of its master: what was planned for another one is void
};

struct Client {
  std::string name;
  Node* server = nullptr;
  double wants = 0, step = 0;
  double spike = 0;
  std::optional<Claim> has;
};

class LeaseFleet final : World {
 public:
  LeaseFleet(const LeaseScenario& scenario, std::uint64_t seed) : World(0, {}, seed), scenario_(scenario), prng_(seed) {
    Grow(nullptr, 0, "node");
    run_.learned = Seconds(scenario.resource.learning());
  }

  LeaseRun Run() {
    for (const auto& node : nodes_) Elect(*node);
    for (const auto& client : clients_) {
      In(Uniform(kStartWithin, prng_), [this, c = client.get()] { Refresh(*c); });
      In(scenario_.fluctuate_every, [this, c = client.get()] { Fluctuate(*c); });
    }
    Plan(scenario_.moments);
    if (scenario_.mishaps.every > 0ns) In(scenario_.mishaps.every, [this] { Mishap(); });
    In(scenario_.sample, [this] { Sample(); });
    World::Run(After(scenario_.lasts));
    for (const auto& node : nodes_) run_.short_answers += node->server->counts().shortfalls;
    return std::move(run_);
  }

 private:
  static constexpr Duration kStartWithin = 8s;
  static constexpr Duration kRetry = 1s;    // of a client that finds no master

  void In(Duration delay, std::function<void()> act) { At(now() + delay, std::move(act)); }
  BootInstant Now() const { return BootInstant(now().time_since_epoch()); }

  // ---- The tree ----

  void Grow(Node* parent, std::uint32_t level, const std::string& name) {
    nodes_.push_back(std::make_unique<Node>(Node{.name = name, .parent = parent, .server = {}}));
    Node* const node = nodes_.back().get();
    const bool leaf = level + 1 == scenario_.fan.size();
    lease::ResourceTemplate how = scenario_.resource;
    if (how.algorithm == lease::Algorithm::kStatic) how = Static(leaf);
    auto templates = lease::Templates::Make({how});
    DT_CHECK(templates.has_value());
    node->server = std::make_unique<LeaseServer>(
        lease::ServerOptions{.id = name, .level = level, .has_parent = parent != nullptr, .seed = prng_.Next()},
        std::move(*templates));
    for (std::uint32_t i = 0; i < scenario_.fan[level]; ++i) {
      const std::string below = fmt::format("{}.{}", name, i + 1);
      if (leaf) {
        clients_.push_back(std::make_unique<Client>(
            Client{.name = below, .server = node, .wants = scenario_.wants, .step = scenario_.wants, .has = {}}));
      } else {
        Grow(node, level + 1, below);
      }
    }
  }

  // A static capacity is that of each client, so leaves hand it out, and the servers before them divide what there is.
  lease::ResourceTemplate Static(bool leaf) const {
    lease::ResourceTemplate how = scenario_.resource;
    if (!leaf) how.algorithm = lease::Algorithm::kFairShare;
    if (leaf) {
      how.capacity /= std::accumulate(scenario_.fan.begin(), scenario_.fan.end(), 1.0, std::multiplies<>());
    }
    return how;
  }

  // ---- Masters ----

  void Elect(Node& node) {
    const lease::Epoch former = node.life;
    node.server->BecomeMaster({.epoch = ++node.life, .since = Now(), .former = former});
    if (node.parent != nullptr) Ask(node, node.life);
  }

  void Lose(Node& node, Duration lasts) {
    node.server->Resign("");
    In(lasts, [this, &node] {
      if (node.server->epoch() == 0) Elect(node);
    });
  }

  // A server refreshes everything at once, as the document's do, or tries again soon.
  void Ask(Node& node, std::uint64_t life) {
    if (node.server->epoch() != life) return;    // another master, or none
    LeaseServer& server = *node.server;
    for (const lease::ParentRequest& request : server.AskParent(Now())) {
      ++run_.refreshes;
      const lease::ServerResourceRequest asked{request.resource, request.outstanding, request.wants, request.has,
                                               request.learning && scenario_.tells_learning};
      const auto grants = node.parent->server->GetServerCapacity(node.name, {&asked, 1}, Now());
      if (grants) server.HearParent(request.resource, grants->front(), Now());
    }
    const BootInstant next = server.NextAsk();
    In(next == BootInstant::max() ? kRetry : std::max(next - Now(), kRetry), [this, &node, life] { Ask(node, life); });
  }

  // ---- Clients ----

  double Wants(const Client& client) const { return client.wants + client.spike; }

  void Refresh(Client& client) {
    ++run_.refreshes;
    if (client.has && client.has->expiry <= Now()) client.has.reset();
    const lease::ResourceRequest request{.resource = kResource, .wants = Wants(client), .has = client.has};
    const auto grants = client.server->server->GetCapacity(client.name, {&request, 1}, Now());
    Duration next = lease::RefreshInterval(scenario_.resource, Level());
    if (grants && grants->front().leased()) {
      const Grant& grant = grants->front();
      client.has = Claim{grant.lease.capacity, grant.lease.expiry, grant.epoch};
      if (grant.lease.refresh_interval > 0ns) next = grant.lease.refresh_interval;
    }
    In(std::max(next, kRetry), [this, &client] { Refresh(client); });
  }

  std::uint32_t Level() const { return static_cast<std::uint32_t>(scenario_.fan.size()) - 1; }

  void Fluctuate(Client& client) {
    const double step = (2 * Uniform(prng_) - 1) * scenario_.fluctuation * client.step;
    client.wants = std::max(0.0, client.wants + step);
    In(scenario_.fluctuate_every, [this, &client] { Fluctuate(client); });
  }

  // ---- Mishaps ----

  void Plan(const LeaseMoments& moments) {
    if (moments.masterless_for > 0ns) {
      In(moments.masterless_from, [this, gone = moments.masterless_for] {
        Note(fmt::format("{} has no master for {:.0f} s", nodes_.front()->name, Seconds(gone)));
        Lose(*nodes_.front(), gone);
      });
    }
    if (moments.jump_clients > 0) In(moments.jump_at, [this] { Jump(scenario_.moments); });
  }

  void Jump(const LeaseMoments& moments) {
    std::vector<Client*> others;
    for (const auto& client : clients_) others.push_back(client.get());
    for (std::uint32_t i = 0; i < moments.jump_clients; ++i) {
      const auto chosen = others.begin() + static_cast<std::ptrdiff_t>(prng_.Below(others.size()));
      (*chosen)->wants = moments.jump_to;
      Note(fmt::format("{} wants {:g}", (*chosen)->name, moments.jump_to));
      others.erase(chosen);
    }
  }

  void Mishap() {
    const LeaseMishaps& odds = scenario_.mishaps;
    const std::uint64_t drawn = prng_.Below(odds.spikes + odds.elections + odds.losses);
    if (drawn < odds.spikes) {
      Spike(*clients_[prng_.Below(clients_.size())]);
    } else {
      Node& node = *nodes_[prng_.Below(nodes_.size())];
      const bool election = drawn < odds.spikes + odds.elections;
      const Duration gone = election ? 0ns : Uniform(odds.masterless_max, prng_);
      Note(election ? fmt::format("{} has a new master", node.name)
                    : fmt::format("{} has no master for {:.0f} s", node.name, Seconds(gone)));
      if (node.server->epoch() != 0) Lose(node, gone);
    }
    In(odds.every, [this] { Mishap(); });
  }

  void Spike(Client& client) {
    const double more = scenario_.mishaps.spike;
    Note(fmt::format("{} wants {:g} more", client.name, more));
    client.spike += more;
    In(scenario_.mishaps.spike_lasts, [&client, more] { client.spike -= more; });
  }

  void Note(std::string what) { run_.incidents.push_back({Seconds(now().time_since_epoch()), std::move(what)}); }

  // ---- The truth ----

  void Sample() {
    LeaseSample sample{.seconds = Seconds(now().time_since_epoch()), .limit = scenario_.resource.capacity};
    sample.capacity = nodes_.front()->server->epoch() != 0 ? sample.limit : 0;
    for (const auto& client : clients_) {
      sample.wants += Wants(*client);
      if (client->has && client->has->expiry > Now()) sample.has += client->has->capacity;
    }
    run_.samples.push_back(sample);
    In(scenario_.sample, [this] { Sample(); });
  }

  const LeaseScenario& scenario_;
  Prng prng_;
  std::vector<std::unique_ptr<Node>> nodes_;    // the root first
  std::vector<std::unique_ptr<Client>> clients_;
  LeaseRun run_;
};

// The mean over the samples after learning.
template <class Ratio>
double Mean(const LeaseRun& run, Ratio ratio) {
  double sum = 0;
  std::size_t count = 0;
  for (const LeaseSample& sample : run.samples) {
    if (sample.seconds <= run.learned) continue;
    sum += ratio(sample);
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

bool Above(const LeaseSample& sample) {
  return sample.has > sample.limit * (1 + kRounding);
}

}    // namespace

std::span<const std::string_view> LeaseScenarios() {
  static constexpr std::array<std::string_view, 7> kNames{"one", "two", "three", "four", "five", "six", "seven"};
  return kNames;
}

LeaseScenario DocumentedScenario(const std::string& name) {
  LeaseScenario scenario{.name = name};
  scenario.resource = {
      .identifier_glob = kResource, .capacity = 500, .algorithm = lease::Algorithm::kFairShare, .refresh_interval = 8s};
  if (name == "one" || name == "two" || name == "three" || name == "four") {
    scenario.fan = {5};
    if (name == "four") scenario.fan = {1, 5};
    scenario.wants = 100;
    scenario.lasts = 5min;
    if (name == "two") scenario.moments = {.masterless_from = 2min, .masterless_for = 20s};
    if (name == "three") scenario.moments = {.masterless_from = 2min, .masterless_for = 70s};
    return scenario;
  }
  DT_CHECK(name == "five" || name == "six" || name == "seven");
  scenario.fan = {3, 3, 5};
  if (name == "six") scenario.moments = {.jump_at = 150s, .jump_clients = 2, .jump_to = 1000};
  if (name == "seven") scenario.mishaps.every = 1min;
  return scenario;
}

double LeaseRun::handed_out_of_wanted() const {
  return Mean(*this, [](const LeaseSample& s) { return std::min(1.0, s.has / std::min(s.wants, s.limit)); });
}

double LeaseRun::handed_out_of_limit() const {
  return Mean(*this, [](const LeaseSample& s) { return s.has / s.limit; });
}

std::size_t LeaseRun::samples_above() const {
  return static_cast<std::size_t>(std::count_if(samples.begin(), samples.end(), Above));
}

double LeaseRun::peak() const {
  double peak = 0;
  for (const LeaseSample& s : samples) peak = std::max(peak, s.has / s.limit);
  return peak;
}

double LeaseRun::mean_above() const {
  double sum = 0;
  for (const LeaseSample& s : samples) sum += Above(s) ? s.has / s.limit : 0;
  return sum == 0 ? 1 : sum / static_cast<double>(samples_above());
}

LeaseRun RunLeases(const LeaseScenario& scenario, std::uint64_t seed) {
  return LeaseFleet(scenario, seed).Run();
}

}    // namespace dthrottle::lab
