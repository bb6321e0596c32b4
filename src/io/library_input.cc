#include "io/library_input.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr std::size_t kLibraryBufferBytes = 8192;       // of libzmq, for whatever is shorter
constexpr std::string_view kInputThread = "ZMQbg/IO";    // what libzmq calls the threads that read

struct Intake {
  std::size_t bytes = 0;       // since a whole message was taken out
  std::uint64_t socket = 0;    // the kernel's number for it, once a second read is needed: a descriptor is used again
};

struct Ledger {
  std::atomic<std::size_t> bytes_max{0};
  std::atomic<std::uint64_t> cut{0};
  std::atomic<Duration> pause{Duration(0)};
  std::mutex mutex;
  std::unordered_map<int, Intake> intakes;    // no more than there were descriptors at a time
};

// The function that libraries call takes no argument of ours, so this cannot be anybody's member. It is never freed:
// libraries have threads that outlive main.
Ledger& TheLedger() {
  static auto* const ledger = new Ledger;
  return *ledger;
}

bool IsInputThread() {
  thread_local const bool is_one = [] {
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
           std::string_view(name).starts_with(kInputThread);
  }();
  return is_one;
}

std::uint64_t NumberOfSocket(int fd) {
  std::uint64_t number = 0;
  socklen_t size = sizeof number;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &number, &size) == 0 ? number : 0;
}

bool IsBeyond(Ledger& ledger, int fd, std::size_t bytes_max) {
  const std::lock_guard lock(ledger.mutex);
  Intake& intake = ledger.intakes[fd];
  if (intake.bytes > 0 && intake.socket == 0) intake.socket = NumberOfSocket(fd);
  if (intake.bytes <= bytes_max) return false;
  const std::uint64_t number = NumberOfSocket(fd);
  if (intake.socket != number) intake = {0, number};
  return intake.bytes > bytes_max;
}

void Charge(Ledger& ledger, int fd, std::size_t bytes) {
  const std::lock_guard lock(ledger.mutex);
  if (const auto intake = ledger.intakes.find(fd); intake != ledger.intakes.end()) intake->second.bytes += bytes;
}

ssize_t CountedReceive(int fd, void* buffer, std::size_t size, int flags) {
  const auto receive = [&] {
    return static_cast<ssize_t>(::syscall(SYS_recvfrom, fd, buffer, size, flags, nullptr, nullptr));
  };
  Ledger& ledger = TheLedger();
  const std::size_t bytes_max = ledger.bytes_max.load(std::memory_order_relaxed);
  if (bytes_max == 0 || !IsInputThread()) return receive();
  if (IsBeyond(ledger, fd, bytes_max)) {
    ledger.cut.fetch_add(1, std::memory_order_relaxed);
    errno = ECONNRESET;
    return -1;
  }
  const ssize_t received = receive();
  const int error = errno;
  // More than the buffer is wanted only by a part that has its own memory.
  if (received > 0) Charge(ledger, fd, size > kLibraryBufferBytes ? static_cast<std::size_t>(received) : kLibraryBufferBytes);
  errno = error;
  return received;
}

int GatheringWait(int fd, epoll_event* events, int events_max, int timeout_ms) {
  const auto wait = [&] {
    return static_cast<int>(::syscall(SYS_epoll_pwait, fd, events, events_max, timeout_ms, nullptr, 0));
  };
  const Duration pause = TheLedger().pause.load(std::memory_order_relaxed);
  if (pause == Duration(0) || !IsInputThread()) return wait();
  thread_local Instant looked{};
  std::this_thread::sleep_for(looked + pause - Now());
  const int ready = wait();
  const int error = errno;
  looked = Now();
  errno = error;
  return ready;
}

}    // namespace

void BoundLibraryReceives(std::size_t bytes_max) {
  TheLedger().bytes_max.store(bytes_max, std::memory_order_relaxed);
}

void LibraryMessageTaken(int fd) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  if (const auto intake = ledger.intakes.find(fd); intake != ledger.intakes.end()) intake->second = {};
}

std::uint64_t LibraryReceivesCut() {
  return TheLedger().cut.load(std::memory_order_relaxed);
}

void PauseLibraryInput(Duration pause) {
  TheLedger().pause.store(pause, std::memory_order_relaxed);
}

}    // namespace dthrottle

// The names that libraries call.
extern "C" __attribute__((visibility("default"))) ssize_t recv(int fd, void* buffer, std::size_t size, int flags) {
  return dthrottle::CountedReceive(fd, buffer, size, flags);
}

extern "C" __attribute__((visibility("default"))) int epoll_wait(int fd, epoll_event* events, int events_max,
                                                                 int timeout_ms) {
  return dthrottle::GatheringWait(fd, events, events_max, timeout_ms);
}
