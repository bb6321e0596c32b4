// The inside of a CapacityExchange, for its sources only: exchange_alive.cc, exchange_audit.cc, exchange_gifts.cc,
// exchange_log.cc, exchange_heir.cc, exchange_generation.cc, exchange_resume.cc, and capacity_exchange.cc for its face
// and its clock.
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capacity/ablation.h"
#include "capacity/attempt.h"
#include "capacity/capacity_message.h"
#include "capacity/client_log.h"
#include "capacity/gain.h"
#include "capacity/leader_trust.h"
#include "capacity/ledgers.h"
#include "capacity/parts_audit.h"
#include "capacity/settling.h"
#include "capacity/share_sums.h"
#include "capacity/witness.h"

namespace dthrottle {

inline constexpr int kGiftShareBits = 12;           // a gift is at least this power of two less than an equal share
inline constexpr int kSweepPatience = 10;           // times the patience, at least: between generations that make room
inline constexpr int kLostSeatPatience = 3;         // in times that it takes to call a life over
inline constexpr std::size_t kRecordsFactor = 2;    // of tags_max: ledgers with inherited ones; records of a client

// REQUIRES: names ascend.
inline bool IsIn(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::binary_search(names, name);
}

struct ExchangeState {
  // Frames under way, with what was said in them.
  struct Flight {
    std::uint64_t sequence;
    Instant sent;
    std::vector<std::pair<std::uint32_t, Parts>> said;    // ledger, sum of gifts
  };

  // Another member, of the settings in force or of those to come.
  struct Peer {
    explicit Peer(std::string_view its_name) : name(its_name) {}

    const std::string name;
    std::optional<Instant> heard;
    std::uint64_t digest = 0, generation = 0, epoch = 0;    // as it said last
    bool wishes = false;                                    // for a new generation
    MemberBits seats;
    Instant epoch_since = Instant::min();
    // As a witness for us.
    Instant granted_until = Instant::min();
    std::uint64_t granted_binding = 0;
    LeaderTrust trust;                 // as the witness that begins generations
    std::optional<Instant> refused;    // when its promise of a later number last ended an attempt
    int slot = -1;                     // of the edge, if it is a neighbour

    static void Fields(auto& state, auto& self) {
      state(self.heard, self.digest, self.generation, self.epoch, self.wishes, self.seats, self.granted_until,
            self.granted_binding);
    }
  };

  // What was on an edge with a life that is over, until its log says what of it arrived.
  struct Left {
    EdgeSums sums;
    bool settled = false;

    static void Fields(auto& state, auto& self) { state(self.sums, self.settled); }
  };

  // One edge of every ledger.
  struct Edge {
    Peer* peer = nullptr;
    double weight = 1;
    std::uint64_t life = 0;      // of the neighbour, that the ledgers' edges are about; 0: not known
    std::uint64_t former = 0;    // the one before, which is over, and what was on its edges
    std::map<std::uint32_t, Left> left;
    Instant left_at{};
    std::uint64_t settled = 0;    // of the former lives, the last about which all is said
    // The life that somebody wants to settle, and the witnesses that have said that it is over.
    std::uint64_t doubted = 0;
    std::set<std::string, std::less<>> over;
    std::vector<std::uint32_t> waiting;    // ledgers that have something to say
    std::deque<Flight> flights;

    static void Fields(auto& state, auto& self) {
      state(self.life, self.former, self.left, self.left_at, self.settled);
    }
  };

  struct Bond {
    Peer* friend_ = nullptr;
    std::uint64_t life = 0;      // of the friend
    std::uint64_t number = 0;    // 0: none
  };

  // Seats that the best friend is told of as soon as everything about them is logged and settled.
  struct Estate {
    MemberBits seats;
    std::string dead;
    std::uint64_t life = 0;
    bool failed = false;    // a neighbour could not be reached

    static void Fields(auto& state, auto& self) { state(self.seats, self.dead, self.life, self.failed); }
  };

  // The demand for a tag as the limiter states it, as a part of C.
  struct Asked {
    double demand = 0;
    Parts pinned = 0;
    std::uint32_t pin = 0;

    static void Fields(auto& state, auto& self) { state(self.demand, self.pinned, self.pin); }
  };

  // REQUIRES: as CapacityExchange.
  ExchangeState(CapacityExchange::Options o, CapacitySettings s, CapacityTransport& t, Prng p, Instant now);

  // From now on `exchange` does without these rules.
  static void LeaveOut(CapacityExchange& exchange, const CapacityAblation& rules) {
    exchange.state_->without = rules;
    exchange.state_->UseSettings();
  }

  void Save() { transport.Save(Witness::Encode(witness.saved())); }

  // ---- Members ----

  Peer* Find(std::string_view name) {
    const auto at = by_name.find(name);
    return at == by_name.end() ? nullptr : at->second;
  }

  bool IsSelf(std::string_view name) const { return name == options.name; }
  std::uint32_t MemberOf(std::string_view name) const;
  bool Up(const Peer& peer, Instant now) const { return peer.heard && now - *peer.heard <= patience; }
  // After other settings, wanted or in force: who is a peer, and whom to tell that this host is alive.
  void UseSettings();

  // ---- Sending ----

  CapacityMessage& Fresh(CapacityKind kind);
  void Send(std::string_view to) {
    EncodeCapacity(out, frame);
    Send(to, frame);
  }

  void Send(std::string_view to, const std::string& bytes);

  // ---- Alive ----

  bool joined() const { return generation != 0; }
  bool frozen() const { return acked > generation; }
  bool Leased(Instant now) const { return joined() && !frozen() && now < leased_until; }
  void SendBeats(Instant now);
  void EncodeBeat(Instant now);
  std::uint64_t BindingToSay() const { return candidate.number != 0 && complete ? candidate.number : bond.number; }
  // A host that is a witness itself.
  void OnSelf(Instant now);
  void OnBeat(Peer& p, const CapacityMessage& m, Instant now);
  void OnGrant(Peer& p, const CapacityMessage& m, Instant now);
  // The lease lasts as long as a majority of witnesses says.
  void CountGrants();
  void UpdateStanding();
  void OnDead(const Peer& p, const CapacityMessage& m, Instant now) {
    if (!IsIn(witnesses, p.name)) return;
    if (m.generation == generation && m.to_epoch == epoch && joined() && now >= leased_until) NewLife();
  }

  // What this host had is another's now: begin with nothing, and earn (rule 6).
  void NewLife();
  void BeginLedgers();

  // ---- Ledgers ----

  std::int64_t AvailableElsewhere() const { return static_cast<std::int64_t>(seats.Count() * base); }
  Parts EqualShare() const { return kWhole / active.members.size(); }
  Parts GiftMin() const { return std::max<Parts>(EqualShare() >> kGiftShareBits, 1); }
  // KeyIndex::kNone if there is no room.
  std::uint32_t AddLedger(const CapacityKey& key);
  std::uint32_t MakeLedger(const CapacityKey& key, std::int64_t available);
  // What the limiter wants of a tag. A pin is in force when its number goes back to it.
  void Want(std::uint32_t id, const Asked& asked);
  void QueueShare(std::uint32_t id) {
    if (!std::exchange(ledgers[id].share_queued, true)) share_waiting.push_back(id);
  }

  void QueueLog(std::uint32_t id) {
    if (!std::exchange(ledgers[id].log_queued, true)) log_waiting.push_back(id);
  }

  void QueueGift(std::uint32_t id, std::size_t slot);
  void Changed(std::uint32_t id) {
    QueueLog(id);
    QueueShare(id);
  }

  Parts HeldOf(const Ledger& ledger) const { return std::min(reserve + static_cast<Parts>(ledger.available), kWhole); }
  // The part that this host may use.
  Parts ShareOf(const Ledger& ledger) const {
    return ledger.overdraft.found() ? std::min(HeldOf(ledger), OwnShare()) : HeldOf(ledger);
  }
  // The equal share that is this host's own: all of them sum to the whole at most.
  Parts OwnShare() const { return reserve + (participants.Has(MemberOf(options.name)) ? base : 0); }
  // The load of a tag whose capacity is 1.
  Load LoadOf(double demand, std::int64_t available) const;
  std::optional<double> IndicatorOf(const Load& load) const {
    if (!active.indicator->Defined(load)) return std::nullopt;
    return active.indicator->Value(load);
  }

  // What to give for a difference of one: GDRL (15), taken at the largest indicator known, and half of it by default.
  double Gain(double demand, double worst) const {
    const double most = LocalGainMax(active.indicator->InverseSlope(demand, worst), strength);
    return active.gain ? std::min(*active.gain, most) : most / 2;
  }

  // One round of eq (7) for all ledgers: decide gifts, and say what changed.
  void Round(Instant now);
  void RoundOf(std::uint32_t id, const std::vector<bool>& there, bool may_give);
  double Worst(std::uint32_t id, double own) const;

  // ---- Gifts to neighbours ----

  void FlushGifts(Instant now);
  void FlushGifts(std::size_t slot, Instant now);
  void OnGifts(Peer& p, const CapacityMessage& m, Instant now);
  // A tag that nobody asks for here gets a ledger when a neighbour is to be given some of it. A gift without a ledger
  // here is a lie: only a host that was told of an indicator gives, and ledgers last as long as lives.
  std::uint32_t LedgerFor(const CapacityItem& item, const Edge& edge);
  bool FromNeighbour(Peer& p, const CapacityMessage& m, Instant now);
  void Acknowledge(Peer& p, const CapacityMessage& m);
  void OnHave(Peer& p, const CapacityMessage& m, Instant now);
  static std::optional<Flight> TakeFlight(std::deque<Flight>& flights, std::uint64_t sequence);
  void OnHaveGifts(Peer& p, const CapacityMessage& m, Instant now);
  // A neighbour in another life than the one that the edges are about.
  void SeeLife(Peer& p, std::uint64_t life, Instant now);
  void EndLife(std::size_t slot, Instant now);

  // ---- The log at the best friend ----

  const Bond& LoggingTo() const { return candidate.number != 0 ? candidate : bond; }
  bool Fine(const Bond& b, Instant now) const {
    return b.number != 0 && b.friend_->heard && now - *b.friend_->heard <= active.lease / 2 &&
           b.friend_->generation == generation && b.friend_->epoch == b.life;
  }

  // The next member after this one that is there.
  Peer* FriendToBe(Instant now);
  void Bind(Instant now);
  // A majority of witnesses knows the friend that has the whole log: from now on its log counts.
  void CommitBond();
  void FlushLogs(Instant now);
  CapacityMessage& LogFrame(const Bond& to);
  void Note(std::uint32_t id, CapacityMessage& m);
  void OnHaveLog(Peer& p, const CapacityMessage& m, Instant now);
  void Logged(std::uint32_t id);
  // Frames that got lost, and with them what was said.
  void SayAgain(Instant now);

  // ---- The best friend's part ----

  void OnLog(Peer& p, const CapacityMessage& m, Instant now);
  // A log that is of no use any more must not begin anew: it would lack what it had.
  std::list<ClientLog>::iterator Close(std::list<ClientLog>::iterator log);
  // Asks the witnesses about clients that are not heard any more, or live again.
  void WatchClients(Instant now);
  void AskFence(ClientLog& log, Instant now);
  std::optional<std::uint64_t> Fence(std::string_view host, std::uint64_t life, Instant now);
  void OnFence(Peer& p, const CapacityMessage& m, Instant now);
  void AskFence(std::string_view host, std::uint64_t life, std::string_view witness_name);
  void OnFenced(Peer& p, const CapacityMessage& m, Instant now);
  // True if nothing is to be waited for any more.
  bool Settle(ClientLog& log, Instant now);
  void Inherit(const ClientLog& log, Instant now);
  // The seats in a log that can be its owner's: taken part, not here, and not with the member whose own they are.
  MemberBits SeatsOf(const ClientLog& log, Instant now) const;
  void TakeOver(std::uint32_t id, Parts parts);

  // ---- What was under way when a host died ----

  void SettleEdges(const ClientLog& log, Instant now);
  void SendSettlings();
  void SendSettling(const Settling& s, std::size_t i) {
    s.Write(i, Fresh(CapacityKind::kSettle));
    Send(s.to);
  }

  void OnSettle(Peer& p, const CapacityMessage& m, Instant now);
  // Whether a majority of witnesses says that this life of a neighbour is over. If not, they are asked.
  bool IsOver(Edge& edge, std::uint64_t life, Instant now);
  // What the log of a dead neighbour says: what it gave has come, and what it did not receive comes back.
  void SettleWith(std::string_view dead, std::uint64_t life, std::span<const CapacityItem> items,
                  std::span<const EdgeSums> sums, bool last, Instant now);
  void SettleEdge(std::uint32_t id, Left& left, const EdgeSums& theirs);
  void OnHaveSettle(Peer& p, const CapacityMessage& m);
  // Inherited seats are written into the log when the loss of this host would not lose anything of them.
  void SecureEstates();

  // ---- A new generation ----

  bool WishesReset(Instant now) const;
  // Only a new generation forgets tags that nobody asks for, and who asks, no host knows. So it is tried when a table
  // gets full, and more and more seldom if it does not help.
  void JudgeSweep(Instant now);
  // The first witness that is there begins new generations.
  bool IsCoordinator(Instant now);
  // Whether `p` is the first of the other witnesses that may be there: only it is believed when it begins a generation
  // or tells of one.
  bool Leads(const Peer& p, Instant now) const;
  std::size_t CountUp(const std::vector<std::string>& names, Instant now, const Peer* without = nullptr) const;
  void Coordinate(Instant now);
  // `rested`: how long a generation lasts at least, unless nobody has a lease.
  bool HasReason(Duration rested, Instant now);
  // Everybody who is there has the same settings, and who is not has been silent for long enough. `without` and
  // witnesses that are passed over do not count.
  bool AllWantIt(Instant now, const Peer* without = nullptr) const;
  // The first of the other witnesses that is there and is not passed over.
  Peer* Leader(Instant now);
  // Blames the leader for a round without a lease, or without a generation that is due.
  void JudgeLeader(Instant now);
  bool StandsIn(Instant now) const;    // who leads stands in for a witness that is passed over
  void Begin(Instant now);
  // This host's promise. False if it has given a later one, or an earlier life of it has given the same: what that did
  // with it is not known.
  bool Promise(std::uint64_t number);
  Promised MakePromised(Instant now) const;
  void OnPrepare(Peer& p, const CapacityMessage& m, Instant now);
  void OnPromise(Peer& p, const CapacityMessage& m, Instant now);
  void TryCommit(Instant now);
  void OnCommit(Peer& p, const CapacityMessage& m, Instant now);
  // True of a generation that an honest witness does not begin: without a promise of this host, which has a lease, or
  // which never promised it and is said to take part.
  bool IsUnasked(const CapacityMessage& m, Instant now) const;
  // What a commit says it divides is one whole, all of it, with the reserves of these settings.
  bool IsDivision(const CapacityMessage& m) const;
  // A number far ahead of all that were promised here would leave no room for others after it.
  bool IsAhead(std::uint64_t number) const;
  void Join(const CapacityMessage& m, Instant now);
  void MakeEdges(std::uint32_t self);
  void EncodeCommit();    // of the generation in force

  // ---- The sum of a tag's parts: for people, and audits (exchange_audit.cc) ----

  void AskShares(Instant now);
  void AskMembers(const std::vector<CapacityKey>& keys);
  Parts Held(const CapacityKey& key, Instant now) const;
  void OnAsk(Peer& p, const CapacityMessage& m, Instant now);
  void OnShare(Peer& p, const CapacityMessage& m);
  // Judges what was answered, and asks about further tags.
  void Audit(Instant now);
  void JudgeAudit(Instant now);
  std::vector<PartsAudit::Tag> TagsToAudit();

  // ---- Over a restart (exchange_resume.cc) ----

  std::string Life() const;
  // Goes on with a life that Life() has written. False: it cannot, and this object is of no use any more.
  bool Resume(std::string_view life, Instant now);
  static void Fields(auto& state, auto& self);
  void QueueAll();

  // ---- The clock ----

  Instant Tick(Instant now);

  // ---- Fields ----

  const CapacityExchange::Options options;
  CapacityAblation without;
  CapacitySettings wanted, active;    // as said last; of the generation
  CapacityTransport& transport;
  Prng prng;
  Instant started;
  Witness witness;

  std::uint64_t wanted_digest = 0, active_digest = 0;
  std::vector<std::string> wanted_witnesses, witnesses;
  std::vector<Peer*> panel;    // the witnesses; null: this host
  Duration patience{};
  std::map<std::string, Peer, std::less<>> peers;
  std::unordered_map<std::string_view, Peer*> by_name;    // of the same, for every frame

  std::uint64_t generation = 0;     // in force; 0: none yet
  std::uint64_t acked = 0;          // promised in this life; above `generation` everything holds still
  std::uint64_t entitled_to = 0;    // the generation whose share nobody but this life of this host gets
  Instant joined_at{}, whole_at{};
  Instant well_at{};     // when there was a lease last, or could be none
  Duration rest{};       // how long this generation lasts at least if somebody wishes for another
  bool hurry = false;    // a witness is passed over: the next one need not wait
  MemberBits company;    // who is there, without the leader
  Instant company_since{};
  std::uint64_t refused = 0;                 // somebody has promised this number already
  Duration sweep_after{};                    // how long a generation lasts at least if a table gets full
  std::optional<std::size_t> swept;          // ledgers at its beginning
  std::string commit;                        // the frame that began the generation
  Parts base = 0, reserve = 0, aside = 0;    // an equal share less reserve; reserves of who takes part, of the others
  MemberBits participants;
  std::optional<Attempt> attempt;

  std::uint64_t epoch;          // this life
  MemberBits seats, secured;    // whose equal shares this host has of tags without a ledger; as logged
  Instant leased_until = Instant::min(), self_until = Instant::min();
  std::uint64_t self_binding = 0;
  bool was_leased = false;
  CapacityStanding standing;

  std::map<CapacityKey, Asked> demands;    // above 0, as part of C, or with something pinned
  Ledgers ledgers;
  std::vector<Edge> edges;
  double strength = 0;    // sum of the edges' weights
  std::vector<std::uint32_t> log_waiting, share_waiting;
  std::deque<Flight> log_flights;
  Bond bond, candidate;    // the friend whose log counts; the one that is to be it
  std::uint64_t bindings = 0;
  std::size_t behind = 0;    // ledgers that the candidate has not got yet
  bool complete = false;     // it has all of them
  bool heading = false;      // a log frame is due even if no ledger has changed
  std::vector<Estate> estates;
  bool residue = false;               // something is lost that only a new generation brings back
  std::size_t unlogged_estate = 0;    // ledgers with something inherited that is not logged

  std::list<ClientLog> clients;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> closed;    // lives and bindings not to be kept again
  std::vector<Settling> settlings;
  ShareSums share_sums;
  PartsAudit audit;
  std::size_t audit_in = 0;        // rounds
  std::uint32_t audit_next = 0;    // ledger
  std::size_t overdrawn = 0;       // ledgers
  Instant overdrawn_at{};          // the first of them

  Instant next_round{};
  std::uint64_t sequence = 0;
  CapacityCounts counts;
  CapacityMessage in, out;
  std::string frame;
};

}    // namespace dthrottle
