// The protocol between hosts, without sockets: numbers what this host publishes and keeps it in a ring, follows what
// the peers publish, asks for what is missing, and gives and takes snapshots (protocol/report.md).
//
// One side of it faces the wire: frames come in through On...(), frames go out through a Transport. The other faces
// the limiter, which may live in another thread: two rings carry hits out and debits in. The owner calls
// Tick() often and at least at the instants that it returns.
//
//     limiter thread                               peer thread
//     Sharing ── ToPeers ring ──> Exchange ── Transport ──> wire
//     Sharing <─ FromPeers ring ─ Exchange <── On...() ───── wire
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "base/prng.h"
#include "base/report_place.h"
#include "base/spsc_ring.h"
#include "base/time.h"
#include "bus/account.h"
#include "bus/codec.h"
#include "bus/message.h"
#include "bus/owners/counted_streams.h"
#include "bus/owners/owners.h"
#include "bus/peer_ceilings.h"

namespace dthrottle {

// What the limiter hands over.
struct ToPeers {
  enum class Kind {
    kNone,
    kHits,             // entries: hits served in (from, to]
    kUrgent,           // the same, not to wait for the end of the period
    kPeriodEnd,        // hits until `to` are handed over, or held until kJoined: a report goes out even without any
    kSnapshotBegin,    // from now on no debit is merged and no hit handed over until kSnapshotEnd; `snapshot` says
                       // whose
    kSnapshotPart,     // entries: bucket states as of `to`
    kSnapshotEnd,
    kLevels,    // this host owns the tags: bucket states as of `to` for the host `peer`, of which all reports until
                // `counted` are contained. Beside an entry: the demand of others, and what is foretold of them
    kNear,      // tags that are near their limit, or penalized, for everybody; with `to_one`, for the host `peer`
    kOwners,    // what comes behind it is cut by the owners that were stated last
    kHandoverPart,    // entries: bucket states as of `to` of tags that this host owned by the list before
    kHandoverEnd,
  };
  Kind kind = Kind::kNone;
  Instant from{}, to{};
  std::uint64_t snapshot = 0;    // as in the FromPeers that asked
  Entries entries;
  std::uint32_t peer = 0;       // of levels
  bool to_one = false;
  std::uint64_t counted = 0;    // likewise
  std::uint64_t hosts = 0;      // of a site's hits: its hosts; of levels: in other sites
  std::uint64_t parts = 0;      // of a site's hits: its owners, this host among them
};

// What the limiter gets.
struct FromPeers {
  enum class Kind {
    kNone,
    kDebits,            // entries: hits that a peer served in (from, to], by this host's clock
    kSnapshotWanted,    // somebody wants the table: answer with kSnapshotBegin .. kSnapshotEnd under `snapshot`
    kBuckets,           // entries: bucket states of a peer as of `to`, by this host's clock; the larger debt wins
    kLevels,            // entries: bucket states of the tags' owner as of `to`, by this host's clock, which contain all
                        // that this host has reported until `from`
    kNear,              // entries: tags that are near their limit, as kBuckets
    kOwners,            // `owners` are in force, and all debits by the list before have been handed over; hold hits
                        // until kJoined if this host awaits tags
    kHandover,          // entries: bucket states, as of `to`, of tags that this host owns now
    kOwnDebits,         // entries: hits of this host itself, which nobody has counted
    kHostCame,          // this host owns tags, and `peer` has come, or come back
    kHostBarred,        // `peer` may not speak any more
    kJoined,            // the buckets to begin with have come, or will not; from now on hits can be reported
  };
  Kind kind = Kind::kNone;
  Instant from{}, to{};
  std::uint64_t snapshot = 0;
  Entries entries;
  std::uint32_t peer = 0;       // of debits: a number for who served them, as small as can be; between sites the site
  std::uint64_t counted = 0;    // of debits for an owner: every report of the peer up to it has been handed over
  std::uint64_t stream = 0;     // likewise: in which, for CountedStreams; 0: that is not to be noted
  std::uint32_t owner = 0;      // of levels: who says so, of the list in force, and in which life
  std::uint64_t life = 0;
  std::uint64_t hosts = 0;      // of levels: in the fleet; of debits between sites: in that site; 0: not said
  std::shared_ptr<const Owners> owners{};
  bool awaits_tags = false;    // of owners
  Duration period{};           // of debits and levels: between two reports of the peer, as it says
  ReportPlace place{};         // of debits
};

using ToPeersRing = SpscRing<ToPeers>;
using FromPeersRing = SpscRing<FromPeers>;

// A frame that several may hold: the ring here, subscribers' queues in the transport.
using Frame = std::shared_ptr<const std::string>;

// Names a peer's address to which this host connects.
using LinkId = std::uint32_t;

// Says where an answer goes; whatever the transport needs, 255 bytes at most. A peer may have chosen it.
using Route = std::string;

// Frames may be lost on every way. REQUIRES: an implementation does not call the Exchange back from within.
class Transport {
 public:
  // On a connection that this host opened.
  virtual void Ask(LinkId link, const Frame& frame) = 0;
  // Back on a connection that another host opened: the answer to what came by it.
  virtual void Answer(const Route& route, const Frame& frame) = 0;
  // The same for a report to a subscriber. False if the connection is gone for good.
  virtual bool Publish(const Route& route, const Frame& frame) = 0;

 protected:
  ~Transport() = default;
};

enum class PeerState {
  kConnecting,    // no answer to a hello yet
  kUp,            // reports arrive
  kSilent,        // it answered once, but no report for three of its periods
  kSelf,          // the address turned out to be this host's own
  kRefused,       // it refused us or we refuse it; `reason` says why
};
DT_NAMES(PeerState, "connecting", "up", "silent", "self", "refused")

// One configured address, for people.
struct PeerStatus {
  LinkId link = 0;
  PeerState state{};
  std::uint64_t reports = 0;     // frames taken
  std::uint64_t entries = 0;     // in them
  Duration age{};                // of the newest hits heard when they came: delay of the wire and its queues
  std::uint64_t missed = 0;      // frames that a later one came before
  std::uint64_t repaired = 0;    // of them, came after all, as a rule because they were asked for
  std::uint64_t lost = 0;        // of them, are gone for good
  std::string address;
  std::string name;         // empty until known
  std::string version;      // of its program
  std::string reason;       // for people: why it is refused, or what else there is to say
  Duration last_heard{};    // ago; negative: never
  std::uint64_t incarnation = 0, sequence = 0;    // last heard
  std::uint64_t lost_hits = 0;                    // that it took out of its buckets and this host never heard of
  std::uint64_t duplicates = 0;                   // frames dropped because they had come before
  std::optional<std::uint32_t> number;            // the host's, as in FromPeers; none until it is known
  std::uint64_t parts = 0;    // between sites: owners of its site, itself among them, as it says; 0: it owns nothing
  CutCounts cut;                                  // above Options::ceilings
};

struct ExchangeCounts {
  std::uint64_t published = 0;    // frames
  std::uint64_t published_bytes = 0;
  std::uint64_t published_entries = 0;
  std::uint64_t urgent_frames = 0, urgent_entries = 0;    // of them, before the period was over
  std::uint64_t repeated = 0;                             // frames sent again because a peer asked
  std::uint64_t gone = 0;                                 // frames that a peer asked for and the ring no longer had
  std::uint64_t received = 0;                             // frames taken from peers, repeats included
  std::uint64_t received_bytes = 0;
  std::uint64_t received_entries = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t missed = 0, repaired = 0, lost = 0, lost_hits = 0;
  std::uint64_t cut = 0;         // frames of peers above a ceiling; asked for again later
  std::uint64_t overflow = 0;    // frames dropped because the limiter is too far behind; asked for again later
  std::uint64_t junk = 0;        // not decodable, any DecodeFault but kVersion, or without sense
  std::uint64_t other_version = 0;
  std::uint64_t strangers = 0;      // well-formed requests from nobody that is configured, or under a name not its own
  std::uint64_t forged = 0;         // frames of a peer in another's name
  std::uint64_t other_owners = 0;    // reports that were cut by another list of owners, and so not counted
  std::uint64_t owners = 0;            // in the list in force, now; 0: everybody hears everything
  std::uint64_t owners_number = 0;     // of that list
  std::uint64_t owners_differ = 0;     // 1: the settings of this host name others, now
  std::uint64_t owners_changes = 0;    // of the list, while this life has run
  std::uint64_t owners_conflicts = 0;    // lists that took the place of another with the same number
  std::uint64_t owners_closing = 0;    // streams to owners that have yet to say what they have counted, now
  std::uint64_t owners_awaited = 0;    // owners of the list before, whose tags have not come yet, now
  std::uint64_t owners_giving = 0;     // owners that have yet to get tags that this host owned, now
  std::uint64_t owners_missed = 0;     // owners of the list before that were not waited for any longer
  std::uint64_t owners_dropped = 0;    // frames that were given up with an owner that has gone, or with its table
  // Hits that this host had taken out of its buckets when it was killed, and no owner had said that it counted them.
  std::uint64_t owners_lost_hits = 0;
  std::uint64_t implausible = 0;    // frames of a peer that say what cannot be: an incarnation, an instant, a position
  std::uint64_t excess = 0;         // requests turned down because they came too fast
  std::uint64_t snapshots_given = 0, snapshots_taken = 0;
  std::uint64_t levels_sent = 0, levels_heard = 0, levels_bytes = 0;    // frames of owners; bytes sent
  std::uint64_t callers = 0;    // hosts that call this owner, now
  std::uint64_t ring_frames = 0, ring_bytes = 0;    // kept now
  std::uint64_t subscribers = 0;                    // connections that reports go to, now
};

struct Link;

class Exchange {
 public:
  struct Options {
    std::string name;                 // of this host, unique among its peers
    std::uint64_t incarnation = 1;    // greater at each start
    std::string version;
    Duration period{};
    std::size_t ring_bytes = 64 << 20;      // of frames kept to be sent again
    std::size_t held_bytes = 32 << 20;      // of frames held back while a snapshot is awaited
    std::size_t table_bytes = 64 << 20;     // of the table here, which bounds what a snapshot may say
    PeerCeilings ceilings;                  // of each peer
    std::optional<Account> account = {};    // none: begins with this exchange
    std::shared_ptr<const Owners> owners = nullptr;    // none: everybody hears everything
    std::shared_ptr<const CountedStreams> counted = nullptr;    // none: the next life does not know
    bool owners_registered = false;    // a register decides on lists: what is proposed is in force when it says so
    bool identities_proven = false;         // requests come with an identity that must equal the sender's name
    bool fresh_table = true;    // false: the table was kept over a restart and holds what earlier reports said
    // Between sites: that of this host, and the others, which are the peers' numbers. A host that comes anew hears what
    // others still keep, in place of a snapshot. Empty: within a site.
    std::string site = {};
    std::vector<std::string> other_sites = {};
    // None: one of its own. Exchanges of one thread can have one together.
    std::shared_ptr<Codec> codec = nullptr;
    std::string life = {};      // of Life(): goes on with it, under its incarnation, if it can
  };

  // The rings and the transport must outlive it. `now` is the owner's clock, everywhere.
  Exchange(Options options, ToPeersRing& from_limiter, FromPeersRing& to_limiter, Transport& transport, Prng prng,
           Instant now);
  ~Exchange();

  // ---- Membership. Links may come and go at any time; an address keeps its counters while it has its link. ----

  // `proven`: the name that the connection proves the host there to have; empty if nothing proves it.
  void AddLink(LinkId link, std::string address, Instant now, std::string proven = "");
  void RemoveLink(LinkId link);
  // The link has a new connection, on which nothing has been said.
  void OnConnected(LinkId link);

  // Other ceilings for every peer, each of which has all of its room then.
  void SetCeilings(const PeerCeilings& ceilings);

  // The host of that name may not speak any more, and is not heard: what it said of the moment does not hold.
  void Bar(std::string_view name);

  // ---- Owners, where there are any. They change in a moment, as soon as all hosts know. ----

  // The settings name others: an owner proposes them to all.
  void SetOwners(std::vector<std::string> names);
  // A register that decides for all hosts has put the list in force. Where there are two, the one with the greater
  // epoch counts.
  void ObeyOwners(std::shared_ptr<const Owners> list);
  // With a register: what SetOwners asked for, once all owners are ready for it; null: nothing is.
  std::shared_ptr<const Owners> proposed() const;
  std::shared_ptr<const Owners> owners() const;    // in force
  // Whether the link has to stay though the settings no longer name its address: it leads to an owner in force, or to
  // one that has yet to say what it counted or to hand over its tags; or the owners have just changed, and the host
  // there needs it.
  bool Needs(LinkId link, Instant now) const;

  // ---- From the wire. Frames may be anything. ----

  // Frames by these links are about to be heard, in one go: what that needs is brought from memory.
  void Expect(std::span<const LinkId> links) const;
  // A frame of another protocol has come by the link, or without one on a connection that proves this name. Returns whether
  // it may be heard: it counts for the sender's ceiling. TurnedDown counts what that protocol turned down of it.
  bool Admits(LinkId link, std::string_view proven, Instant now);
  void TurnedDown(LinkId link, std::string_view proven);
  // What the host behind a link is called, if its connection proves it, otherwise the address.
  std::string_view NameOf(LinkId link) const;
  // On a link that this host opened: reports, and answers to requests. Whatever it says is said by the host there.
  void OnAnswer(LinkId link, std::string_view frame, Instant now);
  // The same of a frame that a codec has taken apart for several exchanges.
  void OnAnswer(LinkId link, std::string_view frame, const Decoded& decoded, Instant now);
  // On a connection that somebody else opened. `identity` is proven, or empty where nothing proves it.
  void OnRequest(const Route& route, std::string_view identity, std::string_view frame, Instant now);

  // The way to hosts by links and routes, those of callers included, for others who use the connections.
  Transport& wire();

  // True while the limiter is behind: take no more frames off the wire until a Tick has changed that.
  bool backlogged() const;

  // Moves what waits: hits to the wire, debits to the limiter, requests that are due. Returns when it wants to be
  // called next if nothing else happens.
  Instant Tick(Instant now);

  // ---- Over an orderly restart: for its peers the next Exchange is this one after a pause ----

  // Does what Tick does, but asks nobody for anything. True: nothing is on its way to the limiter or from it.
  bool Drain(Instant now);
  // What was published, what was heard of whom, and whether this host has joined, for Options::life. REQUIRES: Drain()
  // has returned true; what is not drained is lost with this object.
  std::string Life(Instant now);
  bool resumed() const;    // it goes on with a life

  // ---- For people ----

  std::vector<PeerStatus> Peers(Instant now) const;
  std::size_t links() const;
  ExchangeCounts Counts() const;
  bool joining() const;    // waits for a snapshot; reports are held back

 private:
  struct State;

  void Hear(LinkId link, std::string_view frame, const Decoded* decoded, Instant now);
  void HearDecoded(Link& link, std::string_view frame, Instant now);
  void HearRequest(const Route& route, Instant now);

  std::unique_ptr<State> state_;
};

}    // namespace dthrottle
