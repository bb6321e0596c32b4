// Cuts a stream of bytes into tags, one a line: the query protocol without sockets (protocol/query.md).
//
// Nothing is copied on the usual path: tags are views into the caller's bytes. What is left of an unfinished line is
// kept here, and the caller puts it in front of the next bytes, so that every tag is contiguous. A line that cannot
// become a tag within the limit any more is handed to an OverLongReader as it arrives, and costs no further memory.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "query/over_long.h"

namespace dthrottle {

struct FramerLimits {
  std::size_t tag_bytes_max;    // at most kTagBytesMax
  DigestKey digest_key;
};

class Framer {
 public:
  // Bytes of an unfinished line; they must come again, first, in the next Read. At most tag_bytes_max + 1.
  std::string_view rest() const { return rest_; }

  // The ends of an unfinished line of which no rest is kept; empty: there is none.
  std::string ends() const { return over_long_ != nullptr ? over_long_->Ends() : std::string(); }

  // What it holds of an unfinished line, for another process to go on with: rest(), and the over-long reader as it
  // saves itself or nothing.
  struct State {
    std::string rest;
    std::string over_long;
  };
  State Save() const { return {rest_, over_long_ != nullptr ? over_long_->Save() : std::string()}; }

  // Goes on where another left off; false if it cannot. REQUIRES: nothing has been read.
  bool Restore(const State& state, const FramerLimits& limits) {
    if (state.rest.find('\n') != std::string::npos) return false;
    if (!state.over_long.empty()) {
      over_long_ = OverLongReader::Load(state.over_long);
      return over_long_ != nullptr && state.rest.empty();
    }
    KeepRest(state.rest, limits);    // the limit may be another by now
    return true;
  }

  // Reads `bytes`, which start with rest(), and calls, in order of arrival,
  //   sink.OnTag(std::string_view tag)                              valid as long as `bytes`
  //   sink.OnOverLongTag(std::unique_ptr<OverLongReader> finished)  for Finish()
  // What follows the last LF is not a query until its own LF arrives.
  template <class Sink>
  void Read(std::string_view bytes, const FramerLimits& limits, Sink& sink) {
    const char* p = bytes.data();
    const char* const end = p + bytes.size();
    while (p != end) {
      const auto* lf = static_cast<const char*>(std::memchr(p, '\n', static_cast<std::size_t>(end - p)));
      if (lf == nullptr) break;
      const std::string_view line(p, static_cast<std::size_t>(lf - p));
      p = lf + 1;
      const std::string_view tag = line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
      if (over_long_ == nullptr && tag.size() <= limits.tag_bytes_max) {
        sink.OnTag(tag);
      } else {
        ReadOverLong(line, limits);
        sink.OnOverLongTag(std::move(over_long_));
      }
    }
    KeepRest(std::string_view(p, static_cast<std::size_t>(end - p)), limits);
  }

 private:
  void ReadOverLong(std::string_view bytes, const FramerLimits& limits) {
    if (over_long_ == nullptr) over_long_ = std::make_unique<OverLongReader>(limits.digest_key);
    over_long_->Read(bytes);
  }

  void KeepRest(std::string_view rest, const FramerLimits& limits) {
    if (rest.empty()) return rest_.clear();
    const bool may_fit =
        rest.size() <= limits.tag_bytes_max || (rest.size() == limits.tag_bytes_max + 1 && rest.back() == '\r');
    if (over_long_ == nullptr && may_fit) {
      rest_.assign(rest);
    } else {
      ReadOverLong(rest, limits);
      rest_.clear();
    }
  }

  std::string rest_;
  std::unique_ptr<OverLongReader> over_long_;
};

}    // namespace dthrottle
