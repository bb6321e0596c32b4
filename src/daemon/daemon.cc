#include "daemon/daemon.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "config/listeners.h"
#include "config/values.h"
#include "daemon/confine.h"
#include "daemon/elsewhere.h"
#include "daemon/kept_state.h"
#include "daemon/running.h"
#include "daemon/takeover.h"
#include "feature/list.h"
#include "frontend/list.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/thread_pool.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

uv_loop_t* Opened(uv_loop_t& loop) {
  DT_CHECK(uv_loop_init(&loop) == 0);
  return &loop;
}

constexpr const char* kKeysSection = "table keys";
constexpr const char* kFileSection = "table file";    // its path

// Connections that an upgrade keeps name their places by hashes of tags, so these have to stay what they are also where
// the next program starts a table afresh.
HandedSection LeftKeys(const TableKeys& keys) {
  return {kKeysSection, -1, std::string(reinterpret_cast<const char*>(&keys), sizeof keys)};
}

TableKeys KeysFrom(const HandedSection& left) {
  TableKeys keys = FreshTableKeys();
  if (left.bytes.size() == sizeof keys) std::memcpy(&keys, left.bytes.data(), sizeof keys);
  return keys;
}

// What a start has read so far, and a reload reads again.
std::vector<std::string> FilesReadAgain(const std::string& settings, std::span<const Rule> rules) {
  std::vector<std::string> files = {settings};
  for (const Rule& rule : rules) {
    if (rule.networks && !rule.networks->file.empty()) files.push_back(rule.networks->file);
  }
  return files;
}

bool Has(const std::vector<HandedSection>& sections, std::string_view key) {
  return std::ranges::any_of(sections, [&](const HandedSection& section) { return section.key == key; });
}

// What the next start begins anew with if it does not get these sections.
std::string BeginsAnewWith(const std::vector<HandedSection>& sections) {
  constexpr std::pair<std::string_view, std::string_view> kWith[] = {
      {Counting::kSection, "quotas"},
      {"peers", "its peers"},
      {"sites", "other sites"},
      {"leases", "leases"},
      {Penalizing::kSection, "penalties"},
      {Shedding::kSection, "the load that was reported"},
  };
  std::string text;
  for (const auto& [key, with] : kWith) {
    if (Has(sections, key)) text.append(text.empty() ? "; the next start begins anew with " : ", ").append(with);
  }
  return text;
}

}    // namespace

// ---- Start ----

Daemon::Daemon(std::string path, std::string runtime_dir, Settings settings, Launch launch, Handover handed, Log& log)
    : path_(std::move(path)),
      runtime_dir_(std::move(runtime_dir)),
      launch_(std::move(launch)),
      handed_(std::move(handed)),
      log_(log),
      running_(std::make_unique<Running>(std::move(settings), log_)),
      settings_(running_->settings_in_force),
      tasks_(Opened(loop_)),
      front_host_{.loop = &loop_,
                  .tasks = *tasks_,
                  .admin = *running_,
                  .log = log_,
                  .handed = handed_,
                  .address_of = [this](std::string_view key) { return sockets_.AddressOf(key); },
                  .part_for_leases = [this](std::string_view tag,
                                            const LeaseUse& use) { return running_->peering->PartForLeases(tag, use); },
                  .leases = running_->leases},
      front_ends_(MakeFrontEnds(front_host_)),
      features_(
          MakeFeatures({.loop = &loop_,
                        .tasks = *tasks_,
                        .admin = *running_,
                        .log = log_,
                        .handed = handed_,
                        .tenants_of_sites = [this] { return TenantsOf(&Feature::tenant_of_sites); },
                        .amend = [this](std::function<void()> done) { running_->reloading->Amend(std::move(done)); },
                        .rules_since = [this] { return running_->rules_since; }})),
      sockets_(&loop_, front_ends_, settings_, log_, handed_) {
  if (front_host_.took_over()) handed_at_ = handed_.held_at;
  table_before_ = handed_.Take(kFileSection).bytes;
  orders_.emplace(&loop_, service_,
                  Orders::Takers{.stop = [this](int signal) { Stop(signal); },
                                 .reload =
                                     [this] {
                                       running_->Audit("SIGHUP: reload");
                                       running_->reloading->Ask([](const ReloadOutcome&) {});
                                     },
                                 .upgrade =
                                     [this] {
                                       running_->Audit("SIGUSR2: upgrade");
                                       running_->upgrade->Ask([](const Result<std::string>&) {});
                                     },
                                 .alive = [this] { return AllBeat(); }});
}

// Every loop has to turn, not only this one.
bool Daemon::AllBeat() {
  bool all = true;
  for (FrontEnd* const front : running_->listening) all = front->Beat() && all;
  return all;
}

void Daemon::Start() {
  sockets_.TakePassed(service_);
  sockets_.CloseMoved();
  if (launch_.become) sockets_.OpenTcp();
  std::vector<std::string> files = {settings_.table.file, settings_.operators.limits_file, settings_.quota.file};
  for (const auto& front : front_ends_) files.push_back(EndpointsOf(settings_, front->key()).unix_path);
  Confine({launch_.become, FilesReadAgain(path_, settings_.rules), runtime_dir_, std::move(files)},
          settings_.process.seccomp, log_);
  WarnOfStrangers(log_);
  MakeLimiter();
  StartThreadPool(&loop_, settings_.query.threads - 1);    // its threads have the filter of this one
  sockets_.DividePlaces();
  MakeParts();
  TakeHandedConnections();
  orders_->Start();
  running_->memory->Prepare(log_);
}

void Daemon::MakeLimiter() {
  HandedSection left = handed_.Take(TableMemory::kSection);
  const TableKeys keys = KeysFrom(handed_.Take(kKeysSection));
  running_->memory.emplace(settings_, left);
  TakeKeptSections();
  for (const auto& feature : features_) feature->Prepare();
  AmendedRules amended;
  std::shared_ptr<const Rulebook> before;
  const std::vector<Amendment> amendments = Amendments();
  KeptRules& kept = running_->kept_rules.emplace(settings_.table.file);
  if (const auto read = kept.Read(); !read) {
    throw StartFailure{ExitCode(read.error().code), "rules beside table.file: " + read.error().message};
  }
  kept.Add(handed_.Take(KeptRules::kSection).bytes);
  Elsewhere([&] {
    running_->base =
        std::make_shared<Rulebook>(std::exchange(settings_.rules, {}), std::exchange(settings_.overrides, {}));
    amended = Amended(running_->base, settings_, amendments);
    const std::uint64_t of_table = Table::RulesOf(running_->memory->bytes()).value_or(0);
    if (of_table != amended.rules->fingerprint()) before = RulesOf(of_table);
    KeepRules(kept, *amended.rules, *running_->base, of_table, log_);
  });
  running_->rules_since = amended.since;
  for (const Amendment& its : amendments) {
    if (its.in_force) its.in_force();
  }
  running_->table_limiter =
      std::make_unique<Limiter>(running_->memory->bytes(), ReadBootId(), keys, std::move(amended.rules),
                                settings_.query.threads, running_->started, std::move(left.bytes), before);
  running_->table_limiter->ways().Get<Division>().ReadBootClock(BootNow);
  running_->table_limiter->SetTagBytesMax(settings_.query.max_tag_bytes);
  SayTable(before != nullptr);
}

// The rules of a table that are not those that come into force now; null: they are not known.
std::shared_ptr<const Rulebook> Daemon::RulesOf(std::uint64_t fingerprint) const {
  if (fingerprint == running_->base->fingerprint()) return running_->base;
  return running_->kept_rules->Find(fingerprint, *running_->base, settings_);
}

void Daemon::SayTable(bool other_rules) {
  if (!settings_.table.file.empty() && ReadBootId() == kUnknownBoot) {
    log_.Warning("table: cannot read {}, so what is kept is kept over a reboot too", kBootIdFile);
  }
  const std::string size = FormatBytes(settings_.table.memory);
  if (settings_.table.file.empty()) {
    log_.Notice("table: {} of memory, {} tags kept, lost when this process ends", size,
                running_->table_limiter->table().counts().tags);
  } else if (running_->table_limiter->discarded().empty()) {
    log_.Notice(
        "table: {} in {}, {} tags kept, {} torn entries dropped{}{}", size, settings_.table.file,
        running_->table_limiter->table().counts().tags, running_->table_limiter->table().counts().dropped,
        other_rules ? ", rewritten because other limits are in force" : "",
        running_->table_limiter->reshaping() ? " in its first 64MiB; the rest is looked through between queries" : "");
  } else {
    const std::size_t before = running_->memory->bytes_before();
    const bool resized = before != 0 && before != settings_.table.memory;
    log_.Notice("table: {} in {}, new because {}", size, settings_.table.file,
                resized ? "its size was " + FormatBytes(before) : running_->table_limiter->discarded());
  }
}

std::vector<Amendment> Daemon::Amendments() const {
  std::vector<Amendment> all;
  for (const auto& feature : features_) all.push_back(feature->Amends());
  return all;
}

std::vector<Tenant*> Daemon::TenantsOf(Tenant* (Feature::*which)()) const {
  std::vector<Tenant*> all;
  for (const auto& feature : features_) {
    if (Tenant* const tenant = (feature.get()->*which)()) all.push_back(tenant);
  }
  return all;
}

// What an orderly end before this start has left. The file is removed, also when an upgrade has left the same.
void Daemon::TakeKeptSections() {
  if (settings_.table.file.empty()) return;
  std::string complaint;
  auto sections = TakeKeptState(KeptStatePath(settings_.table.file), complaint);
  if (front_host_.took_over()) return;
  if (!sections) throw StartFailure{ExitCode(sections.error().code), sections.error().message};
  if (!complaint.empty()) log_.Warning("{}", complaint);
  if (sections->sections.empty()) return;
  handed_at_ = sections->written;
  handed_.sections = std::move(sections->sections);
}

void Daemon::MakeHolding() {
  const HandedSection left = handed_.Take(Holding::kSection);
  Limiter& limiter = *running_->table_limiter;
  if (!Holding::IsWanted(settings_)) return Holding::Dismiss(limiter, settings_, left);
  running_->holding.emplace(&loop_, limiter, settings_, left, front_host_.took_over());
  running_->list.push_back(&*running_->holding);
}

void Daemon::MakeReloading() {
  running_->reloading.emplace(Reloading::Host{.loop = &loop_,
                                              .path = path_,
                                              .runtime_dir = runtime_dir_,
                                              .settings = settings_,
                                              .rules_since = running_->rules_since,
                                              .limiter = *running_->table_limiter,
                                              .kept_rules = *running_->kept_rules,
                                              .service = service_,
                                              .log = log_,
                                              .prepare =
                                                  [this](const Settings& settings, const Rulebook& rules) {
                                                    return running_->counting->Prepare(settings, rules);
                                                  },
                                              .follow =
                                                  [this](std::vector<std::string>& problems) {
                                                    for (Part* const part : running_->list) part->Reload(problems);
                                                  },
                                              .amendments = [this] { return Amendments(); },
                                              .status = [this] { return sockets_.Status(); },
                                              .idle = [this] { running_->upgrade->Continue(); }},
                              std::exchange(running_->base, nullptr));
}

void Daemon::MakeUpgrade() {
  running_->upgrade.emplace(dthrottle::Upgrade::Host{.loop = &loop_,
                                                     .tasks = *tasks_,
                                                     .launch = launch_,
                                                     .path = path_,
                                                     .reloading = *running_->reloading,
                                                     .parts = running_->list,
                                                     .front_ends = running_->listening,
                                                     .service = service_,
                                                     .log = log_,
                                                     .listens = [this] {
                                                       return ListensVariable(sockets_.Handed(), settings_);
                                                     },
                                                     .left = [this](bool rules) { return Left(rules); }});
}

// A part that cannot start throws, with the parts before it in the list.
void Daemon::MakeParts() {
  MakeReloading();
  MakeUpgrade();
  Running& r = *running_;
  Limiter& limiter = *r.table_limiter;
  r.list.push_back(&sockets_);
  r.list.push_back(&r.counting.emplace(&loop_, limiter, settings_, log_, handed_));
  r.list.push_back(&r.penalizing.emplace(limiter, handed_.Take(Penalizing::kSection).bytes));
  MakeHolding();
  for (const auto& feature : features_) {
    r.list.push_back(feature.get());
    feature->Start();
    r.extension_list.push_back(feature.get());
  }
  r.list.push_back(&r.peering.emplace(&loop_, limiter, settings_, log_, *tasks_, TenantsOf(&Feature::tenant)));
  r.peering->Start(handed_.Take("peers").bytes, front_host_.took_over());
  r.list.push_back(&r.shedding.emplace(&loop_, limiter, settings_, log_));
  r.shedding->Start(handed_.Take(Shedding::kSection).bytes);
  r.list.push_back(&r.retention_watch.emplace(&loop_, limiter, log_));
  r.list.push_back(&r.own_limits_watch.emplace(&loop_, limiter, *r.reloading, log_));
  sockets_.Listen();
  for (FrontEnd* const front : sockets_.Listening()) {
    front->Start();
    r.listening.push_back(front);
    r.list.push_back(front);
  }
}

// The connections were let in before, so no bound turns them away now. A section that is left is for a part that the
// settings no longer want, or that this program does not know.
void Daemon::TakeHandedConnections() {
  for (const HandedSection& section : std::exchange(handed_.sections, {})) {
    std::unique_ptr<Part> leaving;
    for (const auto& front : front_ends_) {
      if (leaving == nullptr) leaving = front->Dismiss(section);
    }
    if (leaving != nullptr) {
      running_->list.push_back(running_->dismissed.emplace_back(std::move(leaving)).get());
    } else if (section.fd >= 0) {
      ::close(section.fd);
    }
  }
  if (!front_host_.took_over()) return;
  const std::vector<HandedConnection> connections = std::exchange(handed_.connections, {});
  for (const HandedConnection& connection : connections) {
    sockets_.KeepPlace(connection);
    const auto owns = [&](FrontEnd* front) { return front->Owns(connection.front); };
    const auto front = std::ranges::find_if(running_->listening, owns);
    front != running_->listening.end() ? (*front)->TakeUp(connection) : static_cast<void>(::close(connection.fd));
  }
  log_.Notice("took over {} connections; they waited {:.1f} ms", connections.size(),
              Seconds(Now() - handed_.held_at) * 1e3);
}

// ---- Running ----

void Daemon::Run() {
  service_.Ready(sockets_.Status());
  log_.Notice("dthrottled {} ready: {} rules, {} overrides, {} query threads", DTHROTTLE_VERSION,
              running_->table_limiter->rules().rules().size(), running_->table_limiter->rules().overrides().size(),
              settings_.query.threads);
  running_->reloading->Work();
  uv_run(&loop_, UV_RUN_DEFAULT);
}

// What goes over to another program beside connections. Each part leaves a section under a key of its own, and takes it
// by that key at the next start.
Handover Daemon::Left(bool with_rules) const {
  Handover handover;
  handover.listeners = sockets_.Handed();
  for (const Part* const part : running_->list) part->Keep(handover.sections);
  handover.sections.push_back(running_->memory->Left(running_->table_limiter->Notes()));
  handover.sections.push_back(LeftKeys(running_->table_limiter->table().keys()));
  handover.sections.push_back({kFileSection, -1, settings_.table.file});
  if (with_rules) {
    handover.sections.push_back({KeptRules::kSection, -1, KeptRules::Whole(running_->table_limiter->rules())});
  }
  return handover;
}

// ---- Stop ----

void Daemon::Stop(int signal) {
  if (std::exchange(stopping_, true)) return;
  service_.Stopping();
  orders_->StopWatchdog();
  running_->reloading->Stop();
  running_->upgrade->Stop();
  log_.Notice("{}: answering what has been asked, then leaving", signal == SIGINT ? "SIGINT" : "SIGTERM");
  for (FrontEnd* const front : running_->listening) front->Stop();
  sockets_.AcceptAll();
  sockets_.Close();
  Drain(false);
}

// Front ends that drain last begin when all others have.
void Daemon::Drain(bool last) {
  drains_last_ = last;
  draining_ = 1;    // until all have been told
  for (FrontEnd* const front : running_->listening) {
    if (front->drains_last() != last) continue;
    ++draining_;
    front->Drain([this] { tasks_->Post([this] { OnDrained(); }); });
  }
  OnDrained();
}

void Daemon::OnDrained() {
  if (--draining_ > 0) return;
  if (!drains_last_) return Drain(true);
  log_.WaitForRoom();
  Close();
  KeepSections(Now(), settings_.table.file);
  log_.Notice("left");
}

// For the next start, beside `table`, once all parts are closed. Sections that no part has taken stay as they are, but
// for those about a descriptor.
void Daemon::KeepSections(Instant written, const std::string& table) {
  KeptSections kept{written, std::exchange(handed_.sections, {})};
  for (HandedSection& left : kept.sections) {
    if (left.key == Counting::kSection && left.fd >= 0) Counting::Pack(left);
  }
  std::erase_if(kept.sections, [](const HandedSection& left) { return left.fd >= 0; });
  for (const Part* const part : running_->list) part->Keep(kept.sections);
  if (table.empty() || kept.sections.empty()) return;
  const auto done = WriteKeptState(KeptStatePath(table), kept);
  if (done) return;
  const LogLevel level = Has(kept.sections, Counting::kSection) ? LogLevel::kError : LogLevel::kWarning;
  log_.Say(level, done.error().message + BeginsAnewWith(kept.sections));
}

void Daemon::Close() {
  for (auto part = running_->list.rbegin(); part != running_->list.rend(); ++part) (*part)->Close();
  if (running_->reloading) running_->reloading->Close();
  orders_->Close();
  tasks_->Close();
}

Daemon::~Daemon() {
  if (!stopping_) {    // it never ran
    Close();
    if (handed_at_) KeepSections(*handed_at_, table_before_.empty() ? settings_.table.file : table_before_);
  }
  uv_run(&loop_, UV_RUN_DEFAULT);
  DT_CHECK(uv_loop_close(&loop_) == 0);
}

}    // namespace dthrottle
