// Lines of a file that may be compressed with gzip, or of standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle::lab {

inline constexpr std::size_t kLogLineBytesMax = std::size_t{64} << 10;    // a longer line is passed over

class LogFile {
 public:
  // "-" is standard input.
  static Result<LogFile> Open(const std::string& path);
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;
  ~LogFile();

  struct Line {
    std::string_view text;     // without LF; until the next call
    bool over_long = false;    // text is then its first bytes
  };
  // None at the end, or where the file cannot be read on: see error().
  std::optional<Line> Next();

  // Empty if the file was read to its end.
  const std::string& error() const;

  // Part of the file that has been read, 0 to 1; -1 where its size is not known.
  double Progress() const;

 private:
  class Bytes;
  LogFile(std::unique_ptr<Bytes> bytes, std::int64_t size);
  bool Fill();

  std::unique_ptr<Bytes> bytes_;
  std::int64_t size_;    // bytes as they are stored; 0: not known
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;    // of what has been read and not been given
  bool skipping_ = false;
};

}    // namespace dthrottle::lab
