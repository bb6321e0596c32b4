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

constexpr Duration kCopyEvery = milliseconds(100);
constexpr Duration kTurnEvery = milliseconds(250);    // at least, so that the copy is never old
constexpr Duration kBackloggedTurn = milliseconds(5);

constexpr std::size_t kCapacityRingItems = 64;
constexpr Duration kLookPatience = milliseconds(20), kLookAgain = std::chrono::microseconds(200);
constexpr std::string_view kCapacityStem = kCapacityFramePrefix.substr(0, 3);    // of any version
constexpr std::uint64_t kCapacityIncarnationsMax = std::uint64_t{1} << 47;       // the exchange has 48 bits for them
constexpr std::size_t kStateFileBytesMax = kCapacityStateBytesMax + 64;

}    // namespace

struct PeerThread::Impl final : Transport, Carrier::Listener, CapacityTransport {
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
  void TakeMail();
  void SayOwners(const ExchangeCounts& exchange_counts);
  bool OnTenantFrame(LinkId link, const Route& route, std::string_view frame);
  void Watch();

  Options options;    // the thread's own once it runs; keys and names change
  ToPeersRing to_peers;
  FromPeersRing from_peers;

  Exchange exchange;
  const std::shared_ptr<const Owners> owners_at_start = exchange.owners();
  std::shared_ptr<const Owners> owners_said = owners_at_start;
  bool differed = false, differs_said = false;
  mutable std::mutex capacity_mutex;    // others only look
  std::unique_ptr<CapacityExchange> capacity;
  DividingRings rings{kCapacityRingItems};
  std::vector<LinkId> up;    // links to peers that hear, when that was looked at last
  std::map<std::string, LinkId, std::less<>> by_name;    // links, by what their hosts are called
  Instant now{}, copied{};
  PeerThreadCounts counts;
  std::unique_ptr<Carrier> carrier;

  std::thread thread;
  const int wake_fd;
  std::atomic<bool> stopping{false};

  // The mailbox, and the copy for people.
  std::mutex mutex;
  std::optional<AuthorizedKeys> new_authorized;
  std::optional<std::vector<std::string>> new_connect;
  std::optional<std::vector<std::string>> new_owners;
  std::shared_ptr<const Owners> new_list;
  std::optional<PeerCeilings> new_ceilings;
  std::optional<std::optional<CapacityOptions>> new_capacity;
  std::vector<PeerStatus> peers_copy;
  ExchangeCounts exchange_copy;
  EtcdOwners::View owners_copy;
  PeerThreadCounts counts_copy;
  CapacityCounts capacity_copy;
};

// ---- Capacity ----

void PeerThread::Impl::StartCapacity() {
  if (!options.capacity) return capacity.reset();
  if (capacity) return capacity->SetSettings(options.capacity->settings, now);
  CapacityExchange::Options start;
  start.name = options.exchange.name;
  start.incarnation = NextIncarnation(options.capacity->state_file, milliseconds(1), kCapacityIncarnationsMax);
  if (const std::string& path = options.capacity->state_file; !path.empty()) {
    if (const auto saved = ReadRegularFile(path, kStateFileBytesMax)) start.saved = *saved;
  }
  start.life = std::exchange(options.capacity_life, {});
  capacity = std::make_unique<CapacityExchange>(std::move(start), options.capacity->settings, *this,
                                                Prng(options.seed ^ 0x6361706163697479), now);
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
  if (capacity) capacity->OnMessage(proven, frame, now);
}

Instant PeerThread::Impl::TickCapacity() {
  const std::lock_guard lock(capacity_mutex);
  return rings.Turn(capacity.get(), now);
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
    if (now - copied >= kCopyEvery) Watch();
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

void PeerThread::Impl::OnRequest(const Route& route, std::string_view proven, std::string_view frame) {
  if (frame.starts_with(kCapacityStem)) return OnCapacityFrame(proven, frame);
  const bool nobody = options.exchange.identities_proven && proven.empty();
  if (nobody || !OnTenantFrame(0, route, frame)) exchange.OnRequest(route, proven, frame, now);
}

void PeerThread::Impl::OnAnswer(LinkId link, std::string_view frame) {
  if (!OnTenantFrame(link, {}, frame)) exchange.OnAnswer(link, frame, now);
}

bool PeerThread::Impl::OnTenantFrame(LinkId link, const Route& route, std::string_view frame) {
  for (Tenant* const tenant : options.tenants) {
    if (!frame.starts_with(tenant->stem())) continue;
    tenant->OnFrame(link, route, frame, exchange.wire(), now);
    return true;
  }
  return false;
}

void PeerThread::Impl::TakeMail() {
  std::optional<AuthorizedKeys> authorized;
  std::optional<std::vector<std::string>> connect;
  std::optional<std::vector<std::string>> owners;
  std::shared_ptr<const Owners> list;
  std::optional<PeerCeilings> ceilings;
  std::optional<std::optional<CapacityOptions>> divide;
  {
    const std::lock_guard lock(mutex);
    authorized.swap(new_authorized);
    connect.swap(new_connect);
    owners.swap(new_owners);
    list.swap(new_list);
    ceilings.swap(new_ceilings);
    divide.swap(new_capacity);
  }
  if (divide) {
    const std::lock_guard lock(capacity_mutex);
    options.capacity = std::move(*divide);
    StartCapacity();
  }
  if (connect) carrier->SetConnect(*connect, now);
  if (owners) exchange.SetOwners(std::move(*owners));
  if (list) exchange.ObeyOwners(std::move(list));
  if (ceilings) exchange.SetCeilings(*ceilings);
  if (!authorized || !options.keys) return;
  const bool removed =
      std::any_of(options.authorized.names.begin(), options.authorized.names.end(), [&](const auto& old) {
        const std::string* const name = authorized->NameOf(old.first);
        return name == nullptr || *name != old.second;
      });
  options.authorized = std::move(*authorized);
  carrier->OnKeys(removed, now);
}

// Says which list of owners is in force where that is another one, or where the settings have come to name others.
void PeerThread::Impl::SayOwners(const ExchangeCounts& exchange_counts) {
  const bool now_differs = exchange_counts.owners_differ != 0;
  const bool differs = std::exchange(differed, now_differs) && now_differs;    // for longer than a change takes
  if (exchange.owners() == owners_said && differs == differs_said) return;
  owners_said = exchange.owners();
  differs_said = differs;
  Say(options, differs ? LogLevel::kWarning : LogLevel::kNotice, "list {} of owners is in force: {}{}",
      owners_said->number(), fmt::join(owners_said->names(), ", "),
      differs ? "; peers.owners of this host names others" : "");
}

// Looks at how the links are doing, and copies it for the other threads.
void PeerThread::Impl::Watch() {
  const ExchangeCounts exchange_counts = exchange.Counts();
  copied = now;
  SayOwners(exchange_counts);
  std::vector<PeerStatus> peers = exchange.Peers(now);
  carrier->Watch(peers, exchange_counts, now);
  EtcdOwners::View owners{exchange.owners(), exchange.proposed(), {}};
  up.clear();
  by_name.clear();
  for (const PeerStatus& peer : peers) {
    if (peer.link == 0) continue;
    if (peer.state == PeerState::kUp) up.push_back(peer.link);
    if (peer.state == PeerState::kUp && owners.in_force && owners.in_force->Find(peer.name)) owners.up.push_back(peer.name);
    if (!peer.name.empty() && peer.state != PeerState::kSelf) by_name[peer.name] = peer.link;
  }
  const CapacityCounts capacity_counts = capacity ? capacity->Counts(now) : CapacityCounts();
  const std::lock_guard lock(mutex);
  peers_copy = std::move(peers);
  exchange_copy = exchange_counts;
  owners_copy = std::move(owners);
  counts_copy = counts;
  capacity_copy = capacity_counts;
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
  const Instant now = Now();
  if (i.capacity) i.rings.Drain(*i.capacity, now);
  return i.exchange.Drain(now) && i.rings.from_capacity.empty();
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
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_authorized = std::move(authorized);
  }
  Notify();
}

void PeerThread::SetConnect(std::vector<std::string> connect) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_connect = std::move(connect);
  }
  Notify();
}

void PeerThread::SetOwners(std::vector<std::string> names) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_owners = std::move(names);
  }
  Notify();
}

void PeerThread::ObeyOwners(std::shared_ptr<const Owners> list) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_list = std::move(list);
  }
  Notify();
}

std::shared_ptr<const Owners> PeerThread::owners_at_start() const {
  return impl_->owners_at_start;
}

void PeerThread::SetCeilings(const PeerCeilings& ceilings) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_ceilings = ceilings;
  }
  Notify();
}

void PeerThread::SetCapacity(std::optional<CapacityOptions> capacity) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_capacity = std::move(capacity);
  }
  Notify();
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

CapacityCounts PeerThread::CapacityCountsNow() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->capacity_copy;
}

std::vector<PeerStatus> PeerThread::Peers() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->peers_copy;
}

ExchangeCounts PeerThread::Counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->exchange_copy;
}

EtcdOwners::View PeerThread::OwnersView() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->owners_copy;
}

PeerThreadCounts PeerThread::OwnCounts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts_copy;
}

}    // namespace dthrottle
