// What a feature is: a part of the daemon that is neither a front end nor a way of sharing, with a command of its own.
// Each feature is a folder here, and only list.cc includes them, and ctl/main.cc for what dthrottlectl knows: a feature is
// removed by removing its folder and its lines there and in src/meson.build (scripts/without shows it).
#pragma once

#include <uv.h>

#include <functional>
#include <vector>

#include "admin/extension.h"
#include "base/time.h"
#include "io/log.h"
#include "io/part.h"
#include "io/task_queue.h"

namespace dthrottle {

class AdminHost;
struct Override;
struct Rule;
struct Settings;
class Tenant;

// Changes rules and overrides that the settings file gives, before they are put in force.
struct Amendment {
  // By the settings that come into force with them; null: changes nothing. `since` is when the rules were set, since 1970;
  // 0: they are those of the file. Any thread may call it.
  std::function<void(const Settings&, std::vector<Rule>&, std::vector<Override>&, Duration& since)> change;
  // On the main thread, if what comes of it is put in force, before parts follow; may be null.
  std::function<void()> in_force;
};

// What a feature needs of the daemon. The limiter exists from Start on.
struct FeatureHost {
  uv_loop_t* loop;     // the main thread's
  TaskQueue& tasks;    // of the main thread
  AdminHost& admin;    // settings, limiter and what commands need
  Log& log;
  Handover& handed;    // what the program or the start before has left
  std::function<std::vector<Tenant*>()> tenants_of_sites;    // those of all features
  // Makes amendments anew and puts them in force; then calls `done`.
  std::function<void(std::function<void()> done)> amend;
  std::function<Duration()> rules_since;    // of the rules in force, as amendments have said
};

class Feature : public Part, public Extension {
 public:
  // Before there is a limiter: reads what the first rules need. Throws StartFailure.
  virtual void Prepare() {}
  virtual void Start() {}

  // What it makes of the rules now.
  virtual Amendment Amends() { return {}; }

  // Its protocol between hosts, and between sites; null: none. They live as long as the feature.
  virtual Tenant* tenant() { return nullptr; }
  virtual Tenant* tenant_of_sites() { return nullptr; }
};

}    // namespace dthrottle
