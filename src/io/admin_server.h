// Serves the admin socket: lines in, answers out. Few connections, small buffers, no hurry; the query path never waits
// for it because each turn runs one command of a connection.
#pragma once

#include <uv.h>

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "admin/admin.h"

namespace dthrottle {

class AdminServer {
 public:
  static constexpr std::size_t kConnectionsMax = 64;

  AdminServer(uv_loop_t* loop, AdminHost& host);
  ~AdminServer();

  // Serves a connected socket, which becomes this object's. One too many is closed at once.
  void Take(int fd);

  // Closes every connection; the loop must run once more.
  void Close();

 private:
  struct Connection;

  void StartReading(const std::shared_ptr<Connection>& c);
  void OnRead(const std::shared_ptr<Connection>& c, ssize_t n, const char* data);
  void RunNext(const std::shared_ptr<Connection>& c);
  void Answer(const std::shared_ptr<Connection>& c, std::string text);
  void End(const std::shared_ptr<Connection>& c);

  uv_loop_t* loop_;
  AdminHost& host_;
  std::list<std::shared_ptr<Connection>> connections_;
};

}    // namespace dthrottle
