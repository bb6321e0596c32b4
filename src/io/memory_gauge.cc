#include "io/memory_gauge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "io/files.h"

namespace dthrottle {

namespace {

constexpr std::size_t kGaugeBytesMax = 64 * 1024;
constexpr std::string_view kCgroupRoot = "/sys/fs/cgroup";
constexpr const char* kMemInfo = "/proc/meminfo";

Result<std::string> ReadGauge(const std::string& path) {
  auto text = ReadFile(path, kGaugeBytesMax);
  if (!text) return Fail(text.error().message);
  return std::move(*text);
}

// The number behind `label` at the beginning of a line, or at the beginning of the text for an empty label.
std::optional<double> NumberBehind(std::string_view text, std::string_view label) {
  for (std::size_t start = 0; start < text.size();) {
    std::string_view line = text.substr(start, text.find('\n', start) - start);
    start += line.size() + 1;
    if (!line.starts_with(label)) continue;
    line.remove_prefix(std::min(line.find_first_not_of(' ', label.size()), line.size()));
    double number = 0;
    const auto read = std::from_chars(line.data(), line.data() + line.size(), number, std::chars_format::fixed);
    if (read.ec == std::errc() && std::isfinite(number)) return number;
  }
  return std::nullopt;
}

Result<double> ReadNumber(const std::string& path, std::string_view label) {
  const auto text = ReadGauge(path);
  if (!text) return tl::unexpected(text.error());
  const auto number = NumberBehind(*text, label);
  if (!number) return Fail(fmt::format("{}: there is no number{}{}", path, label.empty() ? "" : " behind ", label));
  return *number;
}

Result<GaugeReading> ReadHost() {
  const auto text = ReadGauge(kMemInfo);
  if (!text) return tl::unexpected(text.error());
  const auto total = NumberBehind(*text, "MemTotal:"), available = NumberBehind(*text, "MemAvailable:");
  if (!total || !available || *total <= 0) return Fail(fmt::format("{}: says no MemAvailable", kMemInfo));
  return GaugeReading{1024 * (*total - *available), 1024 * *total};
}

// memory.current counts file pages that nobody has used lately, so a group that reads files is always at its maximum:
// they are left out, because the kernel drops them first.
// Groups of version 1 have the same files under other names. There memory.stat counts the group alone in inactive_file,
// and its children too in total_inactive_file, as the usage does.
Result<GaugeReading> ReadCgroup(const std::string& directory) {
  const auto number = [&](std::string_view name, std::string_view name_v1) {
    const auto read = ReadNumber(fmt::format("{}/{}", directory, name), "");
    if (read) return read;
    const auto read_v1 = ReadNumber(fmt::format("{}/{}", directory, name_v1), "");
    return read_v1 ? read_v1 : read;
  };
  const auto current = number("memory.current", "memory.usage_in_bytes");
  if (!current) return tl::unexpected(current.error());
  GaugeReading reading{*current};
  if (const auto stat = ReadGauge(directory + "/memory.stat")) {
    const auto of_all = NumberBehind(*stat, "total_inactive_file ");
    const double unused = (of_all ? of_all : NumberBehind(*stat, "inactive_file ")).value_or(0);
    reading.value = std::max(0.0, *current - unused);
  }
  const auto limit = number("memory.max", "memory.limit_in_bytes");    // "max", or no file at the root: none
  const auto host = ReadHost();
  reading.limited = limit.has_value() && !(host && *limit > host->maximum);
  if (!reading.limited && !host) return tl::unexpected(host.error());
  reading.maximum = reading.limited ? *limit : host->maximum;
  if (reading.maximum <= 0) return Fail(directory + "/memory.max: is 0");
  return reading;
}

// What a version calls the limit of a group, its usage, and what of that the kernel can drop, each a line of memory.stat.
struct GroupFiles {
  std::string_view limit, usage;
  std::array<std::string_view, 3> droppable;
};
constexpr GroupFiles kFilesV1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file "}};
constexpr GroupFiles kFilesV2 = {
    "memory.max", "memory.current", {"inactive_file ", "active_file ", "slab_reclaimable "}};

std::optional<double> LeftIn(const std::string& directory, const GroupFiles& files) {
  const auto limit = ReadNumber(fmt::format("{}/{}", directory, files.limit), "");
  const auto usage = ReadNumber(fmt::format("{}/{}", directory, files.usage), "");
  if (!limit || !usage) return std::nullopt;
  const std::string stat = ReadGauge(directory + "/memory.stat").value_or("");
  double kept = *usage;
  for (const std::string_view label : files.droppable) {
    if (!label.empty()) kept -= NumberBehind(stat, label).value_or(0);
  }
  return std::max(0.0, *limit - std::max(0.0, kept));
}

// The least that is left in `group` below `root` and in what is above it. In a container a group may have another path
// than where it is mounted: then what is there is the container's own, at the root.
std::optional<double> LeftAbove(const std::string& root, std::string_view group, const GroupFiles& files) {
  std::optional<double> least;
  for (bool is_root = false; !is_root;) {
    while (group.ends_with('/')) group.remove_suffix(1);
    is_root = group.empty();
    const auto left = LeftIn(fmt::format("{}{}", root, group), files);
    if (left) least = std::min(*left, least.value_or(*left));
    if (!is_root) group = group.substr(0, group.rfind('/') + 1);
  }
  return least;
}

// A line of /proc/PID/cgroup is a number, controllers with commas between, and a path; version 2 has no controllers there.
std::optional<double> LeftBy(std::string_view line, const std::string& mounted) {
  const std::size_t controllers = line.find(':') + 1, path = line.find(':', controllers) + 1;
  if (controllers == 0 || path == 0) return std::nullopt;
  const std::string_view group = line.substr(path);
  if (path == controllers + 1) {
    const auto left = LeftAbove(mounted, group, kFilesV2);
    return left ? left : LeftAbove(mounted + "/unified", group, kFilesV2);
  }
  const std::string names = fmt::format(",{},", line.substr(controllers, path - 1 - controllers));
  return names.find(",memory,") == names.npos ? std::nullopt : LeftAbove(mounted + "/memory", group, kFilesV1);
}

}    // namespace

Result<std::string> GaugeSource(ShedSignal signal, const std::string& cgroup) {
  if (signal == ShedSignal::kHost) return kMemInfo;
  const std::string file = signal == ShedSignal::kPressure ? "/memory.pressure" : "";
  if (cgroup.starts_with('/')) return cgroup + file;
  if (!cgroup.empty()) return fmt::format("{}/{}{}", kCgroupRoot, cgroup, file);
  if (signal == ShedSignal::kPressure) return "/proc/pressure/memory";
  const auto groups = ReadGauge("/proc/self/cgroup");
  if (!groups) return tl::unexpected(groups.error());
  constexpr std::string_view kVersion2 = "0::";
  for (std::size_t start = 0; start < groups->size();) {
    const std::string_view line = std::string_view(*groups).substr(start, groups->find('\n', start) - start);
    start += line.size() + 1;
    if (!line.starts_with(kVersion2)) continue;
    const std::string_view group = line.substr(kVersion2.size());
    return fmt::format("{}{}", kCgroupRoot, group == "/" ? "" : group);
  }
  return Fail("/proc/self/cgroup: names no control group of version 2");
}

Result<GaugeReading> ReadGauge(ShedSignal signal, const std::string& source) {
  if (signal == ShedSignal::kHost) return ReadHost();
  if (signal == ShedSignal::kCgroup) return ReadCgroup(source);
  const auto percent = ReadNumber(source, "some avg10=");
  if (!percent) return tl::unexpected(percent.error());
  return GaugeReading{*percent, 100};
}

std::optional<std::uint64_t> MemoryLeft(std::string_view groups, const std::string& mounted) {
  std::optional<double> least;
  for (std::size_t start = 0; start < groups.size();) {
    const std::string_view line = groups.substr(start, groups.find('\n', start) - start);
    start += line.size() + 1;
    if (const auto left = LeftBy(line, mounted)) least = std::min(*left, least.value_or(*left));
  }
  if (!least) return std::nullopt;
  const double swap = 1024 * NumberBehind(ReadGauge(kMemInfo).value_or(""), "SwapFree:").value_or(0);
  constexpr double kMost = 1e18;    // a number that version 1 has for no limit is larger
  return *least + swap < kMost ? std::optional(static_cast<std::uint64_t>(*least + swap)) : std::nullopt;
}

std::optional<std::uint64_t> MemoryLeft() {
  return MemoryLeft(ReadGauge("/proc/self/cgroup").value_or(""), std::string(kCgroupRoot));
}

}    // namespace dthrottle
