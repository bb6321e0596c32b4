// How the daemon becomes another program without a gap: same process, same sockets, same table.
//
// The program at the path of this one is asked whether it would start with the settings and could take over. Then the
// settings are put in force here, so that it finds the table made under the rules that it is going to read; where only
// that program can use them, it is told the rules of the table. The parts leave: other hosts are told what they do not
// know yet. All of that takes time, in which queries are answered as ever. What a query waits for is the rest: every
// thread answers what it has read and stops, execve, and the start of the other program. What arrives meanwhile stays
// in the kernel.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/launch.h"
#include "daemon/reloading.h"
#include "frontend/frontend.h"
#include "io/child.h"
#include "io/log.h"
#include "io/privileges.h"
#include "io/service.h"
#include "io/task_queue.h"

namespace dthrottle {

class Upgrade {
 public:
  using Done = std::function<void(const Result<std::string>&)>;

  struct Host {
    uv_loop_t* loop;
    TaskQueue& tasks;
    const Launch& launch;
    std::string path;    // the settings file
    Reloading& reloading;
    const std::vector<Part*>& parts;
    const std::vector<FrontEnd*>& front_ends;    // those that listen
    const Service& service;
    Log& log;
    std::function<std::string()> listens;    // ListensVariable
    // What goes over beside connections; nothing is answered any more. `with_rules`: the rules in force go over too.
    std::function<Handover(bool with_rules)> left;
  };

  explicit Upgrade(Host host) : host_(std::move(host)) {}

  // Starts to go over. `done` is called once, perhaps before this returns: with the program's path just before this
  // process becomes it, or with the reason why it does not.
  void Ask(Done done);

  // To be called when something that has to be over first may be.
  void Continue();

  // Does not go over any more.
  void Stop();

 private:
  enum class Step { kNone, kChecking, kSettling, kLeaving, kGoing };

  void OnChecked(const ChildOutcome& outcome);
  void LeaveNext();
  void GoOver();
  void GiveUp(const Error& why);

  const Host host_;
  Step step_ = Step::kNone;
  std::size_t left_ = 0;    // parts that have left, the last of the list first
  bool stopping_ = false;
  bool in_force_ = true;    // the settings that the program is going to read
  std::unique_ptr<Child> check_;    // the program, asked whether it could take over
  Done asked_;
};

}    // namespace dthrottle
