#include "daemon/reloading.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "config/keys.h"
#include "config/load.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/thread_pool.h"
#include "limiter/kept_penalties.h"
#include "rule/rulebook.h"

namespace dthrottle {

// What the thread pool reads for a reload.
struct Reloading::Loaded {
  std::optional<FileError> unusable;        // a file
  LoadedSettings loaded;
  bool reads;                               // the file
  Settings running;                         // those in force, as long as this is under way
  std::uint64_t rules_in_force;             // their fingerprint
  std::vector<Amendment> amendments;
  std::shared_ptr<const Rulebook> base;     // what the file says; null: it is bad
  AmendedRules amended;                     // what comes of it
};

AmendedRules Amended(const std::shared_ptr<const Rulebook>& base, const Settings& settings,
                     const std::vector<Amendment>& amendments) {
  if (std::ranges::none_of(amendments, [](const Amendment& its) { return its.change != nullptr; })) return {base};
  std::vector<Rule> rules = base->rules();
  std::vector<Override> overrides = base->overrides();
  Duration since{};
  for (const Amendment& its : amendments) {
    if (its.change) its.change(settings, rules, overrides, since);
  }
  return {std::make_shared<Rulebook>(std::move(rules), std::move(overrides)), since};
}

void KeepRules(KeptRules& kept, const Rulebook& next, const Rulebook& base, std::uint64_t in_force, Log& log) {
  if (const auto done = kept.Keep(next, base, in_force); !done) {
    log.Warning("rules beside table.file: {}; a start that finds other limits in force forgets every bucket",
                done.error().message);
  }
}

namespace {

bool DifferInMoreThanLimits(const Rule& a, const Rule& b) {
  return std::ranges::any_of(RuleKeys(), [&](const Key<Rule>& key) {
    return key.name != "burst" && key.name != "rate" && key.get(a) != key.get(b);
  });
}

// Parts of the daemon look at no burst and no rate, but where hosts divide them.
bool PartsHaveToFollow(const Rulebook& rules, const Rulebook& in_force) {
  if (rules.divided_fingerprint() != in_force.divided_fingerprint()) return true;
  if (rules.any_quota() != in_force.any_quota()) return true;
  return !std::ranges::equal(rules.rules(), in_force.rules(), [](const Rule& a, const Rule& b) {
    return !DifferInMoreThanLimits(a, b);
  });
}

}    // namespace

Reloading::Reloading(Host host, std::shared_ptr<const Rulebook> base)
    : host_(std::move(host)),
      working_(host_.loop, [this] { return host_.limiter.Tick(Now()); }, [this] { OnWorked(); }),
      base_(std::move(base)),
      in_force_at_(Now()) {}

Reloading::~Reloading() = default;

void Reloading::Ask(Done done) {
  if (stopping_) return done({false, {"the daemon is stopping"}});
  asked_.push_back(std::move(done));
  StartNext();
}

void Reloading::Amend(std::function<void()> done) {
  if (stopping_) return done();
  amends_asked_.push_back(std::move(done));
  StartNext();
}

// A reload amends too, so all that is asked for goes together.
void Reloading::StartNext() {
  if (reloading_ || (asked_.empty() && amends_asked_.empty())) return;
  answering_ = std::exchange(asked_, {});
  amending_ = std::exchange(amends_asked_, {});
  Start(!answering_.empty());
}

void Reloading::Start(bool reads) {
  reloading_ = true;
  if (reads) host_.service.Reloading(Now());
  auto work = std::make_unique<Loaded>();
  work->reads = reads;
  work->running = host_.settings;
  work->rules_in_force = host_.limiter.rules().fingerprint();
  work->amendments = host_.amendments();
  if (!reads) work->base = base_;
  const auto load = [this](std::unique_ptr<Loaded>& its) { Load(*its); };
  const auto done = [this](std::unique_ptr<Loaded>& its) { OnLoaded(std::move(its)); };
  InThreadPool(host_.loop, std::move(work), load, done);
}

void Reloading::Load(Loaded& its) const {
  YieldToQueries();
  if (its.reads) ReadSettings(its);
  if (its.base == nullptr) return;
  its.amended = Amended(its.base, its.reads ? its.loaded.settings : its.running, its.amendments);
  if (!IsPrepared(its)) {
    its.amended = {};
    return;
  }
  KeepRules(host_.kept_rules, *its.amended.rules, *its.base, its.rules_in_force, host_.log);
}

// A file of settings that cannot have what it needs is refused. Amendments are in force all the same: they hold on
// other hosts too.
bool Reloading::IsPrepared(Loaded& its) const {
  const auto ready = host_.prepare(its.reads ? its.loaded.settings : its.running, *its.amended.rules);
  if (ready) return true;
  if (its.reads && its.base->any_quota()) {
    its.unusable = ready.error();
    return false;
  }
  host_.log.Warning("{}; quotas of rules are not counted", ready.error().message);
  return true;
}

void Reloading::ReadSettings(Loaded& its) const {
  auto text = ReadRegularFile(host_.path, kSettingsBytesMax);
  if (!text) {
    its.unusable = text.error();
    return;
  }
  its.loaded = ParseReload(*text, host_.path, host_.runtime_dir, its.running, ReadNamedFile);
  if (!its.loaded.ok()) return;
  Settings& s = its.loaded.settings;
  its.base = std::make_shared<Rulebook>(std::exchange(s.rules, {}), std::exchange(s.overrides, {}));
}

// The table can be rewritten for one set of rules at a time.
void Reloading::OnLoaded(std::unique_ptr<Loaded> loaded) {
  if (loaded->amended.rules != nullptr && host_.limiter.reshaping()) {
    waiting_ = std::move(loaded);
  } else {
    PutInForce(std::move(loaded));
  }
}

void Reloading::PutInForce(std::unique_ptr<Loaded> loaded) {
  if (stopping_) {
    for (const auto& answer : std::exchange(answering_, {})) answer({false, {"the daemon is stopping"}});
    for (const auto& done : std::exchange(amending_, {})) done();
    return;
  }
  ReloadOutcome outcome;
  if (loaded->unusable.has_value()) outcome.problems.push_back(loaded->unusable->message);
  for (const Problem& problem : loaded->loaded.problems) outcome.problems.push_back(Format(problem));
  if (loaded->amended.rules != nullptr) Adopt(*loaded, outcome);
  if (loaded->reads) Say(outcome);
  reloading_ = false;
  for (const auto& answer : std::exchange(answering_, {})) answer(outcome);
  if (!outcome.in_force) {    // amendments do not wait for a better file
    std::ranges::move(std::exchange(amending_, {}), std::back_inserter(amends_asked_));
  }
  for (const auto& done : std::exchange(amending_, {})) done();
  StartNext();
  host_.idle();
}

void Reloading::Adopt(Loaded& loaded, ReloadOutcome& outcome) {
  outcome.in_force = true;
  for (const Amendment& its : loaded.amendments) {
    if (its.in_force) its.in_force();
  }
  if (!loaded.reads) return AdoptAmended(std::move(loaded.amended));
  host_.settings = std::move(loaded.loaded.settings);
  if (base_ != loaded.base) FreeElsewhere(std::exchange(base_, std::move(loaded.base)));
  host_.limiter.Adopt(std::move(loaded.amended.rules));
  ShortenPenalties(host_.limiter, Now());
  host_.rules_since = loaded.amended.since;
  host_.follow(outcome.problems);
  Work();
}

// Hosts that divide limits begin anew with other rates, as after a reload.
void Reloading::AdoptAmended(AmendedRules amended) {
  const bool follow = PartsHaveToFollow(*amended.rules, host_.limiter.rules());
  host_.limiter.Adopt(std::move(amended.rules));
  ShortenPenalties(host_.limiter, Now());
  host_.rules_since = amended.since;
  if (follow) {
    std::vector<std::string> problems;
    host_.follow(problems);
    for (const std::string& problem : problems) host_.log.Warning("{}", problem);
  }
  Work();
}

void Reloading::Say(const ReloadOutcome& outcome) {
  ++(outcome.in_force ? reloads_ : failures_);
  last_good_ = outcome.in_force;
  for (const std::string& problem : outcome.problems) {
    host_.log.Say(outcome.in_force ? LogLevel::kWarning : LogLevel::kError, "reload: " + problem);
  }
  if (!outcome.in_force) {
    host_.log.Error("{} is not put in force: the settings have not changed", host_.path);
    return host_.service.Ready("The last reload was refused: bad settings");
  }
  in_force_at_ = Now();
  host_.log.Notice("reloaded {}: {} rules, {} overrides", host_.path, host_.limiter.rules().rules().size(),
                   host_.limiter.rules().overrides().size());
  host_.service.Ready(host_.status());
}

void Reloading::Count(ProcessCounts& counts) const {
  counts.reloads = reloads_;
  counts.reload_failures = failures_;
  counts.last_reload_good = last_good_;
  counts.settings_age = Now() - in_force_at_;
}

// ---- Between queries ----

void Reloading::OnWorked() {
  if (auto retired = host_.limiter.TakeRetired()) FreeElsewhere(std::move(retired));
  if (waiting_ != nullptr) PutInForce(std::move(waiting_));
  host_.idle();
}

// Freeing 10^5 overrides takes milliseconds that no query should wait.
void Reloading::FreeElsewhere(std::shared_ptr<const Rulebook> rules) {
  using Retired = std::shared_ptr<const Rulebook>;
  const auto free = [](Retired& its) {
    YieldToQueries();
    its.reset();
  };
  InThreadPool(host_.loop, std::move(rules), free, [](Retired&) {});
}

}    // namespace dthrottle
