// Answers query lines on the connections of one loop: the framer and the limiter with sockets around them.
//
// Queries that arrive in one turn of the loop are decided together, at one instant (io/stream_server.h). Each query
// thread has a server of its own.
#pragma once

#include <uv.h>

#include <memory>
#include <vector>

#include "base/counter.h"
#include "base/histogram.h"
#include "base/prng.h"
#include "io/stream_server.h"
#include "io/timer.h"
#include "limiter/limiter.h"
#include "query/framer.h"

namespace dthrottle {

// Any thread may read them.
struct QueryCounters {
  Counter over_long;        // tags longer than the limit
  Counter spoke_http;       // connections that were closed because they began with an HTTP request
  Histogram answered_in;    // of each query: from the first read of its turn to the last write, so at most too much
  Histogram loop_lag;       // how late a timer of kLagTick fires
};

class LineServer final : public StreamServer {
 public:
  static constexpr Duration kLagTick = std::chrono::milliseconds(100);

  // Uses `lane` of the limiter, which must be its own. The limiter must outlive this object.
  LineServer(uv_loop_t* loop, Limiter& limiter, std::size_t lane, const FramerLimits& limits, Prng prng,
             Duration idle_timeout);

  // Closes the handles of the server itself.
  void Close();

  const QueryCounters& counters() const { return counters_; }

 private:
  struct LineConnection;

  static constexpr std::size_t kReadBytes = 4096;
  static constexpr std::size_t kQueriesPerFlush = 256;

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;
  bool TurnedAway(LineConnection& connection, std::string_view bytes);
  void OnLagTick();

  // Receives the tags of one read from the framer.
  void OnTag(std::string_view tag);
  void OnOverLongTag(std::unique_ptr<OverLongReader> reader);
  friend class Framer;

  Limiter& limiter_;
  const std::size_t lane_;
  const FramerLimits limits_;
  Prng prng_;
  Timer lag_timer_;
  Instant lag_tick_at_;    // the last tick
  QueryCounters counters_;

  // The turn: queries that have been read and not yet answered.
  struct Segment {
    Connection* connection;
    std::size_t queries;
  };
  Instant turn_began_;    // with its first read
  std::vector<Query> queries_;
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<OverLongReader>> over_long_readers_;
  std::vector<std::unique_ptr<OverLongTag>> over_long_tags_;
  std::vector<Verdict> verdicts_;
  std::vector<char> answers_;
};

}    // namespace dthrottle
