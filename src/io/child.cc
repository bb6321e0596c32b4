#include "io/child.h"

#include <fmt/format.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"

namespace dthrottle {

namespace {

// Our environment with these variables in it; a view of both.
std::vector<char*> EnvironmentWith(const std::vector<std::string>& variables) {
  std::vector<char*> all;
  for (const std::string& variable : variables) all.push_back(const_cast<char*>(variable.c_str()));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = std::string_view(*entry).substr(0, std::string_view(*entry).find('=') + 1);
    if (std::ranges::none_of(variables, [&](const auto& v) { return v.starts_with(name); })) all.push_back(*entry);
  }
  all.push_back(nullptr);
  return all;
}

}    // namespace

// Lives until its handles are closed, which is when the process is over, its output read to the end, and nobody waits
// any more.
struct Child::Handles {
  Handles(Child* child, std::function<void(ChildOutcome)> on_done) : owner(child), done(std::move(on_done)) {}

  Child* owner;    // null once it is gone
  std::function<void(ChildOutcome)> done;
  uv_process_t process;    // of a process that was started here
  uv_signal_t signal;      // tells of the end of one that was not
  uv_pipe_t output;        // of one with patience
  uv_timer_t timer;
  std::vector<uv_handle_t*> open;
  std::size_t closed = 0;
  int pid = 0;
  ChildOutcome outcome;
  Duration patience{};
  char buffer[1024];
  bool exited = false, ended = false;

  template <class Handle>
  void Opened(Handle& handle) {
    handle.data = this;
    open.push_back(reinterpret_cast<uv_handle_t*>(&handle));
  }

  void Start(uv_loop_t* loop, const ChildCommand& command);
  void Adopt(uv_loop_t* loop, int started);
  void Read();
  void FailSoon(int error);

  void Kill() {
    if (!exited) ::kill(pid, SIGKILL);
  }

  void Finish() {
    if (!exited || !ended) return;
    Close();
    if (done != nullptr) std::exchange(done, nullptr)(std::move(outcome));
  }

  void Close() {
    const auto on_closed = [](uv_handle_t* handle) {
      auto* self = static_cast<Handles*>(handle->data);
      if (++self->closed < self->open.size()) return;
      if (self->owner != nullptr) self->owner->handles_ = nullptr;
      delete self;
    };
    for (uv_handle_t* handle : open) {
      if (uv_is_closing(handle) == 0) uv_close(handle, on_closed);
    }
  }

  void OnExit(std::int64_t status, int signal_number) {
    exited = true;
    outcome.succeeded = status == 0 && signal_number == 0;
    if (signal_number == 0) outcome.status = static_cast<int>(status);
    if (signal_number != 0 && outcome.said.empty()) outcome.said = fmt::format("it died of signal {}", signal_number);
    if (status != 0 && patience == Duration::zero()) outcome.said = fmt::format("it left with {}", status);
    Finish();
  }

  // Some child of this process has ended.
  void OnAnyExit() {
    int status = 0;
    if (exited || ::waitpid(pid, &status, WNOHANG) == 0) return;
    WIFSIGNALED(status) ? OnExit(0, WTERMSIG(status)) : OnExit(WEXITSTATUS(status), 0);
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
    self->Kill();
    self->Finish();
  }
};

void Child::Handles::Start(uv_loop_t* loop, const ChildCommand& command) {
  patience = command.patience;
  const bool reads = patience > Duration::zero();
  ended = !reads;
  DT_CHECK(uv_timer_init(loop, &timer) == 0);
  Opened(timer);
  std::vector<char*> argv;
  for (const std::string& arg : command.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const auto inherit = [](int fd) {
    uv_stdio_container_t given{};
    given.flags = UV_INHERIT_FD;
    given.data.fd = fd;
    return given;
  };
  std::vector<uv_stdio_container_t> stdio = {{}, inherit(STDERR_FILENO), inherit(STDERR_FILENO)};
  stdio[0].flags = UV_IGNORE;
  uv_file ends[2] = {-1, -1};
  if (reads) {
    if (const int error = uv_pipe(ends, UV_NONBLOCK_PIPE, 0); error != 0) return FailSoon(error);
    DT_CHECK(uv_pipe_init(loop, &output, 0) == 0 && uv_pipe_open(&output, ends[0]) == 0);
    Opened(output);
    stdio[1] = inherit(ends[1]);
    if (command.errors_too) stdio[2] = stdio[1];
  }
  for (const int fd : command.descriptors) stdio.push_back(inherit(fd));
  std::vector<char*> environment = EnvironmentWith(command.variables);
  uv_process_options_t options{};
  options.file = command.program.c_str();
  options.args = argv.data();
  options.stdio = stdio.data();
  options.stdio_count = static_cast<int>(stdio.size());
  if (!command.folder.empty()) options.cwd = command.folder.c_str();
  if (!command.variables.empty()) options.env = environment.data();
  options.exit_cb = [](uv_process_t* ended_process, std::int64_t status, int signal_number) {
    static_cast<Handles*>(ended_process->data)->OnExit(status, signal_number);
  };
  const int spawned = uv_spawn(loop, &process, &options);
  Opened(process);
  if (reads) ::close(ends[1]);
  if (spawned != 0) return FailSoon(spawned);
  pid = process.pid;
  if (reads) Read();
}

void Child::Handles::Read() {
  const auto on_alloc = [](uv_handle_t* handle, std::size_t, uv_buf_t* bytes) {
    auto* self = static_cast<Handles*>(handle->data);
    *bytes = uv_buf_init(self->buffer, sizeof self->buffer);
  };
  DT_CHECK(uv_read_start(reinterpret_cast<uv_stream_t*>(&output), on_alloc, OnRead) == 0);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
  uv_timer_start(&timer, OnTimeout, static_cast<std::uint64_t>(ms), 0);
}

// It may be over already: then nothing tells of it any more.
void Child::Handles::Adopt(uv_loop_t* loop, int started) {
  pid = started;
  ended = true;
  DT_CHECK(uv_signal_init(loop, &signal) == 0 && uv_timer_init(loop, &timer) == 0);
  Opened(signal);
  Opened(timer);
  const auto on_signal = [](uv_signal_t* s, int) { static_cast<Handles*>(s->data)->OnAnyExit(); };
  DT_CHECK(uv_signal_start(&signal, on_signal, SIGCHLD) == 0);
  uv_timer_start(
      &timer, [](uv_timer_t* t) { static_cast<Handles*>(t->data)->OnAnyExit(); }, 0, 0);
}

// A failure is told from the loop too.
void Child::Handles::FailSoon(int error) {
  outcome.error = error;
  outcome.said = uv_strerror(error);
  exited = ended = true;
  uv_timer_start(
      &timer, [](uv_timer_t* t) { static_cast<Handles*>(t->data)->Finish(); }, 0, 0);
}

Child::Child(uv_loop_t* loop, const ChildCommand& command, std::function<void(ChildOutcome)> done)
    : handles_(new Handles(this, std::move(done))) {
  handles_->Start(loop, command);
}

Child::Child(uv_loop_t* loop, int pid, std::function<void(ChildOutcome)> done)
    : handles_(new Handles(this, std::move(done))) {
  handles_->Adopt(loop, pid);
}

Child::~Child() {
  if (handles_ == nullptr) return;
  handles_->owner = nullptr;
  handles_->done = nullptr;
  handles_->Kill();
  handles_->ended = true;
  handles_->Finish();
}

int Child::pid() const {
  return handles_ != nullptr ? handles_->pid : 0;
}

}    // namespace dthrottle
