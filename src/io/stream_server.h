// Connections of one loop, for protocols that answer in batches: what a QueryServer does around its protocol, for
// others.
//
// Reads land in one arena, where they stay in place until the turn of the loop ends; then the protocol answers all that
// has arrived, at one instant and with one write for each connection. Whoever does not read its answers is not read
// from either.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "io/stream.h"

namespace dthrottle {

struct StreamCounts {
  std::uint64_t accepted = 0;
  std::uint64_t closed = 0;
  std::uint64_t idle_closed = 0;    // of which by us, after the idle timeout
  std::uint64_t stalled = 0;        // times that a connection was not read from because its answers were not read
};

class StreamServer {
 public:
  // Serves a connected socket, which becomes this object's.
  void Take(int fd);

  // Zero: nobody is closed for being idle.
  void set_idle_timeout(Duration timeout);

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

    // Bytes of something unfinished, at most rest_bytes_max: they come again, first, in the next OnBytes.
    virtual std::string_view rest() const = 0;

   private:
    friend class StreamServer;
    StreamHandle uv_;
    StreamServer* server_ = nullptr;
    std::size_t index_ = 0;        // in connections_
    std::vector<char> sending_;    // what the socket had no room for, with libuv
    std::vector<char> unsent_;     // what comes behind it
    uv_write_t write_;
    std::uint32_t heard_at_ = 0;    // idle_ticks_
    bool writing_ = false;
    bool at_end_ = false;    // nothing more is read
    bool closing_ = false;
  };

  StreamServer(uv_loop_t* loop, std::size_t read_bytes, std::size_t rest_bytes_max, Duration idle_timeout);
  // REQUIRES: it is drained, Close() was called, and the loop has run since.
  ~StreamServer();
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;

  virtual std::unique_ptr<Connection> MakeConnection() = 0;

  // Bytes of one read, behind the connection's rest; they stay until Answer() has returned. False: whatever they ask
  // has to be answered, but the connection is read no more.
  virtual bool OnBytes(Connection& connection, std::string_view bytes) = 0;

  // Answers all that OnBytes was given since the last time, by Write() for each connection.
  virtual void Answer() = 0;

  // Sends now what the socket takes, and the rest when it can. Nothing happens on a connection that has ended.
  void Write(Connection& connection, std::string_view answers);

 private:
  void StartReading(Connection& connection);
  void OnRead(Connection& connection, ssize_t n, const char* data);
  void Flush();
  void SendUnsent(Connection& connection);
  void OnWritten(Connection& connection, int status);
  void Finish(Connection& connection);
  void End(Connection& connection);
  void OnIdleTick();
  void OnDrainTick();

  uv_loop_t* loop_;
  const std::size_t read_bytes_;
  const std::size_t rest_bytes_max_;

  uv_check_t turn_end_;
  uv_timer_t idle_timer_;
  uv_timer_t drain_timer_;

  std::vector<Connection*> connections_;
  StreamCounts counts_;

  // The turn: what has been read and not yet answered.
  std::vector<char> arena_;
  std::size_t arena_used_ = 0;
  std::vector<Connection*> finishing_;    // to be closed once they are answered

  std::uint32_t idle_ticks_ = 0;    // of an eighth of the idle timeout
  std::function<void()> on_drained_;
  bool heard_ = false;    // since the last drain tick
  unsigned drain_ticks_ = 0;
};

}    // namespace dthrottle
