// Files: the settings, and the region that holds the table.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dthrottle {

// Why a file could not be had, with the system's reason.
struct FileError {
  int code;    // errno
  std::string message;
};

template <class T>
using FileResult = tl::expected<T, FileError>;

// The whole file. Reads at most bytes_max + 1 bytes, so that too long a file can be told.
FileResult<std::string> ReadFile(const std::string& path, std::size_t bytes_max);

// 16 bytes that tell this boot from any other; where the kernel does not say, bytes that no other call returns, so that
// nothing of before is trusted.
// Writes the file anew, so that whoever reads it finds either the old text or the whole new one. Permissions 0600.
FileResult<void> ReplaceFile(const std::string& path, std::string_view text);

std::array<std::byte, 16> ReadBootId();

// Bytes from the system's source of randomness.
void FillRandom(std::span<std::byte> out);

// A region of memory that is a shared mapping of a file, or private memory if there is no file. Unmaps; keeps the file.
class MappedRegion {
 public:
  // Makes or resizes the file to `bytes`, permissions 0600, and holds an exclusive lock on it: two daemons on one table
  // would both be right and together wrong. EWOULDBLOCK means that another holds it. An empty path: private memory.
  static FileResult<MappedRegion> Open(const std::string& path, std::size_t bytes);

  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&&) = delete;
  ~MappedRegion();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  MappedRegion(std::span<std::byte> bytes, int fd) : bytes_(bytes), fd_(fd) {}

  std::span<std::byte> bytes_;
  int fd_;    // holds the lock; -1: none
};

}    // namespace dthrottle
