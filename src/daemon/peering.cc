#include "daemon/peering.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/state.h"
#include "capacity/indicator.h"
#include "daemon/dividing_options.h"
#include "daemon/peer_options.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/process.h"
#include "io/signals.h"
#include "rule/rulebook.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// What a turn of the loop spends on peers before it looks at its applications again.
constexpr Duration kBudget = std::chrono::microseconds(100);

// For the last report, of a table however large.
constexpr Duration kFarewell = std::chrono::milliseconds(500);

// For what lies between the thread and the limiter when the thread has ended.
constexpr Duration kDraining = std::chrono::seconds(2);

constexpr std::uint32_t kKeptVersion = 1;

constexpr std::uint64_t kRetryMs = 5000;    // before the ports are tried again

// How often the peers are counted.
constexpr Duration kCountEvery = std::chrono::seconds(1);

std::uint64_t Random() {
  std::uint64_t value;
  FillRandom(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::string By(const Settings& settings) {
  const auto& peers = settings.peers;
  if (peers.transport == PeerTransport::kNats) return "over NATS, " + peers.nats.front();
  return fmt::format("on {}, {}", FormatBind(peers.bind),
                     peers.key_file.empty() ? "on this host only: no keys" : "with keys");
}

}    // namespace

Peering::Peering(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, TaskQueue& tasks,
                 std::vector<Tenant*> tenants)
    : loop_(loop),
      limiter_(limiter),
      settings_(settings),
      log_(log),
      tasks_(tasks),
      tenants_(std::move(tenants)),
      prng_(Random()) {
  const auto on_wake = [](uv_async_t* h) { static_cast<Peering*>(h->data)->StartWork(); };
  DT_CHECK(uv_async_init(loop_, &wake_, on_wake) == 0 && uv_timer_init(loop_, &timer_) == 0 &&
           uv_idle_init(loop_, &working_) == 0 && uv_timer_init(loop_, &retry_) == 0);
  wake_.data = timer_.data = working_.data = retry_.data = this;
}

// Over-long tags go by a digest, which all hosts have to make in the same way. That everybody can make it costs little:
// two tags with one digest of 128 bits would share a bucket.
void Peering::Start(std::string_view kept, bool took_over) {
  shares_ = settings_.peers.enabled();
  if (!shares_) return;
  constexpr std::string_view kKey = "dthrottle: tags that are shared.";
  TableKeys keys;
  static_assert(kKey.size() == sizeof keys.digest);
  std::memcpy(keys.digest.data(), kKey.data(), kKey.size());
  limiter_.table().SetDigestKey(keys.digest);
  limiter_.ways().Get<Debits>().SetNewTagsMax(settings_.peers.max_new_tags);
  LendReserve();
  if (!kept.empty()) TakeKept(kept);
  limiter_.ways().WatchTags(settings_.peers.watched_tags, [this] { Wake(); });
  if (!settings_.peers.etcd.empty()) StartOwnerList();
  if (!took_over && !AwaitsList()) {
    if (auto opened = Open(); !opened) throw StartFailure{EX_UNAVAILABLE, opened.error().message};
    return;
  }
  // Queries that wait come first, but what they are served is to be reported.
  limiter_.ways().Get<Debits>().ShareWith(Called(settings_, ListOfOwners()).size(), settings_.peers.period);
  tasks_.Post([this] { Return(); });
}

void Peering::TakeKept(std::string_view kept) {
  const bool readable = ReadState(kept, kKeptVersion, kept_);
  const std::string& table = settings_.table.file;
  if (!readable || (!table.empty() && LastIncarnation(table) != kept_.start)) {
    log_.Warning("sharing begins anew: what was kept is of another version, or not of the last start");
    kept_ = {};
    return;
  }
  if (!limiter_.discarded().empty()) kept_.exchange.clear(), kept_.sharing.clear();    // it is about another table
  Dividing::Kept dividing;
  if (limiter_.rules().divided_fingerprint() != 0 && ReadState(kept_.dividing, Dividing::kKeptVersion, dividing)) {
    dividing.PutInForce(limiter_.ways().Get<Division>(), settings_.capacity.tags_max);
  }
}

// For a daemon that answers already: it does not end because of this.
void Peering::Return() {
  if (!shares_ || stopped_ || AwaitsList()) return;
  const auto opened = Open();
  if (opened) return;
  log_.Error("{}; trying again", opened.error().message);
  uv_timer_start(
      &retry_, [](uv_timer_t* t) { static_cast<Peering*>(t->data)->Return(); }, kRetryMs, 0);
}

// Until peers answer, this host uses only the reserve of divided limits, which no other host can hold.
void Peering::LendReserve() {
  const auto& capacity = settings_.capacity;
  const std::size_t hosts = capacity.members.empty() ? settings_.peers.named() + 1 : capacity.members.size();
  const double part = capacity.reserve / static_cast<double>(hosts);
  limiter_.ways().Get<Division>().ChangeParts([&](PartTable& parts) {
    parts.ForgetParts();
    parts.Lend({part, part, Instant::max()});
  });
}

// The limiter's half, to a thread that divides or does not.
void Peering::Divide(bool begin) {
  if (!begin) {
    dividing_.reset();
    LendReserve();
  } else if (dividing_ == nullptr) {
    dividing_ =
        std::make_unique<Dividing>(limiter_.ways().Get<Division>(), thread_->to_capacity(), thread_->from_capacity(),
                                   settings_.capacity.tags_max, settings_.capacity.interval, Now());
  }
  if (dividing_ != nullptr) dividing_->GoByReports(settings_.capacity.indicator == Reported().name());
}

Peering::~Peering() {
  DT_CHECK(stopped_);
}

// ---- The list of owners, where etcd has it ----

void Peering::StartOwnerList() {
  owner_list_ = std::make_unique<OwnerList>(
      loop_, settings_, log_, NameOfHost(settings_), Prng(Random()),
      OwnerList::Fleet{
          .look = [this] { return thread_ != nullptr ? thread_->OwnersView() : EtcdOwners::View(); },
          .propose = [this](std::vector<std::string> names) { thread_->SetOwners(std::move(names)); },
          .on_list = [this] { OnOwnerList(); },
      });
  if (auto started = owner_list_->Start(); !started) {
    throw StartFailure{EX_CANTCREAT, "the list of owners: " + started.error().message};
  }
  if (!AwaitsList()) return;
  log_.Notice("peers: this host limits alone until etcd says who owns tags");
}

// No host to share with is known.
bool Peering::AwaitsList() const {
  return owner_list_ != nullptr && !owner_list_->list();
}

void Peering::OnOwnerList() {
  if (stopped_) return;
  if (thread_ == nullptr) return tasks_.Post([this] { Return(); });
  thread_->SetConnect(Called(settings_, ListOfOwners()));
  thread_->ObeyOwners(owner_list_->list()->owners);
}

// Null: the settings have it, or there is none.
const OwnerAddresses* Peering::ListOfOwners() const {
  return owner_list_ != nullptr && owner_list_->list() ? &*owner_list_->list() : nullptr;
}

// What this host has to say, and what it goes on with.
void Peering::Connect(PeerThread::Options& options) {
  options.exchange.life = kept_.exchange;
  options.capacity_life = kept_.capacity;
  options.tenants = tenants_;
  options.wake = [this] { uv_async_send(&wake_); };
  options.log = [this](LogLevel level, std::string text) {
    tasks_.Post([this, level, text = std::move(text)] {
      if (level <= LogLevel::kWarning) {
        log_.Warning("peers: {}", text);
      } else {
        log_.Notice("peers: {}", text);
      }
    });
  };
}

// Opens the ports and begins to report, or goes on where it has left. The reason if it cannot, with nothing begun.
Result<void> Peering::Open() {
  auto options = MakePeerOptions(settings_, limiter_, log_, ListOfOwners(), Random());
  if (!options) return Fail(options.error().message);
  Connect(*options);
  const bool divides = options->capacity.has_value();
  const std::string name = options->exchange.name;
  const std::uint64_t start = options->exchange.incarnation;
  auto thread = std::make_unique<PeerThread>(std::move(*options));
  if (auto started = thread->Start(); !started) return Fail(started.error().message);
  sharing_.reset();    // they use the rings of the thread before
  dividing_.reset();
  name_ = name;
  thread_ = std::move(thread);
  away_ = false;
  GoOn(divides);
  kept_.start = start;
  counted_at_ = Now();
  log_.Notice("sharing limits as \"{}\" {}{}", name, By(settings_), thread_->resumed() ? ", where it left off" : "");
  SetTimer();
  return {};
}

// Shares and divides over the rings of a new thread, from what was kept of the one before.
void Peering::GoOn(bool divides) {
  KeptState kept = std::exchange(kept_, {});
  const auto& peers = settings_.peers;
  sharing_ = std::make_unique<Sharing>(limiter_.ways(), thread_->to_peers(), thread_->from_peers(),
                                       Called(settings_, ListOfOwners()).size(), peers.period, prng_, Now());
  sharing_->OwnedBy(thread_->owners_at_start(), name_);
  owners_ = peers.owners;
  Sharing::Kept sharing;
  if (thread_->resumed() && ReadState(kept.sharing, Sharing::kKeptVersion, sharing)) {
    sharing_->Resume(sharing, Now());
  } else {
    sharing_->HoldHits();
  }
  Dividing::Kept dividing;
  if (divides && ReadState(kept.dividing, Dividing::kKeptVersion, dividing)) {
    Divide(true);
    dividing_->Resume(std::move(dividing), Now());
  } else {
    LendReserve();
    Divide(divides);
  }
}

void Peering::Reload(std::vector<std::string>& problems) {
  const Settings& settings = settings_;
  if (!shares_) {
    if (settings.peers.enabled()) problems.push_back("warning: peers.connect: sharing begins at the next start");
    return;
  }
  if (!settings.peers.enabled()) {
    problems.push_back("peers.connect = []: warning: sharing ends at the next start");
    return;
  }
  if (owner_list_ != nullptr) owner_list_->Reload();
  if (thread_ == nullptr) return;    // reads them when it starts
  AuthorizedKeys authorized;
  bool keys_good = true;
  if (!settings.peers.authorized_keys.empty()) {
    auto others = ReadAuthorizedKeys(settings.peers.authorized_keys);
    keys_good = others.has_value();
    if (others) {
      authorized = *others;
      for (const std::string& complaint : others->complaints) problems.push_back("peers.authorized_keys: " + complaint);
      thread_->ReloadKeys(std::move(*others));
    } else {
      problems.push_back("peers.authorized_keys: warning: " + others.error().message + "; the keys stay as they were");
    }
  }
  thread_->SetConnect(Called(settings_, ListOfOwners()));
  ReloadOwners();
  thread_->SetCeilings(CeilingsOf(settings));
  limiter_.ways().Get<Debits>().SetNewTagsMax(settings.peers.max_new_tags);
  if (!keys_good) return;
  auto capacity = MakeCapacityOptions(settings, limiter_.rules(), authorized, name_);
  if (!capacity) {
    problems.push_back("warning: " + capacity.error().message + "; parts of limits are divided as before");
    return;
  }
  const bool divides = capacity->has_value();
  thread_->SetCapacity(std::move(*capacity));
  Divide(divides);
}

void Peering::ReloadOwners() {
  const auto& peers = settings_.peers;
  if (peers.spread != PeerSpread::kOwners || owner_list_ != nullptr || peers.owners == owners_) return;
  owners_ = peers.owners;
  thread_->SetOwners(owners_);
}

// One entry of the settings may be a name with many hosts behind it, and one may be this host itself.
void Peering::CountPeers(Instant now) {
  if (now < counted_at_ + kCountEvery) return;
  counted_at_ = now;
  if (sharing_->told_hosts()) return;    // by owners, since this host does not see the others
  std::size_t peers = 0;
  for (const PeerStatus& peer : thread_->Peers()) {
    peers += peer.state == PeerState::kUp || peer.state == PeerState::kSilent || peer.state == PeerState::kConnecting;
  }
  sharing_->SetPeers(peers);
}

void Peering::StartWork() {
  if (stopped_ || away_ || uv_is_active(reinterpret_cast<uv_handle_t*>(&working_)) != 0) return;
  uv_timer_stop(&timer_);
  uv_idle_start(&working_, [](uv_idle_t* h) { static_cast<Peering*>(h->data)->OnWork(); });
}

void Peering::OnWork() {
  const bool was_full = thread_->from_peers().full() || thread_->from_capacity().full();
  const Instant end = Now() + kBudget;
  for (Instant now = Now(); now < end; now = Now()) {
    const bool more = sharing_->Work(now);
    if ((dividing_ != nullptr && dividing_->Work(now)) || more) continue;
    uv_idle_stop(&working_);
    SetTimer();
    break;
  }
  if (was_full || !thread_->to_peers().empty() || !thread_->to_capacity().empty()) thread_->Notify();
  TellAccuracy();
  const Instant now = Now();
  if (leaving_ != nullptr && (!sharing_->reporting(now) || now >= leave_by_)) EndThread();
}

void Peering::TellAccuracy() {
  for (const AccuracyNews& news : limiter_.ways().Get<Debits>().certificate().TakeNews()) {
    const std::string& rule = limiter_.rules().rules()[news.rule].name;
    if (news.began) {
      log_.Warning("rule \"{}\": {:.1f} % over-admitted in the last minute, more than tolerance = {:g}: see stats",
                   rule, news.over_percent, news.tolerance_percent);
    } else {
      log_.Notice("rule \"{}\": {:.1f} % over-admitted in the last minute, tolerance = {:g} holds again", rule,
                  news.over_percent, news.tolerance_percent);
    }
  }
}

void Peering::Leave(std::function<void()> left) {
  if (away_) return left();
  leaving_ = std::move(left);
  leave_by_ = Now() + kFarewell;
  sharing_->ReportNow(Now());
  StartWork();
}

// Ending it takes a while, in which this thread has queries to answer.
void Peering::EndThread() {
  away_ = true;
  uv_idle_stop(&working_);
  uv_timer_stop(&timer_);
  const SignalsBlocked blocked;
  ender_ = std::thread([this] {
    thread_->Stop();
    tasks_.Post([this] {
      if (ender_.joinable()) ender_.join();
      if (stopped_) return;
      leave_by_ = Now() + kDraining;
      uv_idle_start(&working_, [](uv_idle_t* h) { static_cast<Peering*>(h->data)->OnDraining(); });
    });
  });
}

// One slice of moving what lies between the thread that has ended and the limiter; true when that is nothing.
bool Peering::Drain(Instant now) {
  const bool dividing = dividing_ != nullptr && dividing_->Work(now);
  const bool sharing = sharing_->Drain(now);
  return thread_->Drain() && sharing && !dividing && thread_->from_peers().empty() && thread_->to_capacity().empty();
}

void Peering::OnDraining() {
  const Instant end = Now() + kBudget;
  bool drained = false;
  for (Instant now = Now(); now < end && !drained; now = Now()) drained = Drain(now);
  if (!drained && Now() < leave_by_) return;
  uv_idle_stop(&working_);
  if (drained) KeepAll();
  std::exchange(leaving_, nullptr)();
}

void Peering::KeepAll() {
  kept_.exchange = thread_->ExchangeLife();
  kept_.capacity = thread_->CapacityLife();
  kept_.sharing = WriteState(Sharing::kKeptVersion, sharing_->Keep());
  kept_.dividing = dividing_ != nullptr ? WriteState(Dividing::kKeptVersion, dividing_->Keep()) : "";
}

void Peering::Keep(std::vector<HandedSection>& sections) const {
  if (shares_) sections.push_back({"peers", -1, WriteState(kKeptVersion, kept_)});
}

void Peering::SetTimer() {
  CountPeers(Now());
  uv_update_time(loop_);
  const Instant next = dividing_ != nullptr ? std::min(sharing_->next(), dividing_->next()) : sharing_->next();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Now()).count();
  uv_timer_start(
      &timer_, [](uv_timer_t* h) { static_cast<Peering*>(h->data)->StartWork(); },
      static_cast<std::uint64_t>(std::max<std::int64_t>(wait, 0)), 0);
}

std::vector<PeerStatus> Peering::Peers() const {
  return thread_ != nullptr ? thread_->Peers() : std::vector<PeerStatus>();
}

PeerCounts Peering::Counts() const {
  PeerCounts counts;
  if (owner_list_ != nullptr) {
    counts.owner_registered = owner_list_->registered();
    counts.owners_etcd_failures = owner_list_->failures();
  }
  if (thread_ == nullptr) return counts;
  counts.exchange = thread_->Counts();
  counts.thread = thread_->OwnCounts();
  if (sharing_ != nullptr && sharing_->owning() != nullptr) counts.owning = sharing_->owning()->counts();
  counts.capacity = thread_->CapacityCountsNow();
  if (dividing_ != nullptr) {
    counts.capacity_tags = dividing_->participants().size();
    counts.capacity_crowded = dividing_->crowded();
  }
  for (const PeerStatus& peer : thread_->Peers()) {
    counts.configured += peer.state != PeerState::kSelf;
    counts.up += peer.state == PeerState::kUp;
  }
  return counts;
}

void Peering::Close() {
  if (std::exchange(stopped_, true)) return;
  if (ender_.joinable()) ender_.join();
  if (!away_) {
    sharing_->ReportNow(Now());
    const Instant end = Now() + kFarewell;
    for (Instant now = Now(); now < end && sharing_->reporting(now); now = Now()) {
      sharing_->Work(now);
      thread_->Notify();
    }
  }
  if (thread_ != nullptr) thread_->Stop();
  if (!away_ || leaving_ != nullptr) {
    const Instant end = Now() + kDraining;
    bool drained = false;
    for (Instant now = Now(); now < end && !drained; now = Now()) drained = Drain(now);
    if (drained) KeepAll();
  }
  if (owner_list_ != nullptr) owner_list_->Close();
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&wake_), reinterpret_cast<uv_handle_t*>(&timer_),
                       reinterpret_cast<uv_handle_t*>(&working_), reinterpret_cast<uv_handle_t*>(&retry_)}) {
    uv_close(handle, nullptr);
  }
}

std::optional<LeasePart> Peering::PartForLeases(std::string_view tag, const LeaseUse& use) {
  if (!shares_) return LeasePart{1, 1, Instant::max()};
  if (dividing_ == nullptr) return std::nullopt;
  return dividing_->Lease(tag, use, Now());
}

Result<void> Peering::Indicate(const Tag& tag, double value) {
  if (settings_.capacity.indicator != Reported().name()) {
    return Fail(fmt::format("capacity.indicator is \"{}\", and a value is taken only for \"reported\"",
                            settings_.capacity.indicator));
  }
  if (dividing_ == nullptr) return Fail("this host divides nothing");
  if (!dividing_->Indicate(tag, value, Now())) return Fail("no rule divides the tag, or capacity.tags_max take part");
  return {};
}

bool Peering::LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const {
  return thread_ != nullptr && thread_->LookAtCapacity(look);
}

}    // namespace dthrottle
