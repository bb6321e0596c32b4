// Holds as a part of the daemon: the memory of their records, and the work that ends those whose time has come or whose
// connection has ended.
#pragma once

#include <uv.h>

#include <memory>
#include <optional>

#include "admin/snapshot.h"
#include "base/time.h"
#include "config/settings.h"
#include "hold/holds.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/part.h"
#include "io/slices.h"
#include "limiter/limiter.h"

namespace dthrottle {

class Holding final : public Part {
 public:
  static constexpr const char* kSection = "holds";

  // The file of the holds, beside the table; empty: as the table they have none.
  static std::string PathOf(const Settings& settings);

  // Whether there is anybody to hold something.
  static bool IsWanted(const Settings& settings);

  // `left` is what the program before has left; `took_over`: its connections too. All else must outlive it. Throws
  // StartFailure.
  Holding(uv_loop_t* loop, Limiter& limiter, const Settings& settings, const HandedSection& left, bool took_over);

  // Where it is not wanted, in its place: gives back what was bound to connections, of what a program before has left.
  // Other holds wait in their file; those in memory without a name end too.
  static void Dismiss(Limiter& limiter, const Settings& settings, const HandedSection& left);

  Holds& holds() { return *holds_; }

  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override { counts.holds = holds_->counts(); }
  void Keep(std::vector<HandedSection>& sections) const override;
  void Close() override;

 private:
  void OpenRegion(const HandedSection& left);
  bool EndSome(Instant end);

  const Settings& settings_;
  std::optional<MappedRegion> region_;
  std::unique_ptr<Holds> holds_;
  std::optional<Slices> slices_;    // from the time on that nothing can fail
};

}    // namespace dthrottle
