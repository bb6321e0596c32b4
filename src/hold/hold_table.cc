#include "hold/hold_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kMagic = 0x32'73'64'6c'6f'68'74'64;         // "dtholds2"
constexpr std::uint64_t kAnyVersion = 0x00'ff'ff'ff'ff'ff'ff'ff;    // of it
constexpr unsigned kIndexBits = 19;
constexpr std::uint64_t kIndexMask = (1u << kIndexBits) - 1;
constexpr std::uint64_t kFirstNumberMask = (std::uint64_t{1} << 43) - 1;    // leaves as many numbers again

constexpr std::size_t kRecordsMax = 2 * HoldTable::kHoldsMax;

static_assert(kRecordsMax <= kIndexMask + 1);

std::size_t IndexOf(HoldId id) {
  return id & kIndexMask;
}

void Store(HoldState& state, HoldState value) {
  std::atomic_ref(state).store(value, std::memory_order_release);
}

}    // namespace

struct HoldTable::Header {
  std::uint64_t magic;    // stored last
  std::uint64_t holds;
  std::array<std::byte, 16> boot_id;
};

bool HoldTable::IsHoldTable(std::string_view head) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, head.data(), std::min(head.size(), sizeof magic));
  return ((magic ^ kMagic) & kAnyVersion) == 0 || std::all_of(head.begin(), head.end(), [](char c) { return c == 0; });
}

HoldTable::HoldTable(std::span<std::byte> region, std::size_t holds, const std::array<std::byte, 16>& boot_id,
                     std::uint64_t fresh)
    : region_(region),
      holds_(holds),
      records_(std::min(region.size() / kRecordBytes - 1, kRecordsMax)),
      next_number_(fresh & kFirstNumberMask) {
  static_assert(sizeof(HoldRecord) <= kRecordBytes && sizeof(Header) <= kRecordBytes);
  DT_CHECK(holds > 0 && holds <= kHoldsMax && region.size() >= RegionBytes(holds));
  auto& header = *reinterpret_cast<Header*>(region_.data());
  if (header.magic != kMagic || header.boot_id != boot_id) {
    std::atomic_ref(header.magic).store(0, std::memory_order_release);
    for (std::size_t i = 0; i < records_; ++i) Store(record(i).state, HoldState::kNone);
    header.boot_id = boot_id;
    std::atomic_ref(header.magic).store(kMagic, std::memory_order_release);
  }
  header.holds = holds;
  Restore();
}

std::size_t HoldTable::BytesInUse(std::span<const std::byte> region, const std::array<std::byte, 16>& boot_id) {
  const std::size_t records = std::min(region.size() / kRecordBytes, kRecordsMax + 1);
  const auto& header = *reinterpret_cast<const Header*>(region.data());
  if (records == 0 || header.magic != kMagic || header.boot_id != boot_id) return 0;
  for (std::size_t i = records; i-- > 1;) {
    const auto& record = *reinterpret_cast<const HoldRecord*>(region.data() + i * kRecordBytes);
    if (record.state == HoldState::kOpen) return (i + 1) * kRecordBytes;
  }
  return 0;
}

HoldRecord& HoldTable::record(std::size_t index) const {
  return *reinterpret_cast<HoldRecord*>(region_.data() + (1 + index) * kRecordBytes);
}

// The region may hold anything, so every field is looked at.
bool HoldTable::IsWhole(std::size_t index) const {
  const HoldRecord& r = record(index);
  if (r.state == HoldState::kNone || r.state > HoldState::kExpired || r.tags < 1 || r.tags > kHoldTagsMax) return false;
  const std::size_t bytes = std::accumulate(r.sizes.begin(), r.sizes.begin() + r.tags, std::size_t{0});
  return bytes <= kHoldTagBytesMax && IndexOf(r.id) == index;
}

void HoldTable::Restore() {
  std::vector<std::pair<HoldId, std::uint32_t>> ended;
  for (std::size_t i = records_; i-- > 0;) {
    if (!IsWhole(i)) {
      Store(record(i).state, HoldState::kNone);
      free_.push_back(static_cast<std::uint32_t>(i));
      continue;
    }
    const HoldRecord& r = record(i);
    next_number_ = std::max(next_number_, (r.id >> kIndexBits) + 1);
    if (r.state != HoldState::kOpen) {
      ended.emplace_back(r.id, i);
    } else {
      ++open_;
      ends_.emplace(r.until, r.id);
    }
  }
  std::sort(ended.begin(), ended.end());
  for (const auto& [id, index] : ended) ended_.push_back(index);
}

const HoldRecord* HoldTable::Find(HoldId id) const {
  if (IndexOf(id) >= records_) return nullptr;
  const HoldRecord& r = record(IndexOf(id));
  return r.state != HoldState::kNone && r.id == id ? &r : nullptr;
}

bool HoldTable::IsOpen(HoldId id) const {
  const HoldRecord* const r = Find(id);
  return r != nullptr && r->state == HoldState::kOpen;
}

std::size_t HoldTable::TakeRecord() {
  std::size_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    index = ended_.front();
    ended_.pop_front();
  }
  return index;
}

HoldId HoldTable::Add(std::span<const Payment> paid, Instant until, bool bound) {
  DT_CHECK(open_ < holds_ && !paid.empty() && paid.size() <= kHoldTagsMax);
  const std::size_t index = TakeRecord();
  HoldRecord& r = record(index);
  Store(r.state, HoldState::kNone);
  r.id = next_number_++ << kIndexBits | index;
  r.tags = static_cast<std::uint16_t>(paid.size());
  r.bound = bound;
  r.until = until;
  r.taken = {};
  r.taken.at = paid[0].at;
  r.digests = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < paid.size(); ++i) {
    const Query& query = paid[i].query;
    std::string_view bytes = query.tag.bytes;
    DT_CHECK(bytes.size() <= kTagBytesMax);
    if (at + bytes.size() > kHoldTagBytesMax) bytes = {};
    r.held[i] = query.cost;
    r.taken.with[i] = paid[i].with.value_or(0);
    r.taken.with_unpaid[i] = paid[i].with_unpaid;
    r.taken.unpaid = static_cast<std::uint16_t>(r.taken.unpaid | paid[i].unpaid << i);
    r.sizes[i] = static_cast<std::uint8_t>(bytes.size());
    r.digests = static_cast<std::uint16_t>(r.digests | query.tag.is_digest << i);
    bytes.copy(r.bytes.data() + at, bytes.size());
    at += bytes.size();
  }
  Store(r.state, HoldState::kOpen);
  ++open_;
  ends_.emplace_hint(ends_.end(), until, r.id);    // mostly the last
  return r.id;
}

void HoldTable::End(const HoldRecord& ended, HoldState state, std::span<const Cost> actual) {
  const std::size_t index = IndexOf(ended.id);
  HoldRecord& r = record(index);
  DT_CHECK(r.state == HoldState::kOpen && actual.size() == r.tags);
  // A process that is killed here leaves no record, rather than one whose payments are something else.
  Store(r.state, HoldState::kNone);
  r.actual = {};
  std::copy(actual.begin(), actual.end(), r.actual.begin());
  Store(r.state, state);
  --open_;
  ended_.push_back(static_cast<std::uint32_t>(index));
  ends_.erase({r.until, r.id});
}

}    // namespace dthrottle
