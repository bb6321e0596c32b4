#include "io/child.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"

namespace dthrottle {

// Lives until its three handles are closed, which is when the process is over, its output read to the end, and nobody
// waits any more.
struct Child::Handles {
  Child* owner;    // null once it is gone
  uv_process_t process;
  uv_pipe_t output;
  uv_timer_t timer;
  std::function<void(ChildOutcome)> done;
  ChildOutcome outcome;
  Duration patience;
  char buffer[1024];
  bool exited = false, ended = false;
  int open = 3;

  void Finish() {
    if (!exited || !ended) return;
    Close();
    if (done != nullptr) std::exchange(done, nullptr)(std::move(outcome));
  }

  void Close() {
    const auto closed = [](uv_handle_t* handle) {
      auto* self = static_cast<Handles*>(handle->data);
      if (--self->open > 0) return;
      if (self->owner != nullptr) self->owner->handles_ = nullptr;
      delete self;
    };
    for (auto* handle : {reinterpret_cast<uv_handle_t*>(&process), reinterpret_cast<uv_handle_t*>(&output),
                         reinterpret_cast<uv_handle_t*>(&timer)}) {
      if (uv_is_closing(handle) == 0) uv_close(handle, closed);
    }
  }

  static void OnExit(uv_process_t* process, std::int64_t status, int signal) {
    auto* self = static_cast<Handles*>(process->data);
    self->exited = true;
    self->outcome.succeeded = status == 0 && signal == 0;
    if (signal != 0 && self->outcome.said.empty()) self->outcome.said = fmt::format("it died of signal {}", signal);
    self->Finish();
  }

  static void OnRead(uv_stream_t* stream, ssize_t n, const uv_buf_t* bytes) {
    auto* self = static_cast<Handles*>(stream->data);
    if (n < 0) {
      uv_read_stop(stream);
      self->ended = true;
      return self->Finish();
    }
    std::string& said = self->outcome.said;
    said.append(bytes->base, std::min(static_cast<std::size_t>(n), kChildOutputMax - said.size()));
  }

  static void OnTimeout(uv_timer_t* timer) {
    auto* self = static_cast<Handles*>(timer->data);
    self->outcome.said = fmt::format("it took longer than {} s", Seconds(self->patience));
    self->ended = true;    // a child of its own may hold the pipe
    if (!self->exited) uv_process_kill(&self->process, SIGKILL);
    self->Finish();
  }
};

Child::Child(uv_loop_t* loop, const std::string& program, const std::vector<std::string>& args, Duration patience,
             std::function<void(ChildOutcome)> done)
    : handles_(new Handles) {
  Handles& h = *handles_;
  h.owner = this;
  h.done = std::move(done);
  h.patience = patience;
  DT_CHECK(uv_pipe_init(loop, &h.output, 0) == 0 && uv_timer_init(loop, &h.timer) == 0);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  uv_stdio_container_t stdio[3] = {};
  stdio[0].flags = UV_IGNORE;
  stdio[1].flags = static_cast<uv_stdio_flags>(UV_CREATE_PIPE | UV_WRITABLE_PIPE);
  stdio[1].data.stream = reinterpret_cast<uv_stream_t*>(&h.output);
  stdio[2].flags = UV_INHERIT_FD;
  stdio[2].data.fd = 2;
  uv_process_options_t options{};
  options.file = program.c_str();
  options.args = argv.data();
  options.stdio = stdio;
  options.stdio_count = 3;
  options.exit_cb = Handles::OnExit;
  const int spawned = uv_spawn(loop, &h.process, &options);
  h.process.data = h.output.data = h.timer.data = &h;
  // A failure is told from the loop too.
  if (spawned != 0) {
    h.outcome.said = uv_strerror(spawned);
    h.exited = h.ended = true;
    uv_timer_start(
        &h.timer, [](uv_timer_t* timer) { static_cast<Handles*>(timer->data)->Finish(); }, 0, 0);
    return;
  }
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    auto* self = static_cast<Handles*>(handle->data);
    *buffer = uv_buf_init(self->buffer, sizeof self->buffer);
  };
  DT_CHECK(uv_read_start(reinterpret_cast<uv_stream_t*>(&h.output), on_alloc, Handles::OnRead) == 0);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
  uv_timer_start(&h.timer, Handles::OnTimeout, static_cast<std::uint64_t>(ms), 0);
}

Child::~Child() {
  if (handles_ == nullptr) return;
  handles_->owner = nullptr;
  handles_->done = nullptr;
  if (!handles_->exited) uv_process_kill(&handles_->process, SIGKILL);
  handles_->ended = true;
  handles_->Finish();
}

}    // namespace dthrottle
