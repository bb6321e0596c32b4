// For benchmarks that measure one host among others on this machine: where their processes run, how a loop waits, and
// what a process uses.
#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/time.h"
#include "io/clock.h"

namespace dthrottle {

// Keeps this process to the last of its cores, or away from it, where there are several.
inline void KeepTo(bool last_core) {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2) return;
  int last = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) last = core;
  }
  if (last_core) CPU_ZERO(&cores);
  last_core ? CPU_SET(last, &cores) : CPU_CLR(last, &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

// What this process has used, by thread.
struct Usage {
  double total = 0;    // seconds, user and system
  std::map<std::string, double> by_thread;
  long resident_kb = 0;

  static Usage Read() {
    Usage usage;
    rusage r;
    ::getrusage(RUSAGE_SELF, &r);
    for (const timeval& t : {r.ru_utime, r.ru_stime}) {
      usage.total += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      double ns = 0;
      std::ifstream(entry.path() / "comm") >> name;
      std::ifstream(entry.path() / "schedstat") >> ns;
      const bool zmq = name.starts_with("ZMQ");
      const bool main = entry.path().filename() == std::to_string(::getpid());
      usage.by_thread[main ? "limiter's loop" : zmq ? "ZeroMQ's threads" : "peer thread"] += ns * 1e-9;
    }
    long size = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> size >> pages;
    usage.resident_kb = pages * (::sysconf(_SC_PAGESIZE) / 1024);
    return usage;
  }
};

// What wakes a loop that has nothing to do.
class Wake {
 public:
  Wake() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Wake() { ::close(fd_); }
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  // Any thread.
  std::function<void()> call() const {
    return [fd = fd_] { ::eventfd_write(fd, 1); };
  }
  // A second at most.
  void Sleep(Instant until) {
    const Duration wait = std::clamp<Duration>(until - Now(), Duration::zero(), std::chrono::seconds(1));
    pollfd woken{fd_, POLLIN, 0};
    ::poll(&woken, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
    eventfd_t value;
    ::eventfd_read(fd_, &value);
  }

 private:
  const int fd_;
};

// What this process used while it ran for so many seconds.
struct Spent {
  Usage before, after;
  double seconds = 0;
  std::vector<double> percent;    // of a core, each second

  template <class RunUntil>
  static Spent While(int seconds, RunUntil&& run_until) {
    Spent spent;
    const Instant begun = Now();
    spent.before = spent.after = Usage::Read();
    for (int i = 0; i < seconds; ++i) {
      const Instant from = Now();
      run_until(begun + std::chrono::seconds(i + 1));
      const Usage usage = Usage::Read();
      spent.percent.push_back(100 * (usage.total - spent.after.total) / Seconds(Now() - from));
      spent.after = usage;
    }
    spent.seconds = Seconds(Now() - begun);
    return spent;
  }

  double least() const { return *std::ranges::min_element(percent); }
  double most() const { return *std::ranges::max_element(percent); }
  void PrintThreads() const {
    for (const auto& [name, used] : after.by_thread) {
      const auto earlier = before.by_thread.find(name);
      const double spent = used - (earlier == before.by_thread.end() ? 0 : earlier->second);
      std::printf("  %-17s %.2f %%\n", name.c_str(), 100 * spent / seconds);
    }
  }
};

}    // namespace dthrottle
