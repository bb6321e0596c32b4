#include "frontend/page/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace dthrottle {

namespace {

constexpr unsigned kNoExecSeal = 0x0008;    // MFD_NOEXEC_SEAL, from Linux 6.3 on
constexpr int kCountSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kPageSeals = kCountSeals | 0x0010;    // F_SEAL_FUTURE_WRITE

int MakeFile(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create(name, kFlags | kNoExecSeal);
  return fd >= 0 || errno != EINVAL ? fd : ::memfd_create(name, kFlags);
}

}    // namespace

bool PageMemory::Mapped::Create(const char* name, std::size_t size) {
  fd = MakeFile(name);
  bytes = size;
  return fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0;
}

bool PageMemory::Mapped::Map(int protection) {
  void* const mapped = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) at = mapped;
  return at != nullptr;
}

void PageMemory::Mapped::CloseDescriptor() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

void PageMemory::Mapped::Drop() {
  CloseDescriptor();
  if (at != nullptr) ::munmap(std::exchange(at, nullptr), bytes);
}

// The page is mapped before it is sealed: afterwards nobody can map it for writing, not even the daemon.
Result<PageMemory> PageMemory::Make(std::uint32_t entries, const SipKey& key) {
  PageMemory made;
  made.entries_ = entries;
  Mapped& page = made.page_;
  Mapped& counts = made.counts_;
  const bool good = page.Create("dthrottle-page", dthrottle_page_bytes(entries)) && page.Map(PROT_READ | PROT_WRITE) &&
                    ::fcntl(page.fd, F_ADD_SEALS, kPageSeals) == 0 &&
                    counts.Create("dthrottle-counts", dthrottle_page_count_bytes(entries)) && counts.Map(PROT_READ) &&
                    ::fcntl(counts.fd, F_ADD_SEALS, kCountSeals) == 0;
  if (!good) return Fail(std::strerror(errno));
  std::memcpy(made.page().head.key, key.data(), sizeof key);
  return made;
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : page_(std::exchange(other.page_, {})), counts_(std::exchange(other.counts_, {})), entries_(other.entries_) {}

PageMemory::~PageMemory() {
  page_.Drop();
  counts_.Drop();
}

bool PageMemory::SendTo(int socket, std::int64_t now_ns) {
  dthrottle_page_hello hello{DTHROTTLE_PAGE_MAGIC, now_ns, entries_, 0};
  iovec io{&hello, sizeof hello};
  const int fds[] = {page_.fd, counts_.fd};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(head), fds, sizeof fds);
  const bool sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof hello;
  page_.CloseDescriptor();
  counts_.CloseDescriptor();
  return sent;
}

}    // namespace dthrottle
