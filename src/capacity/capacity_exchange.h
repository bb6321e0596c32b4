// The protocol by which hosts agree on their parts of a capacity, without sockets (GDRL eq (7) and (17) and its loss
// safety and best friends; protocol/capacity.md has the rules and why the parts never sum to more than the whole).
//
// Everything is in parts of a tag's capacity, so a ledger needs no unit and a small capacity divides as well as a large
// one: kWhole parts are C. Life, best friends and leases are per host; ledgers are per tag, and only tags with
// demand somewhere have any. A tag without a ledger here has the standing's `other` part.
//
// All its time is that of the boot clock: what a suspended host has is inherited by others meanwhile, and when it wakes it
// has to find its lease over, as after a pause of any other kind.
//
// One side faces the wire: OnMessage() and Transport. The other faces the limiter: SetDemand() in, standing() and
// TakeShares() out. The owner calls Tick() at least at the instants that it returns, and afterwards, as after
// OnMessage(), passes on what changed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "base/prng.h"
#include "base/time.h"
#include "capacity/capacity_settings.h"

namespace dthrottle {

inline constexpr std::size_t kCapacityFrameBytesMax = 64 * 1024;
inline constexpr std::string_view kCapacityFramePrefix = "DTC\2";    // tells its frames from those of reports

// How much of a tag is asked for here, in any unit: only demand / capacity matters.
struct TagDemand {
  CapacityKey key;
  double capacity = 0;    // C, requests/s; > 0
  double demand = 0;      // requests/s, served or not; 0: none any more
  // So much of this host's share is in use until it is said to be less, and is not given away: it has been leased out.
  Parts pinned = 0;
  std::uint32_t pin = 0;    // number of what is said of it, for TagShare to repeat
};

struct TagShare {
  CapacityKey key;
  Parts parts = 0;    // usable under a valid lease, reserve included
  // If something of the tag is pinned: what of `parts` would be given away by now if it were not, and the number of the
  // pin that neighbours' gifts go by.
  Parts blocked = 0;
  std::uint32_t pin = 0;
};

// What the limiter may use. A tag has the parts that TakeShares said last under this serial, or `other`.
// IMPORTANT: from `valid_until` on, on the query path, every tag has `reserve` only, whatever was said.
struct CapacityStanding {
  std::uint64_t serial = 0;    // another one: forget all shares that were taken before
  BootInstant valid_until = BootInstant::min();
  Parts reserve = 0;
  Parts other = 0;    // of each tag that TakeShares has not named, reserve included

  // How the whole is divided: what hosts move among them beyond their reserves, how many they are, and how many members
  // take no part and have `aside` each. For what is counted in whole units.
  Parts divided = 0, aside = 0;
  std::uint64_t hosts = 0, absent = 0;

  // After a change of generation: what has been taken for long out of the parts of before may be kept until then, and
  // nothing may be taken so out of the new ones before the other instant, when nobody keeps anything any more.
  BootInstant kept_until = BootInstant::min(), rests_until = BootInstant::min();
  friend bool operator==(const CapacityStanding&, const CapacityStanding&) = default;

  static void Fields(auto& state, auto& self) {
    state(self.serial, self.valid_until, self.reserve, self.other, self.divided, self.aside, self.hosts, self.absent,
          self.kept_until, self.rests_until);
  }
};

// REQUIRES: an implementation does not call the exchange back from within.
class CapacityTransport {
 public:
  virtual void Send(std::string_view peer, std::string_view frame) = 0;    // may be lost, late, repeated
  // Keeps `state`, at most kCapacityStateBytesMax, for Options::saved of the next life. On disk when it returns: what
  // is said afterwards depends on it. Rare: when a host dies or a generation begins.
  virtual void Save(std::string_view state) = 0;

 protected:
  ~CapacityTransport() = default;
};
inline constexpr std::size_t kCapacityStateBytesMax = 128 * 1024;

enum class MemberState {
  kUnknown,    // not heard since this host started
  kUp,
  kSilent,    // not heard for a lease
};
DT_NAMES(MemberState, "unknown", "up", "silent")

struct CapacityMember {
  std::string name;
  MemberState state{};
  Duration last_heard{};    // ago; negative: never
  bool neighbour = false;
  double weight = 0;    // of the link, if it is one
  bool witness = false;
  bool best_friend = false;    // it keeps this host's log
  bool differs = false;        // it said last that it has other members, neighbours, rules or reserve
};

// One edge of one tag, for people.
struct CapacityEdge {
  std::string neighbour;
  std::optional<double> indicator;    // the neighbour's, as it said last, of load / C
  Parts given = 0, received = 0;      // since this life of both
  Parts under_way = 0;                // of given, not yet known to have arrived
};

// Parts of one tag that hosts may use, as they said when they were asked last, within the time that frames take. What
// is under way then is in nobody's part.
struct CapacitySum {
  Parts parts = 0;
  std::size_t hosts = 0;    // that are in it, this one included
  Duration age{};           // since they were asked
};

struct CapacityTag {
  CapacityKey key;
  Parts parts = 0;                    // under a valid lease, reserve included
  double demand = 0;                  // as part of C
  std::optional<double> indicator;    // of load / C, if defined
  std::vector<CapacityEdge> edges;
};

struct CapacityCounts {
  std::uint64_t rounds = 0;
  std::uint64_t gifts = 0;                   // decided
  std::uint64_t sent = 0, sent_bytes = 0;    // frames
  std::uint64_t received = 0, received_bytes = 0;
  std::uint64_t junk = 0;    // not decodable or without sense
  std::uint64_t other_version = 0;
  std::uint64_t other_settings = 0;    // of hosts with other members, rules or reserve
  std::uint64_t strangers = 0;         // from nobody who is a member
  std::uint64_t lapses = 0;            // of this host's lease
  std::uint64_t fenced = 0;            // times this host was taken for dead and began anew
  std::uint64_t inherited = 0;         // hosts
  std::uint64_t resets = 0;            // generations joined
  std::uint64_t tags = 0;              // ledgers now
  std::uint64_t tags_refused = 0;      // for want of room; they stay at `other`
  std::uint64_t overdrawn = 0;         // times that members had more than the whole of a tag: one of them lies
  std::uint64_t generation = 0;        // number, of the current one; 0: none yet
  std::uint64_t epoch = 0;             // of this host
  bool leased = false;
  std::uint64_t seats = 0;    // equal shares held of tags without a ledger: own and inherited
};

struct ExchangeState;

class CapacityExchange {
 public:
  struct Options {
    std::string name;                 // of this host
    std::uint64_t incarnation = 1;    // greater at each start, below 2^48
    std::string saved = {};           // what CapacityTransport::Save got last, in any earlier life; empty: nothing ever
    std::string life = {};            // of Life(): goes on with it, if it can. Given to one exchange only, in this boot
  };

  // The transport must outlive it.
  // REQUIRES: CheckCapacitySettings(settings, options.name).
  CapacityExchange(Options options, CapacitySettings settings, CapacityTransport& transport, Prng prng,
                   BootInstant now);
  ~CapacityExchange();

  // After a reload. Other members, rules or reserve lead to a new generation as soon as the hosts agree.
  void SetSettings(CapacitySettings settings);

  // Replaces what was said of these tags. Say it when it changes by more than a little; a tag with demand 0 has its
  // part used up by others and is forgotten with the next generation.
  void SetDemand(std::span<const TagDemand> demands);

  // From the wire. `proven` is the name that the connection proves, empty where nothing proves it; the frame has to
  // name the same sender, and may be anything else.
  void OnMessage(std::string_view proven, std::string_view frame, BootInstant now);

  // Rounds, leases, repairs. Returns when it wants to be called next if nothing else happens.
  BootInstant Tick(BootInstant now);

  // ---- Toward the limiter, after each of the above ----

  CapacityStanding standing() const;
  // Appends the tags whose share changed since they were taken last, at most `most`; true if there are more.
  bool TakeShares(std::vector<TagShare>& changed, std::size_t most = 4096);

  // ---- Over a restart ----

  // All of this life, for Options::life of another exchange, which may not exist before this one has said its last.
  // Empty before the first generation.
  std::string Life() const;
  bool resumed() const { return resumed_; }    // it goes on with a life

  // ---- For people ----

  CapacityCounts Counts(BootInstant now) const;
  std::vector<CapacityMember> Members(BootInstant now) const;
  std::optional<CapacityTag> Inspect(const CapacityKey& key) const;    // none: no ledger, so `other`
  // The sum of members that have answered. Members are asked in the rounds after this, as long as it is called now and
  // then.
  CapacitySum Sum(const CapacityKey& key, BootInstant now);

 private:
  friend struct ExchangeState;

  std::unique_ptr<ExchangeState> state_;
  bool resumed_ = false;
};

}    // namespace dthrottle
