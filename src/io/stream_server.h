// The engine of connections under every front end that answers on a socket: the connections of one loop, for a protocol
// that answers in batches.
//
// Reads land in one arena, where bytes stay in place until the turn of the loop ends. Then the protocol answers all that
// has arrived, at one instant and with one write for each connection: memory is waited for once a batch, and a
// pipelining client costs two system calls for as many questions as it likes. A connection is read once a turn, and those
// that send without end divide kTurnBytes among them, so the others wait for two short turns at most. A client that does
// not read its answers is not read from either, so one read is all that can wait for it. Hold() and TakeUp() carry
// connections over to another program in the same process.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/counter.h"
#include "base/time.h"
#include "io/handover.h"
#include "io/idle_ticks.h"
#include "io/outgoing.h"
#include "io/stream.h"
#include "io/timer.h"
#include "io/turn_arena.h"

namespace dthrottle {

// Any thread may read them.
struct StreamCounts {
  Counter accepted;       // by Take
  Counter closed;         // connections that have ended
  Counter idle_closed;    // connections closed for being idle
  Counter stalled;        // times that a connection was not read from because its answers were not read
};

class StreamServer {
 public:
  // Serves a connected socket, which becomes this object's.
  void Take(int fd);

  // The same where another process left off.
  void TakeUp(const HandedConnection& handed);

  // Answers what has been read and stops: until Release nothing is read, and nothing written as long as the loop does
  // not turn. Adds what another process needs to go on with every connection, under the name of this front end.
  void Hold(std::string_view front, std::vector<HandedConnection>& handed);
  void Release();

  // Zero: no connection is closed for being idle.
  void set_idle_timeout(Duration timeout) { idle_.SetTimeout(timeout); }

  // Answers what has arrived, closes every connection once all are silent, then calls `on_drained`; within 2 s or so
  // even if they are not. REQUIRES: Take is not called any more.
  void Drain(std::function<void()> on_drained);

  // Closes the handles of the server itself.
  void Close();

  std::size_t connections() const { return connections_.size(); }
  const StreamCounts& counts() const { return counts_; }

 protected:
  // What the protocol adds to a connection.
  class Connection {
   public:
    virtual ~Connection() = default;

    // Bytes that were not used yet, at most rest_bytes_max: they come again, first, in the next OnBytes.
    virtual std::string_view rest() const { return unread_; }

    // What else another process needs to go on, at most a MiB.
    virtual std::string state() const { return {}; }

    // Goes on where rest() and state() of another process have left off; false if that is not possible. Called before
    // anything is read.
    virtual bool Restore(std::string_view rest, std::string_view) {
      unread_ = rest;
      return true;
    }

    // Whether it is kept though nothing arrives.
    virtual bool waits_for_long() const { return false; }

    bool is_tcp() const { return uv_.handle.type == UV_TCP; }

    int fd() const;    // -1: there is none any more

    // Says who is at the other end of a Unix socket: "user 1000, process 4711", or "somebody".
    std::string Peer() const;

   protected:
    std::string unread_;    // rest(), unless the protocol keeps it elsewhere

   private:
    friend class StreamServer;
    StreamHandle uv_;
    StreamServer* server_ = nullptr;
    std::size_t index_ = 0;    // in connections_
    std::uint64_t read_in_ = 0;    // which turn_
    Outgoing outgoing_{&uv_.stream, [](uv_stream_t* stream, int status) {
                         auto& connection = *Owner<Connection>(stream);
                         connection.server_->OnWritten(connection, status);
                       }};
    IdleTicks::Mark alive_at_ = 0;
    bool paused_ = false;    // its rest is read again before anything new
    bool waits_ = false;     // for GoOn
    bool keeps_ = false;     // what comes meanwhile
    bool at_end_ = false;    // nothing more is read
    bool closing_ = false;
  };

  // The next step of a connection after its bytes have been looked at.
  enum class Then {
    kRead,      // on
    kAnswer,    // on, and the turn's batch is large enough to be answered at once
    kAgain,     // the rest may have something whole: read it once more when all answers so far are sent
    kWait,      // read no more before GoOn
    kKeep,      // the same, but go on reading while there is room for the rest, and hear of the end
    kEnd,       // read no more, and close it when all answers are sent
  };

  // What keeps a connection from being idle: bytes of the client, or answers to it.
  enum class AliveBy { kBytes, kAnswers };

  using Sizes = TurnArena::Sizes;
  StreamServer(uv_loop_t* loop, const Sizes& sizes, Duration idle_timeout, AliveBy alive_by = AliveBy::kBytes);
  // REQUIRES: it is drained, Close() was called, and the loop has run since.
  ~StreamServer();

  virtual std::unique_ptr<Connection> MakeConnection() = 0;

  // Bytes of one read, behind the connection's rest; they stay until Answer() has returned.
  virtual Then OnBytes(Connection& connection, std::string_view bytes) = 0;

  // Answers all that OnBytes was given since the last time, by Write() for each connection.
  virtual void Answer() = 0;

  // Sends now what the socket takes, and the rest when it can. Nothing happens on a connection that has ended.
  void Write(Connection& connection, std::string_view answers);

  // Reads no more, and ends once all answers are sent.
  void Finish(Connection& connection);

  // Ends each connection that `ends`.
  void EndIf(const std::function<bool(Connection&)>& ends);

  // Reads a connection on that was left with kWait or kKeep, its rest first. Nothing happens on one that has ended.
  void GoOn(Connection& connection);

 private:
  void Open(Connection& connection, int fd);
  void StartReading(Connection& connection);
  bool MayRead(const Connection& connection) const;
  void OnRead(Connection& connection, ssize_t n, const char* data);
  Then Hear(Connection& connection, std::string_view bytes);
  void ReadAgain(Connection& connection);
  void OnTurnEnd();
  void Flush();
  void OnWritten(Connection& connection, int status);
  void End(Connection& connection);
  void OnDrainTick();

  const AliveBy alive_by_;
  IdleTicks idle_;

  uv_check_t turn_end_;
  uv_idle_t turn_again_;    // keeps the loop from waiting while again_ has something
  Timer drain_timer_;

  std::vector<Connection*> connections_;
  StreamCounts counts_;

  // What connections that send without end may read in one turn, all together: a millisecond or two of questions.
  static constexpr std::size_t kTurnBytes = 64 * 1024;
  static constexpr std::size_t kReadBytesMin = 256;    // of each

  // The turn: what has been read and not yet answered.
  std::uint64_t turn_ = 1;
  std::size_t read_bytes_;        // of one read, in this turn
  std::size_t full_reads_ = 0;    // so far in this turn
  TurnArena arena_;
  std::vector<Connection*> stopped_;    // to be read again, or closed, once they are answered
  std::vector<Connection*> again_;      // to be read again in the next turn

  std::function<void()> on_drained_;
  bool heard_ = false;    // since the last drain tick
  unsigned drain_ticks_ = 0;
};

}    // namespace dthrottle
