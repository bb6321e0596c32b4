// Which tags a replay was refused, how often and when; a bounded number of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dthrottle::lab {

class RefusedTags {
 public:
  static constexpr std::size_t kMost = 1'000'000;

  struct Counts {
    std::uint64_t refused = 0;
    std::int64_t first_s = 0, last_s = 0;
    std::uint32_t rule = 0;    // by its number
    bool override_ = false;
  };
  struct Named : Counts {
    std::string tag;
  };

  void Add(std::string_view tag, std::size_t rule, bool override_, std::int64_t time_s);

  // The most refused tags, most first.
  std::vector<Named> Most(std::size_t count) const;
  std::size_t size() const { return tags_.size(); }
  std::uint64_t untold() const { return untold_; }    // refusals of further tags

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::unordered_map<std::string, Counts, Hash, std::equal_to<>> tags_;
  std::uint64_t untold_ = 0;
};

}    // namespace dthrottle::lab
