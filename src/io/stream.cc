#include "io/stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"

namespace dthrottle {

bool OpenStream(uv_loop_t* loop, int fd, StreamHandle& handle) {
  int domain = 0;
  socklen_t size = sizeof domain;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  int opened;
  if (domain == AF_UNIX) {
    DT_CHECK(uv_pipe_init(loop, &handle.pipe, 0) == 0);
    opened = uv_pipe_open(&handle.pipe, fd);
  } else {
    DT_CHECK(uv_tcp_init(loop, &handle.tcp) == 0);
    opened = uv_tcp_open(&handle.tcp, fd);
    uv_tcp_nodelay(&handle.tcp, 1);    // a failure costs speed only
  }
  if (opened != 0) ::close(fd);
  return opened == 0;
}

}    // namespace dthrottle
