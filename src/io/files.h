// Files: the settings, and the region that holds the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace dthrottle {

// Why a file could not be had, with the system's reason.
struct FileError {
  int code;    // errno
  std::string message;
};

template <class T>
using FileResult = tl::expected<T, FileError>;

// The whole file, which may be a pipe. Reads at most bytes_max + 1 bytes, so that too long a file can be told.
FileResult<std::string> ReadFile(const std::string& path, std::size_t bytes_max);
FileResult<std::string> ReadStandardInput(std::size_t bytes_max);

// The same of a file that is open already, from its beginning. It stays open, and need not be below any /proc.
FileResult<std::string> ReadOpenFile(int fd, std::size_t bytes_max);

// A whole file that settings name, at most kNamedFileBytesMax; a longer one is an error.
inline constexpr std::size_t kNamedFileBytesMax = std::size_t{256} << 20;
Result<std::string> ReadNamedFile(const std::string& path);

// The same of a regular file only: a pipe, a device or a directory is an error at once (EINVAL), so that nothing waits.
FileResult<std::string> ReadRegularFile(const std::string& path, std::size_t bytes_max);

// Tells by the first bytes of a file, at most kHeadBytes, whether this program wrote it. A file of zeros that is being
// made counts too.
using IsOurs = bool (*)(std::string_view head);
inline constexpr std::size_t kHeadBytes = 4096;

// Opens /dev/null in the place of standard input, output or error that is closed: what is opened next would have that
// place, and log lines would be written into it. To be called before anything is opened.
void OpenStandardDescriptors();

// Whether `path` may be written to as state of this program: there is nothing, or a regular file of this user, without
// other names, that is empty or begins as `is_ours` expects. Anything else is somebody's by mistake, and stays whole.
FileResult<void> CheckStateFile(const std::string& path, IsOurs is_ours);

// Whether files can be made beside `path`, as each writing by ReplaceFile does.
FileResult<void> CheckFolderOf(const std::string& path);

// Writes all of it, in as many calls as that takes. False: errno says why the rest is not written.
bool WriteAll(int fd, std::string_view bytes);

// Writes the file anew. A reader finds either the old text or the whole new one, also after the power has failed.
// Permissions 0600. Replaces only a regular file of this user. The new text is put together in .NAME.dthrottle-new beside
// it.
FileResult<void> ReplaceFile(const std::string& path, std::string_view text);

// Writes a file anew, with the permissions that new files have: for output that somebody asked for.
Result<void> WriteOutput(const std::string& path, std::string_view text);

// The number of a start: greater than at any start before, also if the clock was set back, as long as the file `stem`
// + ".incarnation" is there. As a rule the wall clock in `unit`; a number in the file from `below` on is not believed.
// An empty stem, or a file that cannot be written: the clock alone. Waits for the disk.
std::uint64_t NextIncarnation(const std::string& stem, Duration unit, std::uint64_t below);

// Whether NextIncarnation may keep its file there, as CheckStateFile. An empty stem: it keeps none.
FileResult<void> CheckIncarnation(const std::string& stem);

// What such a file contains: one number, or nothing.
bool IsIncarnation(std::string_view text);

// The number that NextIncarnation has given last for this stem; none if no file says.
std::optional<std::uint64_t> LastIncarnation(const std::string& stem);

// 16 bytes that tell this boot from any other. Where kBootIdFile cannot be read, as in a chroot, it is kUnknownBoot at
// every call, and what an earlier boot left is taken for this one's. That makes no limit void: an instant of a longer
// uptime looks like debt, and debt that is more than there can be is dropped.
inline constexpr const char* kBootIdFile = "/proc/sys/kernel/random/boot_id";
inline constexpr std::array<std::byte, 16> kUnknownBoot{};
std::array<std::byte, 16> ReadBootId();

// Bytes from the system's source of randomness.
void FillRandom(std::span<std::byte> out);

// What becomes of a file that has another size than its region is to have. It is shown all that the file holds, may move
// that about, and returns how much of it the region begins with: `bytes`, or more. The rest is cut off, or is zeros.
using Fit = std::function<std::size_t(std::span<std::byte> held, std::size_t bytes)>;

// What room regions that are checked one after the other leave to the next one: bytes, by the file system's device.
using RoomLeft = std::map<std::uint64_t, std::int64_t>;

// A region of memory that is a shared mapping of a file, which may be one in memory without a name. Unmaps; keeps a
// file that has a name.
class MappedRegion {
 public:
  // Makes or resizes the file to `bytes`, permissions 0600, and holds an exclusive lock on it: two daemons on one table
  // would both be right and together wrong. EWOULDBLOCK means that another holds it. A file that CheckStateFile refuses
  // is an error and is not touched. One that there is no room to make longer stays as it was. Without `fit` a file of
  // another size keeps its beginning. An empty path: memory without a name.
  static FileResult<MappedRegion> Open(const std::string& path, std::size_t bytes, IsOurs is_ours, const Fit& fit = {});

  // Whether Open could have a file of `bytes` there, 0: of its size, after others that take room of `left`. It may be
  // held by a process all the same.
  static FileResult<void> Check(const std::string& path, std::size_t bytes, IsOurs is_ours, RoomLeft& left);

  // Memory without a name that another process left open, which becomes this object's: an error if it has another size
  // and there is no `fit`.
  static FileResult<MappedRegion> Adopt(int fd, std::size_t bytes, const Fit& fit = {});

  // Adopts what a program before has left open, -1: nothing, where there is no path and it fits; else opens. Closes
  // `left` where it is not adopted.
  static FileResult<MappedRegion> OpenOrAdopt(const std::string& path, std::size_t bytes, IsOurs is_ours, int left,
                                              const Fit& fit);

  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&&) = delete;
  ~MappedRegion();

  std::span<std::byte> bytes() const { return bytes_; }

  // The size that the file or the memory had before; 0: it is new.
  std::size_t bytes_before() const { return bytes_before_; }

  // What goes before each step of long work, told what the step before took. False ends the work.
  using Pause = std::function<bool(Duration took)>;

  // Claims the space that Open has left, which is all beyond the first 64 MiB. Open has seen that there is enough, but
  // somebody else may take it first: then a touch of what is not claimed ends the process (SIGBUS). Takes half a second
  // a GiB beside the pauses, in steps of a tenth of a millisecond; for a thread of its own. Where Open has found all of
  // it claimed there is nothing to do.
  FileResult<void> ClaimRest(const Pause& pause) const;

  // Puts the region into huge pages where the kernel can (Linux 6.1), whatever its settings for files in memory are: a
  // decision costs mostly translations of addresses. A step is 2 MiB and takes a millisecond, in which a query that
  // touches them waits; for a thread of its own. Whether it came to the end.
  bool UseHugePages(const Pause& pause) const;

  // The descriptor of memory without a name, for Adopt; -1 if the region has a name.
  int nameless_fd() const { return nameless_ ? fd_ : -1; }

 private:
  MappedRegion(std::span<std::byte> bytes, std::size_t bytes_before, int fd, bool nameless, bool claimed)
      : bytes_(bytes), bytes_before_(bytes_before), fd_(fd), nameless_(nameless), claimed_(claimed) {}
  static FileResult<MappedRegion> Map(const std::string& path, int fd, std::size_t held, std::size_t bytes,
                                      const Fit& fit);

  std::span<std::byte> bytes_;
  std::size_t bytes_before_;
  int fd_;    // holds the lock, where there is a name; -1: moved from
  bool nameless_;
  bool claimed_;    // all of its space, before
};

}    // namespace dthrottle
