#include "io/outgoing.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace dthrottle {

bool Outgoing::Send(std::string_view bytes) {
  if (waits_) {
    unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
    return true;
  }
  // uv_try_write() would call write(), with which a query costs 2 % more.
  uv_os_fd_t socket = -1;
  uv_fileno(reinterpret_cast<uv_handle_t*>(stream_), &socket);
  const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return true;
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
  return SendLater(bytes.substr(sent < 0 ? 0 : static_cast<std::size_t>(sent)));
}

bool Outgoing::SendLater(std::string_view bytes) {
  unsent_.assign(bytes.begin(), bytes.end());
  waits_ = true;
  return SendUnsent();
}

bool Outgoing::SendUnsent() {
  sending_ = std::exchange(unsent_, {});
  uv_buf_t buffer = uv_buf_init(sending_.data(), static_cast<unsigned>(sending_.size()));
  write_.data = this;
  const auto on_written = [](uv_write_t* write, int status) { static_cast<Outgoing*>(write->data)->OnWritten(status); };
  return uv_write(&write_, stream_, &buffer, 1, on_written) == 0;
}

void Outgoing::OnWritten(int status) {
  if (status == 0 && !unsent_.empty()) {
    if (SendUnsent()) return;
    status = UV_EIO;
  }
  waits_ = false;
  sending_ = {};
  on_sent_(stream_, status);
}

// What libuv has not written yet is the end of what it was given.
std::string Outgoing::Unsent() const {
  const std::size_t left = waits_ ? uv_stream_get_write_queue_size(stream_) : 0;
  std::string unsent(sending_.end() - static_cast<std::ptrdiff_t>(left), sending_.end());
  return unsent.append(unsent_.begin(), unsent_.end());
}

}    // namespace dthrottle
