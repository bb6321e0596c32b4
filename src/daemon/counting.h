// Quotas as a part of the daemon: the memory of their counts, and the clock that says when their periods begin.
#pragma once

#include <uv.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/settings.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/log.h"
#include "io/part.h"
#include "io/timer.h"
#include "limiter/limiter.h"
#include "quota/quotas.h"

namespace dthrottle {

// Why a start under these settings could not count quotas in their file, as far as that shows without a change to it.
// Without `left` only if these settings have quotas; the caller may be another user, and folders may come with the start.
// With `left`, what room others leave to the file, the caller is the next program of a running daemon. Its rules may have
// quotas that operators have set or a candidate has brought.
std::optional<Problem> WhyNoQuotaFile(const LoadedSettings& loaded, RoomLeft* left);

class Counting final : public Part {
 public:
  static constexpr const char* kSection = "quotas";              // what is counted without a file
  static constexpr const char* kFileSection = "quotas file";    // the path of the file where it is

  // Goes on with what the program before has left in `handed`. All else must outlive it. Takes memory if a rule has a
  // quota, from now on or from a reload on. Throws StartFailure.
  Counting(uv_loop_t* loop, Limiter& limiter, const Settings& settings, Log& log, Handover& handed);

  // Gets ready to count for rules that come into force next under these settings, if nothing is counted yet. An error
  // means that the file cannot be used. Takes a second a GiB: for a thread of the pool, one call at a time.
  FileResult<void> Prepare(const Settings& settings, const Rulebook& rules);

  // Puts what is counted in the memory of a section that no Counting has taken into its bytes.
  static void Pack(HandedSection& left);

  void Reload(std::vector<std::string>& problems) override;
  // The path of the file; without one the memory itself for an upgrade, and what is in it once this is closed.
  void Keep(std::vector<HandedSection>& sections) const override;
  void Close() override;

 private:
  // Where quotas are counted, and what is counted there.
  struct Opened {
    MappedRegion region;
    std::unique_ptr<Quotas> quotas;
    std::size_t left_out = 0;     // tags that the region had no room for
    std::string went_on_from{};    // where they were counted before; empty: here, or nowhere
  };
  // Where the program before has counted.
  struct Before {
    HandedSection left{};
    std::string file{};    // empty: in none
  };

  FileResult<Opened> Open(const Settings& settings, Before before) const;
  void GoOn(Before before, Opened& opened) const;
  void Begin(Opened opened);
  void SayKept(const Opened& opened) const;

  const Settings& settings_;
  Limiter& limiter_;
  Log& log_;
  std::optional<Opened> prepared_;
  std::optional<MappedRegion> region_;
  Timer timer_;
  std::atomic<bool> closed_{false};    // Prepare looks at it
};

}    // namespace dthrottle
