// The election of the master of the lease servers: at most one host at a time.
//
// An elector campaigns by itself once it is told to. What counts is a question to the clock at the moment of each
// grant, ElectionState::IsMaster(now), and no event: a process that was stopped and goes on asks again before it
// grants.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/time.h"

namespace dthrottle {

// What a host knows of the election.
struct ElectionState {
  std::uint64_t token = 0;      // of this host's own mastership, greater than any before it; 0: it is not master
  BootInstant valid_until{};    // of that, on the boot-time clock
  std::uint64_t former = 0;     // token of the master before; 0: nobody knows
  std::string address;          // where the master is, this host or another; empty: nobody knows

  bool IsMaster(BootInstant boot_now) const { return token != 0 && boot_now < valid_until; }
  friend bool operator==(const ElectionState&, const ElectionState&) = default;
};

class Elector {
 public:
  virtual ~Elector() = default;

  // Begins to campaign, and goes on until Resign.
  virtual void Campaign() = 0;

  virtual const ElectionState& state() const = 0;

  // Why the election goes badly, for people; empty if it does not.
  virtual std::string trouble() const { return {}; }

  // Is master no more from now on, tells the others if it was, and calls `done` once, when they know or will not hear.
  virtual void Resign(std::function<void()> done) = 0;

  // Closes what it has on the loop, which must run once more.
  virtual void Close() {}
};

// Master by configuration: the host that has the address of the master, for good. Nothing but the configuration of all
// hosts keeps two of them from granting. The token is `start`, which has to grow from one start of the master to the
// next.
class StaticElector final : public Elector {
 public:
  StaticElector(std::string master, const std::string& own_address, std::uint64_t start)
      : start_(master == own_address ? start : 0), state_{0, BootInstant::max(), 0, std::move(master)} {}

  void Campaign() override { state_.token = start_; }
  const ElectionState& state() const override { return state_; }
  void Resign(std::function<void()> done) override {
    state_.token = 0;
    done();
  }

 private:
  const std::uint64_t start_;
  ElectionState state_;
};

}    // namespace dthrottle
