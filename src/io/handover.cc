#include "io/handover.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "io/files.h"
#include "io/listener.h"

namespace dthrottle {

namespace {

constexpr std::string_view kMagic = "dthandov";
constexpr std::size_t kHeaderBytes = 8 + 4 + 8;
constexpr const char* kVariable = "DTHROTTLED_HANDOVER";

// Bounds on what is believed. An address is the path of a socket or a number. A connection that has all holds, all
// places and as many waits as it may has a state of 4 MiB. Unsent answers are those of two reads.
constexpr std::size_t kNameBytesMax = 256;
constexpr std::size_t kUnreadBytesMax = 64 * 1024;
constexpr std::size_t kStateBytesMax = std::size_t{16} << 20;
constexpr std::size_t kUnsentBytesMax = std::size_t{64} << 20;
constexpr std::size_t kConnectionsBytesMax = std::size_t{512} << 20;    // of all together
constexpr std::size_t kSectionBytesMax = std::size_t{1} << 30;
constexpr std::size_t kHandoverBytesMax = std::size_t{1} << 31;

class Writer {
 public:
  template <class Int>
  void Integer(Int value) {
    for (std::size_t i = 0; i < sizeof value; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void Descriptor(int fd) { Integer(static_cast<std::uint32_t>(fd)); }
  void Count(std::size_t n) { Integer(static_cast<std::uint32_t>(n)); }
  void String(std::string_view text) {
    Count(text.size());
    bytes_ += text;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads nothing any more once something was wrong.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class Int>
  Int Integer() {
    Int value = 0;
    const std::string_view from = Bytes(sizeof value);
    for (std::size_t i = 0; i < from.size(); ++i) {
      value = static_cast<Int>(value | static_cast<Int>(static_cast<unsigned char>(from[i])) << (8 * i));
    }
    return value;
  }
  // Each descriptor is somebody's alone.
  int Descriptor() {
    const auto value = Integer<std::uint32_t>();
    if (value > 0x7fffffff || value <= STDERR_FILENO || !seen_.insert(value).second) ok_ = false;
    return ok_ ? static_cast<int>(value) : -1;
  }
  int MaybeDescriptor() {
    if (bytes_.substr(0, 4) != std::string_view("\xff\xff\xff\xff", 4)) return Descriptor();
    Integer<std::uint32_t>();
    return -1;
  }
  bool Flag() {
    const auto value = Integer<std::uint8_t>();
    if (value > 1) ok_ = false;
    return value == 1;
  }
  std::string String(std::size_t bytes_max) {
    const auto size = Integer<std::uint32_t>();
    if (size > bytes_max) ok_ = false;
    return std::string(Bytes(size));
  }
  // No more than there can be: every element has some bytes.
  std::uint32_t Count() {
    const auto n = Integer<std::uint32_t>();
    if (n > bytes_.size()) ok_ = false;
    return ok_ ? n : 0;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view Bytes(std::size_t n) {
    if (n > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view taken = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return taken;
  }

  std::string_view bytes_;
  std::set<std::uint32_t> seen_;
  bool ok_ = true;
};

HandedSection ReadSection(Reader& in) {
  HandedSection s;
  s.key = in.String(kNameBytesMax);
  s.fd = in.MaybeDescriptor();
  s.bytes = in.String(kSectionBytesMax);
  return s;
}

HandedConnection ReadConnection(Reader& in) {
  HandedConnection c;
  c.fd = in.Descriptor();
  c.front = in.String(kNameBytesMax);
  c.unread = in.String(kUnreadBytesMax);
  c.state = in.String(kStateBytesMax);
  c.unsent = in.String(kUnsentBytesMax);
  c.ending = in.Flag();
  c.silent = Duration(static_cast<Duration::rep>(in.Integer<std::uint64_t>()));
  return c;
}

}    // namespace

HandedSection Handover::Take(std::string_view key) {
  const auto found = std::ranges::find(sections, key, &HandedSection::key);
  if (found == sections.end()) return {};
  HandedSection taken = std::move(*found);
  sections.erase(found);
  return taken;
}

// ---- As bytes ----

std::size_t DropOversized(Handover& handover) {
  std::size_t left = kConnectionsBytesMax;
  return std::erase_if(handover.connections, [&left](const HandedConnection& c) {
    const std::size_t bytes = c.unread.size() + c.state.size() + c.unsent.size();
    const bool fits = c.unread.size() <= kUnreadBytesMax && c.state.size() <= kStateBytesMax &&
                      c.unsent.size() <= kUnsentBytesMax && bytes <= left;
    if (fits) left -= bytes;
    return !fits;
  });
}

std::string EncodeHandover(const Handover& handover) {
  Writer out;
  out.Count(handover.listeners.size());
  for (const HandedListener& l : handover.listeners) {
    out.Descriptor(l.fd);
    out.String(l.key);
    out.String(l.address);
  }
  out.Integer(static_cast<std::uint64_t>(handover.held_at.time_since_epoch().count()));
  out.Count(handover.sections.size());
  for (const HandedSection& s : handover.sections) {
    out.String(s.key);
    out.Descriptor(s.fd);
    out.String(s.bytes);
  }
  out.Count(handover.connections.size());
  for (const HandedConnection& c : handover.connections) {
    out.Descriptor(c.fd);
    out.String(c.front);
    out.String(c.unread);
    out.String(c.state);
    out.String(c.unsent);
    out.Integer(static_cast<std::uint8_t>(c.ending));
    out.Integer(static_cast<std::uint64_t>(c.silent.count()));
  }
  const std::string body = out.Take();
  Writer head;
  head.Integer(kHandoverVersion);
  head.Integer(static_cast<std::uint64_t>(XXH3_64bits(body.data(), body.size())));
  return std::string(kMagic) + head.Take() + body;
}

Result<Handover> DecodeHandover(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kMagic)) return Fail("it is not a handover");
  Reader head(bytes.substr(kMagic.size(), kHeaderBytes - kMagic.size()));
  const auto version = head.Integer<std::uint32_t>();
  const auto checksum = head.Integer<std::uint64_t>();
  const std::string_view body = bytes.substr(kHeaderBytes);
  if (XXH3_64bits(body.data(), body.size()) != checksum) return Fail("its checksum is wrong");

  Reader in(body);
  Handover handover;
  for (std::uint32_t n = in.Count(); n > 0 && in.ok(); --n) {
    HandedListener& l = handover.listeners.emplace_back();
    l.fd = in.Descriptor();
    l.key = in.String(kNameBytesMax);
    l.address = in.String(kNameBytesMax);
  }
  if (!in.ok()) return Fail("its listeners are malformed");
  if (version != kHandoverVersion) {
    handover.whole = false;
    return handover;
  }
  handover.held_at = Instant(Duration(static_cast<Duration::rep>(in.Integer<std::uint64_t>())));
  for (std::uint32_t n = in.Count(); n > 0 && in.ok(); --n) handover.sections.push_back(ReadSection(in));
  for (std::uint32_t n = in.Count(); n > 0 && in.ok(); --n) handover.connections.push_back(ReadConnection(in));
  if (!in.ok() || !in.at_end()) return Fail("it is malformed");
  return handover;
}

// ---- Across execve ----

namespace {

std::string WorkingDirectory() {
  char* const path = ::getcwd(nullptr, 0);
  if (path == nullptr) return "";
  const std::string result = path;
  std::free(path);
  return result;
}

void SetCloseOnExec(const Handover& handover, bool on) {
  const auto set = [on](int fd) { ::fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0); };
  for (const HandedListener& l : handover.listeners) set(l.fd);
  for (const HandedConnection& c : handover.connections) set(c.fd);
  for (const HandedSection& s : handover.sections) {
    if (s.fd >= 0) set(s.fd);
  }
}

// Closes all others, without knowing which are open: /proc says that.
void CloseBetween(const std::set<int>& kept) {
  unsigned from = 0;
  for (const int fd : kept) {
    const auto at = static_cast<unsigned>(fd);
    if (at > from) ::close_range(from, at - 1, 0);
    from = at + 1;
  }
  ::close_range(from, ~0U, 0);
}

// The other end of a descriptor that nobody serves would wait for ever.
void CloseAllBut(const Handover& handover) {
  std::set<int> kept = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  for (const HandedListener& l : handover.listeners) kept.insert(l.fd);
  for (const HandedConnection& c : handover.connections) kept.insert(c.fd);
  for (const HandedSection& s : handover.sections) {
    if (s.fd >= 0) kept.insert(s.fd);
  }
  DIR* const open = ::opendir("/proc/self/fd");
  if (open == nullptr) return CloseBetween(kept);
  std::vector<int> strangers;
  while (const dirent* entry = ::readdir(open)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(open) && !kept.contains(fd)) strangers.push_back(fd);
  }
  ::closedir(open);
  for (const int fd : strangers) ::close(fd);
}

}    // namespace

std::string OwnProgram(const char* argv0) {
  const std::string name = argv0 != nullptr ? argv0 : "";
  if (name.starts_with('/')) return name;
  if (name.find('/') != std::string::npos) return WorkingDirectory() + '/' + name;
  // Found by PATH: the kernel knows where.
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : name;
}

Error BecomeProgram(const std::string& program, const std::vector<std::string>& args, const Handover& handover) {
  const std::string bytes = EncodeHandover(handover);
  const int fd = ::memfd_create("dthrottle-handover", MFD_CLOEXEC);
  if (fd < 0) return {fmt::format("cannot make a file in memory: {}", std::strerror(errno))};
  if (!WriteAll(fd, bytes)) {
    const int code = errno;
    ::close(fd);
    return {fmt::format("cannot write to memory: {}", std::strerror(code))};
  }
  ::fcntl(fd, F_SETFD, 0);
  SetCloseOnExec(handover, false);
  ::setenv(kVariable, std::to_string(fd).c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  const int code = errno;
  ::unsetenv(kVariable);
  SetCloseOnExec(handover, true);
  ::close(fd);
  return {fmt::format("{}: {}", program, std::strerror(code))};
}

Inheritance TakeInheritance() {
  Inheritance taken;
  const char* const variable = std::getenv(kVariable);
  if (variable == nullptr) return taken;
  const int fd = std::atoi(variable);
  ::unsetenv(kVariable);
  const auto bytes = ReadOpenFile(fd, kHandoverBytesMax);
  auto decoded = bytes ? DecodeHandover(*bytes) : Fail(bytes.error().message);
  if (!decoded) {
    taken.complaint = decoded.error().message;
    CloseAllBut({});
    return taken;
  }
  taken.any = true;
  taken.handover = std::move(*decoded);
  Handover& handover = taken.handover;
  if (!handover.whole) taken.complaint = "it is another version's: the connections are closed";
  // Connections are streams. Sockets that give workers their pages listen for packets.
  std::erase_if(handover.listeners, [](const HandedListener& l) {
    return !IsSocket(l.fd, SOCK_STREAM, true) && !IsSocket(l.fd, SOCK_SEQPACKET, true);
  });
  std::erase_if(handover.connections, [](const HandedConnection& c) { return !IsSocket(c.fd, SOCK_STREAM, false); });
  CloseAllBut(handover);
  SetCloseOnExec(handover, true);
  return taken;
}

}    // namespace dthrottle
