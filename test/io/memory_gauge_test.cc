#include "io/memory_gauge.h"

#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <string>

namespace dthrottle {
namespace {

// Directories that look like mounted control groups.
class Mounted {
 public:
  Mounted() : path_("/dev/shm/dthrottle-groups-test-" + std::to_string(::getpid())) {}
  ~Mounted() { std::filesystem::remove_all(path_); }

  void Version2(const std::string& group, const std::string& max, long long current, const std::string& stat = "") {
    Write(group + "/memory.max", max);
    Write(group + "/memory.current", std::to_string(current));
    Write(group + "/memory.stat", stat);
  }
  void Version1(const std::string& group, const std::string& limit, long long usage, const std::string& stat = "") {
    Write("/memory" + group + "/memory.limit_in_bytes", limit);
    Write("/memory" + group + "/memory.usage_in_bytes", std::to_string(usage));
    Write("/memory" + group + "/memory.stat", stat);
  }
  std::optional<std::uint64_t> Left(const char* groups) const { return MemoryLeft(groups, path_); }

 private:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }

  const std::string path_;
};

std::uint64_t FreeSwap() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("SwapFree:")) return 1024 * std::stoull(line.substr(9));
  }
  return 0;
}

TEST_CASE("a group leaves its limit less what it uses and the kernel cannot drop") {
  Mounted groups;
  CHECK_FALSE(groups.Left("0::/a\n"));
  groups.Version2("/a", "max", 7);
  CHECK_FALSE(groups.Left("0::/a\n"));
  groups.Version2("/a", "1000", 700, "anon 300\nfile 400\ninactive_file 150\nactive_file 100\nslab_reclaimable 50");
  CHECK(groups.Left("0::/a\n") == 600 + FreeSwap());
  groups.Version2("/a", "1000", 1200);
  CHECK(groups.Left("0::/a\n") == FreeSwap());
  CHECK_FALSE(groups.Left(""));
  CHECK_FALSE(groups.Left("nonsense\n:\n0:/a\n"));
}

TEST_CASE("the least of a group and those above it is left") {
  Mounted groups;
  groups.Version2("/a/b", "1000", 100);
  groups.Version2("/a", "900", 100);
  CHECK(groups.Left("0::/a/b\n") == 800 + FreeSwap());
  CHECK(groups.Left("0::/a/b/c\n") == 800 + FreeSwap());
  groups.Version2("/a/b", "500", 100);
  CHECK(groups.Left("0::/a/b\n") == 400 + FreeSwap());
}

TEST_CASE("a group of version 1 is that of its memory controller, with its children") {
  Mounted groups;
  const char* lines = "9:name=systemd:/b\n4:cpu,memory:/a\n3:cpuset:/b\n0::/\n";
  groups.Version1("", "9223372036854771712", 5000);
  CHECK_FALSE(groups.Left(lines));
  groups.Version1("/a", "1000", 700, "inactive_file 1\ntotal_inactive_file 150\ntotal_active_file 100");
  groups.Version1("/b", "10", 0);
  CHECK(groups.Left(lines) == 550 + FreeSwap());
}

TEST_CASE("in a container the group is where groups are mounted, whatever its path") {
  Mounted groups;
  groups.Version1("", "1000", 100);
  CHECK(groups.Left("4:memory:/docker/0123\n") == 900 + FreeSwap());
  groups.Version2("", "800", 100);
  CHECK(groups.Left("0::/../../x\n") == 700 + FreeSwap());
}

}    // namespace
}    // namespace dthrottle
