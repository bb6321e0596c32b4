#include "frontend/grpc/gateway.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/state.h"
#include "io/clock.h"
#include "io/descriptor.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

// What the two programs say to each other has a version, the first argument of dthrottle-grpc.
constexpr std::uint32_t kProtocol = 1;
constexpr const char* kProgramName = "dthrottle-grpc";
constexpr std::string_view kWaiting = "waiting";    // the state of a connection that has not been passed on

constexpr Duration kLivedLong = std::chrono::seconds(10);    // then a death has nothing to do with the start
constexpr Duration kDelayMin = std::chrono::seconds(1), kDelayMax = std::chrono::seconds(30);
constexpr Duration kFullPipe = std::chrono::milliseconds(10);
constexpr Duration kCheckMax = std::chrono::seconds(10);
constexpr Duration kFarewell = std::chrono::seconds(2);

struct KeptGateway {
  static constexpr std::uint32_t kVersion = 2;
  std::int32_t pid = 0;
  std::uint32_t protocol = kProtocol;
  std::vector<std::string> tls;

  static void Fields(auto& state, auto& self) { state(self.pid, self.protocol, self.tls); }
};

// Our end, which does not block, and the program's. Both are closed with the object, unless they were taken out of it.
struct SocketPair {
  explicit SocketPair(int type) {
    int ends[2];
    if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) return;
    ours = ends[0];
    theirs = ends[1];
    ::fcntl(ours, F_SETFL, O_NONBLOCK);
  }
  ~SocketPair() {
    for (const int fd : {ours, theirs}) {
      if (fd >= 0) ::close(fd);
    }
  }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  int ours = -1, theirs = -1;
};

std::uint64_t Milliseconds(Duration d) {
  return static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(d).count());
}

// Runs a program to its end, on a loop of its own.
ChildOutcome Run(const ChildCommand& command) {
  uv_loop_t loop;
  DT_CHECK(uv_loop_init(&loop) == 0);
  ChildOutcome outcome;
  const Child child(&loop, command, [&outcome](ChildOutcome ended) { outcome = std::move(ended); });
  uv_run(&loop, UV_RUN_DEFAULT);
  DT_CHECK(uv_loop_close(&loop) == 0);
  return outcome;
}

// Whether the file that a process runs has been replaced since it began.
bool IsReplaced(int pid) {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), failed);
  return !failed && program.native().ends_with(" (deleted)");
}

}    // namespace

struct GrpcGateway::Connection {
  uv_poll_t poll;
  int fd;
  GrpcGateway* gateway;
};

std::string GrpcProgram() {
  std::error_code failed;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path() / kProgramName;
  if (::access(beside.c_str(), X_OK) == 0) return beside;
  return std::string(DTHROTTLE_PROGRAMS) + "/" + kProgramName;
}

Result<void> CheckGrpcProgram(const std::vector<std::string>& tls) {
  const std::string program = GrpcProgram();
  if (::access(program.c_str(), X_OK) != 0) {
    return Fail(fmt::format("{}: {} (package dthrottle-grpc)", program, std::strerror(errno)));
  }
  if (tls.empty()) return {};
  ChildCommand command;
  command.program = program;
  command.patience = kCheckMax;
  command.args = {kProgramName, "check"};
  command.args.insert(command.args.end(), tls.begin(), tls.end());
  const ChildOutcome outcome = Run(command);
  if (!outcome.succeeded) return Fail(outcome.said);
  return {};
}

GrpcGateway::GrpcGateway(uv_loop_t* loop, Log& log, Options options, std::vector<Lines> lines)
    : loop_(loop), log_(log), options_(std::move(options)), lines_(std::move(lines)) {
  DT_CHECK(uv_timer_init(loop, &timer_) == 0);
  timer_.data = this;
}

GrpcGateway::~GrpcGateway() {
  DT_CHECK(connections_.empty());
}

// ---- The program ----

void GrpcGateway::Start(HandedSection handed) {
  goes_on_ = GoOn(handed);
  if (!goes_on_) StartProgram();
}

bool GrpcGateway::GoOn(const HandedSection& handed) {
  KeptGateway kept;
  const bool known = handed.fd >= 0 && ReadState(handed.bytes, KeptGateway::kVersion, kept);
  if (!known || kept.protocol != kProtocol || kept.tls != options_.tls || ::kill(kept.pid, 0) != 0) {
    former_ = Dismiss(loop_, handed);
    return false;
  }
  pipe_ = handed.fd;
  started_ = Now();
  program_ = std::make_unique<Child>(loop_, kept.pid, [this](const ChildOutcome& outcome) { OnExit(outcome); });
  log_.Notice(
      "{}: {} goes on as process {}{}", options_.front, kProgramName, kept.pid,
      IsReplaced(kept.pid) ? fmt::format("; it has been replaced, and `kill {}` starts the new one", kept.pid) : "");
  return true;
}

std::unique_ptr<Child> GrpcGateway::Dismiss(uv_loop_t* loop, const HandedSection& handed) {
  if (handed.fd < 0) return nullptr;
  ::close(handed.fd);    // which tells it
  KeptGateway kept;
  if (!ReadState(handed.bytes, KeptGateway::kVersion, kept)) return nullptr;
  return std::make_unique<Child>(loop, kept.pid, nullptr);
}

void GrpcGateway::StartProgram() {
  SocketPair pipe(SOCK_SEQPACKET);
  if (pipe.theirs < 0) return OnExit({.said = std::strerror(errno)});
  std::deque<SocketPair> lines;
  ChildCommand command;
  command.program = options_.program;
  const std::uint64_t idle_ms = std::min<std::uint64_t>(Milliseconds(options_.idle_timeout), INT_MAX);
  command.args = {kProgramName, std::to_string(kProtocol), std::string(options_.services), std::to_string(idle_ms)};
  command.args.insert(command.args.end(), options_.tls.begin(), options_.tls.end());
  command.descriptors = {pipe.theirs};
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines.emplace_back(SOCK_STREAM).theirs < 0) return OnExit({.said = std::strerror(errno)});
    command.descriptors.push_back(lines.back().theirs);
  }
  {
    const SignalsBlocked blocked;
    program_ = std::make_unique<Child>(loop_, command, [this](const ChildOutcome& outcome) { OnExit(outcome); });
  }
  started_ = Now();
  pipe_ = std::exchange(pipe.ours, -1);
  for (std::size_t i = 0; i < lines_.size(); ++i) lines_[i].server.Take(std::exchange(lines[i].ours, -1));
  if (program_->pid() != 0) log_.Notice("{}: {} is process {}", options_.front, kProgramName, program_->pid());
  PassAll();
}

void GrpcGateway::OnExit(const ChildOutcome& outcome) {
  program_.reset();
  ClosePipe();
  for (Connection* const c : std::set(connections_)) {
    if (std::find(waiting_.begin(), waiting_.end(), c) == waiting_.end()) End(c);
  }
  if (leaving_) {
    uv_timer_stop(&timer_);
    return DrainLines(0);
  }
  ++restarts_;
  delay_ = Now() - started_ >= kLivedLong ? Duration::zero() : std::clamp(2 * delay_, kDelayMin, kDelayMax);
  if (outcome.succeeded) {
    log_.Notice("{}: {} has left; another one begins", options_.front, kProgramName);
  } else {
    log_.Error("{}: {}: {}; its connections are closed, and another one begins in {:g} s", options_.front, options_.program,
               outcome.said, Seconds(delay_));
  }
  StartTimer(delay_);
}

void GrpcGateway::StartTimer(Duration after) {
  uv_timer_start(
      &timer_, [](uv_timer_t* t) { static_cast<GrpcGateway*>(t->data)->OnTimer(); }, Milliseconds(after), 0);
}

void GrpcGateway::OnTimer() {
  if (leaving_) return OnExit({});    // it takes too long, and is killed
  program_ == nullptr ? StartProgram() : PassAll();
}

void GrpcGateway::ClosePipe() {
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
}

void GrpcGateway::Drain(std::function<void()> done) {
  leaving_ = true;
  on_drained_ = std::move(done);
  for (Connection* const c : std::exchange(waiting_, {})) End(c);
  if (program_ == nullptr) return OnExit({});
  ClosePipe();    // the program is told so
  StartTimer(kFarewell);
}

void GrpcGateway::DrainLines(std::size_t first) {
  if (first == lines_.size()) return std::exchange(on_drained_, nullptr)();
  lines_[first].server.Drain([this, first] { DrainLines(first + 1); });
}

void GrpcGateway::Close() {
  program_.reset();
  former_.reset();
  ClosePipe();
  for (Connection* const c : std::set(connections_)) End(c);
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
  for (const Lines& lines : lines_) lines.server.Close();
}

// ---- Connections ----

void GrpcGateway::Take(int fd) {
  ++accepted_;
  Connection* const c = Watch(fd);
  if (c == nullptr) return;
  waiting_.push_back(c);
  PassAll();
}

void GrpcGateway::TakeUp(const HandedConnection& handed) {
  const bool waits = handed.state == kWaiting;
  if (!waits && !goes_on_) return void(::close(handed.fd));
  for (const Lines& lines : lines_) {
    if (handed.front == lines.front) return lines.server.TakeUp(handed);
  }
  Connection* const c = Watch(handed.fd);
  if (c == nullptr || !waits) return;
  waiting_.push_back(c);
  PassAll();
}

// Either side's end of a connection is a hang-up here, as gRPC shuts down what it closes.
GrpcGateway::Connection* GrpcGateway::Watch(int fd) {
  auto* const c = new Connection{{}, fd, this};
  if (uv_poll_init(loop_, &c->poll, fd) != 0) {
    ::close(fd);
    delete c;
    return nullptr;
  }
  c->poll.data = c;
  connections_.insert(c);
  const auto on_end = [](uv_poll_t* h, int, int) {
    auto* const ended = static_cast<Connection*>(h->data);
    ended->gateway->End(ended);
  };
  if (uv_poll_start(&c->poll, UV_DISCONNECT, on_end) == 0) return c;
  End(c);
  return nullptr;
}

void GrpcGateway::End(Connection* c) {
  connections_.erase(c);
  std::erase(waiting_, c);
  uv_poll_stop(&c->poll);
  ::close(c->fd);
  uv_close(reinterpret_cast<uv_handle_t*>(&c->poll), [](uv_handle_t* h) { delete static_cast<Connection*>(h->data); });
}

void GrpcGateway::PassAll() {
  while (pipe_ >= 0 && !waiting_.empty()) {
    const int error = SendDescriptor(pipe_, waiting_.front()->fd);
    if (error == EAGAIN) return StartTimer(kFullPipe);
    if (error == EPIPE || error == ECONNRESET) return;    // it leaves; the next one gets them
    Connection* const c = waiting_.front();
    waiting_.pop_front();
    if (error == 0) continue;
    log_.Warning("{}: a connection cannot be passed to {}: {}", options_.front, kProgramName, std::strerror(error));
    End(c);
  }
}

void GrpcGateway::Release() {
  for (const Lines& lines : lines_) lines.server.Release();
}

void GrpcGateway::Hold(Handover& handover) {
  for (const Lines& lines : lines_) lines.server.Hold(lines.front, handover.connections);
  if (program_ != nullptr && pipe_ >= 0) {
    const KeptGateway kept{.pid = program_->pid(), .tls = options_.tls};
    handover.sections.push_back({std::string(options_.front), pipe_, WriteState(KeptGateway::kVersion, kept)});
  }
  for (Connection* const c : connections_) {
    HandedConnection& handed = handover.connections.emplace_back();
    handed.fd = c->fd;
    handed.front = options_.front;
    if (std::find(waiting_.begin(), waiting_.end(), c) != waiting_.end()) handed.state = kWaiting;
  }
}

}    // namespace dthrottle
