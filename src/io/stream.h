// A connected socket as a libuv stream, Unix or TCP.
#pragma once

#include <uv.h>

namespace dthrottle {

union StreamHandle {
  uv_handle_t handle;
  uv_stream_t stream;
  uv_tcp_t tcp;
  uv_pipe_t pipe;
};

// Makes `fd` a stream of the loop; TCP without delay. False: it could not be, and the descriptor is closed. The handle
// has to be closed in either case.
bool OpenStream(uv_loop_t* loop, int fd, StreamHandle& handle);

// The object that a handle of libuv belongs to: its `data`.
template <class T>
T* Owner(const void* handle) {
  return static_cast<T*>(static_cast<const uv_handle_t*>(handle)->data);
}

}    // namespace dthrottle
