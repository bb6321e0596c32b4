// Answers HTTP on the connections of one loop: HttpReader and HttpService with sockets around them.
//
// A connection has to finish a request within `timeout` of its last answer, or of its beginning: a byte now and then
// does not hold it.
//
// A reply that is to wait is held, and nothing more of its connection is answered before it. A client that hangs up
// meanwhile gives back what its question has taken; one that closes its half has hung up.
#pragma once

#include <uv.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frontend/http/service.h"
#include "io/stream_server.h"
#include "io/timer.h"

namespace dthrottle {

class HttpServer final : public StreamServer {
 public:
  HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, Duration timeout);

  // From now on a connection ends with its next answer, and /healthz says why. What was held goes out.
  void Stop();

  // Closes the handles of the server itself.
  void Close();

  // To be called once a second or so.
  void Tick(Instant now) { service_.Tick(now); }

  HttpCounts Counts() const;

 private:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  static constexpr std::size_t kRequestsPerTurn = 256;    // of one connection
  struct HttpConnection;

  // A request that has been handed to the service.
  struct Asked {
    bool head;    // the reply has no body
    bool last;    // the connection ends with it
    bool is_1_1;
  };

  std::unique_ptr<Connection> MakeConnection() override;
  Then OnBytes(Connection& connection, std::string_view bytes) override;
  void Answer() override;
  void AnswerSegment(HttpConnection& connection, std::span<HttpReply> replies, std::span<const Asked> to);
  void AppendReply(const HttpReply& reply, const Asked& to, std::string& out) const;
  void Delay(HttpConnection& connection);
  void LetGo(HttpConnection& connection, Instant now);
  void LetGoDue(Instant now);
  void StartHoldTimer();
  void TellDate();

  HttpService service_;
  bool stopping_ = false;
  std::uint64_t requests_ = 0;

  // The requests of this turn:
  struct Segment {
    HttpConnection* connection;
    std::size_t requests;
  };
  std::vector<Segment> segments_;
  std::vector<Asked> asked_;
  std::string out_;

  std::set<std::pair<Instant, HttpConnection*>> held_;    // until when its first reply waits
  Timer hold_timer_;                                      // for the first of them

  std::int64_t date_second_ = -1;    // since 1970
  std::string date_;                 // of that second, as a field with its CR LF
};

}    // namespace dthrottle
