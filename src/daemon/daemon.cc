#include "daemon/daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "config/keys.h"
#include "config/values.h"
#include "daemon/elsewhere.h"
#include "daemon/kept_state.h"
#include "daemon/worker.h"
#include "io/clock.h"
#include "io/library_accept.h"
#include "io/mapped_faults.h"
#include "io/process.h"
#include "io/signals.h"
#include "lease/address.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kPeersRetryMs = 5000;

// What a listening socket is for. The name occurs in its key, and in the name that a service manager's unit gives it.
struct FrontEnd {
  std::string_view name, doing;
};
constexpr FrontEnd kFrontEnds[] = {{"http", "answering HTTP"},          {"resp", "answering clients of Redis"},
                                   {"grpc", "granting leases by gRPC"}, {"lease", "granting leases"},
                                   {"admin", "taking commands"},        {"query", "answering queries"}};

// Of a name that says nothing: queries.
const FrontEnd& FrontEndOf(std::string_view key) {
  for (const FrontEnd& front : kFrontEnds) {
    if (key.find(front.name) != std::string_view::npos) return front;
  }
  return std::end(kFrontEnds)[-1];
}

int ExitCode(int code) {
  switch (code) {
    case EADDRINUSE:
    case EEXIST:
    case EWOULDBLOCK:
      return EX_UNAVAILABLE;
    case EACCES:
    case EPERM:
      return EX_NOPERM;
    default:
      return EX_OSERR;
  }
}

TableKeys FreshKeys() {
  TableKeys keys;
  FillRandom(std::as_writable_bytes(std::span(keys.tag_hash)));
  FillRandom(keys.digest);
  return keys;
}

Prng FreshPrng() {
  std::uint64_t seed;
  FillRandom(std::as_writable_bytes(std::span(&seed, 1)));
  return Prng(seed);
}

template <class Handle>
void CloseHandle(Handle& handle) {
  uv_close(reinterpret_cast<uv_handle_t*>(&handle), nullptr);
}

}    // namespace

// What the thread pool does for a reload: everything that takes time.
struct Daemon::ReloadWork {
  Daemon* daemon;
  uv_work_t request;
  std::optional<FileError> unreadable;
  LoadedSettings loaded;
  std::shared_ptr<const Rulebook> rules;
};

// ---- Start ----

Daemon::Daemon(std::string path, std::string runtime_dir, Settings settings, Launch launch, Handover handed, Log& log)
    : path_(std::move(path)),
      runtime_dir_(std::move(runtime_dir)),
      settings_(std::move(settings)),
      launch_(std::move(launch)),
      handed_(std::move(handed)),
      log_(log),
      started_(Now()),
      settings_put_in_force_(started_) {
  counts_.started = WallClock();
  DT_CHECK(uv_loop_init(&loop_) == 0);
  DT_CHECK(uv_signal_init(&loop_, &on_term_) == 0 && uv_signal_init(&loop_, &on_int_) == 0 &&
           uv_signal_init(&loop_, &on_hup_) == 0 && uv_signal_init(&loop_, &on_usr2_) == 0 &&
           uv_timer_init(&loop_, &watchdog_) == 0 && uv_timer_init(&loop_, &peers_retry_) == 0 &&
           uv_idle_init(&loop_, &background_) == 0);
  on_term_.data = on_int_.data = on_hup_.data = on_usr2_.data = watchdog_.data = peers_retry_.data = background_.data =
      this;
  tasks_ = std::make_unique<TaskQueue>(&loop_);
  admin_ = std::make_unique<AdminServer>(&loop_, static_cast<AdminHost&>(*this));
}

void Daemon::Start() {
  std::string table_notes = OpenTable();
  TakeKeptSections();
  std::shared_ptr<const Rulebook> rules;
  Elsewhere([&] {
    rules = std::make_shared<Rulebook>(std::exchange(settings_.rules, {}), std::exchange(settings_.overrides, {}));
  });
  if (rules->rules().empty() && rules->overrides().empty()) {
    log_.Warning("{}: there is no [[rule]]: every query will be answered OK", path_);
  }
  limiter_ = std::make_unique<Limiter>(region_->bytes(), ReadBootId(), FreshKeys(), std::move(rules),
                                       settings_.query.threads, started_, std::move(table_notes));
  if (settings_.table.file.empty()) {
    log_.Notice("table: {} of memory, {} tags kept, lost when this process ends", FormatBytes(settings_.table.memory),
                limiter_->table().counts().tags);
  } else if (limiter_->discarded().empty()) {
    log_.Notice("table: {} in {}, {} tags kept, {} torn entries dropped{}", FormatBytes(settings_.table.memory),
                settings_.table.file, limiter_->table().counts().tags, limiter_->dropped(),
                limiter_->reshaping() ? " in its first 64MiB; the rest is looked through between queries" : "");
  } else {
    log_.Notice("table: {} in {}, new because {}", FormatBytes(settings_.table.memory), settings_.table.file,
                limiter_->discarded());
  }

  RaiseDescriptorLimit();
  descriptors_at_start_ = OpenDescriptors() - std::min<std::uint64_t>(handed_.connections.size(), OpenDescriptors());
  DividePlaces();
  StartPeering();
  OpenBroughtLimits();
  shedding_ = std::make_unique<Shedding>(&loop_, *limiter_, settings_, log_);
  shedding_->Reload();
  retention_watch_ = std::make_unique<RetentionWatch>(&loop_, *limiter_, log_);
  Listen();
  CampaignForLeases();
  MakeWorkers();    // after the last thing that may fail: threads cannot be taken back
  TakeHandedConnections();
  WatchSignals();
  StartWatchdog();
  PrepareMemory();
}

// Returns Table::Notes of the daemon before this one.
std::string Daemon::OpenTable() {
  HandedSection left = handed_.Take("table");
  if (left.fd >= 0 && settings_.table.file.empty()) {
    if (auto region = MappedRegion::Adopt(left.fd, settings_.table.memory)) {
      region_.emplace(std::move(*region));
      return std::move(left.bytes);
    }
  } else if (left.fd >= 0) {
    ::close(left.fd);
  }
  auto region = MappedRegion::Open(settings_.table.file, settings_.table.memory, Table::IsTable);
  if (!region) throw StartFailure{ExitCode(region.error().code), "table.file: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(region_->bytes(), settings_.table.file);
  return std::move(left.bytes);
}

// What an orderly stop before this start has left. It is removed whoever takes it.
void Daemon::TakeKeptSections() {
  if (settings_.table.file.empty()) return;
  std::string complaint;
  auto sections = TakeKeptState(KeptStatePath(settings_.table.file), complaint);
  if (took_over()) return;
  if (!sections) throw StartFailure{ExitCode(sections.error().code), sections.error().message};
  if (!complaint.empty()) log_.Warning("{}", complaint);
  handed_.sections = std::move(*sections);
}

void Daemon::WriteKeptSections() {
  const std::vector<HandedSection> sections = KeptSections();
  if (settings_.table.file.empty() || sections.empty()) return;
  const auto written = WriteKeptState(KeptStatePath(settings_.table.file), sections);
  if (!written) log_.Warning("{}; the next start begins anew with its peers", written.error().message);
}

// In a thread that has time left over only, because a GiB takes seconds. A small table has few translations to miss.
void Daemon::PrepareMemory() {
  constexpr std::size_t kFrom = std::size_t{16} << 20;
  if (region_->bytes().size() < kFrom) return;
  const SignalsBlocked blocked;
  memory_thread_ = std::thread([this] {
    const sched_param idle{};
    ::sched_setscheduler(0, SCHED_IDLE, &idle);    // of this thread; where it is not allowed, the pauses have to do
    if (const auto claimed = region_->ClaimRest(stop_memory_thread_); !claimed)
      log_.Error("{}", claimed.error().message);
    region_->UseHugePages(stop_memory_thread_);
  });
}

// Over-long tags go by a digest, which all hosts have to make in the same way. That everybody can make it costs little:
// who finds two tags with one digest of 128 bits has found two tags that share a bucket.
void Daemon::StartPeering() {
  if (!settings_.peers.enabled()) return;
  constexpr std::string_view kKey = "dthrottle: tags that are shared.";
  TableKeys keys;
  static_assert(kKey.size() == sizeof keys.digest);
  std::memcpy(keys.digest.data(), kKey.data(), kKey.size());
  limiter_->table().SetDigestKey(keys.digest);
  peering_ = std::make_unique<Peering>(&loop_, *limiter_, settings_, log_, *tasks_, handed_.Take("peers").bytes);
  limiter_->WatchTags(settings_.peers.watched_tags, settings_.peers.eager, [p = peering_.get()] { p->Wake(); });
  if (took_over()) {
    // Those who wait for answers come first, but what they are served is to be reported.
    limiter_->ShareWith(settings_.peers.connect.size(), settings_.peers.period);
    return tasks_->Post([this] { ReturnToPeers(); });
  }
  if (auto started = peering_->Start(); !started) throw StartFailure{EX_UNAVAILABLE, started.error().message};
}

// For a daemon that answers already: it does not end because of this.
void Daemon::ReturnToPeers() {
  if (stopping_) return;
  const auto started = peering_->Start();
  if (started) return;
  log_.Error("{}; trying again", started.error().message);
  uv_timer_start(
      &peers_retry_, [](uv_timer_t* t) { static_cast<Daemon*>(t->data)->ReturnToPeers(); }, kPeersRetryMs, 0);
}

void Daemon::MakeWorkers() {
  const FramerLimits limits{settings_.query.max_tag_bytes, limiter_->keys().digest};
  const SignalsBlocked blocked;
  for (std::uint32_t i = 0; i < settings_.query.threads; ++i) {
    auto worker = std::make_unique<Worker>();
    if (i > 0) {
      worker->own_loop = std::make_unique<uv_loop_t>();
      DT_CHECK(uv_loop_init(worker->own_loop.get()) == 0);
      worker->tasks = std::make_unique<TaskQueue>(worker->own_loop.get());
    }
    worker->loop = i > 0 ? worker->own_loop.get() : &loop_;
    worker->server =
        std::make_unique<QueryServer>(worker->loop, *limiter_, i, limits, FreshPrng(), settings_.query.idle_timeout);
    if (i > 0) worker->thread = std::thread([loop = worker->loop] { uv_run(loop, UV_RUN_DEFAULT); });
    workers_.push_back(std::move(worker));
  }
}

// Sockets that the service manager opened take the place of those in the settings, kind by kind.
void Daemon::Listen() {
  std::set<std::string> passed;    // keys
  for (const Service::Socket& socket : service_.TakeSockets()) {
    ::fcntl(socket.fd, F_SETFL, ::fcntl(socket.fd, F_GETFL) | O_NONBLOCK);
    ::fcntl(socket.fd, F_SETFD, FD_CLOEXEC);
    const bool is_tcp = DescribeSocket(socket.fd).starts_with("tcp:");
    const std::string key = fmt::format("{}.{}", FrontEndOf(socket.name).name, is_tcp ? "tcp" : "unix");
    if (key == "admin.tcp") {
      throw StartFailure{EX_CONFIG, fmt::format("{}: commands are taken on Unix sockets only", socket.name)};
    }
    passed.insert(key);
    ListenOn(socket.fd, key, "");
  }
  const auto listen = [&](const std::string& front, const std::string& path, std::uint32_t mode, const Endpoint& tcp) {
    const std::string keys[] = {front + ".unix", front + ".tcp"};
    for (const std::string& key : keys) {
      for (int fd; (fd = TakeHandedListener(key, "")) >= 0; passed.insert(key)) ListenOn(fd, key, "");
    }
    if (!passed.contains(keys[0])) AddUnix(keys[0], path, mode);
    if (!passed.contains(keys[1])) AddTcp(keys[1], tcp);
  };
  listen("query", settings_.query.unix_path, settings_.query.unix_mode, settings_.query.tcp);
  listen("admin", settings_.admin.unix_path, settings_.admin.unix_mode, {});
  listen("resp", settings_.resp.unix_path, settings_.resp.unix_mode, settings_.resp.tcp);
  listen("lease", settings_.lease.unix_path, settings_.lease.unix_mode, settings_.lease.tcp);
  listen("grpc", "", 0, settings_.lease.grpc);
  listen("http", settings_.admin.http_unix_path, settings_.admin.http_unix_mode, settings_.admin.http);
  CloseHandedListeners();
}

void Daemon::AddUnix(const std::string& key, const std::string& path, std::uint32_t mode) {
  if (path.empty()) return;
  int fd = TakeHandedListener(key, path);
  if (fd < 0) {
    const auto opened = ListenUnix(path, mode);
    if (!opened) throw StartFailure{ExitCode(opened.error().code), opened.error().message};
    fd = *opened;
  } else {
    ::chmod(path.c_str(), static_cast<mode_t>(mode));
  }
  socket_files_.push_back(path);
  ListenOn(fd, key, path);
}

void Daemon::AddTcp(const std::string& key, const Endpoint& endpoint) {
  if (!endpoint.enabled()) return;
  int fd = TakeHandedListener(key, FormatEndpoint(endpoint));
  if (fd < 0) {
    const auto opened = ListenTcp(endpoint);
    if (!opened) throw StartFailure{ExitCode(opened.error().code), opened.error().message};
    fd = *opened;
  }
  ListenOn(fd, key, FormatEndpoint(endpoint));
}

// A listening socket that was left for this place, or -1. A Unix socket whose file somebody has removed is none.
int Daemon::TakeHandedListener(const std::string& key, const std::string& address) {
  auto& left = handed_.listeners;
  const auto found =
      std::find_if(left.begin(), left.end(), [&](const auto& l) { return l.key == key && l.address == address; });
  if (found == left.end() || (address.starts_with('/') && ::access(address.c_str(), F_OK) != 0)) return -1;
  const int fd = found->fd;
  left.erase(found);
  return fd;
}

// Those for which the settings have no place any more.
void Daemon::CloseHandedListeners() {
  for (const HandedListener& l : std::exchange(handed_.listeners, {})) {
    log_.Notice("no longer on {}, which was {}", l.address, l.key);
    const bool in_use = std::find(socket_files_.begin(), socket_files_.end(), l.address) != socket_files_.end();
    if (l.address.starts_with('/') && !in_use) ::unlink(l.address.c_str());
    ::close(l.fd);
  }
}

void Daemon::ListenOn(int fd, const std::string& key, const std::string& address) {
  const std::string place = DescribeSocket(fd);
  const FrontEnd& front = FrontEndOf(key);
  log_.Notice("{} on {}", front.doing, place);
  if (front.name == "query") places_.push_back(place);
  const auto failed = [this, place](int code) {
    ++counts_.accept_failures;
    log_.Warning("{}: cannot accept a connection: {}", place, std::strerror(code));
  };
  const auto crowd = [this, place, name = front.name](Places::Answer answer) { OnCrowd(name, place, answer); };
  listeners_.push_back(
      {key, address, std::make_unique<Listener>(&loop_, fd, BoundsOf(key), Taker(front.name), failed, crowd)});
}

// Who takes the connections of a listening socket. All but those for queries stay on the main loop.
Listener::OnAccept Daemon::Taker(std::string_view front) {
  if (front == "query") return [this](int fd) { OnQueryConnection(fd); };
  if (front == "admin") return [this](int fd) { admin_->Take(fd); };
  if (front == "resp") {
    if (resp_ == nullptr) {
      resp_ = std::make_unique<RespServer>(&loop_, *limiter_, brought_.get(), 0, FreshPrng(),
                                           settings_.query.max_tag_bytes, settings_.resp.idle_timeout);
    }
    return [this](int fd) { OnRespConnection(fd); };
  }
  if (front == "lease" || front == "grpc") {
    if (leasing_ == nullptr) leasing_ = std::make_unique<Leasing>(&loop_, settings_, log_, FreshPrng().Next());
    if (front == "lease") return [this](int fd) { leasing_->Take(fd); };
    if (took_over()) {
      leasing_->ServeGrpcSoon();
    } else if (const auto served = leasing_->ServeGrpc(); !served) {
      throw StartFailure{EX_CONFIG, served.error().message};
    }
    return [this](int fd) { leasing_->TakeGrpc(fd); };
  }
  if (http_ == nullptr) {
    http_ =
        std::make_unique<HttpServer>(&loop_, static_cast<AdminHost&>(*this), FreshPrng(), settings_.admin.http_timeout);
  }
  return [this](int fd) { OnHttpConnection(fd); };
}

// The connections were let in before, so no bound turns them away now. A section that no part of this program has taken
// by now is not known to any.
void Daemon::TakeHandedConnections() {
  for (const HandedSection& section : std::exchange(handed_.sections, {})) {
    if (section.fd >= 0) ::close(section.fd);
  }
  if (!took_over()) return;
  const std::vector<HandedConnection> connections = std::exchange(handed_.connections, {});
  for (const HandedConnection& connection : connections) {
    for (const Listening& l : listeners_) {
      if (!l.key.starts_with(connection.front)) continue;
      l.listener->places().Keep(connection.fd);
      break;
    }
    if (connection.front != "query") {
      StreamServer* const server = FrontServer(connection.front);
      server != nullptr ? server->TakeUp(connection) : static_cast<void>(::close(connection.fd));
      continue;
    }
    Worker& worker = LeastBusy();
    ++worker.given;
    worker.Do([server = worker.server.get(), connection] { server->Take(connection); });
  }
  log_.Notice("took over {} connections; they waited {:.1f} ms", connections.size(),
              Seconds(Now() - handed_.held_at) * 1e3);
}

void Daemon::OpenBroughtLimits() {
  if (!settings_.resp.enabled() || !settings_.resp.accept_limits) return;
  const std::string file = settings_.table.file.empty() ? "" : settings_.table.file + ".resp";
  auto region = MappedRegion::Open(file, settings_.resp.memory, Table::IsTable);
  if (!region) throw StartFailure{ExitCode(region.error().code), "resp.memory: " + region.error().message};
  brought_region_.emplace(std::move(*region));
  WatchMappedFile(brought_region_->bytes(), file);
  brought_ = std::make_unique<BroughtLimits>(brought_region_->bytes(), ReadBootId(), FreshKeys(), started_);
}

// As the master that others are to find: where this host listens, unless the settings know better.
void Daemon::CampaignForLeases() {
  if (leasing_ == nullptr) return;
  std::string line(lease::LineAddress(settings_.lease.address)), grpc(lease::GrpcAddress(settings_.lease.address));
  const auto is_at = [&](std::string_view key, std::string& address) {
    for (const Listening& l : listeners_) {
      if (address.empty() && l.key == key) address = DescribeSocket(l.listener->fd());
    }
  };
  is_at("lease.tcp", line);
  is_at("lease.unix", line);
  if (grpc.empty()) {
    is_at("grpc.tcp", grpc);
    grpc.erase(0, std::string_view("tcp:").size());
  }
  leasing_->Resume(handed_.Take("leases").bytes);
  leasing_->TakeParts([this](std::string_view tag, const Dividing::LeaseUse& use) { return PartForLeases(tag, use); });
  leasing_->Campaign(lease::JoinAddresses(line, grpc));
}

// A host without others has the whole; one that has not begun to divide has nothing yet.
std::optional<Dividing::LeasePart> Daemon::PartForLeases(std::string_view tag, const Dividing::LeaseUse& use) {
  if (peering_ == nullptr) return Dividing::LeasePart{1, 1, Instant::max()};
  if (peering_->dividing() == nullptr) return std::nullopt;
  return peering_->dividing()->Lease(tag, use, Now());
}

LeaseStatus Daemon::Leases(std::string_view resource) {
  return leasing_ != nullptr ? leasing_->Status(resource) : LeaseStatus();
}

void Daemon::OnRespConnection(int fd) {
  if (resp_->connections() < ceilings_.resp) return resp_->Take(fd);
  ++counts_.resp.rejected_full;
  log_.Warning("resp.max_connections = {} are open: one more turned away", ceilings_.resp);
  ::close(fd);
}

void Daemon::OnHttpConnection(int fd) {
  if (http_->connections() < ceilings_.http + ceilings_.http_unix) return http_->Take(fd);
  ++counts_.http.rejected_full;
  ::close(fd);
}

void Daemon::RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// REQUIRES: what is open now stays open, and connections of others are not among it.
void Daemon::DividePlaces() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
  ceilings_ = DivideDescriptors(settings_, limit.rlim_cur, descriptors_at_start_);
  if (ceilings_.cut) {
    log_.Warning(
        "the limit of open files, {}, is too low for all connections that the settings allow: {} for queries "
        "are left of query.max_connections = {}; raise LimitNOFILE",
        limit.rlim_cur, ceilings_.query, settings_.query.max_connections);
  }
  for (const Listening& l : listeners_) l.listener->places().set_bounds(BoundsOf(l.key));
  BoundLibraryAccepts({ceilings_.peers, PlacesPerSource(ceilings_.peers, settings_.process.source_share)});
}

PlaceBounds Daemon::BoundsOf(std::string_view key) const {
  const std::uint32_t total = ceilings_.Of(key);
  return {total, PlacesPerSource(total, settings_.process.source_share)};
}

void Daemon::OnCrowd(std::string_view front, const std::string& place, Places::Answer answer) {
  if (answer == Places::Answer::kSourceFull) {
    ++counts_.crowded;
    log_.Warning("{}: one source has its part of the connections (process.source_share = {:g}): one more turned away",
                 place, settings_.process.source_share);
    return;
  }
  if (front == "query") ++counts_.rejected_full;
  if (front == "http") ++counts_.http.rejected_full;
  if (front == "resp") ++counts_.resp.rejected_full;
  if (front == "lease" || front == "grpc") ++counts_.lease.rejected_full;
  log_.Warning("{}: all places are taken: one more turned away", place);
}

void Daemon::WatchSignals() {
  const auto stop = [](uv_signal_t* s, int number) { static_cast<Daemon*>(s->data)->Stop(number); };
  const auto reload = [](uv_signal_t* s, int) { static_cast<Daemon*>(s->data)->Reload([](const ReloadOutcome&) {}); };
  const auto upgrade = [](uv_signal_t* s, int) {
    static_cast<Daemon*>(s->data)->Upgrade([](const Result<std::string>&) {});
  };
  DT_CHECK(uv_signal_start(&on_term_, stop, SIGTERM) == 0 && uv_signal_start(&on_int_, stop, SIGINT) == 0 &&
           uv_signal_start(&on_hup_, reload, SIGHUP) == 0 && uv_signal_start(&on_usr2_, upgrade, SIGUSR2) == 0);
  BlockOrders(false);    // a program before this one may have blocked them
}

// Every loop has to turn, not only this one, for the watchdog to be fed.
void Daemon::StartWatchdog() {
  const auto interval = service_.watchdog();
  if (!interval.has_value()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(*interval / 4).count();
  const auto tick = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  uv_timer_start(
      &watchdog_, [](uv_timer_t* t) { static_cast<Daemon*>(t->data)->OnWatchdogTick(); }, 0, tick);
}

void Daemon::OnWatchdogTick() {
  bool all_alive = true;
  for (const auto& worker : workers_) {
    const std::uint64_t beats = worker->beats.load(std::memory_order_relaxed);
    all_alive = all_alive && (beats != worker->beats_seen || beats == 0);
    worker->beats_seen = beats;
    worker->Do([w = worker.get()] { w->beats.fetch_add(1, std::memory_order_relaxed); });
  }
  if (all_alive) service_.Alive();
}

// ---- Running ----

void Daemon::Run() {
  service_.Ready(fmt::format("Answering on {}", fmt::join(places_, ", ")));
  log_.Notice("dthrottled {} ready: {} rules, {} overrides, {} query threads", DTHROTTLE_VERSION,
              limiter_->rules().rules().size(), limiter_->rules().overrides().size(), workers_.size());
  StartBackground();
  uv_run(&loop_, UV_RUN_DEFAULT);
}

void Daemon::OnQueryConnection(int fd) {
  std::uint64_t open = 0;
  for (const auto& worker : workers_) open += worker->connections();
  if (open >= ceilings_.query) {
    ++counts_.rejected_full;
    log_.Warning("query.max_connections = {} are open: one more turned away", ceilings_.query);
    ::close(fd);
    return;
  }
  ++counts_.accepted;
  Worker& worker = LeastBusy();
  ++worker.given;
  worker.Do([server = worker.server.get(), fd] { server->Take(fd); });
}

Daemon::Worker& Daemon::LeastBusy() {
  return **std::min_element(workers_.begin(), workers_.end(),
                            [](const auto& a, const auto& b) { return a->connections() < b->connections(); });
}

ProcessCounts Daemon::Counts() const {
  ProcessCounts counts = counts_;
  const Instant now = Now();
  counts.uptime = now - started_;
  counts.settings_age = now - settings_put_in_force_;
  const ProcessUse use = ReadProcessUse();
  counts.cpu = use.cpu;
  counts.resident_bytes = use.resident_bytes;
  counts.log_suppressed = log_.suppressed();
  counts.strangers = LibraryAcceptsRefused();
  for (const auto& worker : workers_) {
    const QueryCounters& c = worker->server->counters();
    counts.connections += worker->connections();
    counts.idle_closed += c.idle_closed.Read();
    counts.stalled += c.stalled.Read();
    counts.over_long += c.over_long.Read();
    counts.spoke_http += c.spoke_http.Read();
    counts.answered_in += c.answered_in.Read();
    counts.loop_lag += c.loop_lag.Read();
  }
  if (peering_ != nullptr) counts.peers = peering_->Counts();
  if (http_ != nullptr) counts.http = http_->Counts();
  counts.http.rejected_full = counts_.http.rejected_full;
  counts.over_long += counts.http.over_long;
  if (resp_ != nullptr) {
    counts.resp.connections = resp_->connections();
    counts.resp.accepted = resp_->counts().accepted;
    counts.resp.commands = resp_->turn().commands();
    counts.resp.limited = resp_->turn().limited();
    counts.resp.protocol_errors = resp_->turn().protocol_errors();
    counts.idle_closed += resp_->counts().idle_closed;
    counts.stalled += resp_->counts().stalled;
  }
  if (brought_ != nullptr) counts.resp.brought = brought_->table().counts();
  counts.shed = shedding_->Counts();
  if (leasing_ != nullptr) {
    counts.lease = leasing_->Counts();
    counts.lease.rejected_full += counts_.lease.rejected_full;
    counts.idle_closed += counts.lease.idle_closed;
    counts.spoke_http += counts.lease.spoke_http;
    counts.stalled += counts.lease.stalled;
  }
  return counts;
}

std::vector<PeerStatus> Daemon::Peers() const {
  return peering_ != nullptr ? peering_->Peers() : std::vector<PeerStatus>();
}

// ---- Reload ----

void Daemon::Reload(std::function<void(const ReloadOutcome&)> done) {
  if (stopping_) return done({false, {"the daemon is stopping"}});
  asked_.push_back(std::move(done));
  if (!reloading_) StartReload();
}

void Daemon::StartReload() {
  reloading_ = true;
  answering_ = std::exchange(asked_, {});
  service_.Reloading(Now());
  auto work = std::make_unique<ReloadWork>();
  work->daemon = this;
  work->request.data = work.get();
  const auto read = [](uv_work_t* request) {
    YieldToQueries();
    auto& w = *static_cast<ReloadWork*>(request->data);
    auto text = ReadFile(w.daemon->path_, kSettingsBytesMax);
    if (!text) {
      w.unreadable = text.error();
      return;
    }
    w.loaded = ParseSettings(*text, w.daemon->path_, w.daemon->runtime_dir_);
    if (!w.loaded.ok()) return;
    Settings& s = w.loaded.settings;
    w.rules = std::make_shared<Rulebook>(std::exchange(s.rules, {}), std::exchange(s.overrides, {}));
  };
  const auto done = [](uv_work_t* request, int) {
    std::unique_ptr<ReloadWork> w(static_cast<ReloadWork*>(request->data));
    Daemon& daemon = *w->daemon;
    daemon.FinishReload(std::move(w));
  };
  const SignalsBlocked blocked;    // the pool's threads may begin here
  DT_CHECK(uv_queue_work(&loop_, &work->request, read, done) == 0);
  work.release();    // `done` has it
}

void Daemon::FinishReload(std::unique_ptr<ReloadWork> work) {
  // The table can be rewritten for one set of rules at a time.
  if (work->rules != nullptr && limiter_->reshaping()) {
    pending_ = std::move(work);
    return;
  }
  PutInForce(std::move(work));
}

void Daemon::PutInForce(std::unique_ptr<ReloadWork> work) {
  if (stopping_) {
    for (const auto& answer : std::exchange(answering_, {})) answer({false, {"the daemon is stopping"}});
    return;
  }
  ReloadOutcome outcome;
  if (work->unreadable.has_value()) outcome.problems.push_back(work->unreadable->message);
  for (const Problem& problem : work->loaded.problems) outcome.problems.push_back(Format(problem));
  if (work->rules != nullptr) {
    outcome.in_force = true;
    for (const std::string& key : KeepStartKeys(settings_, work->loaded.settings)) {
      outcome.problems.push_back(fmt::format("{}: warning: {} changes at the next start", path_, key));
    }
    settings_ = std::move(work->loaded.settings);
    limiter_->Adopt(std::move(work->rules));
    DividePlaces();
    ReloadPeering(outcome.problems);
    shedding_->Reload();
    for (const auto& worker : workers_) {
      worker->Do([server = worker->server.get(), timeout = settings_.query.idle_timeout] {
        server->set_idle_timeout(timeout);
      });
    }
    if (leasing_ != nullptr) leasing_->Reload();
    if (resp_ != nullptr) resp_->set_idle_timeout(settings_.resp.idle_timeout);
    StartBackground();
  }
  ++(outcome.in_force ? counts_.reloads : counts_.reload_failures);
  counts_.last_reload_good = outcome.in_force;
  if (outcome.in_force) settings_put_in_force_ = Now();
  for (const std::string& problem : outcome.problems) {
    log_.Say(outcome.in_force ? LogLevel::kWarning : LogLevel::kError, "reload: " + problem);
  }
  if (outcome.in_force) {
    log_.Notice("reloaded {}: {} rules, {} overrides", path_, limiter_->rules().rules().size(),
                limiter_->rules().overrides().size());
  } else {
    log_.Error("{} is not put in force: the settings have not changed", path_);
  }
  service_.Ready(outcome.in_force ? fmt::format("Answering on {}", fmt::join(places_, ", "))
                                  : "The last reload was refused: bad settings");
  reloading_ = false;
  for (const auto& answer : std::exchange(answering_, {})) answer(outcome);
  if (!asked_.empty() && !reloading_) StartReload();
  ContinueUpgrade();
}

void Daemon::ReloadPeering(std::vector<std::string>& problems) {
  if (peering_ != nullptr) {
    peering_->Reload(settings_, problems);
  } else if (settings_.peers.enabled()) {
    problems.push_back(fmt::format("{}: warning: peers.connect: sharing begins at the next start", path_));
  }
}

void Daemon::StartBackground() {
  uv_idle_start(&background_, [](uv_idle_t* idle) { static_cast<Daemon*>(idle->data)->OnBackground(); });
}

void Daemon::OnBackground() {
  if (limiter_->Tick(Now())) return;
  uv_idle_stop(&background_);
  if (auto retired = limiter_->TakeRetired()) FreeElsewhere(std::move(retired));
  if (pending_ != nullptr) PutInForce(std::move(pending_));
  ContinueUpgrade();
}

// Freeing 10^5 overrides takes milliseconds that no query should wait.
void Daemon::FreeElsewhere(std::shared_ptr<const Rulebook> rules) {
  struct Work {
    uv_work_t request;
    std::shared_ptr<const Rulebook> rules;
  };
  auto* work = new Work{{}, std::move(rules)};
  work->request.data = work;
  const SignalsBlocked blocked;
  DT_CHECK(uv_queue_work(
               &loop_, &work->request,
               [](uv_work_t* r) {
                 YieldToQueries();
                 static_cast<Work*>(r->data)->rules.reset();
               },
               [](uv_work_t* r, int) { delete static_cast<Work*>(r->data); }) == 0);
}

// ---- Stop ----

void Daemon::Stop(int signal) {
  if (stopping_) return;
  stopping_ = true;
  service_.Stopping();
  uv_timer_stop(&watchdog_);
  if (upgrading_ != Upgrading::kNo) EndUpgrade(Fail("the daemon is stopping"));
  log_.Notice("{}: answering what has been asked, then leaving", signal == SIGINT ? "SIGINT" : "SIGTERM");
  if (http_ != nullptr) http_->Stop();
  // Whoever connected before the signal may have asked already.
  for (const Listening& l : listeners_) l.listener->AcceptAll();
  StopListening();
  draining_ = workers_.size();
  if (resp_ != nullptr) {
    ++draining_;
    resp_->Drain([this] { tasks_->Post([this] { OnDrained(); }); });
  }
  if (leasing_ != nullptr) {
    ++draining_;
    leasing_->Leave([this] { tasks_->Post([this] { OnDrained(); }); });
  }
  for (const auto& worker : workers_) {
    worker->Do([this, w = worker.get()] {
      w->server->Drain([this, w] {
        w->server->Close();
        if (w->tasks != nullptr) w->tasks->Close();
        tasks_->Post([this] { OnDrained(); });
      });
    });
  }
}

// HTTP is answered to the last, and says that the daemon leaves.
void Daemon::OnDrained() {
  if (--draining_ > 0) return;
  if (http_ != nullptr && !std::exchange(http_drained_, true)) {
    ++draining_;
    return http_->Drain([this] { tasks_->Post([this] { OnDrained(); }); });
  }
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) continue;
    worker->thread.join();
    DT_CHECK(uv_loop_close(worker->own_loop.get()) == 0);
  }
  CloseHandles();
  WriteKeptSections();
  log_.Notice("left");
}

void Daemon::StopListening() {
  listeners_.clear();
  for (const std::string& path : std::exchange(socket_files_, {})) ::unlink(path.c_str());
}

void Daemon::CloseHandles() {
  StopListening();
  if (peering_ != nullptr) peering_->Stop();
  if (shedding_ != nullptr) shedding_->Close();
  if (retention_watch_ != nullptr) retention_watch_->Close();
  if (leasing_ != nullptr) leasing_->Close();
  admin_->Close();
  if (http_ != nullptr) http_->Close();
  if (resp_ != nullptr) resp_->Close();
  tasks_->Close();
  CloseHandle(on_term_);
  CloseHandle(on_int_);
  CloseHandle(on_hup_);
  CloseHandle(on_usr2_);
  CloseHandle(watchdog_);
  CloseHandle(peers_retry_);
  CloseHandle(background_);
}

Daemon::~Daemon() {
  stop_memory_thread_ = true;
  if (memory_thread_.joinable()) memory_thread_.join();
  if (!stopping_) CloseHandles();    // it never ran
  uv_run(&loop_, UV_RUN_DEFAULT);
  DT_CHECK(uv_loop_close(&loop_) == 0);
}

}    // namespace dthrottle
