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

#include "base/check.h"

namespace dthrottle::lab {
namespace {

constexpr std::size_t kStoredBytes = 256u << 10;    // read at once
constexpr int kGzip = 16 + MAX_WBITS;
constexpr unsigned char kGzipMagic[] = {0x1f, 0x8b};

}    // namespace

// The bytes of a file as they were before gzip, which has them in one member or in several; those of any other file as
// they are. zlib's own gzread passes over what is no member, and all members behind it, without a word.
class LogFile::Bytes {
 public:
  explicit Bytes(int fd) : fd_(fd), stored_(kStoredBytes) {
    DT_CHECK(inflateInit2(&zip_, kGzip) == Z_OK);
    zip_.next_in = stored_.data();
  }
  ~Bytes() {
    inflateEnd(&zip_);
    ::close(fd_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  // At most `room` bytes, which is above 0. 0 at the end, or where it cannot be read on: see error().
  std::size_t Read(char* to, std::size_t room) {
    if (state_ == State::kBegin) Begin();
    if (state_ == State::kPlain) {
      if (zip_.avail_in == 0 && !Load()) return 0;
      const std::size_t n = std::min<std::size_t>(room, zip_.avail_in);
      std::memcpy(to, zip_.next_in, n);
      zip_.next_in += n;
      zip_.avail_in -= static_cast<unsigned>(n);
      return n;
    }
    zip_.next_out = reinterpret_cast<Bytef*>(to);
    zip_.avail_out = static_cast<unsigned>(room);
    while (state_ == State::kMember && zip_.avail_out == room) Inflate();
    return room - zip_.avail_out;
  }

  const std::string& error() const { return error_; }
  std::int64_t taken() const { return loaded_ - zip_.avail_in; }    // bytes as they are stored

 private:
  enum class State { kBegin, kPlain, kMember, kEnd };

  // Reads more behind what is there; false at the end of the file, or if that fails.
  bool Load() {
    std::copy_n(zip_.next_in, zip_.avail_in, stored_.data());
    zip_.next_in = stored_.data();
    ssize_t n = 0;
    do {
      n = ::read(fd_, stored_.data() + zip_.avail_in, stored_.size() - zip_.avail_in);
    } while (n < 0 && errno == EINTR);
    if (n < 0) error_ = std::strerror(errno);
    if (n <= 0) return false;
    zip_.avail_in += static_cast<unsigned>(n);
    loaded_ += n;
    return true;
  }

  // Whether a member begins here.
  bool AtMember() {
    while (zip_.avail_in < sizeof kGzipMagic && Load()) {
    }
    return zip_.avail_in >= sizeof kGzipMagic && std::equal(kGzipMagic, std::end(kGzipMagic), zip_.next_in);
  }

  void Begin() { state_ = AtMember() ? State::kMember : State::kPlain; }

  void Inflate() {
    if (zip_.avail_in == 0 && !Load()) {
      if (error_.empty()) error_ = "ends in the middle of compressed data";
      state_ = State::kEnd;
      return;
    }
    const int code = inflate(&zip_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      AtMember() ? static_cast<void>(inflateReset(&zip_)) : Leave();
    } else if (code != Z_OK) {
      error_ = zip_.msg != nullptr ? zip_.msg : "cannot be inflated";
      state_ = State::kEnd;
    }
  }

  // The last member may have nothing behind it, or zeros up to the end of a block. Anything else is not read.
  void Leave() {
    state_ = State::kEnd;
    std::int64_t left = 0;
    bool zeros = true;
    do {
      zeros = zeros && std::all_of(zip_.next_in, zip_.next_in + zip_.avail_in, [](Bytef byte) { return byte == 0; });
      left += std::exchange(zip_.avail_in, 0);
    } while (Load());
    if (zeros || !error_.empty()) return;
    error_ = fmt::format("{} bytes behind a member of gzip are none and were not read", left);
  }

  const int fd_;
  std::vector<Bytef> stored_;
  z_stream zip_{};            // next_in, avail_in: what has been read and not been taken
  std::int64_t loaded_ = 0;    // bytes, so far
  State state_ = State::kBegin;
  std::string error_;
};

Result<LogFile> LogFile::Open(const std::string& path) {
  const int fd = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return Fail(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (S_ISDIR(status.st_mode)) {
    ::close(fd);
    return Fail(fmt::format("{}: is a directory", path));
  }
  return LogFile(std::make_unique<Bytes>(fd), known ? static_cast<std::int64_t>(status.st_size) : 0);
}

LogFile::LogFile(std::unique_ptr<Bytes> bytes, std::int64_t size)
    : bytes_(std::move(bytes)), size_(size), buffer_(4 * kLogLineBytesMax) {}

LogFile::LogFile(LogFile&& other) noexcept = default;

LogFile::~LogFile() = default;

const std::string& LogFile::error() const {
  return bytes_->error();
}

// Reads on behind what is left; false at the end. REQUIRES: there is room once that is moved to the front.
bool LogFile::Fill() {
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.begin() + static_cast<std::ptrdiff_t>(end_),
            buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  const std::size_t n = bytes_->Read(buffer_.data() + end_, buffer_.size() - end_);
  end_ += n;
  return n > 0;
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
  return std::clamp(static_cast<double>(bytes_->taken()) / static_cast<double>(size_), 0.0, 1.0);
}

}    // namespace dthrottle::lab
