// Answers HTTP on the connections of one loop: HttpReader and HttpService with sockets around them.
//
// A connection has to finish a request within `timeout` of its last answer, or of its beginning: a byte now and then
// does not hold it.
#pragma once

#include <uv.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/http/service.h"
#include "io/stream_server.h"

namespace dthrottle {

class HttpServer final : public StreamServer {
 public:
  HttpServer(uv_loop_t* loop, AdminHost& host, Prng prng, Duration timeout);

  // From now on a connection ends with its next answer, and /healthz says why.
  void Stop();

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
  void AppendReply(const HttpReply& reply, const Asked& to);
  void TellDate();

  HttpService service_;
  bool stopping_ = false;
  std::uint64_t requests_ = 0;

  // The requests of this turn:
  struct Segment {
    Connection* connection;
    std::size_t requests;
  };
  std::vector<Segment> segments_;
  std::vector<Asked> asked_;
  std::string out_;

  std::int64_t date_second_ = -1;    // since 1970
  std::string date_;                 // of that second, as a field with its CR LF
};

}    // namespace dthrottle
