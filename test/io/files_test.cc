#include "io/files.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "io/idle_time.h"
#include "io/keys.h"
#include "io/mapped_faults.h"

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
    auto region = MappedRegion::Open(path, bytes, [](std::string_view) { return true; });
    REQUIRE(region);
    REQUIRE(region->bytes().size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(region->bytes().data()) % kHugePage == 0);
    for (std::size_t i = 0; i < bytes; ++i) region->bytes()[i] = Pattern(i);
    CHECK_FALSE(region->UseHugePages([](Duration) { return false; }));    // told to stop before it began
    if (region->UseHugePages([](Duration) { return true; })) {
      CHECK(InHugePages(region->bytes().data()) > 0);
    } else {
      WARN("this kernel does not put files in memory into huge pages when asked to");
    }
    std::size_t changed = 0;
    for (std::size_t i = 0; i < bytes; ++i) changed += region->bytes()[i] != Pattern(i);
    CHECK(changed == 0);
  }
  if (!named) return;
  auto again = MappedRegion::Open(path, bytes, [](std::string_view) { return true; });
  REQUIRE(again);
  CHECK(again->bytes()[bytes - 1] == Pattern(bytes - 1));
  ::unlink(path.c_str());
}

TEST_CASE("a large region claims a part of its space at once, and the rest in steps that can be ended") {
  constexpr std::size_t kBytes = std::size_t{70} << 20, kAtOnce = std::size_t{64} << 20;
  const std::string path = "/dev/shm/dthrottle-claim-test-" + std::to_string(::getpid());
  const auto claimed = [&] {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  auto region = MappedRegion::Open(path, kBytes, [](std::string_view) { return true; });
  REQUIRE(region);
  CHECK(claimed() == kAtOnce);
  int steps = 0;
  CHECK(region->ClaimRest([&](Duration) { return ++steps <= 3; }));
  CHECK(claimed() > kAtOnce);
  CHECK(claimed() < kBytes);
  CHECK(region->ClaimRest([](Duration) { return true; }));
  CHECK(claimed() == kBytes);
  { const MappedRegion closed = *std::move(region); }
  const auto again = MappedRegion::Open(path, kBytes, [](std::string_view) { return true; });
  REQUIRE(again);
  CHECK(again->ClaimRest([](Duration) -> bool { throw "a step"; }));
  ::unlink(path.c_str());
}

TEST_CASE("a file of another size keeps its beginning, or what its owner moves there, and says how long it was") {
  constexpr std::size_t kSmall = 8192, kLarge = 3 * kSmall;
  const std::string path = "/dev/shm/dthrottle-resize-test-" + std::to_string(::getpid());
  const IsOurs any = [](std::string_view) { return true; };
  const auto open = [&](std::size_t bytes, const Fit& fit = {}) {
    auto region = MappedRegion::Open(path, bytes, any, fit);
    REQUIRE(region);
    return *std::move(region);
  };
  {
    const auto fresh = open(kSmall);
    CHECK(fresh.bytes_before() == 0);
    fresh.bytes()[kSmall - 1] = std::byte{1};
  }
  {
    const auto longer = open(kLarge);
    CHECK(longer.bytes_before() == kSmall);
    CHECK(longer.bytes()[kSmall - 1] == std::byte{1});
    CHECK(longer.bytes()[kSmall] == std::byte{0});
    longer.bytes()[kLarge - 1] = std::byte{2};
  }
  {
    const auto shorter = open(kSmall, [](std::span<std::byte> held, std::size_t bytes) {
      held[0] = held[kLarge - 1];
      return bytes;
    });
    CHECK(shorter.bytes().size() == kSmall);
    CHECK(shorter.bytes()[0] == std::byte{2});
  }
  CHECK(open(4096, [](std::span<std::byte> held, std::size_t) { return held.size(); }).bytes().size() == kSmall);
  ::unlink(path.c_str());
}

TEST_CASE("a file that there is no room to make longer stays as it was") {
  const std::string path = "/dev/shm/dthrottle-room-test-" + std::to_string(::getpid());
  const IsOurs any = [](std::string_view) { return true; };
  {
    const auto region = MappedRegion::Open(path, 4096, any);
    REQUIRE(region);
    region->bytes()[4095] = std::byte{1};
  }
  const auto refused = MappedRegion::Open(path, std::size_t{1} << 50, any);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("cannot claim its space") != std::string::npos);
  CHECK(std::filesystem::file_size(path) == 4096);
  const auto region = MappedRegion::Open(path, 4096, any);
  REQUIRE(region);
  CHECK(region->bytes()[4095] == std::byte{1});
  ::unlink(path.c_str());
}

TEST_CASE("whoever waits for idle time is told to stop at once") {
  IdleTime idle;
  CHECK(idle.Await(std::chrono::milliseconds(1)));
  CHECK(idle.Await(std::chrono::milliseconds(1)));
  bool goes_on = true;
  std::thread waiting([&] { goes_on = idle.Await(std::chrono::hours(1)); });
  idle.Stop();
  waiting.join();
  CHECK_FALSE(goes_on);
  CHECK_FALSE(idle.Await(std::chrono::hours(1)));
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

// A directory of its own, emptied in the end.
struct Directory {
  Directory() { REQUIRE(::mkdtemp(name) != nullptr); }
  ~Directory() { std::filesystem::remove_all(name); }
  std::string path(const char* file) const { return std::string(name) + "/" + file; }
  char name[64] = "/tmp/dthrottle-files-XXXXXX";
};

bool BeginsWithX(std::string_view head) {
  return head.starts_with('x');
}

void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path) << text;
}

std::string TextOf(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("files: what is not this program's state is refused at once and stays whole") {
  const Directory directory;
  const std::string path = directory.path("state");
  const auto refusal = [&] {
    const auto checked = CheckStateFile(path, BeginsWithX);
    const auto replaced = ReplaceFile(path, "xnew");
    const auto region = MappedRegion::Open(path, 4096, BeginsWithX);
    CHECK_FALSE(region);
    CHECK_FALSE(replaced);
    return checked ? "" : checked.error().message.substr(path.size() + 2);
  };
  SECTION("a pipe") {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(refusal() == "is a pipe; left as it is");
    CHECK_FALSE(ReadRegularFile(path, 10));
    CHECK(std::filesystem::is_fifo(path));
  }
  SECTION("a directory") {
    REQUIRE(::mkdir(path.c_str(), 0700) == 0);
    CHECK(refusal() == "is a directory; left as it is");
    CHECK_FALSE(ReadRegularFile(path, 10));
  }
  SECTION("a symbolic link") {
    WriteText(directory.path("other"), "xother");
    REQUIRE(::symlink(directory.path("other").c_str(), path.c_str()) == 0);
    CHECK_THAT(refusal(), Catch::StartsWith("cannot open: "));
    CHECK(TextOf(directory.path("other")) == "xother");
  }
  SECTION("a hard link") {
    WriteText(directory.path("other"), "xother");
    REQUIRE(::link(directory.path("other").c_str(), path.c_str()) == 0);
    CHECK(refusal() == "has another name as well (a hard link); left as it is");
    CHECK(TextOf(directory.path("other")) == "xother");
  }
  SECTION("another's text, which a region would clear") {
    WriteText(path, "diary");
    CHECK_FALSE(CheckStateFile(path, BeginsWithX));
    CHECK_FALSE(MappedRegion::Open(path, 4096, BeginsWithX));
    CHECK(TextOf(path) == "diary");
  }
  SECTION("another user's file") {
    if (::geteuid() != 0) {
      WARN("NOT TESTED: only root can make another user's file");
      return;
    }
    WriteText(path, "xother");
    REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
    CHECK(refusal() == "belongs to another user; left as it is");
    CHECK(TextOf(path) == "xother");
  }
}

TEST_CASE("files: state is replaced whole, also behind what a killed process left") {
  const Directory directory;
  const std::string path = directory.path("state");
  WriteText(directory.path("other"), "other");
  REQUIRE(::link(directory.path("other").c_str(), (path + ".new").c_str()) == 0);
  REQUIRE(ReplaceFile(path, "first"));
  REQUIRE(ReplaceFile(path, "second"));
  CHECK(TextOf(path) == "second");
  CHECK(TextOf(directory.path("other")) == "other");
}

TEST_CASE("files: one that cannot be written whole says why, and nothing of it stays") {
  const Directory directory;
  const std::string path = directory.path("state"), text(1000, 'x');
  REQUIRE(ReplaceFile(path, "before"));
  rlimit most{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &most) == 0);
  const auto limited = [&](const auto& write) {
    const auto signal = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit few{300, most.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &few) == 0);
    const auto written = write();
    ::setrlimit(RLIMIT_FSIZE, &most);
    std::signal(SIGXFSZ, signal);
    REQUIRE_FALSE(written);
    return written.error().message;
  };
  CHECK(limited([&] { return ReplaceFile(path, text); }).ends_with(": cannot write: File too large"));
  CHECK(limited([&] { return WriteNewFile(directory.path("key"), 0600, text); }).ends_with(
      ": cannot write: File too large"));
  CHECK(TextOf(path) == "before");
  CHECK(std::distance(std::filesystem::directory_iterator(directory.name), std::filesystem::directory_iterator()) == 1);
}

// The files are watched in a process of their own, which dies of the last one.
TEST_CASE("files: of all mapped files the one that was cut short is named") {
  const Directory directory;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const std::string last = directory.path("file-7");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    std::vector<MappedRegion> regions;
    for (int i = 0; i < 8; ++i) {
      const std::string path = directory.path("file-") + std::to_string(i);
      regions.push_back(*MappedRegion::Open(path, kHeadBytes, [](std::string_view) { return true; }));
      WatchMappedFile(regions.back().bytes(), path);
    }
    if (::truncate(last.c_str(), 0) == 0) regions.back().bytes()[0] = std::byte{1};
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  char said[1000];
  const ssize_t bytes = ::read(ends[0], said, sizeof said);
  ::close(ends[0]), ::close(ends[1]);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS));
  CHECK(std::string(said, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))) ==
        "dthrottled: " + last + ": was truncated, its disk failed, or the file system is full, while it was in use (SIGBUS); ending\n");
}

TEST_CASE("files: a number of a start is one number and nothing else") {
  for (const char* good : {"", "0\n", "18446744073709551615\n", "7"}) CHECK(IsIncarnation(good));
  for (const char* bad : {"x", "7 8", "-1\n", "7\n\n", "123456789012345678901"}) CHECK_FALSE(IsIncarnation(bad));
  const Directory directory;
  const std::string stem = directory.path("table");
  CHECK(CheckIncarnation(stem));
  WriteText(stem + ".incarnation", "diary\n");
  CHECK_FALSE(CheckIncarnation(stem));
  NextIncarnation(stem, std::chrono::milliseconds(1), std::uint64_t{1} << 62);
  CHECK(TextOf(stem + ".incarnation") == "diary\n");
}

}    // namespace
}    // namespace dthrottle
