#include "capacity/exchange_generation.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dthrottle {
namespace {

constexpr unsigned kGenerationBits = 32;    // of a generation's number that say whose it is
// How far a number may be ahead of those promised here. A host without state must catch up, and a liar must not reach
// the last number.
constexpr std::uint64_t kGenerationsAhead = std::uint64_t{1} << 20;
constexpr int kSweepPatience = 10;      // times the patience, at least, between generations that make room
constexpr int kCompanyPatience = 1;     // in such times: while it changes nobody is blamed
constexpr int kRestFactor = 16;         // the longest rest between generations that were wished for
constexpr int kAttemptPatience = 4;     // in such times; then it is tried under another number
constexpr int kSweepsPatience = 640;    // the most, in such times, between generations that make room

// The equal share, less reserve, of each of the `here` members that take part, of `members`.
Parts BaseOf(std::size_t members, std::size_t here, Parts reserve, Parts aside) {
  const Parts kept = here * reserve + (members - here) * aside;
  return kept < kWhole ? (kWhole - kept) / here : 0;
}

// A number far ahead of all that were promised here would leave no room for others after it.
bool IsAhead(const CapacityCore& core, std::uint64_t number) {
  const std::uint64_t known = std::max(core.witness.promised(), core.generation.number);
  return number >> kGenerationBits <= (known >> kGenerationBits) + kGenerationsAhead;
}

// What a commit says it divides is one whole, all of it, with the reserves of these settings.
bool IsDivision(const CapacityMessage& m, const CapacitySettings& wanted) {
  const std::size_t n = wanted.members.size(), here = m.members.Count();
  for (std::size_t i = n; i < kMembersMax; ++i) {
    if (m.members.Has(i)) return false;
  }
  return here > 0 && m.reserve == ReserveParts(wanted) && m.aside >= m.reserve && m.aside <= kWhole &&
         m.base == BaseOf(n, here, m.reserve, m.aside);
}

// The commit of an attempt that enough members have promised.
CapacityMessage DivisionOf(const Attempt& attempt, const CapacityCore& core) {
  const std::vector<std::string>& names = core.members.wanted().members;
  CapacityMessage m;
  m.generation = attempt.generation;
  m.digest = core.members.wanted_digest();
  m.reserve = ReserveParts(core.members.wanted());
  m.aside = m.reserve;
  for (const auto& [name, promised] : attempt.promised) m.former = std::max(m.former, promised.former);
  const std::size_t n = names.size(), here = attempt.promised.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (attempt.promised.contains(names[i])) m.members.Add(i);
  }
  if (here < n) {
    // Whatever a member says, what is kept for the others leaves everybody here an equal share.
    const Parts most = std::max({kWhole / n, core.generation.reserve, core.generation.aside});
    for (const auto& [name, promised] : attempt.promised) m.aside = std::max(m.aside, std::min(promised.aside, most));
  }
  m.base = BaseOf(n, here, m.reserve, m.aside);
  return m;
}

// A member that is there but slow is waited for.
bool WaitsForPromises(const Attempt& attempt, const CapacityMembers& members, BootInstant now) {
  if (now - attempt.since > members.patience()) return false;
  return std::ranges::any_of(members.wanted().members, [&](const std::string& name) {
    return !members.IsSelf(name) && !attempt.promised.contains(name) && members.Up(members.peer(name), now);
  });
}

// What this host says with its promise.
Promised PromisedBy(const CapacityCore& core, BootInstant now) {
  Promised p;
  p.former = core.generation.number;
  p.aside = std::max(core.generation.reserve, core.generation.aside);
  if (core.generation.joined() && !core.members.settled()) p.former_witnesses = core.members.witnesses();
  const std::vector<std::string>& names = core.members.wanted().members;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!core.members.IsSelf(names[i]) && core.witness.Lapsed(names[i], now)) p.lapsed.Add(i);
  }
  p.others_lapsed = std::ranges::all_of(core.members.active().members, [&](const std::string& name) {
    return IsIn(names, name) || core.witness.Lapsed(name, now);
  });
  return p;
}

bool HasAllSeats(const CapacityCore& core, const MemberBits& held) {
  for (std::size_t i = 0; i < core.members.active().members.size(); ++i) {
    if (core.generation.participants.Has(i) && !held.Has(i)) return false;
  }
  return true;
}

// The wanted members that are there, this host included.
MemberBits CompanyWithout(const CapacityPeer* leader, const CapacityMembers& members, BootInstant now) {
  MemberBits there;
  const std::vector<std::string>& names = members.wanted().members;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const CapacityPeer* const p = members.Find(names[i]);
    if (p == nullptr || (p != leader && members.Up(*p, now))) there.Add(i);
  }
  return there;
}

}    // namespace

CapacityGenerations::CapacityGenerations(CapacityCore& core, const CapacityBooks& books, const CapacityGifts& gifts,
                                         const CapacityAudits& audits, BootInstant now)
    : core_(core),
      members_(core.members),
      ledgers_(books.ledgers()),
      gifts_(gifts),
      audits_(audits),
      well_at_(now),
      rest_(SeatPatience()),
      sweep_after_(kSweepPatience * members_.patience()) {}

bool CapacityGenerations::WishesReset(BootInstant now) const {
  const bool stuck = now - well_at_ > members_.patience();
  const bool lost = core_.life.residue || gifts_.Unsettled(SeatPatience(), now);
  const bool full = ledgers_.size() > members_.wanted().tags_max / 4 * 3 && now - joined_at_ > sweep_after_;
  return stuck || (core_.generation.joined() && (lost || full || audits_.Overdrawn(SeatPatience(), now)));
}

void CapacityGenerations::JudgeSweep(BootInstant now) {
  if (!swept_ || now - joined_at_ < SeatPatience()) return;
  const bool helped = 2 * ledgers_.size() <= *swept_;
  const Duration patience = members_.patience();
  sweep_after_ = helped ? kSweepPatience * patience : std::min(2 * sweep_after_, kSweepsPatience * patience);
  swept_.reset();
}

bool CapacityGenerations::AllWantIt(BootInstant now, const CapacityPeer* without) const {
  for (const auto* panel : {&members_.wanted_witnesses(), &members_.witnesses()}) {
    if (members_.CountUp(*panel, now, without) < Majority(panel->size())) return false;
  }
  bool elsewhere = false;
  for (const std::string& name : members_.wanted().members) {
    if (members_.IsSelf(name)) continue;
    const CapacityPeer& p = members_.peer(name);
    if (!members_.Up(p, now)) {
      if (members_.Fresh(now)) return false;
      continue;
    }
    if (&p == without || p.trust.PassedOver(now)) continue;
    if (p.digest != members_.wanted_digest() && !core_.generation.frozen()) return false;
    elsewhere |= p.generation > core_.generation.number;
  }
  return !elsewhere || !members_.Fresh(now, 2);    // it will be told of a generation that there is
}

void CapacityGenerations::JudgeLeader(BootInstant now) {
  if (core_.Leased(now) || !AllWantIt(now)) well_at_ = now;
  CapacityPeer* const leader = members_.Leader(now);
  // Nobody can do better where too many are silent or have other settings.
  if (leader == nullptr || !AllWantIt(now, leader)) return;
  // Where hosts come and go that is the trouble.
  const MemberBits there = CompanyWithout(leader, members_, now);
  if (std::exchange(company_, there) != there) company_since_ = now;
  if (now - company_since_ <= kCompanyPatience * members_.patience()) return;
  // Only witnesses hear everybody, and know what is due.
  const bool due = IsIn(members_.wanted_witnesses(), members_.self()) && HasReason(kRestFactor * SeatPatience(), now);
  // The first that leads in another's place has twice the time: it begins when the others have passed over that one.
  const Duration round = members_.StandsIn(now) ? members_.active().interval / 2 : members_.active().interval;
  if (core_.Leased(now) && !due) return leader->trust.Forgive(round);
  hurry_ |= leader->trust.Blame(round, members_.patience(), now);
  if (members_.Leader(now) != nullptr) return;
  for (auto& [name, peer] : members_.peers()) peer.trust.TrustAgain();    // it is not one of them
}

std::optional<CapacityMessage> CapacityGenerations::Coordinate(BootInstant now) {
  const bool stale = attempt_ && now - attempt_->since > kAttemptPatience * members_.patience();
  const bool coordinator = members_.IsCoordinator(now);
  if (stale || !coordinator) attempt_.reset();
  if (!coordinator) return std::nullopt;
  if (!attempt_ && !HasReason(hurry_ ? Duration() : rest_, now)) return std::nullopt;
  if (!attempt_) Begin(now);
  CapacityMessage& m = core_.Fresh(CapacityKind::kPrepare);
  m.generation = attempt_->generation;
  m.digest = members_.wanted_digest();
  core_.SendAll(members_.wanted().members);
  if (Promise(attempt_->generation, now)) attempt_->promised[members_.self()] = PromisedBy(core_, now);
  return TryCommit(now);
}

bool CapacityGenerations::HasReason(Duration rested, BootInstant now) {
  if (!AllWantIt(now)) return false;
  if (!core_.generation.joined() || !members_.settled()) return true;
  MemberBits held = core_.life.seats;
  bool wished = WishesReset(now);
  for (const auto& [name, peer] : members_.peers()) {
    if (!members_.Up(peer, now)) continue;
    wished |= peer.wishes;    // of another generation: perhaps it has promised one that never began
    if (peer.generation == core_.generation.number) held.Add(peer.seats);
  }
  if (HasAllSeats(core_, held)) whole_at_ = now;
  // More was set aside for a host that was not there than has to be.
  wished |= core_.generation.aside > core_.generation.reserve &&
            members_.CountUp(members_.wanted().members, now) == members_.wanted().members.size();
  // A new generation costs nothing where there is no lease to lose.
  return now - well_at_ > members_.patience() ||
         (now - joined_at_ > rested && (wished || now - whole_at_ > SeatPatience()));
}

void CapacityGenerations::Begin(BootInstant now) {
  std::uint64_t highest = std::max({core_.witness.promised(), core_.generation.number, refused_});
  for (const auto& [name, peer] : members_.peers()) {
    if (IsAhead(core_, peer.generation)) highest = std::max(highest, peer.generation);
  }
  const std::uint64_t whose = NameNumber(members_.self()) >> kGenerationBits;
  attempt_ = Attempt{((highest >> kGenerationBits) + 1) << kGenerationBits | whose, now, {}};
}

bool CapacityGenerations::Promise(std::uint64_t number, BootInstant now) {
  if (number < core_.witness.promised() || number <= core_.generation.number || !IsAhead(core_, number)) return false;
  if (number == core_.witness.promised()) return core_.generation.acked == number;
  core_.witness.Promise(number);
  core_.Save();
  core_.generation.acked = core_.generation.entitled_to = number;
  core_.generation.promised_at = now;
  core_.UpdateStanding();
  return true;
}

void CapacityGenerations::OnPrepare(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.digest != members_.wanted_digest()) {
    ++core_.counts.other_settings;
    return;
  }
  if (!members_.Leads(p, now)) return;
  const std::uint64_t number = m.generation;
  const bool refuse = number < core_.witness.promised();
  if (!refuse && !Promise(number, now)) return;
  CapacityMessage& reply = core_.Fresh(CapacityKind::kPromise);
  reply.generation = refuse ? core_.witness.promised() : number;
  reply.digest = members_.wanted_digest();
  if (!refuse) {
    const Promised promised = PromisedBy(core_, now);
    reply.former = promised.former;
    reply.witnesses = promised.former_witnesses;
    reply.members = promised.lapsed;
    reply.last = promised.others_lapsed;
    reply.aside = promised.aside;
  }
  core_.Send(p.name);
}

std::optional<CapacityMessage> CapacityGenerations::OnPromise(CapacityPeer& p, const CapacityMessage& m,
                                                              BootInstant now) {
  if (m.digest != members_.wanted_digest() || !attempt_ || !IsIn(members_.wanted().members, p.name)) return {};
  if (m.generation > attempt_->generation) {
    if (!IsAhead(core_, m.generation)) return {};
    refused_ = std::max(refused_, m.generation);
    // A member that refuses again and again does not keep the others from what they have promised.
    if (p.refused && now - *p.refused <= kAttemptPatience * members_.patience()) return {};
    p.refused = now;
    attempt_.reset();
    return {};
  }
  if (m.generation < attempt_->generation || m.aside > kWhole) return {};
  if (m.former == core_.generation.number && !m.witnesses.empty() && m.witnesses != members_.witnesses()) return {};
  attempt_->promised[p.name] = {m.former, m.witnesses, m.members, m.last, m.aside};
  return TryCommit(now);
}

std::optional<CapacityMessage> CapacityGenerations::TryCommit(BootInstant now) {
  const CapacitySettings& wanted = members_.wanted();
  if (!core_.without.promises && WaitsForPromises(*attempt_, members_, now)) return std::nullopt;
  if (now - attempt_->since > members_.patience()) attempt_->ForgetUnconfirmed(wanted.members, members_.self());
  if (!attempt_->Suffices(wanted.members, members_.wanted_witnesses(), core_.without.promises)) return std::nullopt;
  CapacityMessage agreed = DivisionOf(*attempt_, core_);
  attempt_.reset();
  return agreed;
}

bool CapacityGenerations::Accepts(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.digest != members_.wanted_digest()) {
    ++core_.counts.other_settings;
    return false;
  }
  const CapacityGeneration& g = core_.generation;
  if (m.generation <= g.number || m.generation < g.acked || !IsAhead(core_, m.generation)) return false;
  return members_.Leads(p, now) && IsDivision(m, members_.wanted()) && !IsUnasked(m, now);
}

void CapacityGenerations::BlameFor(CapacityPeer& leader, BootInstant now) {
  hurry_ |= leader.trust.Blame(LeaderTrust::kPatience / 2 * members_.patience(), members_.patience(), now);
}

void CapacityGenerations::Enter(const CapacityMessage& m, BootInstant now) {
  CapacityGeneration& g = core_.generation;
  // Generations that follow each other closely under the same settings do not help, whichever member wishes for them.
  const bool again = g.joined() && well_at_ > joined_at_ && members_.settled() && now - joined_at_ < 2 * rest_;
  rest_ = again ? std::min(2 * rest_, kRestFactor * SeatPatience()) : SeatPatience();
  members_.Adopt();
  core_.UseSettings();
  const bool known = g.joined();
  g.number = m.generation;
  if (g.number > core_.witness.promised()) core_.witness.Promise(g.number);
  core_.witness.SetWhole(g.acked == g.number);
  core_.witness.SetReserve(m.reserve);
  core_.Save();
  g.base = m.base;
  g.reserve = m.reserve;
  g.aside = m.aside;
  g.participants = m.members;
  Rest(m, known, now);
  core_.life.seats = MemberBits();
  const std::uint32_t self = members_.SelfNumber();
  if (std::exchange(g.entitled_to, 0) == g.number && g.participants.Has(self)) core_.life.seats.Add(self);
  core_.life.residue = hurry_ = false;
  swept_ = ledgers_.size();
  joined_at_ = whole_at_ = well_at_ = now;
  ++core_.counts.resets;
  EncodeCommit();
}

// A promise that is in the generation was given before it began. So where every host keeps what it had for a time after
// its own promise, and each takes nothing new for that time after it has joined, nobody has what another keeps, whatever
// becomes of them meanwhile.
void CapacityGenerations::Rest(const CapacityMessage& m, bool known, BootInstant now) {
  CapacityGeneration& g = core_.generation;
  g.former = m.former;
  const bool rests = known || m.former != 0;
  const bool counted = g.acked == g.number && g.participants.Has(members_.SelfNumber());
  g.rests_until = rests ? now + kRestLeases * PatienceOf(members_.active()) : BootInstant::min();
  g.kept_until = rests && counted ? g.promised_at + kRestLeases * members_.active().lease : BootInstant::min();
}

void CapacityGenerations::Resume(BootInstant now) {
  whole_at_ = well_at_ = now;
  EncodeCommit();
}

bool CapacityGenerations::IsUnasked(const CapacityMessage& m, BootInstant now) const {
  if (m.generation == core_.generation.acked || !core_.generation.joined() || core_.without.promises) return false;
  const std::vector<std::string>& names = members_.wanted().members;
  const auto self = static_cast<std::size_t>(std::ranges::lower_bound(names, members_.self()) - names.begin());
  return core_.Leased(now) || (m.generation > core_.witness.promised() && m.members.Has(self));
}

void CapacityGenerations::EncodeCommit() {
  CapacityMessage& m = core_.Fresh(CapacityKind::kCommit);
  m.digest = members_.active_digest();
  m.base = core_.generation.base;
  m.reserve = core_.generation.reserve;
  m.aside = core_.generation.aside;
  m.members = core_.generation.participants;
  m.former = core_.generation.former;
  commit_ = core_.Encoded();
}

}    // namespace dthrottle
