#include "daemon/peer_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/state.h"
#include "capacity/indicator.h"
#include "daemon/dividing_options.h"
#include "daemon/peer_options.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/peer_settings.h"
#include "io/signals.h"
#include "rule/rulebook.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

constexpr Duration kCountEvery = std::chrono::seconds(1);    // how often the peers are counted

}    // namespace

void LendReserve(const Settings& settings, Limiter& limiter) {
  const auto& capacity = settings.capacity;
  const std::size_t hosts = capacity.members.empty() ? settings.peers.named() + 1 : capacity.members.size();
  const double part = capacity.reserve / static_cast<double>(hosts);
  limiter.ways().Get<Division>().ChangeParts([&](PartTable& parts) {
    parts.ForgetParts();
    parts.Lend({part, part, BootInstant::max()});
  });
}

PeerSession::PeerSession(Host host, std::unique_ptr<PeerThread> thread, bool divides, std::size_t peers,
                         const Kept& kept)
    : host_(std::move(host)), thread_(std::move(thread)), owners_(host_.settings.peers.owners), counted_at_(Now()) {
  Prng prng = FreshPrng();
  sharing_ = std::make_unique<Sharing>(host_.limiter.ways(), thread_->to_peers(), thread_->from_peers(), peers,
                                       host_.settings.peers.period, prng, Now());
  sharing_->OwnedBy(thread_->owners_at_start(), host_.name);
  sharing_->NoteIn(host_.counted);
  Sharing::Kept sharing;
  if (thread_->resumed() && ReadState(kept.sharing, Sharing::kKeptVersion, sharing)) {
    sharing_->Resume(sharing, Now());
  } else if (!thread_->resumed()) {    // a thread that goes on has joined
    sharing_->HoldHits();
  }
  Dividing::Kept dividing;
  const bool resumes = divides && ReadState(kept.dividing, Dividing::kKeptVersion, dividing);
  if (!resumes) LendReserve(host_.settings, host_.limiter);
  Divide(divides);
  if (resumes) dividing_->Resume(std::move(dividing), Now());
}

// The limiter's half, to a thread that divides or does not.
void PeerSession::Divide(bool begin) {
  const auto& capacity = host_.settings.capacity;
  if (!begin) {
    dividing_.reset();
    LendReserve(host_.settings, host_.limiter);
  } else if (dividing_ == nullptr) {
    dividing_ = std::make_unique<Dividing>(host_.limiter.ways().Get<Division>(), thread_->to_capacity(),
                                           thread_->from_capacity(), capacity.tags_max, capacity.interval, Now());
  }
  if (dividing_ != nullptr) dividing_->GoByReports(capacity.indicator == Reported().name());
}

bool PeerSession::Work(Instant end) {
  const bool was_full = thread_->from_peers().full() || thread_->from_capacity().full();
  bool more = true;
  for (Instant now = Now(); more && now < end; now = Now()) {
    more = sharing_->Work(now);
    more = (dividing_ != nullptr && dividing_->Work(now)) || more;
  }
  if (!more) CountPeers(Now());
  if (was_full || !thread_->to_peers().empty() || !thread_->to_capacity().empty()) thread_->Notify();
  TellAccuracy();
  return more;
}

Instant PeerSession::next() const {
  return dividing_ != nullptr ? std::min(sharing_->next(), dividing_->next()) : sharing_->next();
}

// One entry of the settings may be a name with many hosts behind it, and one may be this host itself.
void PeerSession::CountPeers(Instant now) {
  if (now < counted_at_ + kCountEvery) return;
  counted_at_ = now;
  if (sharing_->told_hosts()) return;    // by owners, since this host does not see the others
  std::size_t peers = 0;
  for (const PeerStatus& peer : thread_->Peers()) {
    peers += peer.state == PeerState::kUp || peer.state == PeerState::kSilent || peer.state == PeerState::kConnecting;
  }
  sharing_->SetPeers(peers);
}

void PeerSession::TellAccuracy() {
  for (const AccuracyNews& news : host_.limiter.ways().Get<Debits>().certificate().TakeNews()) {
    const std::string& rule = host_.limiter.rules().rules()[news.rule].name;
    if (news.began) {
      host_.log.Warning("rule \"{}\": {:.1f} % over-admitted in the last minute, more than tolerance = {:g}: see stats",
                        rule, news.over_percent, news.tolerance_percent);
    } else {
      host_.log.Notice("rule \"{}\": {:.1f} % over-admitted in the last minute, tolerance = {:g} holds again", rule,
                       news.over_percent, news.tolerance_percent);
    }
  }
}

// ---- Other settings ----

void PeerSession::Reload(const OwnerAddresses* list, std::vector<std::string>& problems) {
  const Settings& settings = host_.settings;
  const auto& peers = settings.peers;
  const auto authorized = ReloadKeys({"peers", peers.key_file, peers.authorized_keys}, *thread_, problems);
  thread_->SetConnect(Called(settings, list));
  if (list == nullptr) ReloadOwners();
  thread_->SetCeilings(CeilingsOf(settings));
  host_.limiter.ways().Get<Debits>().peers().SetNewTagsMax(peers.max_new_tags);
  if (!authorized) return;
  auto capacity = MakeCapacityOptions(settings, host_.limiter.rules(), *authorized, host_.name);
  if (!capacity) {
    problems.push_back("warning: " + capacity.error().message + "; parts of limits are divided as before");
    return;
  }
  const bool divides = capacity->has_value();
  thread_->SetCapacity(std::move(*capacity));
  Divide(divides);
}

void PeerSession::ReloadOwners() {
  const auto& peers = host_.settings.peers;
  if (peers.spread != PeerSpread::kOwners || peers.owners == owners_) return;
  owners_ = peers.owners;
  thread_->SetOwners(owners_);
}

void PeerSession::Obey(const OwnerAddresses& list) {
  thread_->SetConnect(Called(host_.settings, &list));
  thread_->ObeyOwners(list.owners);
}

void PeerSession::AddTo(PeerCounts& counts) const {
  counts.exchange = thread_->Counts();
  counts.thread = thread_->OwnCounts();
  if (sharing_->owning() != nullptr) counts.owning = sharing_->owning()->counts();
  counts.capacity = thread_->CapacityCountsNow();
  if (dividing_ != nullptr) {
    counts.capacity_tags = dividing_->participants().size();
    counts.capacity_crowded = dividing_->crowded();
  }
  for (const PeerStatus& peer : thread_->Peers()) {
    counts.configured += peer.state != PeerState::kSelf;
    counts.up += peer.state == PeerState::kUp;
  }
}

// ---- The end ----

void PeerSession::ReportAll(Instant end) {
  ReportNow();
  for (Instant now = Now(); now < end && sharing_->reporting(now); now = Now()) {
    sharing_->Work(now);
    thread_->Notify();
  }
}

void PeerSession::StopMeanwhile(std::function<void()> stopped) {
  const SignalsBlocked blocked;
  ender_ = std::thread([this, stopped = std::move(stopped)] {
    thread_->Stop();
    stopped();
  });
}

void PeerSession::Stop() {
  if (ender_.joinable()) ender_.join();
  thread_->Stop();
}

bool PeerSession::Drain(Instant end) {
  bool drained = false;
  for (Instant now = Now(); now < end && !drained; now = Now()) {
    const bool dividing = dividing_ != nullptr && dividing_->Work(now);
    const bool sharing = sharing_->Drain(now);
    drained =
        thread_->Drain() && sharing && !dividing && thread_->from_peers().empty() && thread_->to_capacity().empty();
  }
  return drained;
}

void PeerSession::Keep(Kept& kept) {
  kept.exchange = thread_->ExchangeLife();
  kept.capacity = thread_->CapacityLife();
  kept.sharing = WriteState(Sharing::kKeptVersion, sharing_->Keep());
  kept.dividing = dividing_ != nullptr ? WriteState(Dividing::kKeptVersion, dividing_->Keep()) : "";
}

}    // namespace dthrottle
