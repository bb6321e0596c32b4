#include "daemon/memory.h"

#include <unistd.h>

#include "bucket/table.h"
#include "io/mapped_faults.h"
#include "io/part.h"

namespace dthrottle {

TableMemory::TableMemory(const Settings& settings, const HandedSection& left) {
  const std::string& file = settings.table.file;
  if (left.fd >= 0 && file.empty()) {
    if (auto region = MappedRegion::Adopt(left.fd, settings.table.memory)) {
      region_.emplace(std::move(*region));
      return;
    }
  } else if (left.fd >= 0) {
    ::close(left.fd);
  }
  auto region = MappedRegion::Open(file, settings.table.memory, Table::IsTable);
  if (!region) throw StartFailure{ExitCode(region.error().code), "table.file: " + region.error().message};
  region_.emplace(std::move(*region));
  WatchMappedFile(bytes(), file);
}

// A small table has few address translations to miss.
void TableMemory::Prepare(Log& log) {
  constexpr std::size_t kFrom = std::size_t{16} << 20;
  if (bytes().size() < kFrom) return;
  preparing_.Begin([this, &log](const IdleWork::Pause& pause) {
    if (const auto claimed = region_->ClaimRest(pause); !claimed) log.Error("table.file: {}", claimed.error().message);
    region_->UseHugePages(pause);
  });
}

}    // namespace dthrottle
