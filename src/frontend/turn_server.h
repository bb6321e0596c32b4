// A front end whose protocol is a turn with sockets around it.
//
// A turn takes what the connections of one loop ask, then decides all of it at one instant. It has
//   size()          what it has been asked for so far, an answer for each
//   Answer(now)     decides; then
//   answers()       the Answers, until
//   Clear()
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "frontend/answers.h"
#include "io/clock.h"
#include "io/stream_server.h"

namespace dthrottle {

template <class Turn>
class TurnServer : public StreamServer {
 public:
  const Turn& turn() const { return turn_; }

 protected:
  // `turn`: what the turn is made of.
  template <class... Of>
  TurnServer(uv_loop_t* loop, const Sizes& sizes, Duration idle_timeout, Of&&... turn)
      : StreamServer(loop, sizes, idle_timeout), turn_(std::forward<Of>(turn)...) {}

  ~TurnServer() = default;

  // What the turn has been asked for since it had `before` belongs to the connection.
  void Asked(Connection& connection, std::size_t before) {
    if (turn_.size() > before) segments_.push_back({&connection, turn_.size() - before});
  }

  Turn turn_;

 private:
  struct Segment {
    Connection* connection;
    std::size_t answers;
  };

  void Answer() final {
    turn_.Answer(Now());
    std::size_t first = 0;
    for (const auto& [connection, answers] : segments_) {
      Write(*connection, turn_.answers().Of(first, answers));
      first += answers;
    }
    segments_.clear();
    turn_.Clear();
  }

  std::vector<Segment> segments_;    // of the turn
};

}    // namespace dthrottle
