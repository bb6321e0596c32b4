// share = "debit": every host serves from a bucket of its own and debits what its peers say they served. Forecasting
// adds to this way and reports by it.
//
// Reports carry hits of (from, to]; sharing.h collects and merges them slice by slice. What a peer may debit is bounded
// by what one host can have served, because a peer may lie.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "bus/account.h"
#include "share/accuracy/certificate.h"
#include "share/debit/beside_hits.h"
#include "share/debit/denied.h"
#include "share/debit/draft.h"
#include "share/debit/merge_counts.h"
#include "share/debit/returnable.h"
#include "share/debit/said_buckets.h"
#include "share/debit/turns.h"
#include "share/share.h"

namespace dthrottle {

class Debits final : public Way {
 public:
  static constexpr Share kShare = Share::kDebit;
  static std::optional<Tokens> Excess(const Rule& rule, const FleetTerms& fleet);
  static void Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings);

  Debits(LimiterCore& core, Ways& ways) : core_(core), ways_(ways) {}

  bool Has(const Limit& limit) const { return limit.shared; }
  [[gnu::always_inline]] bool Decide(Asked& asked) {
    const bool told = core_.window != 0;
    const bool within = told && asked.slot != nullptr
                            ? asked.slot->bucket.Take(asked.shape, asked.query.cost, asked.now,
                                                      asked.shard.waste(asked.slot), core_.waste_window)
                            : asked.bucket().Take(asked.shape, asked.query.cost, asked.now);
    if (!within) {
      Refuse(asked);
      return false;
    }
    asked.Keep();
    if (told && asked.slot != nullptr) asked.shard.AddUnreported(asked.slot, asked.query.cost);
    return true;
  }
  void Spent(Asked& asked, Cost tokens, Instant) {
    if (core_.window != 0 && asked.slot != nullptr) asked.shard.AddUnreported(asked.slot, tokens);
  }
  Duration Waits(Asked& asked, Duration wait) {
    if (core_.window == 0 || core_.peers == 0) return Duration::zero();
    if (turns_.Give(asked.hash, asked.query.tag, wait, asked.now) && wake_) wake_();
    return turns_.Apart(asked.hash);
  }
  void Refuse(Asked& asked) {
    asked.Refused();
    certificate_.Refused(asked.hash, asked.query.cost);
    if (others_own_.load(std::memory_order_relaxed)) NoteDenied(asked);
  }
  void Inspect(const TagAt& at, Inspection& seen, Instant now);
  std::uint32_t PlacesHere(const Tag& tag, std::uint64_t hash, const Limit& limit, Instant now);
  void Adopted() { beside_.Adopted(); }
  void Reassigned(std::size_t counter);
  std::optional<Tokens> Bound(const Limit& limit, std::span<const PeerAge> peers) const;

  // ---- The owner's thread ----

  // From now on hits under shared limits are kept until a report takes them. `period` is the time between reports,
  // `peers` the number of other hosts: both bound debt and the age of hits, unless a rule says otherwise. A period of
  // zero ends it.
  void ShareWith(std::size_t peers, Duration period);

  // Debits entries [first, first + n) of what the speaker served in (from, to].
  void Debit(const Entries& entries, std::size_t first, std::size_t n, Instant from, Instant to, Instant now,
             const Speaker& speaker = {});
  // Other sites report every `period`. As ShareWith.
  void ShareAbroad(Duration period);

  // Hands hits of a slot over as an entry of a report on (from, to]; false if there is no room. A limit that is not
  // shared counts as handed over.
  bool AddHits(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to, Draft& out);
  // The same for a way that says itself what the entry says: hits, the demand that is announced, when the hits began.
  struct Said {
    std::uint64_t value;
    std::optional<std::uint64_t> demand;
    std::uint64_t back = 0;    // tokens, of hits that were told before
  };
  bool AddSaid(const Tag& tag, LimitIndex limit, const Said& said, Ticks began, Draft& out) const;

  // What hosts tell each other beside hits, whole buckets that they state, and what each of them may say.
  BesideHits& beside() { return beside_; }
  SaidBuckets& buckets() { return buckets_; }
  ReturnableHits& returnable() { return returnable_hits_; }
  PeerEntries& peers() { return peers_; }
  const PeerEntries& peers() const { return peers_; }

  // Turns are told at once (turns.h), and what others say beside hits when its time has come (beside_hits.h).
  void WatchTags(std::size_t tags, const std::function<void()>& wake);
  Instant urgent_at() const;
  bool ReportUrgent(Instant from, Instant now, Draft& out);
  void PeriodEnds(Instant now);
  // Names tags to their owners that were refused in the period that has ended. True: there is more, and no room. A tag
  // that is watched is named as its demand is.
  bool TellDenied(Instant now, Draft& out);
  void Joined() { beside_.Joined(); }

  // Something holds tokens of the tag (hold/holds.h), or has given some back: peers are told of its hits that they may
  // come back. With its shard locked, any thread.
  void MayComeBack(std::uint64_t hash, Instant now) { returnable_tags_.Note(hash, now); }

  // Brings the certificate up to date. Once a period.
  void Certify(Instant now);

  // What left the buckets for reports; it is kept beside the table.
  Account account() const { return Account(core_.table->words()); }
  Account account_to_sites() const { return Account::ToSites(core_.table->words()); }

  // ---- Counts ----

  // By rule, which may also be Lane::kNoRule; and over everything that has a limit, since the start.
  DebitTotals totals(std::size_t rule) const { return totals_[core_.tally.CounterNamed(rule)]; }
  DebitTotals grand_totals() const { return all_totals_; }

  Certificate& certificate() { return certificate_; }
  const Certificate& certificate() const { return certificate_; }
  const RuleAccuracy& accuracy(std::size_t rule) const { return certificate_.rule(core_.tally.counter(rule)); }

 private:
  // What a debit under a limit is done by.
  struct Terms {
    LimitIndex index = std::numeric_limits<LimitIndex>::max();    // of none
    const Limit* limit = nullptr;
    Ticks max_debt = 0;
    Duration horizon{};
    DebitTotals* totals = nullptr;
    std::uint64_t hits_max = 0;    // of one entry
  };
  // Hits of a tag that is charged to another one, which may be divided among such tags.
  struct ChargedElsewhere {
    std::uint64_t divided, member;    // hash of the one, name of the other
    double weight;
    std::uint64_t hits;
  };
  void HearBack(const ToldEntry& told, const Speaker& speaker, std::uint64_t back, const Terms& terms, Instant now);
  void CreditPeer(const ToldEntry& told, Slot* slot, const Terms& terms, Cost tokens, Instant now);
  bool TellTurns(Instant from, Instant now, Draft& out);
  void NoteDenied(const Asked& asked);
  void NoteAmong(const ToldEntry& told, const Limit& limit, std::uint64_t hits, const Speaker& speaker, Instant now);
  void HearAmong(const Speaker& speaker, Instant now);
  bool IsNew(const ToldEntry& told, const Limit& limit, double demand);
  // Where the bucket lies, and hits that it was charged with.
  struct Booked {
    Slot* slot;    // null: there is no room for it
    std::uint64_t hits;
  };
  Booked DebitOne(const ToldEntry& told, const Terms& terms, const PeerWord& word, Instant now);
  // What hits of a peer made of a bucket.
  struct Change {
    const Bucket& before;
    const Bucket& after;
    const Slot* slot;    // null: there is no room for it
  };
  void Show(const ToldEntry& told, const Terms& terms, const PeerWord& word, const Heed& heed, const Change& change,
            Instant now);
  Terms TermsOf(LimitIndex index, Duration interval);
  Duration Horizon(const Limit& limit) const;
  Ticks ServedMax(const Limit& limit, Duration interval) const;
  Tokens DebtMade(const Bucket& before, const Bucket& bucket, const Terms& terms, Instant now);
  std::uint64_t HeardOf(std::size_t counter) const;

  LimiterCore& core_;
  Ways& ways_;
  PeerEntries peers_{core_};
  BesideHits beside_{core_, ways_, peers_};
  SaidBuckets buckets_{core_, ways_, peers_, beside_};
  ReturnableTags returnable_tags_;
  ReturnableHits returnable_hits_;
  std::vector<DebitTotals> totals_ = std::vector<DebitTotals>(Lane::kCounters);    // by counter
  DebitTotals all_totals_;
  Certificate certificate_{Lane::kCounters};
  std::vector<ChargedElsewhere> elsewhere_;    // of the entries that are being debited
  Turns turns_;
  Denied denied_;
  std::atomic<bool> others_own_{false};    // tags, at least some
  bool tells_denied_ = false;
  std::function<void()> wake_;
  Ticks window_abroad_ = 0;    // between reports of other sites; 0: there are none
};

}    // namespace dthrottle
