#include "io/peer_thread.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/signals.h"
#include "io/zeromq_carrier.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Between looks at all links, each of which costs some microseconds.
constexpr Duration kCopyEvery = milliseconds(100), kCopyEveryMax = seconds(1), kCopyEveryPerPeer = milliseconds(1);
constexpr Duration kTurnEvery = milliseconds(250);    // at least, so that the copy is never old
constexpr Duration kBackloggedTurn = milliseconds(5);

constexpr std::size_t kCapacityRingItems = 64;
constexpr Duration kLookPatience = milliseconds(20), kLookAgain = std::chrono::microseconds(200);
constexpr std::string_view kCapacityStem = kCapacityFramePrefix.substr(0, 3);    // of any version
constexpr std::uint64_t kCapacityIncarnationsMax = std::uint64_t{1} << 47;       // the exchange has 48 bits for them
constexpr std::size_t kStateFileBytesMax = kCapacityStateBytesMax + 64;

// Says which list of owners is in force where that is another one, or where the settings have come to name others.
class OwnersNews {
 public:
  explicit OwnersNews(std::shared_ptr<const Owners> at_start) : at_start_(std::move(at_start)) {}

  const std::shared_ptr<const Owners>& at_start() const { return at_start_; }

  void Tell(const PeerThread::Options& options, const std::shared_ptr<const Owners>& owners, bool now_differs) {
    const bool differs = std::exchange(differed_, now_differs) && now_differs;    // for longer than a change takes
    if (owners == said_ && differs == differs_said_) return;
    said_ = owners;
    differs_said_ = differs;
    Say(options, differs ? LogLevel::kWarning : LogLevel::kNotice, "list {} of owners is in force: {}{}",
        owners->number(), fmt::join(owners->names(), ", "), differs ? "; peers.owners of this host names others" : "");
  }

 private:
  const std::shared_ptr<const Owners> at_start_;
  std::shared_ptr<const Owners> said_ = at_start_;
  bool differed_ = false, differs_said_ = false;
};

}    // namespace

struct PeerThread::Impl final : Transport, Carrier::Listener, CapacityTransport {
  // What the other side wants to be different.
  struct Mail {
    std::optional<AuthorizedKeys> authorized;
    std::optional<std::vector<std::string>> connect;
    std::optional<std::vector<std::string>> owners;
    std::shared_ptr<const Owners> list;
    std::optional<PeerCeilings> ceilings;
    std::optional<std::optional<CapacityOptions>> capacity;
  };
  // What it may see.
  struct Copy {
    std::vector<PeerStatus> peers;
    ExchangeCounts exchange;
    EtcdOwners::View owners;
    PeerThreadCounts thread;
    CapacityCounts capacity;
  };

  explicit Impl(Options o)
      : options(std::move(o)),
        to_peers(options.ring_items),
        from_peers(options.heard_items),
        exchange(options.exchange, to_peers, from_peers, *this, Prng(options.seed), Now()),
        wake_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    DT_CHECK(wake_fd >= 0);
    const Carrier::Host host{options.exchange.name, exchange, *this, counts, options.log, [this] { Wake(); }};
    carrier = options.carrier ? options.carrier(host) : std::make_unique<ZeroMqCarrier>(options, host);
  }
  ~Impl() {
    carrier.reset();    // its threads wake this one
    ::close(wake_fd);
  }

  // Transport
  void Ask(LinkId link, const Frame& frame) override { carrier->Ask(link, frame); }
  void Answer(const Route& route, const Frame& frame) override { carrier->Answer(route, frame); }
  bool Publish(const Route& route, const Frame& frame) override { return carrier->Publish(route, frame); }

  // Carrier::Listener
  void OnRequest(const Route& route, std::string_view proven, std::string_view frame) override;
  void OnAnswer(LinkId link, std::string_view frame) override;
  bool backlogged() const override { return exchange.backlogged(); }

  // CapacityTransport
  void Send(std::string_view peer, std::string_view frame) override;
  void Save(std::string_view state) override;

  // Capacity
  void StartCapacity();
  Instant TickCapacity();
  void OnCapacityFrame(std::string_view proven, std::string_view frame);

  // The thread
  void Run();
  void Wake() { eventfd_write(wake_fd, 1); }
  void Post(const std::function<void(Mail&)>& write);
  void TakeMail();
  void TakeKeys(AuthorizedKeys authorized);
  Tenant* TenantOf(std::string_view frame) const;
  void OnTenantFrame(Tenant& tenant, const Tenant::Said& said, std::string_view proven);
  void Watch();

  Options options;    // the thread's own once it runs; keys and names change
  ToPeersRing to_peers;
  FromPeersRing from_peers;

  Exchange exchange;
  OwnersNews owners_news{exchange.owners()};
  mutable std::mutex capacity_mutex;    // others only look
  std::unique_ptr<CapacityExchange> capacity;
  DividingRings rings{kCapacityRingItems};
  std::vector<LinkId> up;    // links to peers that hear, when that was looked at last
  std::map<std::string, LinkId, std::less<>> by_name;    // links, by what their hosts are called
  Instant now{}, copy_at{};
  PeerThreadCounts counts;
  std::unique_ptr<Carrier> carrier;

  std::thread thread;
  const int wake_fd;
  std::atomic<bool> stopping{false};

  std::mutex mutex;    // of both
  Mail mail;
  Copy copy;
};

// ---- Capacity ----

void PeerThread::Impl::StartCapacity() {
  if (!options.capacity) return capacity.reset();
  if (capacity) return capacity->SetSettings(options.capacity->settings);
  CapacityExchange::Options start;
  start.name = options.exchange.name;
  start.incarnation = NextIncarnation(options.capacity->state_file, milliseconds(1), kCapacityIncarnationsMax);
  if (const std::string& path = options.capacity->state_file; !path.empty()) {
    if (const auto saved = ReadRegularFile(path, kStateFileBytesMax)) start.saved = *saved;
  }
  start.life = std::exchange(options.capacity_life, {});
  capacity = std::make_unique<CapacityExchange>(std::move(start), options.capacity->settings, *this,
                                                Prng(options.seed ^ 0x6361706163697479), BootNow());
  rings.told = {};
}

void PeerThread::Impl::Send(std::string_view peer, std::string_view frame) {
  const auto link = by_name.find(peer);
  if (link != by_name.end()) Ask(link->second, std::make_shared<std::string>(frame));
}

void PeerThread::Impl::Save(std::string_view state) {
  const std::string& path = options.capacity->state_file;
  if (!path.empty() && ReplaceFile(path, state)) return;
  if (counts.unsaved++ == 0) Say(options, LogLevel::kWarning, "capacity: cannot write {}", path);
}

// Without keys nothing is proven, and anybody who can connect is believed, as with reports.
void PeerThread::Impl::OnCapacityFrame(std::string_view proven, std::string_view frame) {
  if (options.exchange.identities_proven && proven.empty()) return void(++counts.malformed);
  const std::lock_guard lock(capacity_mutex);
  if (capacity) capacity->OnMessage(proven, frame, BootNow());
}

Instant PeerThread::Impl::TickCapacity() {
  const std::lock_guard lock(capacity_mutex);
  const BootInstant begun = BootNow(), next = rings.Turn(capacity.get(), begun);
  return next == BootInstant::max() ? Instant::max() : now + (next - begun);
}

// ---- The thread ----

void PeerThread::Impl::Run() {
  now = Now();
  {
    const std::lock_guard lock(capacity_mutex);
    StartCapacity();
  }
  carrier->SetConnect(options.connect, now);
  while (!stopping.load(std::memory_order_acquire)) {
    now = Now();
    TakeMail();
    const Duration turn = exchange.backlogged() ? kBackloggedTurn : kTurnEvery;
    Instant next = std::min({carrier->Tick(now), exchange.Tick(now), now + turn});
    next = std::min(next, TickCapacity());
    for (Tenant* const tenant : options.tenants) next = std::min(next, tenant->Tick(up, exchange.wire(), now));
    if ((!from_peers.empty() || !rings.from_capacity.empty()) && options.wake) options.wake();
    if (now >= copy_at) Watch();
    carrier->Wait(next, wake_fd);
    now = Now();
    eventfd_t value;
    eventfd_read(wake_fd, &value);
    carrier->Read(now);
  }
  // What the limiter has handed over goes out still; bounded, because it may go on pushing.
  for (std::size_t i = 0; !to_peers.empty() && i <= options.ring_items; ++i) exchange.Tick(Now());
  exchange.Tick(Now());
}

// Looks at the clock for each frame, because a Read may take long. A frame that seemed to come before it was sent would
// set its sender's clock back for minutes (bus/clock_offset.h).
void PeerThread::Impl::OnRequest(const Route& route, std::string_view proven, std::string_view frame) {
  now = Now();
  if (frame.starts_with(kCapacityStem)) return OnCapacityFrame(proven, frame);
  const bool nobody = options.exchange.identities_proven && proven.empty();
  if (Tenant* const tenant = nobody ? nullptr : TenantOf(frame)) {
    return OnTenantFrame(*tenant, {0, route, proven, frame}, proven);
  }
  exchange.OnRequest(route, proven, frame, now);
}

void PeerThread::Impl::OnAnswer(LinkId link, std::string_view frame) {
  now = Now();
  if (Tenant* const tenant = TenantOf(frame)) {
    return OnTenantFrame(*tenant, {link, {}, exchange.NameOf(link), frame}, {});
  }
  exchange.OnAnswer(link, frame, now);
}

// Null: the frame is the exchange's.
Tenant* PeerThread::Impl::TenantOf(std::string_view frame) const {
  const auto its = [&](const Tenant* tenant) { return frame.starts_with(tenant->stem()); };
  const auto found = std::ranges::find_if(options.tenants, its);
  return found != options.tenants.end() ? *found : nullptr;
}

void PeerThread::Impl::OnTenantFrame(Tenant& tenant, const Tenant::Said& said, std::string_view proven) {
  if (!exchange.Admits(said.link, proven, now)) return;
  if (!tenant.OnFrame(said, exchange.wire(), now)) exchange.TurnedDown(said.link, proven);
}

void PeerThread::Impl::Post(const std::function<void(Mail&)>& write) {
  {
    const std::lock_guard lock(mutex);
    write(mail);
  }
  Wake();
}

void PeerThread::Impl::TakeMail() {
  Mail taken;
  {
    const std::lock_guard lock(mutex);
    std::swap(taken, mail);
  }
  if (taken.capacity) {
    const std::lock_guard lock(capacity_mutex);
    options.capacity = std::move(*taken.capacity);
    StartCapacity();
  }
  if (taken.connect) carrier->SetConnect(*taken.connect, now);
  if (taken.owners) exchange.SetOwners(std::move(*taken.owners));
  if (taken.list) exchange.ObeyOwners(std::move(taken.list));
  if (taken.ceilings) exchange.SetCeilings(*taken.ceilings);
  if (taken.authorized) TakeKeys(std::move(*taken.authorized));
}

void PeerThread::Impl::TakeKeys(AuthorizedKeys authorized) {
  if (!options.keys) return;
  const bool removed = std::ranges::any_of(options.authorized.names, [&](const auto& old) {
    const std::string* const name = authorized.NameOf(old.first);
    return name == nullptr || *name != old.second;
  });
  std::swap(options.authorized, authorized);
  for (const auto& [name, key] : authorized.by_name) {    // of before
    if (options.authorized.KeyOf(name) == nullptr) exchange.Bar(name);
  }
  carrier->OnKeys(removed, now);
}

// Looks at how the links are doing, and copies it for the other threads.
void PeerThread::Impl::Watch() {
  const ExchangeCounts exchange_counts = exchange.Counts();
  owners_news.Tell(options, exchange.owners(), exchange_counts.owners_differ != 0);
  std::vector<PeerStatus> peers = exchange.Peers(now);
  carrier->Watch(peers, exchange_counts, now);
  EtcdOwners::View owners{exchange.owners(), exchange.proposed(), {}};
  copy_at = now + std::clamp<Duration>(static_cast<int>(peers.size()) * kCopyEveryPerPeer, kCopyEvery, kCopyEveryMax);
  up.clear();
  by_name.clear();
  for (const PeerStatus& peer : peers) {
    if (peer.link == 0) continue;
    if (peer.state == PeerState::kUp) {
      up.push_back(peer.link);
      if (owners.in_force && owners.in_force->Find(peer.name)) owners.up.push_back(peer.name);
    }
    if (!peer.name.empty() && peer.state != PeerState::kSelf) by_name[peer.name] = peer.link;
  }
  Copy looked{std::move(peers), exchange_counts, std::move(owners), counts,
              capacity ? capacity->Counts(BootNow()) : CapacityCounts()};
  const std::lock_guard lock(mutex);
  copy = std::move(looked);
}

// ---- The other side ----

PeerThread::PeerThread(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

PeerThread::~PeerThread() {
  Stop();
}

Result<void> PeerThread::Start() {
  DT_CHECK(!impl_->thread.joinable());
  const SignalsBlocked blocked;
  if (auto opened = impl_->carrier->Open(); !opened) return opened;
  // A socket may move to another thread behind a full fence, which the start of the thread is.
  impl_->thread = std::thread([impl = impl_.get()] {
    impl->Run();
    impl->carrier->Close();
  });
  return {};
}

void PeerThread::Stop() {
  if (impl_->thread.joinable()) {
    impl_->stopping.store(true, std::memory_order_release);
    Notify();
    impl_->thread.join();
  }
}

bool PeerThread::resumed() const {
  return impl_->exchange.resumed();
}

bool PeerThread::Drain() {
  Impl& i = *impl_;
  if (i.capacity) i.rings.Drain(*i.capacity);
  return i.exchange.Drain(Now()) && i.rings.from_capacity.empty();
}

std::string PeerThread::ExchangeLife() {
  return impl_->exchange.Life(Now());
}

std::string PeerThread::CapacityLife() {
  return impl_->capacity ? impl_->capacity->Life() : std::string();
}

ToPeersRing& PeerThread::to_peers() {
  return impl_->to_peers;
}

FromPeersRing& PeerThread::from_peers() {
  return impl_->from_peers;
}

void PeerThread::Notify() {
  impl_->Wake();
}

void PeerThread::ReloadKeys(AuthorizedKeys authorized) {
  impl_->Post([&](Impl::Mail& mail) { mail.authorized = std::move(authorized); });
}

void PeerThread::SetConnect(std::vector<std::string> connect) {
  impl_->Post([&](Impl::Mail& mail) { mail.connect = std::move(connect); });
}

void PeerThread::SetOwners(std::vector<std::string> names) {
  impl_->Post([&](Impl::Mail& mail) { mail.owners = std::move(names); });
}

void PeerThread::ObeyOwners(std::shared_ptr<const Owners> list) {
  impl_->Post([&](Impl::Mail& mail) { mail.list = std::move(list); });
}

void PeerThread::SetCeilings(const PeerCeilings& ceilings) {
  impl_->Post([&](Impl::Mail& mail) { mail.ceilings = ceilings; });
}

void PeerThread::SetCapacity(std::optional<CapacityOptions> capacity) {
  impl_->Post([&](Impl::Mail& mail) { mail.capacity = std::move(capacity); });
}

std::shared_ptr<const Owners> PeerThread::owners_at_start() const {
  return impl_->owners_news.at_start();
}

ToCapacityRing& PeerThread::to_capacity() {
  return impl_->rings.to_capacity;
}

FromCapacityRing& PeerThread::from_capacity() {
  return impl_->rings.from_capacity;
}

bool PeerThread::LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const {
  // Tried and not waited for: the thread sanitizer of g++ 12 does not see the lock of a std::timed_mutex.
  std::unique_lock lock(impl_->capacity_mutex, std::try_to_lock);
  for (const Instant end = Now() + kLookPatience; !lock.owns_lock() && Now() < end; lock.try_lock()) {
    std::this_thread::sleep_for(kLookAgain);
  }
  if (!lock.owns_lock() || !impl_->capacity) return false;
  look(*impl_->capacity);
  return true;
}

std::vector<PeerStatus> PeerThread::Peers() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->copy.peers;
}

ExchangeCounts PeerThread::Counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->copy.exchange;
}

EtcdOwners::View PeerThread::OwnersView() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->copy.owners;
}

PeerThreadCounts PeerThread::OwnCounts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->copy.thread;
}

CapacityCounts PeerThread::CapacityCountsNow() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->copy.capacity;
}

}    // namespace dthrottle
