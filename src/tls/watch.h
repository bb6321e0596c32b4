// Notices when the files that TLS begins with are replaced.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <utility>

#include "tls/context.h"

namespace dthrottle {

class TlsFilesWatch {
 public:
  explicit TlsFilesWatch(TlsFiles files) : files_(std::move(files)), seen_(Look()) {}

  const TlsFiles& files() const { return files_; }

  // Whether one of the files is another one than at the last look, or at the beginning. Looks every 2 s at most.
  // `now_ms` never goes back.
  bool Changed(std::uint64_t now_ms);

 private:
  // What tells a file from the one before: where it is, how long, and when it was written.
  struct Stamp {
    ino_t inode = 0;
    off_t bytes = 0;
    std::int64_t seconds = 0, nanoseconds = 0;

    bool operator==(const Stamp&) const = default;
  };
  using Seen = std::array<Stamp, 3>;

  Seen Look() const;

  const TlsFiles files_;
  Seen seen_;
  std::uint64_t look_at_ = 0;
};

}    // namespace dthrottle
