// How limits that operators have set reach every host, without sockets: a host passes what is new to some of its peers
// at once, and compares what it knows with one of them every second. So all hosts know all of it although a host hears
// only some, frames are lost, and hosts come and go; a host that joins gets the whole set.
// An owner of tags tells other sites in the same way, a crowd of their own.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/allowance.h"
#include "base/prng.h"
#include "bus/exchange.h"
#include "bus/tenant.h"
#include "feature/set_limits/limit_message.h"
#include "feature/set_limits/set_limits.h"

namespace dthrottle {

class Spreading {
 public:
  // Hosts that a host talks to: those of its site, and, if it owns tags, owners of other sites.
  enum Crowd : std::size_t { kPeers, kSites, kCrowds };

  static constexpr std::size_t kTold = 8;    // of a crowd, that hear of something new at once
  static constexpr Duration kCompareEvery = std::chrono::seconds(1);
  static constexpr std::size_t kSendersMax = 8192;    // with one more, all begin anew

  // The set must outlive it.
  Spreading(SetLimits& set, OperatorKeys keys, Prng prng) : set_(set), keys_(std::move(keys)), prng_(prng) {}

  // The operators have other keys: what others have signed is set aside. False: that has changed nothing.
  bool SetKeys(OperatorKeys keys, Duration wall);
  const OperatorKeys& keys() const { return keys_; }

  // Takes a limit as one that was set here. REQUIRES: it is genuine and under one of the keys, or local.
  SetLimits::Outcome Set(SignedLimit limit, Duration wall);

  // What a peer says. False: it says too much, and some of it was not looked at.
  bool OnFrame(const Tenant::Said& said, Transport& wire, Duration wall, Instant now);

  // Tells the crowd and compares what is due; `peers` are links to hosts of it that hear. Returns when to be called
  // next.
  Instant Tick(Crowd crowd, std::span<const LinkId> peers, Transport& wire, Instant now);

  // The limits that were taken since the last call.
  std::vector<SignedLimit> TakeNews() { return std::exchange(news_, {}); }
  bool any_news() const { return !news_.empty(); }

  const SetLimitCounts& counts() const { return counts_; }

 private:
  struct Back;
  // What one crowd is to hear.
  struct Due {
    std::vector<SetLimits::Name> untold{};
    Instant compare_at{};
    bool compared = false;    // with anybody, since the first of it is there
  };

  // Each sender has its own part of the signatures that are looked at and the frames that are answered, so none uses up
  // the others' time.
  struct Ear {
    Allowance checks{200, 2000}, answers{20, 40};
  };

  Ear& EarFor(std::string_view sender);
  void TakeLines(const std::vector<std::string>& lines, Ear& ear, Duration wall, Instant now);
  bool TakeLine(std::string_view line, Ear& ear, Duration wall, Instant now);
  void AnswerHave(const LimitMessage& message, const Back& back);
  LimitMessage Have(bool answer) const;
  template <class Send>
  void SendLimits(const std::vector<const SignedLimit*>& limits, Send&& send);

  SetLimits& set_;
  OperatorKeys keys_;
  Prng prng_;
  std::array<Due, kCrowds> due_;
  std::vector<SignedLimit> news_;
  std::map<std::string, Ear, std::less<>> ears_;    // by sender
  SetLimitCounts counts_;
};

}    // namespace dthrottle
