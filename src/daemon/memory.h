// The memory of the table: a mapped file, or memory without a name that an upgrade hands over.
#pragma once

#include <optional>
#include <string>

#include "config/settings.h"
#include "io/files.h"
#include "io/handover.h"
#include "io/idle_work.h"
#include "io/log.h"

namespace dthrottle {

class TableMemory {
 public:
  // `left` is what the program before has left. Throws StartFailure.
  TableMemory(const Settings& settings, const HandedSection& left);

  std::span<std::byte> bytes() const { return region_->bytes(); }
  std::size_t bytes_before() const { return region_->bytes_before(); }    // of the file; 0: it is new

  // What this leaves to the next program, with `notes` about the table.
  HandedSection Left(std::string notes) const { return {kSection, region_->nameless_fd(), std::move(notes)}; }

  // Claims the rest of the memory and puts it into huge pages, in a thread that takes only time left over: a GiB takes
  // seconds.
  void Prepare(Log& log);

  static constexpr const char* kSection = "table";

 private:
  std::optional<MappedRegion> region_;
  IdleWork preparing_;    // the region
};

}    // namespace dthrottle
