// Messages for tests: what is the same, what may be at all, any one at random; and frames with another checksum.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/prng.h"
#include "bus/codec.h"

namespace dthrottle::testing {

inline std::string WithChecksum(std::string_view frame_without) {
  const std::uint64_t sum = XXH3_64bits(frame_without.data(), frame_without.size());
  return std::string(frame_without).append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

inline bool Same(const Entries& a, const Entries& b) {
  return std::equal(
      a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), [&](const Entry& x, const Entry& y) {
        return a.tag(x) == b.tag(y) && x.value == y.value && x.phase == y.phase && a.demand(x) == b.demand(y) &&
               a.returnable(x) == b.returnable(y) && a.back(x) == b.back(y) &&
               a.penalty(x) == b.penalty(y) && a.places(x) == b.places(y) && a.quota(x) == b.quota(y) &&
               a.member(x) == b.member(y) && a.refusals(x) == b.refusals(y);
      });
}

inline bool Same(const Message& a, const Message& b) {
  return a.kind == b.kind && a.sender == b.sender && a.incarnation == b.incarnation && a.sequence == b.sequence &&
         a.ring_low == b.ring_low && a.from == b.from && a.to == b.to && a.period == b.period && a.last == b.last &&
         a.snapshot == b.snapshot && a.text == b.text && a.site == b.site && a.hosts == b.hosts &&
         a.ranges == b.ranges && a.positions == b.positions && Same(a.entries, b.entries);
}

// Every promise of message.h and entries.h, each asked for by itself.
inline bool IsSound(const Message& m) {
  const auto is_name = [](const std::string& s) {
    constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return !s.empty() && s.size() <= kHostNameBytesMax && s.find_first_not_of(kAllowed) == std::string::npos;
  };
  const auto is_instant = [](Instant t) {
    return t >= FromNanoseconds(-(std::int64_t{1} << 62)) && t <= FromNanoseconds(std::int64_t{1} << 62);
  };
  const bool is_report = m.kind == MessageKind::kReport, is_snapshot = m.kind == MessageKind::kSnapshot;
  const int kind = static_cast<int>(m.kind);
  bool sound =
      kind >= 1 && kind <= 9 && is_name(m.sender) && m.text.size() <= 256 && (m.site.empty() || is_name(m.site));
  sound = sound && is_instant(m.to) && is_instant(m.from) && (is_report ? m.from <= m.to : m.from == Instant());
  sound = sound && m.period.count() >= 0 && m.period.count() <= 86'400'000'000'000;
  sound = sound && m.ranges.size() <= (m.kind == MessageKind::kRepeat ? kRangesMax : 0);
  for (const SequenceRange& r : m.ranges) sound = sound && r.first <= r.last;
  sound = sound && m.positions.size() <= (m.kind == MessageKind::kSnapshotEnd ? kPositionsMax : 0);
  for (const Position& p : m.positions) sound = sound && is_name(p.sender);
  sound = sound && m.entries.size() <= (is_report || is_snapshot ? kEntriesMax : 0);
  Entries again;    // what has been read is what could have been added
  for (const Entry& e : m.entries.list()) {
    const bool says_more = m.entries.demand(e).has_value() || m.entries.back(e) != 0 ||
                           m.entries.penalty(e).has_value() || m.entries.places(e).has_value() ||
                           m.entries.quota(e).has_value() || m.entries.member(e).has_value() ||
                           m.entries.refusals(e) != 0;
    sound = sound && e.phase < 128 && e.value >= (is_report && !says_more ? 1 : 0) &&
            e.value <= (1ull << (is_report ? 40 : 52)) && m.entries.tag(e).bytes.size() == e.tag_bytes &&
            (!e.is_digest || e.tag_bytes >= 16);
    sound = sound && (is_report || !m.entries.demand(e)) && m.entries.demand(e).value_or(0) <= kDemandMax;
    sound = sound && again.Add(m.entries.tag(e), e.value, e.phase,
                               {m.entries.demand(e), m.entries.returnable(e), m.entries.back(e),
                                m.entries.penalty(e), m.entries.places(e), m.entries.quota(e), m.entries.member(e),
                                m.entries.refusals(e)});
  }
  return sound && Same(again, m.entries);
}

inline std::string RandomBytes(std::size_t n, Prng& prng) {
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(prng.Next());
  return bytes;
}

inline std::string RandomName(Prng& prng) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  std::string name(1 + prng.Below(kHostNameBytesMax), '\0');
  for (char& c : name) c = kAllowed[prng.Below(kAllowed.size())];
  return name;
}

// Numbers of all lengths, up to and including the most.
inline std::uint64_t RandomUpTo(std::uint64_t most, Prng& prng) {
  return prng.Below(8) == 0 ? most : std::min(prng.Next() >> prng.Below(64), most);
}

// Addresses, some that are none, and others. One without bytes is another reason not to shorten addresses, so it is for
// few messages.
inline std::string RandomTag(bool may_be_empty, Prng& prng) {
  const auto octet = [&] { return std::to_string(prng.Below(prng.Below(16) == 0 ? 300 : 256)); };
  switch (prng.Below(4)) {
    case 0:
    case 1:
      return octet() + "." + octet() + "." + octet() + "." + octet();
    case 2:
      return RandomBytes(may_be_empty ? prng.Below(256) : 1 + prng.Below(255), prng);
    default:
      return std::string(may_be_empty ? prng.Below(256) : 1 + prng.Below(255), 'x');
  }
}

inline void AddRandomEntries(MessageKind kind, std::size_t n, Entries& entries, Prng& prng) {
  const bool is_report = kind == MessageKind::kReport, may_be_empty = prng.Below(4) == 0;
  for (; n > 0; --n) {
    const bool is_digest = prng.Below(8) == 0;
    const std::string tag = is_digest ? RandomBytes(16, prng) + "rule" : RandomTag(may_be_empty, prng);
    const std::uint64_t value = is_report ? 1 + RandomUpTo(kHitsMax - 1, prng) : RandomUpTo(kMicrosecondsMax, prng);
    const auto phase = static_cast<std::uint8_t>(prng.Below(kPhases));
    if (is_report && prng.Below(8) == 0) {
      const std::uint64_t hits = prng.Below(2) == 0 ? 0 : value;
      if (!entries.Add({tag, is_digest}, hits, phase, {RandomUpTo(kDemandMax, prng)})) return;
    } else if (is_report && prng.Below(8) == 0) {
      const bool comes_back = prng.Below(2) == 0;
      const std::uint64_t tokens = 1 + RandomUpTo(kTokensBackMax - 1, prng);
      const Besides besides{.returnable = comes_back ? 0 : tokens, .back = comes_back ? tokens : 0};
      if (!entries.Add({tag, is_digest}, comes_back ? 0 : value, phase, besides)) return;
    } else if (is_report && prng.Below(16) == 0) {
      if (!entries.Add({tag, is_digest}, 0, phase, {.penalty = RandomUpTo(kPenaltyMsMax, prng)})) return;
    } else if (is_report && prng.Below(16) == 0) {
      if (!entries.Add({tag, is_digest}, 0, phase, {.places = RandomUpTo(kPlacesMax, prng)})) return;
    } else if (is_report && prng.Below(16) == 0) {
      if (!entries.Add({tag, is_digest}, 0, phase, {.refusals = 1 + RandomUpTo(kRefusalsMax - 1, prng)})) return;
    } else if (is_report && prng.Below(16) == 0) {
      QuotaWord word{RandomUpTo(kQuotaCounterMax, prng), RandomUpTo(kQuotaPeriodMax, prng),
                     RandomUpTo(kQuotaTokensMax, prng)};
      if (prng.Below(2) == 0) word.back = RandomUpTo(kQuotaTokensMax, prng);
      if (!entries.Add({tag, is_digest}, 0, phase, {.quota = word})) return;
    } else if (is_report && prng.Below(16) == 0) {
      const auto number = [&] { return RandomUpTo(MemberWord::kMost - 1, prng); };
      const MemberWord word{RandomUpTo(MemberWord::kNameMax, prng), number(), number(), 1 + number()};
      if (!entries.Add({tag, is_digest}, 0, phase, {.member = word})) return;
    } else if (!entries.Add({tag, is_digest}, value, phase)) {
      return;
    }
  }
}

inline Message RandomMessage(MessageKind kind, Prng& prng) {
  constexpr auto kFarthest = std::uint64_t{1} << 62;
  const auto number = [&] { return prng.Below(2) == 0 ? 0 : RandomUpTo(~std::uint64_t{0}, prng); };
  const auto instant = [&] {
    const auto ns = static_cast<std::int64_t>(RandomUpTo(kFarthest, prng));
    return FromNanoseconds(prng.Below(2) == 0 ? ns : -ns);
  };
  Message m;
  m.kind = kind;
  m.sender = RandomName(prng);
  m.incarnation = number();
  m.sequence = number();
  m.ring_low = number();
  m.to = instant();
  if (kind == MessageKind::kReport) m.from = std::min(m.to, instant());
  m.period = Duration(static_cast<std::int64_t>(RandomUpTo(static_cast<std::uint64_t>(kPeriodMax.count()), prng)));
  m.last = prng.Below(2) == 0;
  m.snapshot = number();
  m.text = RandomBytes(RandomUpTo(kTextBytesMax, prng), prng);
  m.hosts = number();
  if (prng.Below(2) == 0) m.site = RandomName(prng);
  if (kind == MessageKind::kRepeat) {
    for (std::uint64_t n = RandomUpTo(kRangesMax, prng); n > 0; --n) {
      const std::uint64_t a = number(), b = number();
      m.ranges.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  if (kind == MessageKind::kSnapshotEnd) {
    for (std::uint64_t n = RandomUpTo(kPositionsMax, prng); n > 0; --n) {
      m.positions.push_back({RandomName(prng), number(), number()});
    }
  }
  if (kind == MessageKind::kReport || kind == MessageKind::kSnapshot) {
    AddRandomEntries(kind, RandomUpTo(kEntriesMax, prng), m.entries, prng);
  }
  return m;
}

}    // namespace dthrottle::testing
