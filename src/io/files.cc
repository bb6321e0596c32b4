#include "io/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sodium/randombytes.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "io/clock.h"
#include "io/memory_gauge.h"

namespace dthrottle {

namespace {

tl::unexpected<FileError> Failed(const std::string& path, const char* what) {
  const int code = errno;
  return tl::unexpected(FileError{code, fmt::format("{}: {}: {}", path, what, std::strerror(code))});
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kClaimedAtOnce = std::size_t{64} << 20, kClaimedInAStep = std::size_t{512} << 10;
constexpr std::size_t kNumberBytesMax = 32;    // of a file with one number in it

FileResult<std::string> ReadAll(const std::string& path, int fd, std::size_t bytes_max) {
  std::string text;
  while (text.size() <= bytes_max) {
    char chunk[64 * 1024];
    const ssize_t n = ::read(fd, chunk, std::min(sizeof chunk, bytes_max + 1 - text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path, "cannot read");
    if (n == 0) break;
    text.append(chunk, static_cast<std::size_t>(n));
  }
  return text;
}

std::string IncarnationPath(const std::string& stem) {
  return stem + ".incarnation";
}

tl::unexpected<FileError> Refused(const std::string& path, const char* why, int code = EINVAL) {
  return tl::unexpected(FileError{code, fmt::format("{}: {}; left as it is", path, why)});
}

// Null if it is a regular file.
const char* WhatElse(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return nullptr;
  return S_ISDIR(status.st_mode) ? "is a directory" : S_ISFIFO(status.st_mode) ? "is a pipe" : "is not a regular file";
}

// Whether `file` may hold our state, by what the system says about it.
FileResult<struct stat> CheckOwned(const std::string& path, const Descriptor& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Failed(path, "cannot stat");
  if (const char* what = WhatElse(status)) return Refused(path, what);
  if (status.st_uid != ::geteuid()) return Refused(path, "belongs to another user", EPERM);
  if (status.st_nlink > 1) return Refused(path, "has another name as well (a hard link)");
  return status;
}

// And by how it begins.
FileResult<struct stat> CheckOurs(const std::string& path, const Descriptor& file, IsOurs is_ours) {
  auto status = CheckOwned(path, file);
  if (!status || status->st_size == 0) return status;
  char head[kHeadBytes];
  const ssize_t n = ::pread(file.get(), head, sizeof head, 0);
  if (n < 0) return Failed(path, "cannot read");
  if (!is_ours({head, static_cast<std::size_t>(n)})) {
    return Refused(path, "was not written by dthrottle; remove it, or name another file");
  }
  return status;
}

// Gives a file of `held` bytes another size.
bool Resize(const Descriptor& file, std::size_t held, std::size_t bytes) {
  return held == bytes || ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0;
}

// Memory without a file system's size is not.
bool IsBounded(const struct statvfs& room) {
  return room.f_blocks != 0;
}

std::uint64_t FreeBytes(const struct statvfs& room) {
  return std::uint64_t{room.f_bavail} * room.f_frsize;
}

// Whether there is room for `bytes` of a file that has `claimed` of them already. False: errno says so.
bool HasRoom(const struct statvfs& room, std::size_t bytes, std::uint64_t claimed) {
  if (!IsBounded(room) || FreeBytes(room) + claimed >= bytes) return true;
  errno = ENOSPC;
  return false;
}

std::uint64_t ClaimedBytes(const struct stat& status) {
  constexpr std::uint64_t kBlockBytes = 512;
  return static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes;
}

// Files in memory count as their group's, and beyond its limit the kernel ends a process, perhaps in the middle of a query.
// `system` is that of the file.
FileResult<void> CheckGroups(const std::string& name, const struct statfs& system, std::size_t bytes,
                             std::uint64_t claimed) {
  const bool in_memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  if (!in_memory || claimed >= bytes) return {};
  const auto left = MemoryLeft();
  if (!left || *left >= bytes - claimed) return {};
  return tl::unexpected(
      FileError{ENOSPC, fmt::format("{}: cannot claim its space: the memory limit of a control group leaves {}MiB",
                                    name, *left >> 20)});
}

// Gives a file of `held` bytes its size, and claims the space of its first part at once: running out of it later would
// be a SIGBUS in the middle of a query. False, with errno: there is not enough for all of it, of which it has `claimed`
// bytes already, and the file is as it was. So it is made longer before its space is claimed, and shorter afterwards.
bool ClaimFirst(const Descriptor& file, std::size_t held, std::size_t bytes, std::uint64_t claimed) {
  struct statvfs room {};
  if (::fstatvfs(file.get(), &room) != 0 || !HasRoom(room, bytes, claimed)) return false;
  if (!Resize(file, held, std::max(held, bytes))) return false;
  const int why = ::posix_fallocate(file.get(), 0, static_cast<off_t>(std::min(bytes, kClaimedAtOnce)));
  const bool resized = Resize(file, std::max(held, bytes), why == 0 ? bytes : held);
  if (why != 0) errno = why;
  return why == 0 && resized;
}

// A shared mapping that begins where a huge page can, or MAP_FAILED.
void* MapAligned(int fd, std::size_t bytes) {
  void* const room = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(room) % kHugePage;
  void* const mapped = ::mmap(begin + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int why = errno;
    ::munmap(room, bytes + kHugePage);
    errno = why;
    return MAP_FAILED;
  }
  if (before != 0) ::munmap(room, before);
  const std::size_t end = before + (bytes + 4095) / 4096 * 4096;
  if (end < bytes + kHugePage) ::munmap(begin + end, bytes + kHugePage - end);
  return mapped;
}

}    // namespace

FileResult<std::string> ReadFile(const std::string& path, std::size_t bytes_max) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return Failed(path, "cannot open");
  return ReadAll(path, file.get(), bytes_max);
}

FileResult<std::string> ReadStandardInput(std::size_t bytes_max) {
  return ReadAll("standard input", STDIN_FILENO, bytes_max);
}

FileResult<std::string> ReadOpenFile(int fd, std::size_t bytes_max) {
  const std::string name = fmt::format("descriptor {}", fd);
  if (::lseek(fd, 0, SEEK_SET) != 0) return Failed(name, "cannot read");
  return ReadAll(name, fd, bytes_max);
}

Result<std::string> ReadNamedFile(const std::string& path) {
  auto text = ReadRegularFile(path, kNamedFileBytesMax);
  if (!text) return Fail(text.error().message);
  if (text->size() > kNamedFileBytesMax) return Fail(fmt::format("{}: more than {} bytes", path, kNamedFileBytesMax));
  return *std::move(text);
}

FileResult<std::string> ReadRegularFile(const std::string& path, std::size_t bytes_max) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return Failed(path, "cannot open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Failed(path, "cannot stat");
  if (const char* what = WhatElse(status)) return tl::unexpected(FileError{EINVAL, fmt::format("{}: {}", path, what)});
  return ReadAll(path, file.get(), bytes_max);
}

void OpenStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

FileResult<void> CheckStateFile(const std::string& path, IsOurs is_ours) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW));
  if (file.get() < 0 && errno == ENOENT) return {};
  if (file.get() < 0) return Failed(path, "cannot open");
  if (auto status = CheckOurs(path, file, is_ours); !status) return tl::unexpected(status.error());
  return {};
}

FileResult<void> CheckFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return Failed(path, "cannot make it");
  return {};
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

FileResult<void> ReplaceFile(const std::string& path, std::string_view text) {
  if (auto free = CheckStateFile(path, [](std::string_view) { return true; }); !free) return free;
  const std::size_t name = path.rfind('/') + 1;
  const std::string fresh = fmt::format("{}.{}.dthrottle-new", path.substr(0, name), path.substr(name));
  ::unlink(fresh.c_str());    // of a process that was killed
  const Descriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Failed(fresh, "cannot open");
  FileResult<void> done;
  if (!WriteAll(file.get(), text) || ::fsync(file.get()) != 0) {
    done = Failed(fresh, "cannot write");
  } else if (::rename(fresh.c_str(), path.c_str()) != 0) {
    done = Failed(path, "cannot replace");
  }
  if (!done) ::unlink(fresh.c_str());
  return done;
}

Result<void> WriteOutput(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) return Fail(fmt::format("{}: {}", path, std::strerror(errno)));
  return {};
}

std::uint64_t NextIncarnation(const std::string& stem, Duration unit, std::uint64_t below) {
  auto incarnation = static_cast<std::uint64_t>(std::max<std::int64_t>(WallClock() / unit, 1));
  if (stem.empty()) return incarnation;
  const std::string path = IncarnationPath(stem);
  if (const auto text = ReadRegularFile(path, kNumberBytesMax)) {
    if (!IsIncarnation(*text)) return incarnation;
    const std::uint64_t last = std::strtoull(text->c_str(), nullptr, 10);
    if (last < below) incarnation = std::max(incarnation, last + 1);
  }
  ReplaceFile(path, std::to_string(incarnation) + "\n");    // the clock alone will do if this fails
  return incarnation;
}

FileResult<void> CheckIncarnation(const std::string& stem) {
  return stem.empty() ? FileResult<void>() : CheckStateFile(IncarnationPath(stem), IsIncarnation);
}

bool IsIncarnation(std::string_view text) {
  constexpr std::size_t kDigitsMax = 20;
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text.size() <= kDigitsMax && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<std::uint64_t> LastIncarnation(const std::string& stem) {
  if (stem.empty()) return std::nullopt;
  const auto text = ReadRegularFile(IncarnationPath(stem), kNumberBytesMax);
  if (!text) return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

std::array<std::byte, 16> ReadBootId() {
  std::array<std::byte, 16> id = kUnknownBoot;
  const auto text = ReadFile(kBootIdFile, 64);    // a UUID: 32 hexadecimal digits and 4 dashes
  if (!text) return id;
  std::size_t digits = 0;
  for (const char c : *text) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || digits >= 32) continue;
    id[digits / 2] |= static_cast<std::byte>(value << (digits % 2 == 0 ? 4 : 0));
    ++digits;
  }
  return id;
}

void FillRandom(std::span<std::byte> out) {
  randombytes_buf(out.data(), out.size());
}

FileResult<MappedRegion> MappedRegion::Open(const std::string& path, std::size_t bytes, IsOurs is_ours, const Fit& fit) {
  if (path.empty()) {
    Descriptor memory(::memfd_create("dthrottle-table", MFD_CLOEXEC));
    if (memory.get() < 0) return Failed("memory", "cannot get any");
    return Map("", memory.Release(), 0, bytes, fit);
  }
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (file.get() < 0) return Failed(path, "cannot open");
  if (auto owned = CheckOwned(path, file); !owned) return tl::unexpected(owned.error());
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return Failed(path, "another daemon holds it");
  const auto ours = CheckOurs(path, file, is_ours);
  if (!ours) return tl::unexpected(ours.error());
  return Map(path, file.Release(), static_cast<std::size_t>(ours->st_size), bytes, fit);
}

FileResult<void> MappedRegion::Check(const std::string& path, std::size_t bytes, IsOurs is_ours, RoomLeft& left) {
  if (auto ours = CheckStateFile(path, is_ours); !ours) return ours;
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  if (auto can_be_made = is_there ? FileResult<void>() : CheckFolderOf(path); !can_be_made) return can_be_made;
  struct statvfs room {};
  struct stat place {};
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  struct statfs system {};
  if (::statvfs(folder.c_str(), &room) != 0 || ::stat(folder.c_str(), &place) != 0 ||
      ::statfs(folder.c_str(), &system) != 0) {
    return Failed(path, "cannot stat");
  }
  if (bytes == 0) return {};
  if (IsBounded(room)) {
    std::int64_t& bytes_left = left.try_emplace(place.st_dev, FreeBytes(room)).first->second;
    const std::int64_t after = bytes_left + static_cast<std::int64_t>(ClaimedBytes(status) - bytes);
    if (after < 0) {
      errno = ENOSPC;
      return Failed(path, "cannot claim its space");
    }
    bytes_left = after;
  }
  return CheckGroups(path, system, bytes, ClaimedBytes(status));
}

FileResult<MappedRegion> MappedRegion::Adopt(int fd, std::size_t bytes, const Fit& fit) {
  Descriptor memory(fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Failed("memory", "cannot stat");
  const auto held = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || (held != bytes && !fit)) {
    errno = EINVAL;
    return Failed("memory", "has another size");
  }
  return Map("", memory.Release(), held, bytes, fit);
}

FileResult<MappedRegion> MappedRegion::OpenOrAdopt(const std::string& path, std::size_t bytes, IsOurs is_ours,
                                                   int left, const Fit& fit) {
  if (left >= 0 && path.empty()) {
    if (auto region = Adopt(left, bytes, fit)) return region;
  } else if (left >= 0) {
    ::close(left);
  }
  return Open(path, bytes, is_ours, fit);
}

// Takes `fd` over, also if it fails, a file of `held` bytes.
FileResult<MappedRegion> MappedRegion::Map(const std::string& path, int fd, std::size_t held, std::size_t bytes,
                                           const Fit& fit) {
  Descriptor file(fd);
  const std::string name = path.empty() ? "memory" : path;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Failed(name, "cannot stat");
  if (fit && held != 0 && held != bytes) {
    void* const all = ::mmap(nullptr, held, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED) return Failed(name, "cannot map");
    bytes = fit({static_cast<std::byte*>(all), held}, bytes);
    ::munmap(all, held);
  }
  // A file that has all its space has been through this, and on a tmpfs that takes milliseconds, which queries would
  // wait for in an upgrade.
  const std::uint64_t claimed = ClaimedBytes(status);
  const bool has_all = held == bytes && claimed >= bytes;
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return Failed(name, "cannot stat");
  if (auto fits = CheckGroups(name, system, bytes, claimed); !fits) return tl::unexpected(fits.error());
  if (!has_all && !ClaimFirst(file, held, bytes, claimed)) {
    return Failed(name, "cannot claim its space");
  }
  void* const address = MapAligned(fd, bytes);
  if (address == MAP_FAILED) return Failed(name, "cannot map");
  ::madvise(address, bytes, MADV_HUGEPAGE);    // a wish, which few hosts grant to files in memory
  ::madvise(address, bytes, MADV_DONTDUMP);    // it holds the hash key, and is large
  return MappedRegion({static_cast<std::byte*>(address), bytes}, held, file.Release(), path.empty(), has_all);
}

FileResult<void> MappedRegion::ClaimRest(const Pause& pause) const {
  if (claimed_) return {};
  Duration took{};
  for (std::size_t at = kClaimedAtOnce; at < bytes_.size() && pause(took); at += kClaimedInAStep) {
    const Instant begun = Now();
    const std::size_t step = std::min(kClaimedInAStep, bytes_.size() - at);
    if (const int error = ::posix_fallocate(fd_, static_cast<off_t>(at), static_cast<off_t>(step)); error != 0) {
      return tl::unexpected(
          FileError{error, fmt::format("cannot claim the rest of its space: {}", std::strerror(error))});
    }
    took = Now() - begun;
  }
  return {};
}

bool MappedRegion::UseHugePages(const Pause& pause) const {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;
#endif
  Duration took{};
  for (std::size_t at = 0; at + kHugePage <= bytes_.size(); at += kHugePage) {
    if (!pause(took)) return false;
    const Instant begun = Now();
    if (::madvise(bytes_.data() + at, kHugePage, MADV_COLLAPSE) != 0 && errno == EINVAL) return false;    // it cannot
    took = Now() - begun;
  }
  return true;
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      bytes_before_(other.bytes_before_),
      fd_(std::exchange(other.fd_, -1)),
      nameless_(other.nameless_),
      claimed_(other.claimed_) {}

MappedRegion::~MappedRegion() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

}    // namespace dthrottle
