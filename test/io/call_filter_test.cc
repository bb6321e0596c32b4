// Each case runs in a child, because a filter stays.
#include <fcntl.h>
#include <linux/reboot.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "io/call_filter.h"
#include "test/support/sanitized.h"

namespace dthrottle {
namespace {

constexpr bool kFilters = !testing::kSanitized;

constexpr int kNoFilter = 250;

// What `work` says, below kNoFilter, or minus the signal that ended it.
int InChild(Unlisted unlisted, const std::function<int()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto filtered = FilterCalls(unlisted);
    ::_exit(filtered ? work() : kNoFilter);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// The error that a call ends with; 0 if it is done.
template <class... Args>
int Try(long call, Args... args) {
  return ::syscall(call, args...) < 0 ? errno : 0;
}

TEST_CASE("a call by which an intruder would go further ends the process") {
  if (!kFilters) return;
  const long calls[] = {SYS_ptrace,  SYS_mount,     SYS_umount2,         SYS_kexec_load,       SYS_init_module,
                        SYS_bpf,     SYS_setuid,    SYS_process_vm_readv, SYS_perf_event_open, SYS_unshare,
                        SYS_setns,   SYS_chroot,    SYS_pivot_root,      SYS_keyctl,           SYS_reboot,
                        SYS_swapon,  SYS_userfaultfd};
  for (const long call : calls) {
    INFO("call " << call);
    CHECK(InChild(Unlisted::kRefused, [call] { return Try(call, -1L, 0L, 0L, 0L, 0L); }) == -SIGSYS);
  }
}

TEST_CASE("a call that nobody needs fails as in a kernel that does not know it") {
  if (!kFilters) return;
  CHECK(InChild(Unlisted::kRefused, [] { return Try(SYS_symlinkat, "a", AT_FDCWD, "/nowhere/b"); }) == ENOSYS);
  CHECK(InChild(Unlisted::kRefused, [] { return Try(SYS_io_setup, 1L, 0L); }) == ENOSYS);
}

TEST_CASE("sockets are of Unix and IP, threads get no namespace, and memory is written to or executed") {
  if (!kFilters) return;
  const auto refused = [](const std::function<int()>& work) { return InChild(Unlisted::kRefused, work); };
  CHECK(refused([] { return Try(SYS_socket, AF_INET6, SOCK_STREAM, 0); }) == 0);
  CHECK(refused([] { return Try(SYS_socket, AF_PACKET, SOCK_RAW, 0); }) == ENOSYS);
  CHECK(refused([] { return Try(SYS_socket, AF_NETLINK, SOCK_RAW, 9 /* audit */); }) == ENOSYS);
  CHECK(refused([] { return Try(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0L, 0L, 0L, 0L); }) == ENOSYS);
  const auto map = [](int protection) {
    return ::mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? errno : 0;
  };
  CHECK(refused([&] { return map(PROT_READ | PROT_WRITE); }) == 0);
  CHECK(refused([&] { return map(PROT_READ | PROT_EXEC); }) == 0);
  CHECK(refused([&] { return map(PROT_READ | PROT_WRITE | PROT_EXEC); }) == ENOSYS);
  CHECK(refused([] {
          void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          return ::mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0 ? 0 : errno;
        }) == ENOSYS);
}

TEST_CASE("under the filter threads run, and programs are executed with threads of their own") {
  const int outcome = InChild(Unlisted::kRefused, [] {
    int seen = 0;
    std::thread([&] { seen = 1; }).join();
    std::FILE* const said = ::popen("echo it runs", "r");
    char text[16] = {};
    const bool read = said != nullptr && std::fgets(text, sizeof text, said) != nullptr;
    return seen == 1 && read && std::string(text) == "it runs\n" && ::pclose(said) == 0 ? 0 : 1;
  });
  CHECK(outcome == 0);
}

TEST_CASE("a filter that only logs refuses nothing") {
  CHECK(InChild(Unlisted::kLogged, [] { return Try(SYS_symlinkat, "a", AT_FDCWD, "/nowhere/b"); }) == ENOENT);
  CHECK(InChild(Unlisted::kLogged, [] { return Try(SYS_mount, -1L, 0L, 0L, 0L, 0L); }) != -SIGSYS);
}

TEST_CASE("the same filter is put in force once, and is found in the environment") {
  if (!kFilters) return;
  const auto filters = [] {
    std::FILE* const status = std::fopen("/proc/self/status", "r");
    int count = -1;
    for (char line[256]; std::fgets(line, sizeof line, status) != nullptr;) {
      std::sscanf(line, "Seccomp_filters: %d", &count);
    }
    std::fclose(status);
    return count;
  };
  const int before = filters();
  CHECK(InChild(Unlisted::kRefused, [&] {
          const bool again = FilterCalls(Unlisted::kRefused).has_value();
          return again && CallsMissing().empty() ? filters() - before : 100;
        }) == 1);
  CHECK(InChild(Unlisted::kRefused, [&] {    // inside a filter of somebody else's
          ::unsetenv("DTHROTTLED_CALLS");
          return FilterCalls(Unlisted::kRefused) ? filters() - before : 100;
        }) == 2);
}

TEST_CASE("a program says which calls an inherited filter refuses it") {
  ::setenv("DTHROTTLED_CALLS", "logged read ", 1);
  CHECK(CallsMissing().empty());
  ::setenv("DTHROTTLED_CALLS", "refused access close ", 1);
  const std::string missing = CallsMissing();
  CHECK(missing.find("openat") != missing.npos);
  CHECK(missing.find("access") == missing.find("faccessat") + 1);
  ::unsetenv("DTHROTTLED_CALLS");
  CHECK(CallsMissing().empty());
}

}    // namespace
}    // namespace dthrottle
