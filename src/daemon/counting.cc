#include "daemon/counting.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "config/calendar.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/fresh.h"
#include "io/mapped_faults.h"
#include "rule/rulebook.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// A clock that is set, or steered, is followed within this time; when a period ends, the limiter knows in advance.
constexpr Duration kFollowEvery = std::chrono::seconds(1);
// More of counts is not kept beside the table at an orderly end.
constexpr std::size_t kKeptBytesMax = std::size_t{1} << 28;

// Both clocks are read as one: what lies between only makes a period end late.
QuotaPeriods PeriodsNow(const QuotaCalendar& calendar) {
  const Duration date = WallClock();
  const Instant now = Now();
  QuotaPeriods periods = PeriodsAt(calendar, std::chrono::floor<std::chrono::seconds>(date).count());
  periods.ends = now + (std::chrono::seconds(static_cast<std::int64_t>(periods.next)) - date);
  return periods;
}

std::string Packed(std::span<const std::byte> region) {
  std::string packed = QuotaFile::Pack(region);
  return packed.size() <= kKeptBytesMax ? std::move(packed) : std::string();
}

std::size_t AsItIs(std::span<std::byte> held, std::size_t) {
  return held.size();
}

// What was counted without a file, or if nothing of that is left, in `file`.
FileResult<std::string> CountsLeft(HandedSection left, const std::string& file) {
  if (!left.bytes.empty()) return std::move(left.bytes);
  if (left.fd < 0 && ::access(file.c_str(), F_OK) != 0) {    // Open would make it
    return tl::unexpected(FileError{errno, fmt::format("{}: {}", file, std::strerror(errno))});
  }
  const auto region = left.fd >= 0 ? MappedRegion::Adopt(left.fd, 0, AsItIs)
                                   : MappedRegion::Open(file, 0, QuotaFile::IsQuotaFile, AsItIs);
  if (!region) return tl::unexpected(region.error());
  return QuotaFile::Pack(region->bytes());
}

}    // namespace

std::optional<Problem> WhyNoQuotaFile(const LoadedSettings& loaded, RoomLeft* left) {
  const Settings& s = loaded.settings;
  const bool as_daemon = left != nullptr;
  if (s.quota.file.empty() || (!as_daemon && !Rulebook(s.rules, s.overrides).any_quota())) return std::nullopt;
  RoomLeft any;
  const auto usable = as_daemon ? MappedRegion::Check(s.quota.file, s.quota.memory, QuotaFile::IsQuotaFile, *left)
                                : MappedRegion::Check(s.quota.file, 0, QuotaFile::IsQuotaFile, any);
  if (usable) return std::nullopt;
  const int code = usable.error().code;
  if (!as_daemon && (code == EACCES || code == EPERM)) return std::nullopt;
  Problem problem = loaded.ErrorAt("quota", "file", usable.error().message);
  if (!as_daemon && code == ENOENT) problem.severity = Problem::Severity::kWarning;
  return problem;
}

Counting::Counting(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, Handover& handed)
    : settings_(settings), limiter_(limiter), log_(log), timer_(loop, [this] { limiter_.ways().FollowCalendar(); }) {
  Before before{handed.Take(kSection), handed.Take(kFileSection).bytes};
  if (limiter_.rules().any_quota()) {
    auto opened = Open(settings, std::move(before));
    if (!opened) throw StartFailure{ExitCode(opened.error().code), opened.error().message};
    Begin(*std::move(opened));
  } else if (before.left.fd >= 0) {
    ::close(before.left.fd);
  }
  timer_.StartEvery(kFollowEvery);
}

FileResult<Counting::Opened> Counting::Open(const Settings& settings, Before before) const {
  std::size_t left_out = 0;
  const Fit fit = [&](std::span<std::byte> held, std::size_t bytes) {
    left_out = QuotaFile::MoveInto(held, bytes);
    return bytes;
  };
  const auto& [file, memory] = settings.quota;
  const int adopted = file.empty() ? std::exchange(before.left.fd, -1) : -1;
  auto region = MappedRegion::OpenOrAdopt(file, memory, QuotaFile::IsQuotaFile, adopted, fit);
  const auto claimed =
      region ? region->ClaimRest([this](Duration) { return !closed_; }) : tl::unexpected(region.error());
  if (closed_) return tl::unexpected(FileError{ECANCELED, "quota.file: the daemon is stopping"});
  if (!claimed) return tl::unexpected(FileError{claimed.error().code, "quota.file: " + claimed.error().message});
  Opened opened{*std::move(region), nullptr, left_out};
  GoOn(std::move(before), opened);
  const std::span<std::byte> bytes = opened.region.bytes();
  const auto hash = [this](const Tag& tag) { return limiter_.table().Hash(tag); };
  opened.quotas = std::make_unique<Quotas>(bytes, ReadBootId(), FreshNumber(), hash, PeriodsNow, Now());
  // It stays in the file. Pages that were only looked at would have to be unmapped in the pause of an upgrade.
  ::madvise(bytes.data(), bytes.size(), MADV_DONTNEED);
  return opened;
}

// Takes what was counted elsewhere into a region that is new.
void Counting::GoOn(Before before, Opened& opened) const {
  const bool in_memory = before.left.fd >= 0 || !before.left.bytes.empty();
  const std::string& file = settings_.quota.file;
  if (!in_memory && (before.file.empty() || before.file == file)) return;
  const std::string there = in_memory ? "memory" : before.file;
  auto counts = CountsLeft(std::move(before.left), before.file);
  const bool is_new = QuotaFile::IsNew(opened.region.bytes());
  if (is_new && counts) {
    opened.left_out = QuotaFile::Unpack(*std::move(counts), opened.region.bytes());
    if (!in_memory || !file.empty()) opened.went_on_from = there;
  } else if (counts) {
    log_.Warning("quotas: {} has counts of its own; what was counted in {} is not added", file, there);
  } else if (is_new) {
    log_.Warning("quotas: what was counted in {} begins anew: {}", there, counts.error().message);
  }
}

void Counting::Begin(Opened opened) {
  region_.emplace(std::move(opened.region));
  WatchMappedFile(region_->bytes(), settings_.quota.file);
  limiter_.ways().KeepQuotas(std::move(opened.quotas));
  SayKept(opened);
}

// Tags that the region had room for may have none in the table of tags, which is half of it.
void Counting::SayKept(const Opened& opened) const {
  const std::size_t before = region_->bytes_before();
  const bool is_resized = before != 0 && before != region_->bytes().size();
  const Quotas* const quotas = limiter_.ways().quotas();
  if ((opened.went_on_from.empty() && !is_resized) || quotas == nullptr) return;
  const auto& [file, memory] = settings_.quota;
  const QuotaCounts counts = quotas->counts();
  const std::uint64_t left_out = opened.left_out + counts.forgotten;
  const std::string what =
      opened.went_on_from.empty()
          ? fmt::format("{} in the place of {}", FormatBytes(memory), FormatBytes(before))
          : fmt::format("what was counted in {} goes on in {}", opened.went_on_from, file.empty() ? "memory" : file);
  log_.Say(left_out == 0 ? LogLevel::kNotice : LogLevel::kWarning,
           fmt::format("quotas: {}: {} tags kept, {} had no room and begin anew", what, counts.tags, left_out));
}

FileResult<void> Counting::Prepare(const Settings& settings, const Rulebook& rules) {
  if (region_.has_value() || prepared_.has_value() || !rules.any_quota()) return {};
  auto opened = Open(settings, {});
  if (!opened) return tl::unexpected(opened.error());
  prepared_.emplace(*std::move(opened));
  return {};
}

void Counting::Reload(std::vector<std::string>&) {
  if (prepared_.has_value()) Begin(*std::exchange(prepared_, std::nullopt));
}

void Counting::Keep(std::vector<HandedSection>& sections) const {
  if (!region_) return;
  if (region_->nameless_fd() < 0) return sections.push_back({kFileSection, -1, settings_.quota.file});
  HandedSection& left = sections.emplace_back(HandedSection{kSection, region_->nameless_fd(), {}});
  if (closed_) left.bytes = Packed(region_->bytes());
}

void Counting::Pack(HandedSection& left) {
  const auto region = MappedRegion::Adopt(std::exchange(left.fd, -1), 0, AsItIs);
  if (region) left.bytes = Packed(region->bytes());
}

void Counting::Close() {
  closed_ = true;
  timer_.Close();
}

}    // namespace dthrottle
