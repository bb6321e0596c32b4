#include "lab/host.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/check.h"
#include "base/prng.h"
#include "config/calendar.h"
#include "limiter/asking.h"
#include "limiter/inspect.h"
#include "rule/rulebook.h"
#include "share/inspection.h"
#include "share/ways.h"

namespace dthrottle::lab {

constexpr Duration kLooksAtDate = std::chrono::seconds(1);    // as the daemon does

namespace {

std::string SiteName(std::uint32_t site) {
  return "site-" + std::to_string(site);
}

std::vector<std::string> OtherSites(std::uint32_t site, std::uint32_t sites) {
  std::vector<std::string> others;
  for (std::uint32_t other = 0; other < sites; ++other) {
    if (other != site) others.push_back(SiteName(other));
  }
  return others;
}

HostOptions WithCodec(HostOptions options) {
  if (options.codec == nullptr) options.codec = std::make_shared<Codec>();
  return options;
}

}    // namespace

SimHost::Halves::Halves(SimHost& host, Division& division, const CapacitySettings& settings, Instant now)
    : rings(host.options_.hand_over_max),
      exchange({.name = HostName(host.number_), .incarnation = host.lives_, .saved = host.transports_.saved()},
               settings, host.transports_, Prng(host.prng_.Next()), OnBootClock(now)),
      dividing(division, rings.to_capacity, rings.from_capacity, settings.tags_max, settings.interval, now) {}

Instant SimHost::Halves::Work(Instant now) {
  Instant next;
  do {
    next = OffBootClock(rings.Turn(&exchange, OnBootClock(now)));
    while (dividing.Work(now)) continue;
  } while (!rings.to_capacity.empty() || !rings.from_capacity.empty());
  return std::min(next, dividing.next());
}

SimHost::Abroad::Abroad(SimHost& host, Life& life, Instant now)
    : to_sites(host.options_.hand_over_max),
      from_sites(host.options_.hand_over_max),
      exchange({.name = HostName(host.number_),
                .incarnation = host.lives_,
                .version = "simulated",
                .period = host.options_.site_period,
                .ring_bytes = host.options_.ring_bytes,
                .ceilings = {},
                .account = life.limiter.ways().Get<Debits>().account_to_sites(),
                .identities_proven = true,
                .fresh_table = life.fresh_table,
                .site = SiteName(host.SiteOf(host.number_)),
                .other_sites = OtherSites(host.SiteOf(host.number_), host.options_.sites),
                .codec = host.options_.codec},
               to_sites, from_sites, host.transports_, Prng(host.prng_.Next()), now),
      sharing(life.limiter.ways(), to_sites, from_sites,
              {SiteName(host.SiteOf(host.number_)), host.options_.site_period, host.options_.sites - 1,
               host.options_.site_part}, host.prng_, now) {}

SimHost::Life::Life(SimHost& host, const HostOptions& options, Instant now)
    : from_limiter(options.hand_over_max),
      to_exchange(options.hand_over_max),
      from_exchange(options.hand_over_max),
      to_limiter(options.hand_over_max),
      limiter(host.memory_.bytes(), std::array<std::byte, 16>{}, TableKeys{{host.number_, 1}, {}}, options.rules, 1,
              now),
      fresh_table(!limiter.discarded().empty() || host.lives_ == 1),
      counted(host.Counted(limiter.keys().tag_hash)),
      sharing(limiter.ways(), from_limiter, to_limiter, host.HostsHere() - 1, options.period, host.prng_, now),
      exchange({.name = HostName(host.number_),
                .incarnation = host.lives_,
                .version = "simulated",
                .period = options.period,
                .ring_bytes = options.ring_bytes,
                .held_bytes = options.held_bytes,
                .table_bytes = host.memory_.bytes().size(),
                .ceilings = {},
                .account = limiter.ways().Get<Debits>().account(),
                .owners = options.owners,
                .counted = counted,
                .identities_proven = true,
                .fresh_table = fresh_table,
                .codec = options.codec},
               to_exchange, from_exchange, host.transports_, Prng(host.prng_.Next()), now),
      inbox(options.inbox_max, options.period) {
  limiter.ways().WatchTags(options.watched_tags, [&host] { host.woken_ = true; });
  if (!options.counts_frequent_tags) limiter.ways().core().tally.lane(0).SampleNone();
  sharing.OwnedBy(options.owners, HostName(host.number_));
  sharing.NoteIn(counted);
  sharing.HoldHits();
  if (options.workers > 0) {
    workers = std::make_unique<SimWorkers>(limiter, options.workers, options.page_entries, host.prng_);
  }
  if (options.sites > 1 && options.owners->Find(HostName(host.number_))) {
    abroad = std::make_unique<Abroad>(host, *this, now);
  }
  if (!options.capacity) return;
  // Until others are heard: what nobody can have been given.
  const double part = options.capacity->reserve / static_cast<double>(options.hosts);
  Division& parts_here = limiter.ways().Get<Division>();
  parts_here.ChangeParts([&](PartTable& parts) { parts.Lend({part, part, BootInstant::max()}); });
  division = std::make_unique<Halves>(host, parts_here, *options.capacity, now);
}

void SimHost::SetCapacity(const CapacitySettings& settings) {
  options_.capacity = settings;
  if (running() && life_->division) life_->division->exchange.SetSettings(settings);
}

// Zeroes, in huge pages if the kernel grants them: the tables of a fleet fit in no cache, and then most of what a
// decision costs are translations of addresses.
SimHost::Memory::Memory(std::size_t bytes) : mapped_bytes_(bytes + kHugePage) {
  mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  void* aligned = mapped_;
  std::size_t room = mapped_bytes_;
  std::align(kHugePage, bytes, aligned, room);
  bytes_ = {static_cast<std::byte*>(aligned), bytes};
  if (bytes >= kHugePage) ::madvise(aligned, bytes, MADV_HUGEPAGE);
}

SimHost::Memory::~Memory() {
  ::munmap(mapped_, mapped_bytes_);
}

SimHost::SimHost(std::uint32_t number, const HostOptions& options, HostClock clock, Surroundings& surroundings,
                 Prng prng)
    : number_(number),
      options_(WithCodec(options)),
      clock_(clock),
      surroundings_(surroundings),
      transports_(number, options_.codec, surroundings),
      prng_(prng),
      memory_(options.table_bytes) {
  if (options.rules->any_quota()) quotas_.emplace(options.quota_bytes);
}

SimHost::~SimHost() = default;

void SimHost::Start(bool keep_table, WorldTime now) {
  DT_CHECK(!running());
  if (!keep_table && lives_ > 0) {
    std::ranges::fill(memory_.bytes(), std::byte{});
    transports_.LoseSaved();
    counted_.reset();
    ++boots_;
  }
  if (quotas_ && !options_.quota_file && lives_ > 0) std::ranges::fill(quotas_->bytes(), std::byte{});
  ++lives_;
  looked_ = now;
  const Instant local = clock_.Local(now);
  life_ = std::make_unique<Life>(*this, options_, local);
  if (quotas_) CountQuotas();
}

// The first Work calls the others, because by then all hosts that start at the same moment can hear it.
void SimHost::AddLinks(Instant now) {
  for (std::uint32_t peer = 0; peer < options_.hosts; ++peer) {
    if (CallsFor(options_.owners.get(), peer)) life_->exchange.AddLink(peer, HostName(peer), now);
    if (life_->abroad != nullptr && IsAbroad(peer) && IsOwner(peer)) {
      life_->abroad->exchange.AddLink(peer, HostName(peer), now);
    }
  }
  life_->linked = true;
}

bool SimHost::CallsFor(const Owners* owners, std::uint32_t peer) const {
  return peer != number_ && !IsAbroad(peer) && (owners == nullptr || owners->Find(HostName(peer)));
}

void SimHost::SetOwners(const std::shared_ptr<const Owners>& owners, WorldTime now) {
  const auto before = std::exchange(options_.owners, owners);
  if (!running()) return;
  const Instant local = clock_.Local(now);
  for (std::uint32_t peer = 0; peer < options_.hosts; ++peer) {
    const bool called = CallsFor(before.get(), peer), calls = CallsFor(owners.get(), peer);
    if (called && !calls) leaving_links_.push_back(peer);
    if (!calls) continue;
    std::erase(leaving_links_, peer);
    life_->exchange.AddLink(peer, HostName(peer), local);
  }
  life_->exchange.SetOwners(owners->names());
}

void SimHost::RemoveLinks(Instant now) {
  std::erase_if(leaving_links_, [&](std::uint32_t peer) {
    if (life_->exchange.Needs(peer, now)) return false;
    life_->exchange.RemoveLink(peer);
    return true;
  });
}

// A period ends when the date says so, however the host's clock drifts.
void SimHost::CountQuotas() {
  std::array<std::byte, 16> boot_id{};
  for (std::size_t i = 0; i < sizeof boots_; ++i) boot_id[i] = static_cast<std::byte>(boots_ >> 8 * i);
  const auto hash = [this](const Tag& tag) { return life_->limiter.table().Hash(tag); };
  const auto periods_of = [this](const QuotaCalendar& calendar) {
    const Duration date = surroundings_.Date();
    QuotaPeriods periods = PeriodsAt(calendar, std::chrono::floor<std::chrono::seconds>(date).count());
    periods.ends = clock_.Local(looked_ + (std::chrono::seconds(static_cast<std::int64_t>(periods.next)) - date));
    return periods;
  };
  life_->limiter.ways().KeepQuotas(std::make_unique<Quotas>(quotas_->bytes(), boot_id, prng_.Next(), hash, periods_of,
                                                            clock_.Local(looked_)));
}

std::shared_ptr<CountedStreams> SimHost::Counted(const SipKey& key) {
  if (options_.owners == nullptr || !options_.owners->Find(HostName(number_))) return nullptr;
  if (counted_ == nullptr) counted_ = std::make_unique<std::array<std::uint64_t, CountedStreams::kWords>>();
  return std::make_shared<CountedStreams>(*counted_, key);
}

void SimHost::FollowCalendar(WorldTime now) {
  looked_ = now;
  life_->limiter.ways().FollowCalendar();
}

void SimHost::Connected(std::uint32_t peer) {
  if (!running()) return;
  if (Exchange* const exchange = ExchangeWith(peer)) exchange->OnConnected(peer);
}

std::size_t SimHost::HostsHere() const {
  std::size_t here = 0;
  for (std::uint32_t host = 0; host < options_.hosts; ++host) here += !IsAbroad(host);
  return here;
}

bool SimHost::IsOwner(std::uint32_t host) const {
  return std::ranges::find(*options_.all_owners, HostName(host)) != options_.all_owners->end();
}

// Null: hosts of other sites are nothing to this one.
Exchange* SimHost::ExchangeWith(std::uint32_t peer) const {
  if (!IsAbroad(peer)) return &life_->exchange;
  return life_->abroad != nullptr ? &life_->abroad->exchange : nullptr;
}

void SimHost::Kill() {
  DT_CHECK(running());
  decided_before_ += DecidedNow();
  life_.reset();
  leaving_links_.clear();
}

WorldTime SimHost::Work(WorldTime now) {
  DT_CHECK(answers());
  const Instant local = clock_.Local(now);
  Life& life = *life_;
  if (!life.linked) AddLinks(local);
  if (quotas_ && now - looked_ >= kLooksAtDate) FollowCalendar(now);
  Instant wake;
  for (bool more = true; more;) {
    life.inbox.Read(life.exchange, local, [&](const Parcel& parcel) { Take(parcel, local); });
    wake = life.exchange.Tick(local);
    RemoveLinks(local);
    bool debits = false, hits = false;
    const auto pass = [&] {
      const bool some_debits = PassDebits(), some_hits = PassHits();
      debits |= some_debits, hits |= some_hits;
      return some_debits || some_hits;
    };
    pass();
    while (life.sharing.Work(local) || pass()) continue;
    // There is more to do if the exchange was given hits, or has room again, or if what was heard is urgent.
    const bool backlogged = life.exchange.backlogged(), urgent = life.sharing.next() <= local;
    more = hits || (debits && (backlogged || urgent)) || (life.inbox.IsDue(local) && !backlogged);
  }
  wake = std::min(wake, life.inbox.until(local));
  if (life.abroad != nullptr) wake = std::min(wake, WorkAbroad(local));
  wake = std::min(wake, life.sharing.next());
  if (life.workers != nullptr) wake = std::min(wake, life.workers->Look(local));
  if (life.division != nullptr) wake = std::min(wake, life.division->Work(local));
  WorldTime next = clock_.When(wake);
  if (quotas_) next = std::min(next, looked_ + kLooksAtDate);
  // A loop's timers are no finer than this, and it must not stand still.
  return std::max(next, now + std::chrono::microseconds(10));
}

Instant SimHost::WorkAbroad(Instant now) {
  Abroad& abroad = *life_->abroad;
  Instant next;
  do {
    next = abroad.exchange.Tick(now);
    while (abroad.sharing.Work(now)) next = abroad.exchange.Tick(now);
  } while (!abroad.to_sites.empty() || !abroad.from_sites.empty());
  const std::vector<SitePresence> heard = PresenceOf(abroad.exchange.Peers(now), options_.sites - 1);
  for (std::uint32_t i = 0; i < heard.size(); ++i) {
    if (!heard[i].some) abroad.sharing.Miss(i);
  }
  life_->sharing.SetPeers(HostsHere() - 1);
  abroad.sharing.SetHeard({}, std::ranges::all_of(heard, &SitePresence::whole));
  return std::min(next, abroad.sharing.next());
}

// From the exchange's ring to the limiter's. Returns whether any moved.
bool SimHost::PassDebits() {
  Life& life = *life_;
  bool moved = false;
  while (!life.from_exchange.empty() && !life.to_limiter.full()) {
    FromPeers debits;
    life.from_exchange.TryPop(debits);
    if (debits.kind == FromPeers::Kind::kDebits) surroundings_.Debited(number_, debits.entries);
    life.to_limiter.TryPush(std::move(debits));
    moved = true;
  }
  return moved;
}

// The other way.
bool SimHost::PassHits() {
  Life& life = *life_;
  bool moved = false;
  while (!life.from_limiter.empty() && !life.to_exchange.full()) {
    ToPeers hits;
    life.from_limiter.TryPop(hits);
    if (hits.kind == ToPeers::Kind::kHits || hits.kind == ToPeers::Kind::kUrgent) {
      surroundings_.Reported(number_, hits.entries);
    }
    life.to_exchange.TryPush(std::move(hits));
    moved = true;
  }
  return moved;
}

void SimHost::Take(const Parcel& parcel, Instant now) {
  Exchange* const with = ExchangeWith(parcel.from);
  if (with == nullptr) return;
  Exchange& exchange = *with;
  switch (parcel.channel) {
    case Channel::kPublished:
      return exchange.OnAnswer(parcel.from, *parcel.frame, *parcel.decoded, now);
    case Channel::kRequest:
      return exchange.OnRequest(HostTransports::RouteTo(parcel.from), HostName(parcel.from), *parcel.frame, now);
    case Channel::kAnswer:
      return exchange.OnAnswer(parcel.from, *parcel.frame, now);
    case Channel::kCapacity:
      if (life_->division != nullptr) {
        life_->division->exchange.OnMessage(HostName(parcel.from), *parcel.frame, OnBootClock(now));
      }
      return;
  }
}

bool SimHost::Serves(std::string_view tag, Cost cost, WorldTime now) {
  Query query;
  query.tag = {tag, false};
  query.cost = cost;
  SimWorkers* const workers = life_->workers.get();
  if (workers == nullptr || cost != 1) return Serves(query, now);
  const std::size_t worker = prng_.Below(workers->size());
  const Instant local = clock_.Local(now);
  if (const auto decided = workers->Decide(worker, tag, local)) return *decided;
  const bool served = Serves(query, now);
  workers->Answered(worker, tag, !served, local);
  woken_ = true;    // for when to look
  return served;
}

bool SimHost::Serves(const Query& query, WorldTime now) {
  DT_CHECK(answers());
  Verdict verdict;
  life_->limiter.Answer({&query, 1}, {&verdict, 1}, 0, prng_, clock_.Local(now));
  return verdict == Verdict::kServe;
}

std::optional<Duration> SimHost::ServesWithin(Duration patience, Verb verb, std::span<const std::string_view> tags,
                                              Cost cost, WorldTime now) {
  DT_CHECK(answers());
  Asking asking(life_->limiter, 0, Prng(prng_.Next()), kTagBytesMax);
  asking.Begin(verb, patience);
  for (const std::string_view tag : tags) DT_CHECK(asking.Name(tag, cost));
  asking.Answer(clock_.Local(now));
  return asking.refusal(0) ? std::nullopt : std::optional(asking.wait(0));
}

dthrottle::Outcome SimHost::Decides(const Questions& asked, std::span<Standing> standings, WorldTime now) {
  DT_CHECK(answers());
  dthrottle::Outcome outcome;
  life_->limiter.Ask(asked, {&outcome, 1}, standings, 0, prng_, clock_.Local(now));
  return outcome;
}

void SimHost::Settles(const Query& held, WorldTime since, Cost used, WorldTime now) {
  life_->limiter.Settle({held, clock_.Local(since)}, used, clock_.Local(now));
}

void SimHost::GivesBack(const Query& refunded, WorldTime now) {
  life_->limiter.GiveBack(refunded, 0, clock_.Local(now));
}

Inspection SimHost::Look(std::string_view tag, Instant now) {
  Query query;
  query.tag = {tag, false};
  return Inspect(life_->limiter, query, now);
}

Tokens SimHost::Level(std::string_view tag, WorldTime now) {
  const Instant local = clock_.Local(now);
  const Inspection seen = Look(tag, local);
  return seen.bucket.Level(life_->limiter.rules().limit(seen.limit.value()).shape, local);
}

WorldTime SimHost::ServesAt(std::string_view tag, WorldTime now) {
  const Instant local = clock_.Local(now);
  const Inspection seen = Look(tag, local);
  return clock_.When(seen.bucket.ServesAt(life_->limiter.rules().limit(seen.limit.value()).shape, 1, local));
}

}    // namespace dthrottle::lab
