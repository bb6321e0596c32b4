// Looking inside, as text: one command in, one answer out. Sockets are elsewhere.
//
// An answer is lines and then an empty one, so that a program can find its end and a person can read it in netcat. With
// "json " before the command it is one line of JSON instead. protocol/admin.md lists the commands.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "base/result.h"
#include "base/time.h"
#include "config/settings.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Dividing;
class Extension;
class Holds;

// How a reload ended: problems with the new settings, and whether they are in force.
struct ReloadOutcome {
  bool in_force = false;
  std::vector<std::string> problems;    // a line each; warnings also when in force
};

// What commands need from the daemon around the limiter.
class AdminHost {
 public:
  virtual Limiter& limiter() = 0;
  virtual const Settings& settings() const = 0;    // without rules and overrides, which the limiter has
  virtual ProcessCounts Counts() const = 0;
  virtual std::vector<PeerStatus> Peers() const = 0;    // none where limits are not shared
  virtual ShedStatus Shed() const = 0;
  // `resource`: whose clients are wanted too; empty: of none.
  virtual LeaseStatus Leases(std::string_view resource) = 0;
  virtual Result<void> ReportShed(double value) = 0;    // the reason if it is not wanted
  // How an application does with this host's part of a tag; the reason if it is not wanted.
  virtual Result<void> Indicate(const Tag& /*tag*/, double /*value*/) {
    return Fail("this host divides nothing");
  }
  // The two halves of dividing limits among hosts: the limiter's, null where none is divided; and the other, which is
  // looked at while its thread waits. False if there is none, or it has no time.
  virtual const Dividing* dividing() const { return nullptr; }
  virtual bool LookAtCapacity(const std::function<void(CapacityExchange&)>&) const { return false; }
  // The parts that have commands of their own.
  virtual std::span<Extension* const> extensions() const { return {}; }
  // The holds of this host; null: nothing can be held.
  virtual Holds* holds() { return nullptr; }
  // Starts a reload. `done` is called once, perhaps before this returns.
  virtual void Reload(std::function<void(const ReloadOutcome&)> done) = 0;
  // Starts going over to the program at the daemon's path. `done` is called once, perhaps before this returns: with
  // that path just before it becomes that program, or with the reason why it does not.
  virtual void Upgrade(std::function<void(const Result<std::string>&)> done) = 0;
  // Somebody has changed something: who, and what, as a line for the log if admin.audit wants it.
  virtual void Audit(std::string_view /*text*/) const {}
  // The same of what any user of this host can do: lines come at the log's pace, and those held back are counted.
  virtual void AuditOfAnyone(std::string_view /*text*/) const {}

 protected:
  ~AdminHost() = default;
};

// The longest command line, without LF. A longer one is answered with an error.
inline constexpr std::size_t kCommandBytesMax = 64 * 1024;

using AdminReply = std::function<void(std::string)>;

// Runs one command line, without its LF, and calls `reply` once with the whole answer, its empty line included; only
// `reload` and `upgrade` may do so later.
void RunCommand(std::string_view line, AdminHost& host, const AdminReply& reply, Instant now);

// The same for `who`. With the answer the audit has a line if the command changes anything: who, what, and if it was
// refused, why.
void RunAudited(std::string_view line, std::string_view who, AdminHost& host, const AdminReply& reply, Instant now);

// The answer to a line that is too long to be one.
std::string CommandTooLong();

}    // namespace dthrottle
