// Descriptors over a Unix socket, one a message of one byte: how a connection goes to another program.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace dthrottle {

// Between the daemon and a program that speaks a protocol for it (frontend/gateway.h): the version of what they say to
// each other, the first argument of the program; and its descriptors for connections and, from kGatewayLines on, lines.
inline constexpr std::uint32_t kGatewayProtocol = 1;
inline constexpr int kGatewayPipe = 3, kGatewayLines = 4;

inline bool IsSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

// A message with room for one descriptor.
struct DescriptorMessage {
  DescriptorMessage() {
    head.msg_iov = &io;
    head.msg_iovlen = 1;
    head.msg_control = control;
    head.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr head{};
};

// Sends a descriptor, which stays the caller's. 0, or errno.
inline int SendDescriptor(int socket, int fd) {
  DescriptorMessage message;
  cmsghdr* const head = CMSG_FIRSTHDR(&message.head);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  return ::sendmsg(socket, &message.head, MSG_NOSIGNAL) == 1 ? 0 : errno;
}

// The descriptor of the next message, or -1 if it has none; `ended`: no message will come any more.
inline int ReceiveDescriptor(int socket, bool& ended) {
  DescriptorMessage message;
  ended = ::recvmsg(socket, &message.head, MSG_CMSG_CLOEXEC) <= 0;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message.head);
  if (ended || head == nullptr || head->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return fd;
}

}    // namespace dthrottle
