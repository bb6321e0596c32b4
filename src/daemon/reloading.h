// Puts the settings file in force again, and does the limiter's work between queries that reloads leave. What takes time
// is done in libuv's thread pool: no query waits for it.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "admin/admin.h"
#include "daemon/kept_rules.h"
#include "feature/feature.h"
#include "io/files.h"
#include "io/log.h"
#include "io/service.h"
#include "io/spare_work.h"
#include "rule/rulebook.h"

namespace dthrottle {

// The rules of the file as amendments change them under these settings.
struct AmendedRules {
  std::shared_ptr<const Rulebook> rules;
  Duration since{};    // 1970: when they were set; 0: they are those of the file
};
AmendedRules Amended(const std::shared_ptr<const Rulebook>& base, const Settings& settings,
                     const std::vector<Amendment>& amendments);

// Keeps rules that are about to be put in force (KeptRules::Keep), or warns of what comes of it that they are not.
void KeepRules(KeptRules& kept, const Rulebook& next, const Rulebook& base, std::uint64_t in_force, Log& log);

class Reloading {
 public:
  using Done = std::function<void(const ReloadOutcome&)>;

  struct Host {
    uv_loop_t* loop;
    std::string path;           // the settings file
    std::string runtime_dir;
    Settings& settings;         // in force, without rules and overrides
    Duration& rules_since;      // of the rules in force (AmendedRules)
    Limiter& limiter;
    KeptRules& kept_rules;
    const Service& service;
    Log& log;
    // What these rules need under these settings is got ready on a thread of the pool; an error: it cannot be had.
    std::function<FileResult<void>(const Settings&, const Rulebook&)> prepare;
    std::function<void(std::vector<std::string>& problems)> follow;    // new settings are in force
    std::function<std::vector<Amendment>()> amendments;                // to what the file says, as they are now
    std::function<std::string()> status;                               // for the service manager
    std::function<void()> idle;                                        // busy() may have become false
  };

  // `base` is what the file says of the rules in force.
  Reloading(Host host, std::shared_ptr<const Rulebook> base);
  ~Reloading();

  // Starts a reload. `done` is called once, perhaps before this returns.
  void Ask(Done done);

  // Puts the rules in force with amendments as they are by then, without reading the file. `done` as with Ask.
  void Amend(std::function<void()> done);

  // Whether a reload is under way, or the table is still being rewritten for one.
  bool busy() const { return reloading_ || host_.limiter.reshaping(); }

  // The limiter has work to do between queries.
  void Work() { working_.Start(); }

  // No settings are put in force any more.
  void Stop() { stopping_ = true; }

  // Closes what it has on the loop, which must run once more.
  void Close() { working_.Close(); }

  void Count(ProcessCounts& counts) const;

 private:
  struct Loaded;

  void StartNext();
  void Start(bool reads);
  void Load(Loaded& its) const;
  void ReadSettings(Loaded& its) const;
  bool IsPrepared(Loaded& its) const;
  void OnLoaded(std::unique_ptr<Loaded> loaded);
  void PutInForce(std::unique_ptr<Loaded> loaded);
  void Adopt(Loaded& loaded, ReloadOutcome& outcome);
  void AdoptAmended(AmendedRules amended);
  void Say(const ReloadOutcome& outcome);
  void OnWorked();
  void FreeElsewhere(std::shared_ptr<const Rulebook> rules);

  const Host host_;
  SpareWork working_;
  bool reloading_ = false, stopping_ = false;
  std::unique_ptr<Loaded> waiting_;    // until the table has finished with the reload before
  std::shared_ptr<const Rulebook> base_;    // what the file says
  std::vector<Done> asked_, answering_;
  std::vector<std::function<void()>> amends_asked_, amending_;
  std::uint64_t reloads_ = 0, failures_ = 0;
  bool last_good_ = true;
  Instant in_force_at_;
};

}    // namespace dthrottle
