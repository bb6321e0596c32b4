#include "daemon/kept_state.h"

#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/state.h"
#include "io/clock.h"

namespace dthrottle {
namespace {

constexpr std::string_view kMagic = "dthrottle state\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kBytesMax = std::size_t{1} << 30;
constexpr Duration kBelieved = std::chrono::hours(1);

struct KeptState {
  std::string boot;
  Instant written{};
  std::vector<std::pair<std::string, std::string>> sections;    // key, bytes

  static void Fields(auto& state, auto& self) { state(self.boot, self.written, self.sections); }
};

std::string Boot() {
  const auto id = ReadBootId();
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

bool IsKeptState(std::string_view text) {
  return text.starts_with(kMagic);
}

std::string Checksum(std::string_view bytes) {
  const XXH64_hash_t sum = XXH3_64bits(bytes.data(), bytes.size());
  return {reinterpret_cast<const char*>(&sum), sizeof sum};
}

}    // namespace

std::string Sealed(std::string_view magic, std::string_view body) {
  return std::string(magic).append(Checksum(body)).append(body);
}

std::optional<std::string_view> Unsealed(std::string_view magic, std::string_view text) {
  if (!text.starts_with(magic)) return std::nullopt;
  text.remove_prefix(magic.size());
  if (text.size() < sizeof(XXH64_hash_t)) return std::nullopt;
  const std::string_view sum = text.substr(0, sizeof(XXH64_hash_t)), body = text.substr(sum.size());
  return Checksum(body) == sum ? std::optional(body) : std::nullopt;
}

std::string KeptStatePath(const std::string& table) {
  return table + ".state";
}

FileResult<void> WriteKeptState(const std::string& path, const KeptSections& kept) {
  KeptState state{Boot(), kept.written, {}};
  for (const HandedSection& section : kept.sections) state.sections.emplace_back(section.key, section.bytes);
  return ReplaceFile(path, Sealed(kMagic, WriteState(kVersion, state)));
}

FileResult<KeptSections> TakeKeptState(const std::string& path, std::string& complaint) {
  KeptSections kept;
  if (const auto ours = CheckStateFile(path, IsKeptState); !ours) return tl::unexpected(ours.error());
  if (::access(path.c_str(), F_OK) != 0) return kept;
  const auto text = ReadRegularFile(path, kBytesMax);
  if (::unlink(path.c_str()) != 0) {
    complaint = path + ": cannot remove it, so it is not used: " + std::strerror(errno);
    return kept;
  }
  if (!text) {
    complaint = text.error().message;
    return kept;
  }
  KeptState state;
  const auto body = Unsealed(kMagic, *text);
  if (!body || !ReadState(*body, kVersion, state)) {
    complaint = path + ": is damaged, or of another version: not used";
    return kept;
  }
  const Duration age = Now() - state.written;
  if (state.boot != Boot() || age < Duration() || age > kBelieved) return kept;
  kept.written = state.written;
  for (auto& [key, section] : state.sections) kept.sections.push_back({key, -1, std::move(section)});
  return kept;
}

}    // namespace dthrottle
