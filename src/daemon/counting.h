// Quotas as a part of the daemon: the memory of their counts, and the clock that says when their periods begin.
#pragma once

#include <uv.h>

#include <optional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/log.h"
#include "io/part.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Counting final : public Part {
 public:
  static constexpr const char* kSection = "quotas";

  // `left` is what the program before has left. All else must outlive it. Takes memory if a rule has a quota, from now
  // on or from a reload on. Throws StartFailure.
  Counting(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, const HandedSection& left);

  void Reload(std::vector<std::string>& problems) override;
  // Without a file: the memory itself for an upgrade, and what is in it once this is closed.
  void Keep(std::vector<HandedSection>& sections) const override;
  void Close() override;

 private:
  FileResult<void> Begin(const HandedSection& left);
  void SayResized(std::size_t left_out) const;

  const Settings& settings_;
  Limiter& limiter_;
  Log& log_;
  std::optional<MappedRegion> region_;
  uv_timer_t timer_;
  bool closed_ = false;
};

}    // namespace dthrottle
