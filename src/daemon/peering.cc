#include "daemon/peering.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/state.h"
#include "daemon/dividing_options.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/process.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

// What a turn of the loop spends on peers before it looks at its applications again.
constexpr Duration kBudget = std::chrono::microseconds(100);

// For the last report, of a table however large.
constexpr Duration kFarewell = std::chrono::milliseconds(500);

// For what lies between the thread and the limiter when the thread has ended.
constexpr Duration kSettling = std::chrono::seconds(2);

constexpr std::uint32_t kKeptVersion = 1;

// How often the peers are counted.
constexpr Duration kCountEvery = std::chrono::seconds(1);

std::uint64_t Random() {
  std::uint64_t value;
  FillRandom(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}    // namespace

Peering::Peering(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, TaskQueue& tasks,
                 std::string_view kept)
    : loop_(loop), limiter_(limiter), settings_(settings), log_(log), tasks_(tasks), prng_(Random()) {
  const auto on_wake = [](uv_async_t* h) { static_cast<Peering*>(h->data)->StartWork(); };
  DT_CHECK(uv_async_init(loop_, &wake_, on_wake) == 0 && uv_timer_init(loop_, &timer_) == 0 &&
           uv_idle_init(loop_, &working_) == 0);
  wake_.data = timer_.data = working_.data = this;
  LendReserve();
  if (kept.empty()) return;
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
    dividing.PutInForce(limiter_, settings_.capacity.tags_max);
  }
}

// Of divided limits, until the other hosts have been heard, or have not: what nobody can have been given.
void Peering::LendReserve() {
  const auto& capacity = settings_.capacity;
  const std::size_t hosts = capacity.members.empty() ? settings_.peers.connect.size() + 1 : capacity.members.size();
  const double part = capacity.reserve / static_cast<double>(hosts);
  limiter_.ChangeParts([&](PartTable& parts) {
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
    dividing_ = std::make_unique<Dividing>(limiter_, thread_->to_capacity(), thread_->from_capacity(),
                                           settings_.capacity.tags_max, settings_.capacity.interval, Now());
  }
}

Peering::~Peering() {
  DT_CHECK(stopped_);
}

Result<std::optional<KeyPair>> Peering::ReadKeys(AuthorizedKeys& authorized) {
  if (settings_.peers.key_file.empty()) return std::nullopt;
  auto keys = ReadKeyFile(settings_.peers.key_file);
  if (!keys) return Fail("peers.key_file: " + keys.error().message);
  auto others = ReadAuthorizedKeys(settings_.peers.authorized_keys);
  if (!others) return Fail("peers.authorized_keys: " + others.error().message);
  authorized = std::move(*others);
  for (const std::string& complaint : authorized.complaints) {
    log_.Say(LogLevel::kWarning, "peers.authorized_keys: " + complaint);
  }
  return std::move(*keys);
}

Result<void> Peering::Start() {
  const auto& peers = settings_.peers;
  PeerThread::Options options;
  if (auto usable = CheckIncarnation(settings_.table.file); !usable) return Fail(usable.error().message);
  auto keys = ReadKeys(options.authorized);
  if (!keys) return Fail(keys.error().message);
  options.keys = std::move(*keys);
  options.bind = peers.bind;
  options.connect = peers.connect;
  options.resolver.every = peers.resolve_interval;
  options.resolver.servers = peers.name_servers;
  options.seed = Random();
  options.exchange.name = peers.name.empty() ? NameOfMachine() : peers.name;
  const std::uint64_t start =
      NextIncarnation(settings_.table.file, std::chrono::microseconds(1), std::uint64_t{1} << 62);
  options.exchange.incarnation = start;
  options.exchange.life = kept_.exchange;
  options.exchange.version = DTHROTTLE_VERSION;
  options.exchange.period = peers.period;
  options.exchange.ring_bytes = peers.history;
  options.exchange.identities_proven = options.keys.has_value();
  options.exchange.fresh_table = !limiter_.discarded().empty();
  options.log = [this](LogLevel level, std::string text) {
    tasks_.Post([this, level, text = std::move(text)] {
      if (level <= LogLevel::kWarning) {
        log_.Warning("peers: {}", text);
      } else {
        log_.Notice("peers: {}", text);
      }
    });
  };
  options.wake = [this] { uv_async_send(&wake_); };
  const std::string name = options.exchange.name;
  auto capacity = MakeCapacityOptions(settings_, limiter_.rules(), options.authorized, name);
  if (!capacity) return Fail(capacity.error().message);
  options.capacity = std::move(*capacity);
  options.capacity_life = kept_.capacity;
  const bool divides = options.capacity.has_value();
  auto thread = std::make_unique<PeerThread>(std::move(options));
  if (auto started = thread->Start(); !started) return Fail("peers.bind: " + started.error().message);
  sharing_.reset();    // they use the rings of the thread before
  dividing_.reset();
  KeptState kept = std::exchange(kept_, {});
  kept_.start = start;
  name_ = name;
  thread_ = std::move(thread);
  away_ = false;
  sharing_ = std::make_unique<Sharing>(limiter_, thread_->to_peers(), thread_->from_peers(), peers.connect.size(),
                                       peers.period, prng_, Now());
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
  counted_at_ = Now();
  log_.Notice("sharing limits as \"{}\" on {}, {}{}", name, FormatBind(peers.bind),
              peers.key_file.empty() ? "on this host only: no keys" : "with keys",
              thread_->resumed() ? ", where it left off" : "");
  SetTimer();
  return {};
}

void Peering::Reload(const Settings& settings, std::vector<std::string>& problems) {
  if (!settings.peers.enabled()) {
    problems.push_back("peers.connect = []: warning: sharing ends at the next start");
    return;
  }
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
  thread_->SetConnect(settings.peers.connect);
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

// One entry of the settings may be a name with many hosts behind it, and one may be this host itself.
void Peering::CountPeers(Instant now) {
  if (now < counted_at_ + kCountEvery) return;
  counted_at_ = now;
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
  for (const AccuracyNews& news : limiter_.TakeAccuracyNews()) {
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
      leave_by_ = Now() + kSettling;
      uv_idle_start(&working_, [](uv_idle_t* h) { static_cast<Peering*>(h->data)->OnSettling(); });
    });
  });
}

// One slice of moving what lies between the thread that has ended and the limiter; true when that is nothing.
bool Peering::Settle(Instant now) {
  const bool dividing = dividing_ != nullptr && dividing_->Work(now);
  const bool sharing = sharing_->Settle(now);
  return thread_->Settle() && sharing && !dividing && thread_->from_peers().empty() && thread_->to_capacity().empty();
}

void Peering::OnSettling() {
  const Instant end = Now() + kBudget;
  bool settled = false;
  for (Instant now = Now(); now < end && !settled; now = Now()) settled = Settle(now);
  if (!settled && Now() < leave_by_) return;
  uv_idle_stop(&working_);
  if (settled) Keep();
  std::exchange(leaving_, nullptr)();
}

void Peering::Keep() {
  kept_.exchange = thread_->ExchangeLife();
  kept_.capacity = thread_->CapacityLife();
  kept_.sharing = WriteState(Sharing::kKeptVersion, sharing_->Keep());
  kept_.dividing = dividing_ != nullptr ? WriteState(Dividing::kKeptVersion, dividing_->Keep()) : "";
}

std::string Peering::Kept() const {
  return WriteState(kKeptVersion, kept_);
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
  if (thread_ == nullptr) return counts;
  const PeerThreadCounts own = thread_->OwnCounts();
  counts.exchange = thread_->Counts();
  counts.keys_denied = own.denied;
  counts.malformed = own.malformed;
  counts.lookups_failed = own.lookups_failed;
  counts.capacity = thread_->CapacityCountsNow();
  counts.capacity_unsaved = own.unsaved;
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

void Peering::Stop() {
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
    const Instant end = Now() + kSettling;
    bool settled = false;
    for (Instant now = Now(); now < end && !settled; now = Now()) settled = Settle(now);
    if (settled) Keep();
  }
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&wake_), reinterpret_cast<uv_handle_t*>(&timer_),
                       reinterpret_cast<uv_handle_t*>(&working_)}) {
    uv_close(handle, nullptr);
  }
}

bool Peering::LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const {
  return thread_ != nullptr && thread_->LookAtCapacity(look);
}

}    // namespace dthrottle
