#include "io/call_filter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace dthrottle {

namespace {

constexpr const char* kCallsVariable = "DTHROTTLED_CALLS";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// By name, since libseccomp knows the numbers of each architecture, and passes over names that one does not have.
constexpr const char* kAllowed[] = {
    // Files
    "access", "close", "close_range", "creat", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64",
    "fallocate", "fchmod", "fchmodat", "chmod", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate",
    "getcwd", "getdents64", "lseek", "lstat", "memfd_create", "mkdir", "mkdirat", "newfstatat", "open", "openat",
    "pipe", "pipe2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readlink",
    "readlinkat", "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "stat", "statfs", "statx", "umask",
    "unlink", "unlinkat", "write", "writev",
    // Memory
    "brk", "madvise", "mbind", "membarrier", "mincore", "mlock", "mremap", "msync", "munlock", "munmap",
    // Threads and processes
    "arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_waitv", "get_robust_list",
    "getcpu", "getpgrp", "getpid", "getppid", "getpriority", "getsid", "gettid", "kill", "prctl", "prlimit64",
    "getrlimit", "setrlimit", "getrusage", "restart_syscall", "rseq", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_setaffinity",
    "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list", "set_tid_address", "setpriority", "setsid",
    "sysinfo", "tgkill", "times", "uname", "vfork", "wait4", "waitid",
    // Users and groups of this process
    "getegid", "geteuid", "getgid", "getgroups", "getresgid", "getresuid", "getuid",
    // Signals
    "pause", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend",
    "rt_sigtimedwait", "sigaltstack", "signalfd4",
    // Time and chance
    "clock_getres", "clock_gettime", "clock_nanosleep", "getrandom", "gettimeofday", "nanosleep", "time",
    "timerfd_create", "timerfd_gettime", "timerfd_settime",
    // Waiting
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2",
    "inotify_add_watch", "inotify_init1", "inotify_rm_watch", "poll", "ppoll", "pselect6", "select",
    // Network
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
    "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "socketpair"};

constexpr const char* kDeadly[] = {
    "acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "finit_module", "fsconfig",
    "fsmount", "fsopen", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl",
    "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "reboot",
    "request_key", "setdomainname", "setfsgid", "setfsuid", "setgid", "setgroups", "sethostname", "setns", "setregid",
    "setresgid", "setresuid", "setreuid", "settimeofday", "setuid", "swapoff", "swapon", "syslog", "umount2", "unshare",
    "userfaultfd", "vhangup"};

// What terminals and sockets are asked. A terminal is not typed into (TIOCSTI).
constexpr unsigned long kIoctls[] = {FIONBIO, FIONREAD, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ, SIOCOUTQ};

constexpr int kFamilies[] = {AF_UNIX, AF_INET, AF_INET6};

constexpr unsigned long kNewNamespaces =
    CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUSER | CLONE_NEWUTS;

// The first thing that went wrong stays.
class Filter {
 public:
  explicit Filter(Unlisted unlisted)
      : rest_(unlisted == Unlisted::kLogged ? SCMP_ACT_LOG : SCMP_ACT_ERRNO(ENOSYS)),
        deadly_(unlisted == Unlisted::kLogged ? SCMP_ACT_LOG : SCMP_ACT_KILL_PROCESS),
        filter_(seccomp_init(rest_), seccomp_release) {
    if (filter_ == nullptr) {
      error_ = -ENOMEM;
      return;
    }
    Keep(seccomp_attr_set(filter_.get(), SCMP_FLTATR_ACT_BADARCH, deadly_));
    Keep(seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2));    // a tree, not a list
    for (const char* const call : kAllowed) Rule(SCMP_ACT_ALLOW, call);
    for (const char* const call : kDeadly) Rule(deadly_, call);
    BoundArguments();
  }

  int Load() {
    if (error_ == 0) Keep(seccomp_load(filter_.get()));
    return -error_;
  }

 private:
  template <class... Conditions>
  void Rule(std::uint32_t action, const char* name, Conditions... conditions) {
    const int call = seccomp_syscall_resolve_name(name);
    if (call == __NR_SCMP_ERROR || action == rest_ || error_ != 0) return;
    Keep(seccomp_rule_add(filter_.get(), action, call, sizeof...(conditions), conditions...));
  }
  void Keep(int result) {
    if (error_ == 0 && result < 0) error_ = result;
  }

  void BoundArguments() {
    for (const unsigned long request : kIoctls) {
      Rule(SCMP_ACT_ALLOW, "ioctl", SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, request));
    }
    for (const int family : kFamilies) {
      Rule(SCMP_ACT_ALLOW, "socket", SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(family)));
    }
    // The resolver of libc looks at the addresses of the host.
    Rule(SCMP_ACT_ALLOW, "socket", SCMP_A0(SCMP_CMP_EQ, AF_NETLINK), SCMP_A2(SCMP_CMP_EQ, NETLINK_ROUTE));
    // A thread or a child, no namespace. The flags of clone3 are out of reach; libc falls back to clone.
    Rule(SCMP_ACT_ALLOW, "clone", SCMP_A0(SCMP_CMP_MASKED_EQ, kNewNamespaces, 0));
    Rule(SCMP_ACT_ERRNO(ENOSYS), "clone3");
    // Memory is written to or executed. Programs and libraries are mapped as they are to be used.
    Rule(SCMP_ACT_ALLOW, "mmap", SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    Rule(SCMP_ACT_ALLOW, "mmap", SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_WRITE, PROT_EXEC));
    Rule(SCMP_ACT_ALLOW, "mprotect", SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
  }

  std::uint32_t rest_, deadly_;
  std::unique_ptr<void, void (*)(scmp_filter_ctx)> filter_;
  int error_ = 0;    // negative errno
};

// How the environment speaks of a filter: what becomes of the rest, then the names.
std::string Described(Unlisted unlisted) {
  std::string text = unlisted == Unlisted::kLogged ? "logged " : "refused ";
  for (const char* const call : kAllowed) text += fmt::format("{} ", call);
  return text;
}

}    // namespace

Result<void> FilterCalls(Unlisted unlisted) {
  if (kSanitized) return {};
  const std::string wanted = Described(unlisted);
  const char* const inherited = std::getenv(kCallsVariable);
  if (inherited != nullptr && inherited == wanted) return {};
  if (const int code = Filter(unlisted).Load(); code != 0) return Fail(std::strerror(code));
  ::setenv(kCallsVariable, wanted.c_str(), 1);
  return {};
}

std::string CallsMissing() {
  const char* const inherited = std::getenv(kCallsVariable);
  if (inherited == nullptr || !std::string_view(inherited).starts_with("refused ")) return "";
  std::string missing;
  for (const char* const call : kAllowed) {
    if (std::string_view(inherited).find(fmt::format(" {} ", call)) != std::string_view::npos) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : " ", call);
  }
  return missing;
}

}    // namespace dthrottle
