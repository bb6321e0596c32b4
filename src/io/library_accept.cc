#include "io/library_accept.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>

#include "io/clock.h"

namespace dthrottle {

namespace {

constexpr int kNapMs = 10;    // of a library's thread, where not even one descriptor is left

struct Guard {
  std::mutex mutex;
  std::optional<Places> places;
  int spare = -1;    // given up to accept and close what waits when there is no other descriptor
  std::atomic<std::uint64_t> refused{0};
};

// The functions that libraries call take no argument of ours, so this cannot be anybody's member. It is never freed:
// libraries have threads that outlive main.
Guard& TheGuard() {
  static auto* const guard = new Guard;
  return *guard;
}

int Accept(int fd, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(::syscall(SYS_accept4, fd, address, size, flags));
}

int OpenSpare() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// Returns -1 with an errno that tells a library to carry on.
int TurnAway(Guard& guard, int accepted) {
  ::close(accepted);
  guard.refused.fetch_add(1, std::memory_order_relaxed);
  errno = ECONNABORTED;
  return -1;
}

int GuardedAccept(int fd, sockaddr* address, socklen_t* size, int flags) {
  Guard& guard = TheGuard();
  const std::lock_guard lock(guard.mutex);
  int accepted = Accept(fd, address, size, flags);
  if (accepted < 0 && (errno == EMFILE || errno == ENFILE) && guard.spare >= 0) {
    ::close(guard.spare);
    accepted = Accept(fd, address, size, flags);
    const int error = errno;
    const int result = accepted >= 0 ? TurnAway(guard, accepted) : -1;
    guard.spare = OpenSpare();
    if (accepted < 0 && error != EAGAIN) ::poll(nullptr, 0, kNapMs);
    errno = accepted >= 0 ? ECONNABORTED : error;
    return result;
  }
  if (accepted < 0 || !guard.places || guard.places->Take(accepted, Now()) == Places::Answer::kTaken) return accepted;
  return TurnAway(guard, accepted);
}

}    // namespace

void BoundLibraryAccepts(PlaceBounds bounds) {
  Guard& guard = TheGuard();
  const std::lock_guard lock(guard.mutex);
  if (guard.spare < 0) guard.spare = OpenSpare();
  guard.places ? guard.places->set_bounds(bounds) : void(guard.places.emplace(bounds));
}

std::uint64_t LibraryAcceptsRefused() {
  return TheGuard().refused.load(std::memory_order_relaxed);
}

}    // namespace dthrottle

// The names that libraries call.
extern "C" {
__attribute__((visibility("default"))) int accept4(int fd, sockaddr* address, socklen_t* size,
                                                   int flags) noexcept(false) {
  return dthrottle::GuardedAccept(fd, address, size, flags);
}

__attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* size) {
  return dthrottle::GuardedAccept(fd, address, size, 0);
}
}
