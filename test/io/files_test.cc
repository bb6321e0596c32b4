#include "io/files.h"

#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace dthrottle {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte Pattern(std::size_t i) {
  return static_cast<std::byte>((i * 31 >> 4) & 255);
}

// Kilobytes of the mapping at `address` that are in huge pages, or -1.
long InHugePages(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      here = reinterpret_cast<std::uintptr_t>(address) == from;
    } else if (here && line.starts_with("ShmemPmdMapped:")) {
      return std::atol(line.c_str() + line.find(':') + 1);
    }
  }
  return -1;
}

TEST_CASE("a region keeps what it holds when it is put into huge pages") {
  const bool named = GENERATE(false, true);
  const std::string path = named ? "/dev/shm/dthrottle-files-test-" + std::to_string(::getpid()) : "";
  const std::size_t bytes = 3 * kHugePage + 4096;    // its end does not fill one
  {
    auto region = MappedRegion::Open(path, bytes);
    REQUIRE(region);
    REQUIRE(region->bytes().size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(region->bytes().data()) % kHugePage == 0);
    for (std::size_t i = 0; i < bytes; ++i) region->bytes()[i] = Pattern(i);
    CHECK_FALSE(region->UseHugePages(true));    // told to stop before it began
    if (region->UseHugePages(false)) {
      CHECK(InHugePages(region->bytes().data()) > 0);
    } else {
      WARN("this kernel does not put files in memory into huge pages when asked to");
    }
    std::size_t changed = 0;
    for (std::size_t i = 0; i < bytes; ++i) changed += region->bytes()[i] != Pattern(i);
    CHECK(changed == 0);
  }
  if (!named) return;
  auto again = MappedRegion::Open(path, bytes);
  REQUIRE(again);
  CHECK(again->bytes()[bytes - 1] == Pattern(bytes - 1));
  ::unlink(path.c_str());
}

TEST_CASE("files: the number of a start is greater than any before, also if the clock goes back") {
  char directory[] = "/tmp/dthrottle-incarnation-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string stem = std::string(directory) + "/table", path = stem + ".incarnation";
  constexpr std::uint64_t kBelow = std::uint64_t{1} << 47;
  const std::uint64_t clock = NextIncarnation("", std::chrono::milliseconds(1), kBelow);
  CHECK(clock > 1'000'000'000'000);    // milliseconds since 1970
  const std::uint64_t first = NextIncarnation(stem, std::chrono::milliseconds(1), kBelow);
  CHECK(first >= clock);
  CHECK(NextIncarnation(stem, std::chrono::milliseconds(1), kBelow) > first);
  const auto write = [&](std::uint64_t last) { REQUIRE(ReplaceFile(path, std::to_string(last) + "\n")); };
  write(kBelow - 10);    // the clock was far ahead
  CHECK(NextIncarnation(stem, std::chrono::milliseconds(1), kBelow) == kBelow - 9);
  CHECK(NextIncarnation(stem, std::chrono::milliseconds(1), kBelow) == kBelow - 8);
  write(kBelow);    // nonsense
  CHECK(NextIncarnation(stem, std::chrono::milliseconds(1), kBelow) < kBelow - 10);
  ::unlink(path.c_str());
  ::rmdir(directory);
}

}    // namespace
}    // namespace dthrottle
