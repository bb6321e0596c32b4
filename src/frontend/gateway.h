// Protocols that a program of its own speaks, which this class starts and keeps: gRPC, TLS.
//
// Here connections are accepted, so that they are bounded and counted as all others, and passed on: over a socket that
// carries descriptors. What they ask comes back over other ones, each served as a connection of clients that speak lines
// is: over a few that stay (lease.md "The gateway"), or over one for each client, which the program sends. So nothing of
// such a protocol is in this program, and the other one lives on when this one is upgraded: all sockets and the
// descriptors of the connections are handed over, its clients notice nothing.
//
// A descriptor of each connection stays here until both directions have ended, which tells how many there are: a client
// that has closed its half is served on by the program, and counts. Answers that a client leaves unread for 30 s end its
// connection. When the program dies its connections end, and another one is started.
#pragma once

#include <uv.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "io/child.h"
#include "io/handover.h"
#include "io/log.h"
#include "io/readable.h"
#include "io/stream_server.h"
#include "io/timer.h"

namespace dthrottle {

// The program that speaks for a front end, and the package that has it.
struct GatewayProgram {
  std::string_view name, package;
};

class Gateway {
 public:
  struct Options {
    GatewayProgram program;
    std::vector<std::string> words;    // of its command line, behind the version of what both say to each other
    std::string_view front;            // what is handed over is named so: a section, and the connections of clients
    // Paths of the certificate, its key, and the authorities of clients, which may be empty. None: no TLS. Behind `words`.
    std::vector<std::string> tls = {};
  };

  // A server for the lines that the program brings, whose connections are named `front` in a handover.
  struct Lines {
    std::string_view front;
    StreamServer& server;
    bool sent = false;    // its connections come from the program, one for each client; otherwise it has one, from the start
  };

  struct Counts {
    std::uint64_t accepted = 0;    // connections of clients
    std::uint64_t restarts = 0;    // times that the program ended by itself
  };

  // The servers of `lines` and `log` must outlive this object.
  Gateway(uv_loop_t* loop, Log& log, Options options, std::vector<Lines> lines);
  ~Gateway();

  // Begins, once: with the program that `handed` is about, if that can go on, or with a new one.
  void Start(HandedSection handed);

  // Lets the program that `handed` is about say farewell to its clients and leave, where nothing is to go on with it. The
  // child has to be kept while it does.
  static std::unique_ptr<Child> Dismiss(uv_loop_t* loop, const HandedSection& handed);

  // Serves a connected socket, which becomes this object's.
  void Take(int fd);
  // The same of a connection, or of the one for lines, that the program before this one had.
  void TakeUp(const HandedConnection& handed);

  // Stops, and adds all that goes over at an upgrade: the program, its connections for lines, and its clients'.
  void Hold(Handover& handover);
  void Release();

  std::size_t connections() const { return connections_.size(); }
  Counts counts() const { return {accepted_, restarts_}; }

  // Lets the program answer what has been asked and end, and calls `done`; within some 2 s.
  void Drain(std::function<void()> done);

  // Closes what it has on the loop, which must run once more.
  void Close();

 private:
  bool GoOn(const HandedSection& handed);
  void StartProgram();
  void OnExit(const ChildOutcome& outcome);
  void UsePipe(int fd);
  void OnPipe();
  void PassAll();
  void ClosePipe();
  void DrainLines(std::size_t first);
  void OnTimer();
  bool Watch(int fd);
  void OnHangUps();
  void End(int fd);

  uv_loop_t* loop_;
  Log& log_;
  Options options_;
  const std::vector<Lines> lines_;
  std::unique_ptr<Child> program_;      // null: to be started again when timer_ fires
  std::unique_ptr<Child> former_;       // the one that was dismissed
  int pipe_ = -1;                       // carries descriptors; -1: the program takes none
  std::optional<Readable> pipe_watch_;    // where lines are sent; none: none are
  Timer timer_;
  Instant started_{};
  Duration delay_{};                    // before the next start
  const int hang_ups_;                  // tells which connections have ended, by epoll
  std::optional<Readable> hang_ups_watch_;
  std::set<int> connections_;
  std::deque<int> waiting_;    // of these, not passed on yet
  std::uint64_t accepted_ = 0, restarts_ = 0;
  bool goes_on_ = false;    // the program that the one before this has left, with its connections
  bool leaving_ = false;
  std::function<void()> on_drained_;
};

// Fails, with the reason, if the program is not installed, or cannot begin TLS with such Options::tls.
Result<void> CheckGateway(const GatewayProgram& program, const std::vector<std::string>& tls);

}    // namespace dthrottle
