#include "daemon/upgrade.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "io/clock.h"
#include "io/handover.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

// What a program may take to check the settings: 10^5 overrides take a good second on a slow machine.
constexpr Duration kCheckPatience = std::chrono::seconds(20);

}    // namespace

void Upgrade::Ask(Done done) {
  if (stopping_) return done(Fail("the daemon is stopping"));
  if (step_ != Step::kNone) return done(Fail("an upgrade is under way"));
  step_ = Step::kChecking;
  asked_ = std::move(done);
  const std::string& program = host_.launch.program;
  host_.log.Notice("upgrade: checking {}", program);
  const std::vector<std::string> check = {program, "--check", host_.path, "--handover",
                                          std::to_string(kHandoverVersion)};
  const SignalsBlocked blocked;
  ChildCommand command{program, check, kCheckPatience, {}};
  command.variables = {host_.listens()};
  check_ = std::make_unique<Child>(host_.loop, command, [this](const ChildOutcome& outcome) { OnChecked(outcome); });
}

void Upgrade::OnChecked(const ChildOutcome& outcome) {
  check_.reset();
  if (!outcome.succeeded) {
    const std::string why = outcome.said.substr(0, outcome.said.find_last_not_of('\n') + 1);
    return GiveUp({host_.launch.program + ": " + (why.empty() ? "it cannot take over" : why)});
  }
  host_.reloading.Ask([this](const ReloadOutcome& reloaded) {
    if (step_ != Step::kChecking) return;
    in_force_ = reloaded.in_force;
    if (!in_force_) host_.log.Warning("upgrade: only the new program can use the settings");
    step_ = Step::kSettling;    // the reload calls Continue
  });
}

// The parts leave in the opposite order of their start, so peers hear of it last: for them this host is away from now
// on.
void Upgrade::Continue() {
  if (step_ != Step::kSettling || host_.reloading.busy()) return;
  if (left_ < host_.parts.size()) return LeaveNext();
  // Signals that were on their way reach their handlers in the next turn; later ones wait for the other program.
  step_ = Step::kGoing;
  BlockOrders(true);
  host_.tasks.Post([this] { host_.tasks.Post([this] { GoOver(); }); });
}

void Upgrade::LeaveNext() {
  step_ = Step::kLeaving;
  Part* const part = host_.parts[host_.parts.size() - ++left_];
  part->Leave([this] {
    host_.tasks.Post([this] {
      if (step_ != Step::kLeaving) return;
      step_ = Step::kSettling;
      Continue();
    });
  });
}

void Upgrade::GoOver() {
  if (step_ != Step::kGoing) return BlockOrders(false);    // a signal to stop came last
  if (host_.reloading.busy()) {
    BlockOrders(false);
    step_ = Step::kSettling;
    return;
  }
  const std::string& program = host_.launch.program;
  host_.service.Reloading(Now());
  if (asked_ != nullptr) std::exchange(asked_, nullptr)(program);
  Handover handover;
  for (FrontEnd* const front : host_.front_ends) front->Hold(handover);
  if (const std::size_t closed = DropOversized(handover); closed > 0) {
    host_.log.Warning("upgrade: {} connections hold too much to go over, and are closed", closed);
  }
  handover.held_at = Now();
  Handover rest = host_.left(!in_force_);
  handover.listeners = std::move(rest.listeners);
  for (HandedSection& section : rest.sections) handover.sections.push_back(std::move(section));
  host_.log.Notice("upgrade: {} connections and {} listening sockets go over to {}", handover.connections.size(),
                   handover.listeners.size(), program);
  std::vector<std::string> args = {program};
  args.insert(args.end(), host_.launch.args.begin(), host_.launch.args.end());
  const Error error = BecomeProgram(program, args, handover);

  for (FrontEnd* const front : host_.front_ends) front->Release();
  BlockOrders(false);
  GiveUp(error);
}

void Upgrade::Stop() {
  stopping_ = true;
  if (step_ != Step::kNone) GiveUp({"the daemon is stopping"});
}

// It does not come about, and the parts that have left come back. What a program says of its settings may have several
// lines; each is one of the log.
void Upgrade::GiveUp(const Error& why) {
  step_ = Step::kNone;
  check_.reset();
  for (std::string_view rest = why.message; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string_view end = rest.empty() ? "; this program carries on" : "";
    host_.log.Say(LogLevel::kError, fmt::format("upgrade: {}{}", line, end));
  }
  if (asked_ != nullptr) std::exchange(asked_, nullptr)(tl::unexpected(why));
  if (stopping_) return;
  for (; left_ > 0; --left_) host_.parts[host_.parts.size() - left_]->Return();
  host_.service.Ready("The last upgrade was refused: " + why.message);
}

}    // namespace dthrottle
