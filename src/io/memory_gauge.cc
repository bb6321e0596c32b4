#include "io/memory_gauge.h"

#include <fmt/format.h>

#include <algorithm>
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

}    // namespace dthrottle
