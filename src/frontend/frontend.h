// What a front end is: one protocol, spoken on sockets of its own, in front of the limiter. Each front end is a folder
// here, and list.cc is the only file that includes them: a front end is removed by removing its folder and its lines
// there and in src/meson.build (scripts/without shows it).
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/handover.h"
#include "io/log.h"
#include "io/part.h"
#include "io/places.h"
#include "io/task_queue.h"
#include "share/capacity/lease_part.h"

namespace dthrottle {

class AdminHost;
struct LeaseStatus;

// What a front end needs of the daemon. The limiter exists from Start on.
struct FrontEndHost {
  uv_loop_t* loop;     // the main thread's
  TaskQueue& tasks;    // of the main thread
  AdminHost& admin;    // settings, limiter and what commands need
  Log& log;
  Handover& handed;    // what the program before has left and nobody has taken yet
  // Where a listening socket such as "lease.tcp" is bound, as DescribeSocket says; empty: there is none.
  std::function<std::string(std::string_view listener)> address_of;
  // This host's part of a tag for leases; nothing: it has none yet.
  std::function<std::optional<LeasePart>(std::string_view tag, const LeaseUse&)> part_for_leases;
  // What commands show of leases, set by the front end that has them.
  std::function<LeaseStatus(std::string_view resource)>& leases;

  bool took_over() const { return handed.held_at != Instant(); }
};

class FrontEnd : public Part {
 public:
  // How many connections it may have, and its weight where descriptors are short.
  struct Room {
    PlacesWanted all{};
    PlacesWanted unix_socket{};    // for this socket alone; want = 0: it shares `all`
  };

  // The name of its listening sockets ("resp.unix", "resp.tcp") and of its connections in a handover. Where they listen
  // is in config/listeners.h.
  virtual std::string_view key() const = 0;

  // What it does, for the log: "answering clients of Redis".
  virtual std::string_view doing() const = 0;

  virtual Room room() const = 0;

  // The front end that starts before this one; null: none. Its room is this one's too, unless this one has its own.
  virtual FrontEnd* rests_on() const { return nullptr; }
  virtual bool has_room() const { return rests_on() == nullptr; }

  // Begins; something listens for this front end or for one that rests on it. Throws StartFailure, with nothing begun.
  // Nothing below is called before.
  virtual void Start() = 0;

  // A connection comes and finds no place. Closes one of those that `may_go`, by their descriptors, if nobody can miss
  // it, and returns whether it has.
  virtual bool MakeRoom(const std::function<bool(int fd)>& /*may_go*/) { return false; }

  // Serves a connected socket, which becomes this object's.
  virtual void Take(int fd) = 0;

  // Whether handed connections of this name are this front end's.
  virtual bool Owns(std::string_view name) const { return name == key(); }

  // Goes on with a connection of the program before this one.
  virtual void TakeUp(const HandedConnection& connection) = 0;

  // Disposes of what the program before has left for this front end, which has not started. The part that is returned
  // lives until the daemon ends; null: there is nothing to dispose of.
  virtual std::unique_ptr<Part> Dismiss(const HandedSection& /*section*/) { return nullptr; }

  // Connections that are open.
  virtual std::size_t connections() const = 0;

  // Answers what has been read and stops, and adds all that another process needs to go on: until Release nothing is
  // read, and nothing is written as long as the main loop does not turn.
  virtual void Hold(Handover& handover) = 0;
  virtual void Release() = 0;

  // Whether every thread of its own has turned its loop since the last call.
  virtual bool Beat() { return true; }

  // The daemon leaves, and answers from now on may say so.
  virtual void Stop() {}

  // True: it answers until all others have drained, to say that the daemon leaves.
  virtual bool drains_last() const { return false; }

  // Answers what has arrived, ends every connection and calls `done`, within 2 s or so. Take is not called any more.
  virtual void Drain(std::function<void()> done) = 0;

  // A connection was turned away because all places were taken.
  void CountRejected() { ++rejected_full_; }
  std::uint64_t rejected_full() const { return rejected_full_; }

 protected:
  // Adds what every front end counts to `own`, a SocketCounts.
  template <class Counts>
  void CountSockets(std::uint64_t accepted, Counts& own) const {
    own.connections += connections();
    own.accepted += accepted;
    own.rejected_full += rejected_full_;
  }

 private:
  std::uint64_t rejected_full_ = 0;
};

// A front end whose connections are those of one StreamServer on the main loop.
template <class Server>
class StreamFrontEnd : public FrontEnd {
 public:
  void Take(int fd) override { server_->Take(fd); }
  void TakeUp(const HandedConnection& connection) override { server_->TakeUp(connection); }
  std::size_t connections() const override { return server_->connections(); }
  void Hold(Handover& handover) override { server_->Hold(key(), handover.connections); }
  void Release() override { server_->Release(); }
  void Drain(std::function<void()> done) override { server_->Drain(std::move(done)); }
  void Close() override { server_->Close(); }

 protected:
  std::optional<Server> server_;    // from Start on
};

}    // namespace dthrottle
