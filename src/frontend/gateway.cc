#include "frontend/gateway.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/state.h"
#include "io/clock.h"
#include "io/descriptor.h"
#include "io/files.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

constexpr std::string_view kWaiting = "waiting";    // the state of a connection that has not been passed on

constexpr Duration kLivedLong = std::chrono::seconds(10);    // then a death has nothing to do with the start
constexpr Duration kDelayMin = std::chrono::seconds(1), kDelayMax = std::chrono::seconds(30);
constexpr int kHangUpsAtOnce = 64;
constexpr Duration kFullPipe = std::chrono::milliseconds(10);
constexpr Duration kCheckMax = std::chrono::seconds(10);
constexpr Duration kFarewell = std::chrono::seconds(2);
constexpr unsigned kUnreadMs = 30'000;    // how long a client may leave answers unread

struct KeptGateway {
  static constexpr std::uint32_t kVersion = 2;
  std::int32_t pid = 0;
  std::uint32_t protocol = kGatewayProtocol;
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

// Where a program is: beside this one, as in a build directory, or where it is to be installed.
std::string PathOf(const GatewayProgram& program) {
  std::error_code failed;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path() / program.name;
  if (::access(beside.c_str(), X_OK) == 0) return beside;
  return fmt::format("{}/{}", DTHROTTLE_PROGRAMS, program.name);
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

Result<void> CheckGateway(const GatewayProgram& program, const std::vector<std::string>& tls) {
  const std::string path = PathOf(program);
  if (::access(path.c_str(), X_OK) != 0) {
    return Fail(fmt::format("{}: {} (package {})", path, std::strerror(errno), program.package));
  }
  if (tls.empty()) return {};
  // The program would wait for a pipe, and say no more than that it took too long.
  for (const std::string& file : tls) {
    if (file.empty()) continue;
    if (const auto begins = ReadRegularFile(file, 0); !begins) return Fail(begins.error().message);
  }
  ChildCommand command;
  command.program = path;
  command.patience = kCheckMax;
  command.args = {std::string(program.name), "check"};
  command.args.insert(command.args.end(), tls.begin(), tls.end());
  const ChildOutcome outcome = Run(command);
  if (!outcome.succeeded) return Fail(outcome.said);
  return {};
}

Gateway::Gateway(uv_loop_t* loop, Log& log, Options options, std::vector<Lines> lines)
    : loop_(loop),
      log_(log),
      options_(std::move(options)),
      lines_(std::move(lines)),
      timer_(loop, [this] { OnTimer(); }),
      hang_ups_(::epoll_create1(EPOLL_CLOEXEC)),
      hang_ups_watch_(std::in_place, loop, hang_ups_, [this] { OnHangUps(); }) {}

Gateway::~Gateway() {
  DT_CHECK(connections_.empty());
}

// ---- The program ----

void Gateway::Start(HandedSection handed) {
  goes_on_ = GoOn(handed);
  if (!goes_on_) StartProgram();
}

bool Gateway::GoOn(const HandedSection& handed) {
  KeptGateway kept;
  const bool known = handed.fd >= 0 && ReadState(handed.bytes, KeptGateway::kVersion, kept);
  if (!known || kept.protocol != kGatewayProtocol || kept.tls != options_.tls || ::kill(kept.pid, 0) != 0) {
    former_ = Dismiss(loop_, handed);
    return false;
  }
  UsePipe(handed.fd);
  started_ = Now();
  program_ = std::make_unique<Child>(loop_, kept.pid, [this](const ChildOutcome& outcome) { OnExit(outcome); });
  log_.Notice(
      "{}: {} goes on as process {}{}", options_.front, options_.program.name, kept.pid,
      IsReplaced(kept.pid) ? fmt::format("; it has been replaced, and `kill {}` starts the new one", kept.pid) : "");
  return true;
}

std::unique_ptr<Child> Gateway::Dismiss(uv_loop_t* loop, const HandedSection& handed) {
  if (handed.fd < 0) return nullptr;
  ::close(handed.fd);    // which tells it
  KeptGateway kept;
  if (!ReadState(handed.bytes, KeptGateway::kVersion, kept)) return nullptr;
  return std::make_unique<Child>(loop, kept.pid, nullptr);
}

void Gateway::StartProgram() {
  SocketPair pipe(SOCK_SEQPACKET);
  if (pipe.theirs < 0) return OnExit({.said = std::strerror(errno)});
  std::deque<SocketPair> lines;
  ChildCommand command;
  command.program = PathOf(options_.program);
  command.args = {std::string(options_.program.name), std::to_string(kGatewayProtocol)};
  command.args.insert(command.args.end(), options_.words.begin(), options_.words.end());
  command.args.insert(command.args.end(), options_.tls.begin(), options_.tls.end());
  command.descriptors = {pipe.theirs};
  for (const Lines& served : lines_) {
    if (served.sent) continue;
    if (lines.emplace_back(SOCK_STREAM).theirs < 0) return OnExit({.said = std::strerror(errno)});
    command.descriptors.push_back(lines.back().theirs);
  }
  {
    const SignalsBlocked blocked;
    program_ = std::make_unique<Child>(loop_, command, [this](const ChildOutcome& outcome) { OnExit(outcome); });
  }
  started_ = Now();
  UsePipe(std::exchange(pipe.ours, -1));
  for (const Lines& served : lines_) {
    if (served.sent) continue;
    served.server.Take(std::exchange(lines.front().ours, -1));
    lines.pop_front();
  }
  if (program_->pid() != 0) log_.Notice("{}: {} is process {}", options_.front, options_.program.name, program_->pid());
  PassAll();
}

void Gateway::OnExit(const ChildOutcome& outcome) {
  program_.reset();
  ClosePipe();
  for (const int fd : std::set(connections_)) {
    if (std::ranges::find(waiting_, fd) == waiting_.end()) End(fd);
  }
  if (leaving_) {
    timer_.Stop();
    return DrainLines(0);
  }
  ++restarts_;
  delay_ = Now() - started_ >= kLivedLong ? Duration::zero() : std::clamp(2 * delay_, kDelayMin, kDelayMax);
  if (outcome.succeeded) {
    log_.Notice("{}: {} has left; another one begins", options_.front, options_.program.name);
  } else {
    log_.Error("{}: {}: {}; its connections are closed, and another one begins in {:g} s", options_.front,
               options_.program.name, outcome.said, Seconds(delay_));
  }
  timer_.StartOnce(delay_);
}

void Gateway::OnTimer() {
  if (leaving_) return OnExit({});    // it takes too long, and is killed
  program_ == nullptr ? StartProgram() : PassAll();
}

void Gateway::UsePipe(int fd) {
  pipe_ = fd;
  if (std::ranges::any_of(lines_, &Lines::sent)) pipe_watch_.emplace(loop_, fd, [this] { OnPipe(); });
}

// The program sends a connection that brings the lines of a client.
void Gateway::OnPipe() {
  bool ended = false;
  const int fd = ReceiveDescriptor(pipe_, ended);
  if (ended) return pipe_watch_.reset();    // OnExit says the rest
  const auto to = std::ranges::find_if(lines_, &Lines::sent);
  if (fd >= 0) to->server.Take(fd);
}

void Gateway::ClosePipe() {
  pipe_watch_.reset();
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
}

void Gateway::Drain(std::function<void()> done) {
  leaving_ = true;
  on_drained_ = std::move(done);
  for (const int fd : std::exchange(waiting_, {})) End(fd);
  if (program_ == nullptr) return OnExit({});
  ClosePipe();    // the program is told so
  timer_.StartOnce(kFarewell);
}

void Gateway::DrainLines(std::size_t first) {
  if (first == lines_.size()) return std::exchange(on_drained_, nullptr)();
  lines_[first].server.Drain([this, first] { DrainLines(first + 1); });
}

void Gateway::Close() {
  program_.reset();
  former_.reset();
  ClosePipe();
  for (const int fd : std::set(connections_)) End(fd);
  timer_.Close();
  hang_ups_watch_.reset();
  ::close(hang_ups_);
  for (const Lines& lines : lines_) lines.server.Close();
}

// ---- Connections ----

void Gateway::Take(int fd) {
  ++accepted_;
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnreadMs, sizeof kUnreadMs);    // the kernel keeps the bound
  if (!Watch(fd)) return;
  waiting_.push_back(fd);
  PassAll();
}

void Gateway::TakeUp(const HandedConnection& handed) {
  const bool waits = handed.state == kWaiting;
  if (!waits && !goes_on_) return void(::close(handed.fd));
  for (const Lines& lines : lines_) {
    if (handed.front == lines.front) return lines.server.TakeUp(handed);
  }
  if (!Watch(handed.fd) || !waits) return;
  waiting_.push_back(handed.fd);
  PassAll();
}

// Asks for no event. epoll tells of a hang-up nevertheless: both directions have ended, as the other program shuts down
// what it closes. The end of the client's half alone (EPOLLRDHUP) is none.
bool Gateway::Watch(int fd) {
  epoll_event watched{};
  watched.data.fd = fd;
  if (::epoll_ctl(hang_ups_, EPOLL_CTL_ADD, fd, &watched) != 0) {
    ::close(fd);
    return false;
  }
  connections_.insert(fd);
  return true;
}

void Gateway::OnHangUps() {
  std::array<epoll_event, kHangUpsAtOnce> ended;
  const int n = ::epoll_wait(hang_ups_, ended.data(), kHangUpsAtOnce, 0);
  for (int i = 0; i < n; ++i) End(ended[static_cast<std::size_t>(i)].data.fd);
}

// The other program may have the socket open still, so closing it here would not end the watch.
void Gateway::End(int fd) {
  connections_.erase(fd);
  std::erase(waiting_, fd);
  ::epoll_ctl(hang_ups_, EPOLL_CTL_DEL, fd, nullptr);
  ::close(fd);
}

void Gateway::PassAll() {
  while (pipe_ >= 0 && !waiting_.empty()) {
    const int error = SendDescriptor(pipe_, waiting_.front());
    if (error == EAGAIN) return timer_.StartOnce(kFullPipe);
    if (error == EPIPE || error == ECONNRESET) return;    // it leaves; the next one gets them
    const int fd = waiting_.front();
    waiting_.pop_front();
    if (error == 0) continue;
    log_.Warning("{}: a connection cannot be passed to {}: {}", options_.front, options_.program.name, std::strerror(error));
    End(fd);
  }
}

void Gateway::Release() {
  for (const Lines& lines : lines_) lines.server.Release();
}

void Gateway::Hold(Handover& handover) {
  for (const Lines& lines : lines_) lines.server.Hold(lines.front, handover.connections);
  if (program_ != nullptr && pipe_ >= 0) {
    const KeptGateway kept{.pid = program_->pid(), .tls = options_.tls};
    handover.sections.push_back({std::string(options_.front), pipe_, WriteState(KeptGateway::kVersion, kept)});
  }
  for (const int fd : connections_) {
    HandedConnection& handed = handover.connections.emplace_back();
    handed.fd = fd;
    handed.front = options_.front;
    if (std::ranges::find(waiting_, fd) != waiting_.end()) handed.state = kWaiting;
  }
}

}    // namespace dthrottle
