// What really happened, which nobody inside the simulation knows: every hit, wherever it was served, at its true time.
//
// The ledger answers two questions. What would a bucket say that heard of every hit the moment it was served: the level
// that all hosts must show when all is quiet? And which hits that were served elsewhere has a host not been told of, or
// been told of twice? It keeps account of tags that queries name, and of those that are charged with them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bucket/bucket.h"
#include "bus/entries.h"
#include "lab/clock.h"
#include "rule/rulebook.h"

namespace dthrottle::lab {

using TagNumber = std::uint32_t;

// All that is known of one tag that has a limit.
struct Account {
  std::string tag;
  Shape shape{};
  bool shared = false;
  bool exempt = false;    // has no limit: mode "off"
  std::vector<TagNumber> charged{};    // with it, by Rule::also of its rule; those that have a limit
  std::uint64_t asked = 0, served = 0;       // tokens
  std::uint64_t gone = 0;                    // of them, with a table before a report could carry them
  std::uint64_t ideal = 0;                   // tokens that one bucket for all would have served
  std::uint32_t in_flight = 0;                 // places; 0: any number
  std::uint32_t places = 0, places_max = 0;    // taken on all hosts, now and at most
  double overused = 0;    // the most that was used beyond burst + rate x time, as a part of that; where there are holds
  std::uint64_t quota = 0;      // tokens of a period; 0: any number
  std::uint64_t spent_max = 0;    // of it, in the period with most
  std::vector<std::uint64_t> served_on;      // by host
  std::vector<std::uint64_t> reported_by;    // by host
  std::vector<std::uint64_t> debited_on;     // by host, for what others served

  Tokens Level(WorldTime now) const;

  // How long the bucket has been short of full, or had been when it was full again: what clocks that drift disagree on.
  Duration Busy(WorldTime now) const;

  // Tokens served elsewhere, and not gone, that `host` has not been told of; negative if it was told twice.
  std::int64_t Missing(std::uint32_t host) const;

 private:
  friend class Ledger;
  void Use(std::uint64_t tokens, WorldTime now);

  void Spend(std::uint64_t tokens);

  std::uint16_t calendar_ = 0;
  Duration period_ends_{};    // of the quota, by the date
  std::uint64_t spent_ = 0;      // in it
  double used_ = 0;               // tokens that were not held, or were used of what was
  WorldTime asked_since_{};
  Ticks full_at_ = 0;         // with all hits that were served, also those that one bucket would have refused
  WorldTime full_until_{};    // began to be short of full
};

class Ledger {
 public:
  // `wall` must outlive it.
  Ledger(std::shared_ptr<const Rulebook> rules, std::size_t hosts, const WallClock& wall)
      : rules_(std::move(rules)), hosts_(hosts), wall_(wall) {}

  // REQUIRES: the tag has a limit.
  TagNumber Open(std::string_view tag);

  // Calls use(TagNumber) for the tag, then for each tag that is charged with it.
  template <class Use>
  void ForEachPaying(TagNumber tag, Use&& use) const {
    use(tag);
    for (const TagNumber charged : accounts_[tag].charged) use(charged);
  }

  // A query was to pay so much of the tag. `ideally`: one bucket for all has served it.
  void Asked(TagNumber tag, Cost cost, bool ideally, WorldTime now);
  // `held`: what is used of it is known when it is settled.
  void Served(TagNumber tag, std::uint32_t host, Cost cost, WorldTime now, bool held = false);

  // So many of `cost` tokens that were held have been used.
  void Settled(TagNumber tag, std::uint32_t host, Cost cost, Cost used, WorldTime now);
  // So many tokens of a hold are used that nobody is charged, as it has come back.
  void UsedLate(TagNumber tag, Cost used, WorldTime now) { accounts_[tag].Use(used, now); }
  void Entered(TagNumber tag);
  void Left(TagNumber tag) { --accounts_[tag].places; }

  void Reported(std::uint32_t host, const Entries& entries);
  void Debited(std::uint32_t host, const Entries& entries);

  // The table of a host is gone, and with it what it had not reported: nobody can know of that any more.
  void Wiped(std::uint32_t host);

  const Account& account(TagNumber tag) const { return accounts_[tag]; }
  const std::deque<Account>& accounts() const { return accounts_; }

  // Entries about tags that nobody ever asked about, and moments in which a host had been told of more than there was.
  std::uint64_t invented() const { return invented_; }
  std::uint64_t told_twice() const { return told_twice_; }

 private:
  Account* Find(std::string_view tag);
  Account& At(TagNumber tag, WorldTime now);

  std::shared_ptr<const Rulebook> rules_;
  std::size_t hosts_;
  const WallClock& wall_;
  std::deque<Account> accounts_;
  std::unordered_map<std::string_view, TagNumber> numbers_;    // views into accounts_
  std::uint64_t invented_ = 0, told_twice_ = 0;
};

}    // namespace dthrottle::lab
