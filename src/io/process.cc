#include "io/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "base/host_name.h"

namespace dthrottle {

namespace {

Duration FromTimeval(const timeval& t) {
  return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
}

}    // namespace

ProcessUse ReadProcessUse() {
  ProcessUse use;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) use.cpu = FromTimeval(usage.ru_utime) + FromTimeval(usage.ru_stime);
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return use;
  char text[128] = {};
  unsigned long long resident_pages = 0;
  if (::read(fd, text, sizeof text - 1) > 0 && std::sscanf(text, "%*u %llu", &resident_pages) == 1) {
    use.resident_bytes = resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  ::close(fd);
  return use;
}

std::string NameOfMachine() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "host";
  std::string fit;
  for (const char c : std::string_view(name)) {
    if (IsHostName({&c, 1}) && fit.size() < kHostNameBytesMax) fit += c;
  }
  return fit.empty() ? "host" : fit;
}

}    // namespace dthrottle
