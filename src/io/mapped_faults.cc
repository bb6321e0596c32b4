#include "io/mapped_faults.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::size_t kRegionsMax = 16;
constexpr std::size_t kPathBytesMax = 511;

// Written before `regions_watched` counts it, so that a handler sees whole entries only.
struct Watched {
  std::uintptr_t begin, end;
  char path[kPathBytesMax + 1];
};
Watched regions[kRegionsMax];
std::atomic<std::size_t> regions_watched{0};

// Only what a signal handler may call.
void Say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Returning repeats the store, and SA_RESETHAND lets the process die of it.
void OnBusError(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const std::size_t count = regions_watched.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    if (address < regions[i].begin || address >= regions[i].end) continue;
    Say("dthrottled: ");
    Say(regions[i].path);
    Say(": was truncated, its disk failed, or the file system is full, while it was in use (SIGBUS); ending\n");
    return;
  }
  Say("dthrottled: a mapped file was truncated, its disk failed, or the file system is full (SIGBUS); ending\n");
}

}    // namespace

void WatchMappedFile(std::span<const std::byte> region, std::string_view path) {
  const std::size_t index = regions_watched.load(std::memory_order_relaxed);
  DT_CHECK(index < kRegionsMax);
  Watched& watched = regions[index];
  watched.begin = reinterpret_cast<std::uintptr_t>(region.data());
  watched.end = watched.begin + region.size();
  if (path.empty()) path = "table memory";
  std::memcpy(watched.path, path.data(), std::min(path.size(), kPathBytesMax));
  regions_watched.store(index + 1, std::memory_order_release);
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGBUS, &action, nullptr);
}

}    // namespace dthrottle
