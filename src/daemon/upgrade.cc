// How the daemon becomes another program without anybody noticing: same process, same sockets, same table.
//
// The program at the path of this one is asked whether it would start with the settings and could take over. Then they
// are put in force here, so that it finds the table made under the rules that it is going to read, and the peers are
// told what they do not know yet. All of that takes time, in which queries are answered as ever. What a query waits for
// is the rest: every thread answers what it has read and stops, execve, and the start of the other program. What
// arrives meanwhile stays in the kernel.
#include <fcntl.h>

#include <latch>
#include <utility>

#include "base/check.h"
#include "daemon/daemon.h"
#include "daemon/worker.h"
#include "io/clock.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

// What a program may take to check the settings: 10^5 overrides take a good second on a slow machine.
constexpr Duration kCheckPatience = std::chrono::seconds(20);

// Front ends whose connections go over beside those of queries. A connection to the admin socket ends.
constexpr std::string_view kStreamFronts[] = {"resp", "lease", "http"};

}    // namespace

// While it lives unreleased, no query thread does anything.
struct Daemon::Held {
  explicit Held(std::size_t threads) : connections(threads), arrived(static_cast<std::ptrdiff_t>(threads)) {}

  std::vector<std::vector<HandedConnection>> connections;    // by thread
  std::latch arrived;
  std::latch released{1};
};

void Daemon::Upgrade(std::function<void(const Result<std::string>&)> done) {
  if (stopping_) return done(Fail("the daemon is stopping"));
  if (upgrading_ != Upgrading::kNo) return done(Fail("an upgrade is under way"));
  upgrading_ = Upgrading::kChecking;
  upgrade_asked_ = std::move(done);
  log_.Notice("upgrade: checking {}", launch_.program);
  const std::vector<std::string> check = {launch_.program, "--check", path_, "--handover",
                                          std::to_string(kHandoverVersion)};
  const SignalsBlocked blocked;
  check_ = std::make_unique<Child>(&loop_, launch_.program, check, kCheckPatience,
                                   [this](const ChildOutcome& outcome) { OnUpgradeChecked(outcome); });
}

void Daemon::OnUpgradeChecked(const ChildOutcome& outcome) {
  check_.reset();
  if (!outcome.succeeded) {
    const std::string why = outcome.said.substr(0, outcome.said.find_last_not_of('\n') + 1);
    return EndUpgrade(Fail(launch_.program + ": " + (why.empty() ? "it cannot take over" : why)));
  }
  Reload([this](const ReloadOutcome& reloaded) {
    if (upgrading_ != Upgrading::kChecking) return;
    if (!reloaded.in_force) log_.Warning("upgrade: only the new program can read the settings");
    upgrading_ = Upgrading::kSettling;    // PutInForce goes on
  });
}

// Called whenever something that has to be over first is.
void Daemon::ContinueUpgrade() {
  if (upgrading_ != Upgrading::kSettling || reloading_ || limiter_->reshaping()) return;
  // A mastership that was elected is given away; another host may grant meanwhile.
  if (leasing_ != nullptr && leasing_->elected() && !std::exchange(left_leases_, true)) {
    upgrading_ = Upgrading::kLeavingPeers;
    return leasing_->Resign([this] {
      tasks_->Post([this] {
        if (upgrading_ != Upgrading::kLeavingPeers) return;
        upgrading_ = Upgrading::kSettling;
        ContinueUpgrade();
      });
    });
  }
  // The peers come last: for them this host is away from now on.
  if (peering_ != nullptr && !std::exchange(left_peers_, true)) {
    upgrading_ = Upgrading::kLeavingPeers;
    return peering_->Leave([this] {
      if (upgrading_ != Upgrading::kLeavingPeers) return;
      upgrading_ = Upgrading::kSettling;
      ContinueUpgrade();
    });
  }
  // Signals that were on their way reach their handlers in the next turn; later ones wait for the other program.
  upgrading_ = Upgrading::kGoing;
  BlockOrders(true);
  tasks_->Post([this] { tasks_->Post([this] { GoOver(); }); });
}

void Daemon::GoOver() {
  if (upgrading_ != Upgrading::kGoing) return BlockOrders(false);    // a signal to stop came last
  if (reloading_ || limiter_->reshaping()) {
    BlockOrders(false);
    upgrading_ = Upgrading::kSettling;
    return;
  }
  service_.Reloading(Now());
  if (upgrade_asked_ != nullptr) std::exchange(upgrade_asked_, nullptr)(launch_.program);
  const std::shared_ptr<Held> held = HoldQueries();
  const Handover handover = WhatIsLeft(*held);
  log_.Notice("upgrade: {} connections and {} listening sockets go over to {}", handover.connections.size(),
              handover.listeners.size(), launch_.program);
  std::vector<std::string> args = {launch_.program};
  args.insert(args.end(), launch_.args.begin(), launch_.args.end());
  const Error error = BecomeProgram(launch_.program, args, handover);

  held->released.count_down();
  workers_.front()->server->Release();
  for (const std::string_view front : kStreamFronts) {
    if (StreamServer* const server = FrontServer(front)) server->Release();
  }
  BlockOrders(false);
  EndUpgrade(tl::unexpected(error));
}

// Every thread answers what it has read, and then does nothing until it is released or gone. The main thread's own
// connections are held as long as this function's caller does not return.
std::shared_ptr<Daemon::Held> Daemon::HoldQueries() {
  const auto held = std::make_shared<Held>(workers_.size());
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    workers_[i]->Do([held, i, server = workers_[i]->server.get()] {
      held->connections[i] = server->Hold();
      held->arrived.count_down();
      held->released.wait();
      server->Release();
    });
  }
  held->connections[0] = workers_[0]->server->Hold();
  for (const std::string_view front : kStreamFronts) {
    StreamServer* const server = FrontServer(front);
    if (server == nullptr) continue;
    for (HandedConnection& c : server->Hold(front)) held->connections[0].push_back(std::move(c));
  }
  held->arrived.arrive_and_wait();
  return held;
}

// Null: nothing listens for it.
StreamServer* Daemon::FrontServer(std::string_view front) {
  if (front == "resp") return resp_.get();
  if (front == "http") return http_.get();
  if (front == "lease" && leasing_ != nullptr) return &leasing_->lines();
  return nullptr;
}

// Each part of the daemon leaves what it has in a section of its own key, and takes it by that key at the next start.
Handover Daemon::WhatIsLeft(Held& held) {
  Handover handover;
  handover.held_at = Now();
  for (const Listening& l : listeners_) handover.listeners.push_back({l.listener->fd(), l.key, l.address});
  handover.sections = KeptSections();
  handover.sections.push_back({"table", region_->nameless_fd(), limiter_->table().Notes()});
  for (auto& connections : held.connections) {
    for (HandedConnection& c : connections) handover.connections.push_back(std::move(c));
  }
  return handover;
}

// What the next program goes on with, and the next start after an orderly stop.
std::vector<HandedSection> Daemon::KeptSections() const {
  std::vector<HandedSection> sections;
  if (peering_ != nullptr) sections.push_back({"peers", -1, peering_->Kept()});
  if (leasing_ != nullptr) sections.push_back({"leases", -1, leasing_->Keep()});
  return sections;
}

// It does not come about.
void Daemon::EndUpgrade(const Result<std::string>& outcome) {
  upgrading_ = Upgrading::kNo;
  check_.reset();
  log_.Error("upgrade: {}; this program carries on", outcome.error().message);
  if (upgrade_asked_ != nullptr) std::exchange(upgrade_asked_, nullptr)(outcome);
  if (stopping_) return;
  if (std::exchange(left_peers_, false)) ReturnToPeers();
  if (std::exchange(left_leases_, false)) CampaignForLeases();
  service_.Ready("The last upgrade was refused: " + outcome.error().message);
}

}    // namespace dthrottle
