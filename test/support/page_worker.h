// A host that lends tokens, and workers that look into pages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/worker_page.h"
#include "limiter/worker_entries.h"
#include "test/support/host.h"

namespace dthrottle::testing {

// A worker and the page it looks into, as libdthrottle does.
class PageWorker {
 public:
  explicit PageWorker(Host& host, std::uint32_t size = 64)
      : size_(size), bytes_(dthrottle_page_bytes(size) / sizeof(std::uint64_t)), counts_(size), host_(host),
        entries(page(), counts_.data(), size, host.lending()) {
    page().head.key[0] = 11;
    page().head.key[1] = 12;
  }
  ~PageWorker() { entries.Recall(FromNanoseconds(0) + std::chrono::hours(1)); }
  PageWorker(const PageWorker&) = delete;

  dthrottle_page& page() { return *reinterpret_cast<dthrottle_page*>(bytes_.data()); }

  // Asks its page, and the daemon if that says nothing; tells of tags that are refused or asked for once more.
  bool Serves(std::string_view tag, Instant now) {
    const auto says = Decide(tag, now);
    if (says != DTHROTTLE_PAGE_ASK) return says == DTHROTTLE_PAGE_SERVE;
    return Asks(tag, now);
  }
  bool Asks(std::string_view tag, Instant now) {
    ++asked;
    const bool serves = host_.Serves(tag, now);
    if (asked_[std::string(tag)]++ > 0 || !serves) entries.Note(tag, now);
    return serves;
  }
  dthrottle_page_verdict Decide(std::string_view tag, Instant now) {
    const auto hash = dthrottle_page_hash(page().head.key, tag.data(), tag.size());
    return dthrottle_page_decide(&page(), counts_.data(), size_, hash, now.time_since_epoch().count());
  }
  // By tokens that lie in its page.
  bool Spends(std::string_view tag, std::uint32_t cost, Instant now) {
    const auto hash = dthrottle_page_hash(page().head.key, tag.data(), tag.size());
    const std::int64_t ns = now.time_since_epoch().count();
    std::uint32_t entry;
    return dthrottle_page_peek(&page(), counts_.data(), size_, hash, cost, ns, &entry) == DTHROTTLE_PAGE_SERVE &&
           dthrottle_page_take(&page(), counts_.data(), entry, hash, cost, ns);
  }
  bool Refuses(std::string_view tag, Instant now) { return Decide(tag, now) == DTHROTTLE_PAGE_REFUSE; }

  std::vector<dthrottle_page_count>& counts() { return counts_; }
  std::uint64_t asked = 0;

 private:
  const std::uint32_t size_;
  std::vector<std::uint64_t> bytes_;
  std::vector<dthrottle_page_count> counts_;
  std::map<std::string, int> asked_;
  Host& host_;

 public:
  WorkerEntries entries;
};

// A host that lends.
struct LendingHost : Host {
  explicit LendingHost(std::string_view toml, std::size_t lanes = 1) : Host(toml, lanes) { lending().Enable(); }
};

}    // namespace dthrottle::testing
