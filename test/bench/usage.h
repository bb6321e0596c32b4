// What a benchmark's process uses, and where it runs, for those that measure one host among others on this machine.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

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

}    // namespace dthrottle
