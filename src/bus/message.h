// Everything that hosts say to each other (protocol/report.md). One structure for all kinds: a kind leaves out the
// fields that it has no use for, a reader passes over fields that it does not know.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_name.h"
#include "base/time.h"
#include "bus/account.h"
#include "bus/entries.h"

namespace dthrottle {

inline constexpr std::size_t kFrameBytesMax = 64 * 1024;
inline constexpr std::size_t kRangesMax = 256;       // in one request to repeat
inline constexpr std::size_t kPositionsMax = 512;    // peers in one snapshot; a frame of the longest names holds 700
inline constexpr std::size_t kTextBytesMax = 256;

// More than any host has to say. Encode requires it, Decode refuses what is beyond.
inline constexpr std::uint64_t kHitsMax = std::uint64_t{1} << 40;            // of one entry of a report; at least 1
inline constexpr std::uint64_t kMicrosecondsMax = std::uint64_t{1} << 52;    // of one entry of a snapshot
inline constexpr Duration kSinceOriginMax{std::int64_t{1} << 62};            // of an instant, before or after
inline constexpr Duration kPeriodMax = std::chrono::hours(24);
// Nothing that is sent has it, because what comes behind has a number too.
inline constexpr std::uint64_t kLastSequence = std::numeric_limits<std::uint64_t>::max();

// Frames begin with these bytes, the last of which is the major version.
inline constexpr std::string_view kFramePrefix = "DTR\2";

enum class MessageKind : std::uint8_t {
  kReport = 1,     // hits of an interval; published to all, and sent again to hosts that ask
  kHello = 2,      // who are you? I am ...
  kWelcome = 3,    // the answer
  kRefusal = 4,    // the other answer to anything: text says why
  kRepeat = 5,     // please send these sequences again; answered by reports and perhaps kGone
  kGone = 6,       // what is before ring_low cannot be sent again
  kSnapshotWanted = 7,
  kSnapshot = 8,       // bucket states
  kSnapshotEnd = 9,    // and how far reports are contained in them
  kLevels = 10,        // an owner's answer to reports of a host: bucket states with all hits (protocol/owners.md)
  kNear = 11,          // an owner tells everybody of tags that are near their limit
  kOwners = 12,        // the list of owners; asks for kClosed if `stream` is not 0
  kClosed = 13,        // what an owner of an earlier list has counted of the receiver's stream, which is over
  kHandover = 14,      // an owner of the list before gives a new one its tags: bucket states
  kTaken = 15,         // how far they have come; asks for the rest
};

// Sequences from `first` to `last`, both included.
struct SequenceRange {
  std::uint64_t first, last;
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

// How far somebody has heard a sender: every sequence below `next`.
struct Position {
  std::string sender;
  std::uint64_t incarnation;
  std::uint64_t next;
  friend bool operator==(const Position&, const Position&) = default;
};

// Names of hosts in a frame; a type of its own, because how a field is written goes by its type (base/fields.h).
struct HostNames {
  std::vector<std::string> list;
  friend bool operator==(const HostNames&, const HostNames&) = default;
};

struct Message {
  MessageKind kind{};
  std::string sender;               // always
  std::uint64_t incarnation = 0;    // always: of the sender, except kRepeat: of whom it asks
  // Report: of this frame, from 1. Hello, welcome: of the last frame published. Snapshots: number of the part. Levels,
  // closed: every report of the receiver up to it is contained. Handover: number of the part, from 1, of `parts`.
  // Taken: parts that have come.
  std::uint64_t sequence = 0;
  std::uint64_t ring_low = 0;    // report, welcome, gone: the oldest sequence that can be sent again
  Instant from{}, to{};          // report: interval of the hits; others: `to` is when it was sent. Sender's clock
  Duration period{};             // report, hello, welcome: the sender's
  std::uint64_t hits = 0;        // welcome: in the frames of this life up to `sequence`
  Told told;                     // welcome: by the lives before
  bool last = false;             // report: no more frames for this interval
  std::uint64_t snapshot = 0;    // of a request for a snapshot, or of a hello; the answer repeats it
  std::uint64_t owners = 0;      // Owners::epoch: of the sender; of a report: by which it was cut; 0: all hear all
  std::uint64_t stream = 0;      // owners, closed: the epoch of a stream of reports
  std::uint64_t hosts = 0;       // levels: of the fleet, as the sender counts them; report of a site: of that
  std::uint64_t parts = 0;       // handover; 0: there is none; report of a site: its owners, the sender among them
  std::string text;              // hello, welcome: the program's version; refusal: why
  std::string site;              // hello, welcome, between sites: the sender's
  std::vector<SequenceRange> ranges;    // repeat; closed: what was missed
  HostNames names, before;              // owners: of the list, and of the one before
  std::vector<Position> positions;      // snapshot end
  Entries entries;                      // report, snapshot, levels, near, handover

  // Makes it a new message that keeps its memory.
  void Clear() {
    kind = {};
    sender.clear();
    incarnation = sequence = ring_low = snapshot = 0;
    from = to = {};
    period = {};
    hits = owners = stream = hosts = parts = 0;
    told = {};
    last = false;
    text.clear();
    site.clear();
    ranges.clear();
    names.list.clear();
    before.list.clear();
    positions.clear();
    entries.Clear();
  }
};

}    // namespace dthrottle
