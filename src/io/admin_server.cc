#include "io/admin_server.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "io/clock.h"
#include "io/stream.h"

namespace dthrottle {

// Kept alive by the list while it is open, by its handle until that is closed, and by a command that answers later.
struct AdminServer::Connection : std::enable_shared_from_this<Connection> {
  StreamHandle uv;
  AdminServer* server;
  std::shared_ptr<Connection> self;    // until the handle is closed
  char read_buffer[4096];
  std::string input;     // bytes that are not a whole line yet, or lines that wait their turn
  std::string output;    // being written
  uv_write_t write;
  bool busy = false;      // a command is running or its answer is being written
  bool paused = false;    // not read from until lines that wait have run
  bool at_end = false;
  bool closing = false;
};

AdminServer::AdminServer(uv_loop_t* loop, AdminHost& host) : loop_(loop), host_(host) {}

AdminServer::~AdminServer() {
  DT_CHECK(connections_.empty());
}

void AdminServer::Take(int fd) {
  if (connections_.size() >= kConnectionsMax) {
    ::close(fd);
    return;
  }
  auto c = std::make_shared<Connection>();
  c->server = this;
  c->self = c;
  const bool opened = OpenStream(loop_, fd, c->uv);
  c->uv.handle.data = c.get();
  connections_.push_back(c);
  if (!opened) return End(c);
  StartReading(c);
}

void AdminServer::StartReading(const std::shared_ptr<Connection>& c) {
  c->paused = false;
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto* connection = static_cast<Connection*>(handle->data);
    *buffer = uv_buf_init(connection->read_buffer, sizeof connection->read_buffer);
  };
  const auto on_read = [](uv_stream_t* stream, ssize_t n, const uv_buf_t* buffer) {
    const auto connection = static_cast<Connection*>(stream->data)->shared_from_this();
    connection->server->OnRead(connection, n, buffer->base);
  };
  if (uv_read_start(&c->uv.stream, on_alloc, on_read) != 0) End(c);
}

void AdminServer::OnRead(const std::shared_ptr<Connection>& c, ssize_t n, const char* data) {
  if (n < 0) {
    c->at_end = true;
    uv_read_stop(&c->uv.stream);
    if (!c->busy) RunNext(c);    // what is left has no LF and is no command
    return;
  }
  c->input.append(data, static_cast<std::size_t>(n));
  if (!c->busy) RunNext(c);
  if (c->input.size() > kCommandBytesMax && !c->closing) {    // until the lines that wait have run
    c->paused = true;
    uv_read_stop(&c->uv.stream);
  }
}

void AdminServer::RunNext(const std::shared_ptr<Connection>& c) {
  const std::size_t lf = c->input.find('\n');
  if (std::min(lf, c->input.size()) > kCommandBytesMax) {    // whatever follows, nobody knows where it begins
    c->at_end = true;
    c->input.clear();
    uv_read_stop(&c->uv.stream);
    return Answer(c, CommandTooLong());
  }
  if (lf == std::string::npos) {
    c->busy = false;
    if (c->at_end) {
      End(c);
    } else if (c->paused) {
      StartReading(c);
    }
    return;
  }
  const std::string line = c->input.substr(0, lf);
  c->input.erase(0, lf + 1);
  c->busy = true;
  RunCommand(
      line, host_,
      [weak = std::weak_ptr(c)](std::string text) {
        if (const auto connection = weak.lock()) connection->server->Answer(connection, std::move(text));
      },
      Now());
}

void AdminServer::Answer(const std::shared_ptr<Connection>& c, std::string text) {
  if (c->closing) return;
  c->busy = true;
  c->output = std::move(text);
  c->write.data = c.get();
  uv_buf_t buffer = uv_buf_init(c->output.data(), static_cast<unsigned>(c->output.size()));
  const auto on_written = [](uv_write_t* write, int status) {
    const auto connection = static_cast<Connection*>(write->data)->shared_from_this();
    AdminServer* server = connection->server;
    if (connection->closing) return;
    if (status != 0) return server->End(connection);
    server->RunNext(connection);
  };
  if (uv_write(&c->write, &c->uv.stream, &buffer, 1, on_written) != 0) End(c);
}

void AdminServer::End(const std::shared_ptr<Connection>& c) {
  if (c->closing) return;
  c->closing = true;
  uv_close(&c->uv.handle, [](uv_handle_t* handle) { static_cast<Connection*>(handle->data)->self.reset(); });
  connections_.remove(c);
}

void AdminServer::Close() {
  while (!connections_.empty()) End(std::shared_ptr(connections_.front()));
}

}    // namespace dthrottle
