#include "daemon/peering.h"

#include <fmt/format.h>
#include <sysexits.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/state.h"
#include "capacity/indicator.h"
#include "daemon/peer_options.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"
#include "io/peer_settings.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// For the last report, of a table however large.
constexpr Duration kFarewell = std::chrono::milliseconds(500);

// For what lies between the thread and the limiter when the thread has ended.
constexpr Duration kDraining = std::chrono::seconds(2);

constexpr Duration kRetryAfter = std::chrono::seconds(5);    // before the ports are tried again

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
      slices_(loop, {[this](Instant end) { return Turn(end); }, [this] { return session_->next(); }}),
      retry_(loop, [this] { Return(); }) {}

Peering::~Peering() {
  DT_CHECK(stopped_);
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
  limiter_.ways().Get<Debits>().peers().SetNewTagsMax(settings_.peers.max_new_tags);
  LendReserve(settings_, limiter_);
  if (!kept.empty()) TakeKept(kept);
  limiter_.ways().WatchTags(settings_.peers.watched_tags, [this] { slices_.Wake(); });
  if (!settings_.peers.etcd.empty()) StartOwnerList();
  if (!took_over && !AwaitsList()) {
    if (auto opened = Open(); !opened) {
      kept_.start = LastIncarnation(settings_.table.file).value_or(0);    // the number of a start that told nobody
      throw opened.error();
    }
    return;
  }
  // Queries that wait come first, but what they are served is to be reported.
  limiter_.ways().Get<Debits>().ShareWith(Called(settings_, ListOfOwners()).size(), settings_.peers.period);
  tasks_.Post([this] { Return(); });
}

void Peering::TakeKept(std::string_view kept) {
  const bool readable = ReadState(kept, PeerSession::kKeptVersion, kept_);
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
  retry_.StartOnce(kRetryAfter);
}

// ---- The list of owners, where etcd has it ----

void Peering::StartOwnerList() {
  owner_list_ = std::make_unique<OwnerList>(
      loop_, settings_, log_, NameOfHost(settings_), FreshPrng(),
      OwnerList::Fleet{
          .look = [this] { return session_ ? session_->thread().OwnersView() : EtcdOwners::View(); },
          .propose = [this](std::vector<std::string> names) { session_->thread().SetOwners(std::move(names)); },
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
  if (session_ == nullptr) return tasks_.Post([this] { Return(); });
  session_->Obey(*owner_list_->list());
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
  options.wake = [this] { slices_.Wake(); };
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

// What this host counts as an owner, as a kill leaves it; null: the table has no file, or this one cannot be had.
std::shared_ptr<CountedStreams> Peering::Counted() {
  if (settings_.table.file.empty()) return nullptr;
  if (!counted_) {
    const std::string path = settings_.table.file + ".counted";
    auto region = MappedRegion::Open(path, 8 * CountedStreams::kWords, CountedStreams::IsOurs);
    if (!region) {
      log_.Warning("peers: {}; after a kill this host will not know what it had counted", region.error().message);
      return nullptr;
    }
    counted_.emplace(std::move(*region));
    WatchMappedFile(counted_->bytes(), path);
  }
  const CountedStreams::Words words(reinterpret_cast<std::uint64_t*>(counted_->bytes().data()), CountedStreams::kWords);
  return std::make_shared<CountedStreams>(words, limiter_.table().keys().tag_hash);
}

// Opens the ports and begins to report, or goes on where it has left. The reason if it cannot, with nothing begun.
tl::expected<void, StartFailure> Peering::Open() {
  auto options = MakePeerOptions(settings_, limiter_, log_, ListOfOwners(), FreshNumber());
  if (!options) return tl::unexpected(options.error());
  Connect(*options);
  const std::shared_ptr<CountedStreams> counted = options->exchange.owners != nullptr ? Counted() : nullptr;
  options->exchange.counted = counted;
  const bool divides = options->capacity.has_value();
  const std::string name = options->exchange.name;
  const std::uint64_t start = options->exchange.incarnation;
  auto thread = std::make_unique<PeerThread>(std::move(*options));
  if (auto started = thread->Start(); !started) {
    return tl::unexpected(StartFailure{EX_UNAVAILABLE, started.error().message});
  }
  const bool resumed = thread->resumed();
  session_.reset();    // there is one at a time
  session_ = std::make_unique<PeerSession>(PeerSession::Host{limiter_, settings_, log_, name, counted},
                                           std::move(thread), divides, Called(settings_, ListOfOwners()).size(),
                                           std::exchange(kept_, {}));
  kept_.start = start;
  away_ = false;
  log_.Notice("sharing limits as \"{}\" {}{}", name, By(settings_), resumed ? ", where it left off" : "");
  slices_.Start();
  return {};
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
  if (session_ != nullptr) session_->Reload(ListOfOwners(), problems);    // or it reads them when it starts
}

bool Peering::Turn(Instant end) {
  if (away_) return Drain(end);
  const bool more = session_->Work(end);
  if (leaving_ != nullptr && (!session_->reporting() || Now() >= leave_by_)) EndThread();
  return more;
}

void Peering::Leave(std::function<void()> left) {
  if (away_) return left();
  leaving_ = std::move(left);
  leave_by_ = Now() + kFarewell;
  session_->ReportNow();
  slices_.Start();
}

// Ending it takes a while, in which this thread has queries to answer.
void Peering::EndThread() {
  away_ = true;
  slices_.Stop();
  session_->StopMeanwhile([this] {
    tasks_.Post([this] {
      session_->Stop();
      if (stopped_) return;
      leave_by_ = Now() + kDraining;
      slices_.Start();
    });
  });
}

// After the thread has ended, until this host has left.
bool Peering::Drain(Instant end) {
  const bool drained = session_->Drain(end);
  if (!drained && Now() < leave_by_) return true;
  slices_.Stop();
  if (drained) session_->Keep(kept_);
  std::exchange(leaving_, nullptr)();
  return false;
}

void Peering::Keep(std::vector<HandedSection>& sections) const {
  if (shares_) sections.push_back({"peers", -1, WriteState(PeerSession::kKeptVersion, kept_)});
}

std::vector<PeerStatus> Peering::Peers() const {
  return session_ ? session_->thread().Peers() : std::vector<PeerStatus>();
}

void Peering::Count(ProcessCounts& counts) const {
  if (owner_list_ != nullptr) {
    counts.peers.owner_registered = owner_list_->registered();
    counts.peers.owners_etcd_failures = owner_list_->failures();
  }
  if (session_ != nullptr) session_->AddTo(counts.peers);
}

void Peering::Close() {
  if (std::exchange(stopped_, true)) return;
  if (session_ != nullptr) {
    if (!away_) session_->ReportAll(Now() + kFarewell);
    session_->Stop();
    if ((!away_ || leaving_ != nullptr) && session_->Drain(Now() + kDraining)) session_->Keep(kept_);
  }
  if (owner_list_ != nullptr) owner_list_->Close();
  slices_.Close();
  retry_.Close();
}

std::optional<LeasePart> Peering::PartForLeases(std::string_view tag, const LeaseUse& use) {
  if (!shares_) return LeasePart{1, 1, BootInstant::max()};
  Dividing* const divided = dividing();
  return divided != nullptr ? divided->Lease(tag, use, Now()) : std::nullopt;
}

Result<void> Peering::Indicate(const Tag& tag, double value) {
  if (settings_.capacity.indicator != Reported().name()) {
    return Fail(fmt::format("capacity.indicator is \"{}\", and a value is taken only for \"reported\"",
                            settings_.capacity.indicator));
  }
  if (dividing() == nullptr) return Fail("this host divides nothing");
  if (!dividing()->Indicate(tag, value, Now())) return Fail("no rule divides the tag, or capacity.tags_max take part");
  return {};
}

bool Peering::LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const {
  return session_ != nullptr && session_->thread().LookAtCapacity(look);
}

}    // namespace dthrottle
