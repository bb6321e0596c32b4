// Answers queries on the connections of one loop.
//
// Queries that arrive in one turn of the loop are decided together, at one instant, and every connection gets all its
// answers in one write: memory is waited for once a batch, and a pipelining application costs two system calls for as
// many queries as it likes. Reads land in one arena, where tags stay in place until the turn's answers are out.
//
// An application that does not read its answers is not read from either: at most one read of kReadBytes can be waiting
// for it in answers, which is the bound on what one connection costs.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/histogram.h"
#include "base/prng.h"
#include "io/handover.h"
#include "limiter/limiter.h"
#include "query/framer.h"

namespace dthrottle {

struct QueryCounters {
  Counter closed;           // connections that have ended
  Counter idle_closed;      // of which by us, after the idle timeout
  Counter stalled;          // times that a connection was not read from because its answers were not read
  Counter over_long;        // tags longer than the limit
  Counter spoke_http;       // connections that were closed because they began with an HTTP request
  Histogram answered_in;    // of each query: from the first read of its turn to the last write, so at most too much
  Histogram loop_lag;       // how late a timer of kLagTick fires
};

class QueryServer {
 public:
  static constexpr std::size_t kReadBytes = 4096;
  static constexpr Duration kLagTick = std::chrono::milliseconds(100);

  // Uses `lane` of the limiter, which nobody else may. The limiter must outlive this object.
  QueryServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, const FramerLimits& limits, Prng prng,
              Duration idle_timeout);

  // REQUIRES: it is drained, Close() was called, and the loop has run since.
  ~QueryServer();

  // Serves a connected socket, which becomes this object's.
  void Take(int fd);

  // The same where another process left off.
  void Take(const HandedConnection& handed);

  // Answers what has been read and stops: until Release nothing is read, and nothing written as long as the loop does
  // not turn. Returns what another process needs to go on with every connection.
  std::vector<HandedConnection> Hold();
  void Release();

  void set_idle_timeout(Duration timeout);

  // Answers what has arrived, closes every connection once all are silent, then calls `on_drained`; within 2 s or so
  // even if they are not. REQUIRES: Take is not called any more.
  void Drain(std::function<void()> on_drained);

  // Closes the handles of the server itself.
  void Close();

  std::size_t connections() const { return connections_.size(); }
  const QueryCounters& counters() const { return counters_; }

 private:
  struct Connection;

  static constexpr std::size_t kArenaBytes = 64 * 1024;
  static constexpr std::size_t kQueriesPerFlush = 256;

  void OnRead(Connection& connection, ssize_t n, const char* data);
  bool TurnedAway(Connection& connection, std::string_view bytes);
  void Flush();
  Connection& Open(int fd);
  void StartReading(Connection& connection);
  void WriteLater(Connection& connection, std::span<const char> answers);
  void Write(Connection& connection, std::span<const char> answers);
  void SendUnsent(Connection& connection);
  void OnWritten(Connection& connection, int status);
  void End(Connection& connection);
  void OnIdleTick();
  void OnDrainTick();
  void StartIdleTimer();
  void StartLagTimer();

  // Receives the tags of one read from the framer.
  void OnTag(std::string_view tag);
  void OnOverLongTag(std::unique_ptr<OverLongReader> reader);
  friend class Framer;

  uv_loop_t* loop_;
  Limiter& limiter_;
  const std::size_t lane_;
  const FramerLimits limits_;
  Prng prng_;
  Duration idle_timeout_;

  uv_check_t turn_end_;
  uv_timer_t idle_timer_;
  uv_timer_t drain_timer_;
  uv_timer_t lag_timer_;

  std::vector<Connection*> connections_;
  QueryCounters counters_;

  // The turn: what has been read and not yet answered.
  struct Segment {
    Connection* connection;
    std::size_t queries;
  };
  Instant turn_began_;    // with its first read
  std::vector<char> arena_ = std::vector<char>(kArenaBytes);
  std::size_t arena_used_ = 0;
  std::vector<Query> queries_;
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<OverLongReader>> over_long_readers_;
  std::vector<std::unique_ptr<OverLongTag>> over_long_tags_;
  std::vector<Verdict> verdicts_;
  std::vector<char> answers_;

  Instant lag_tick_at_;             // the one before
  std::uint32_t idle_ticks_ = 0;    // of an eighth of the idle timeout
  std::function<void()> on_drained_;
  bool heard_ = false;    // since the last drain tick
  unsigned drain_ticks_ = 0;
};

}    // namespace dthrottle
