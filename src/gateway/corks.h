// Holds back what gRPC writes to the connections of several calls, so that their answers go to each connection together.
//
// gRPC writes each answer by itself, and a segment for each costs a quarter of all that it does for a call. A connection
// that has been closed meanwhile, and whose descriptor is another's, is let go like that one: nothing is lost by it.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

namespace dthrottle {

class Corks {
 public:
  Corks() = default;
  ~Corks() { LetGo(); }
  Corks(const Corks&) = delete;
  Corks& operator=(const Corks&) = delete;

  // Until LetGo, or the end of this object. Below 0: there is no such connection.
  void Hold(int connection) {
    if (connection < 0 || std::ranges::find(held_, connection) != held_.end()) return;
    Set(connection, 1);
    held_.push_back(connection);
  }

  void LetGo() {
    for (const int connection : held_) Set(connection, 0);
    held_.clear();
  }

 private:
  static void Set(int connection, int on) { ::setsockopt(connection, IPPROTO_TCP, TCP_CORK, &on, sizeof on); }

  std::vector<int> held_;
};

}    // namespace dthrottle
