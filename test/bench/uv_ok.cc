// dthrottle-uv-ok: a server on bare libuv that answers OK to every line without looking at it.
//
// It is what the daemon is compared with: the kernel and libuv at their best, with no decision. One read, a
// count of line ends, and one write from an answer that lies ready.
#include <uv.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::string_view kAnswer = "OK\n";

// The loop has one thread and a read ends before the next begins, so all connections share a buffer.
std::array<char, kReadBytes> read_buffer;

// As many answers as a read can hold lines.
std::array<char, kReadBytes * kAnswer.size()> answers;

void CloseConnection(uv_stream_t* stream) {
  uv_close(reinterpret_cast<uv_handle_t*>(stream),
           [](uv_handle_t* handle) { delete reinterpret_cast<uv_pipe_t*>(handle); });
}

void LendBuffer(uv_handle_t*, std::size_t, uv_buf_t* buffer) {
  *buffer = uv_buf_init(read_buffer.data(), static_cast<unsigned>(read_buffer.size()));
}

// For the peer that does not read its answers as fast as it asks: libuv keeps the rest, which never changes.
void WriteLater(uv_stream_t* stream, uv_buf_t rest) {
  auto request = std::make_unique<uv_write_t>();
  const auto free_request = [](uv_write_t* done, int) { delete done; };
  if (uv_write(request.get(), stream, &rest, 1, free_request) == 0) {
    request.release();
  } else {
    CloseConnection(stream);
  }
}

void Answer(uv_stream_t* stream, ssize_t bytes, const uv_buf_t* buffer) {
  if (bytes < 0) return CloseConnection(stream);
  const auto lines = static_cast<std::size_t>(std::count(buffer->base, buffer->base + bytes, '\n'));
  if (lines == 0) return;
  uv_buf_t reply = uv_buf_init(answers.data(), static_cast<unsigned>(lines * kAnswer.size()));
  const int written = uv_try_write(stream, &reply, 1);
  if (written == static_cast<int>(reply.len)) return;
  if (written < 0 && written != UV_EAGAIN) return CloseConnection(stream);
  const auto taken = static_cast<std::size_t>(std::max(written, 0));
  WriteLater(stream, uv_buf_init(reply.base + taken, static_cast<unsigned>(reply.len - taken)));
}

void Accept(uv_stream_t* listener, int status) {
  if (status < 0) return;
  auto* const connection = new uv_pipe_t;
  uv_pipe_init(listener->loop, connection, 0);
  auto* const stream = reinterpret_cast<uv_stream_t*>(connection);
  if (uv_accept(listener, stream) != 0 || uv_read_start(stream, LendBuffer, Answer) != 0) CloseConnection(stream);
}

}    // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("libuv %s\n", uv_version_string());
    return 0;
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: dthrottle-uv-ok SOCKET_PATH | --version\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i] = kAnswer[i % kAnswer.size()];

  uv_loop_t* const loop = uv_default_loop();
  uv_pipe_t listener;
  uv_pipe_init(loop, &listener, 0);
  int error = uv_pipe_bind(&listener, argv[1]);
  if (error == 0) error = uv_listen(reinterpret_cast<uv_stream_t*>(&listener), 1024, Accept);
  if (error != 0) {
    std::fprintf(stderr, "dthrottle-uv-ok: cannot listen at %s: %s\n", argv[1], uv_strerror(error));
    return 1;
  }
  return uv_run(loop, UV_RUN_DEFAULT);
}
