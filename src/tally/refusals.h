// A bounded sample of refusals, to say what was refused just now: which tag, by which rule, through which front end,
// when. At most one in kEvery is kept, the first, so a flood costs nothing and cannot fill it at once.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

struct Refusal {
  std::string tag;    // its first bytes
  bool is_digest = false;
  bool is_cut = false;
  std::string rule;
  std::string_view front_end;
  bool shed = false;    // because the host runs hot, not by the limit
  Instant at{};
};

class Refusals {
 public:
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kTagBytes = 96;
  static constexpr std::size_t kRuleBytes = 64;
  static constexpr Duration kEvery = std::chrono::milliseconds(50);

  // ---- For the thread that decides ----

  bool Due(Instant now) const { return now >= due_; }
  // REQUIRES: `front_end` is a constant.
  void Add(const Tag& tag, std::string_view rule, std::string_view front_end, bool shed, Instant now);

  // ---- For any thread ----

  void AppendTo(std::vector<Refusal>& all) const;

 private:
  struct Entry {
    std::array<char, kTagBytes> tag;
    std::array<char, kRuleBytes> rule;
    std::size_t tag_bytes, rule_bytes;    // of the whole tag
    bool is_digest;
    std::string_view front_end;
    bool shed;
    Instant at;
  };

  Instant due_{};
  mutable std::mutex mutex_;    // guards what follows
  std::array<Entry, kKept> entries_;
  std::size_t added_ = 0;
};

}    // namespace dthrottle
