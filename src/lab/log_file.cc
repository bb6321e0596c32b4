#include "lab/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dthrottle::lab {
namespace {

constexpr unsigned kInflateBytes = 256u << 10;

}    // namespace

Result<LogFile> LogFile::Open(const std::string& path) {
  const int fd = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return Fail(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (S_ISDIR(status.st_mode)) {
    ::close(fd);
    return Fail(fmt::format("{}: is a directory", path));
  }
  gzFile file = ::gzdopen(fd, "rb");    // reads plain files too
  if (file == nullptr) {
    ::close(fd);
    return Fail(fmt::format("{}: no memory", path));
  }
  ::gzbuffer(file, kInflateBytes);
  return LogFile(file, known ? static_cast<std::int64_t>(status.st_size) : 0);
}

LogFile::LogFile(gzFile_s* file, std::int64_t size) : file_(file), size_(size), buffer_(4 * kLogLineBytesMax) {}

LogFile::LogFile(LogFile&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      size_(other.size_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      end_(other.end_),
      at_end_(other.at_end_),
      skipping_(other.skipping_),
      error_(std::move(other.error_)) {}

LogFile::~LogFile() {
  if (file_ != nullptr) ::gzclose_r(file_);
}

// Reads on behind what is left; false at the end. REQUIRES: there is room once that is moved to the front.
bool LogFile::Fill() {
  if (at_end_) return false;
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.begin() + static_cast<std::ptrdiff_t>(end_),
            buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  const int n = ::gzread(file_, buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
  if (n > 0) {
    end_ += static_cast<std::size_t>(n);
    return true;
  }
  at_end_ = true;
  int code = Z_OK;
  const char* what = ::gzerror(file_, &code);
  if (code == Z_BUF_ERROR) {
    error_ = "ends in the middle of compressed data";
  } else if (code != Z_OK && code != Z_STREAM_END) {
    error_ = code == Z_ERRNO ? std::strerror(errno) : what;
  }
  return false;
}

std::optional<LogFile::Line> LogFile::Next() {
  for (;;) {
    const char* const from = buffer_.data() + begin_;
    const std::size_t have = end_ - begin_;
    const auto* lf = static_cast<const char*>(std::memchr(from, '\n', have));
    const std::size_t size = lf != nullptr ? static_cast<std::size_t>(lf - from) : have;
    if (skipping_) {    // the rest of a line that was given as over-long
      begin_ += size + (lf != nullptr);
      skipping_ = lf == nullptr;
      if (skipping_ && !Fill()) return std::nullopt;
      continue;
    }
    if (size > kLogLineBytesMax) {
      skipping_ = true;
      return Line{{from, kLogLineBytesMax}, true};
    }
    if (lf != nullptr) {
      begin_ += size + 1;
      return Line{{from, size}, false};
    }
    if (Fill()) continue;
    if (begin_ == end_) return std::nullopt;
    const Line last{{buffer_.data() + begin_, end_ - begin_}, false};    // without LF
    begin_ = end_;
    return last;
  }
}

double LogFile::Progress() const {
  if (size_ <= 0) return -1;
  return std::clamp(static_cast<double>(::gzoffset(file_)) / static_cast<double>(size_), 0.0, 1.0);
}

}    // namespace dthrottle::lab
