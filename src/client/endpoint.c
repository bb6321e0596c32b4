#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* ppoll, SOCK_CLOEXEC */
#endif

#include "endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  RECEIVE_BYTES = 3 * 512, /* in one read */
};

static const int64_t NS_PER_S = 1000000000;

int64_t dthrottle_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

struct timespec dthrottle_timespec(int64_t ns) {
  const struct timespec t = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
  return t;
}

void dthrottle_init_condition(pthread_cond_t* condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* Waits until one of `events` or an error. False: nothing has happened by the deadline. It looks behind the deadline too:
 * a thread that had to wait for a processor may find its answer. */
static bool wait_for(int fd, short events, int64_t deadline) {
  for (;;) {
    const int64_t left = deadline - dthrottle_now_ns();
    struct pollfd p = {.fd = fd, .events = events};
    const struct timespec timeout = dthrottle_timespec(left > 0 ? left : 0);
    const int ready = ppoll(&p, 1, &timeout, NULL);
    if (ready == 0) return false;
    if (ready > 0 || errno != EINTR) return true; /* the next call on the socket says what it is */
  }
}

static bool would_block(void) {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

enum dthrottle_verdict dthrottle_talk_on(int fd, const struct dthrottle_talk* talk, void* self, int64_t deadline) {
  char in[RECEIVE_BYTES];
  for (;;) {
    size_t bytes;
    const char* const out = talk->output(self, &bytes);
    if (bytes > 0) {
      const ssize_t sent = send(fd, out, bytes, MSG_NOSIGNAL);
      if (sent < 0 && !would_block()) return DTHROTTLE_UNREACHABLE;
      if (sent > 0) talk->sent(self, (size_t)sent);
      talk->output(self, &bytes);
    }
    if (!wait_for(fd, bytes > 0 ? POLLIN | POLLOUT : POLLIN, deadline)) return DTHROTTLE_TIMED_OUT;
    const ssize_t received = recv(fd, in, sizeof in, 0);
    if (received == 0) return DTHROTTLE_UNREACHABLE;
    if (received < 0 && !would_block()) return DTHROTTLE_UNREACHABLE;
    if (received < 0) continue;
    const enum dthrottle_verdict heard = talk->hear(self, in, (size_t)received);
    if (heard != DTHROTTLE_TIMED_OUT) return heard;
  }
}

enum dthrottle_verdict dthrottle_connect_endpoint(const struct dthrottle_endpoint* endpoint, int* connected,
                                                  int64_t deadline) {
  const int family = endpoint->address.any.sa_family;
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return DTHROTTLE_UNREACHABLE;
  const int on = 1;
  if (family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  enum dthrottle_verdict outcome = DTHROTTLE_SERVE;
  if (connect(fd, &endpoint->address.any, endpoint->bytes) < 0) {
    int error = errno;
    socklen_t bytes = sizeof error;
    if (error != EINPROGRESS && error != EINTR) {
      outcome = DTHROTTLE_UNREACHABLE;
    } else if (!wait_for(fd, POLLOUT, deadline)) {
      outcome = DTHROTTLE_TIMED_OUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 || error != 0) {
      outcome = DTHROTTLE_UNREACHABLE;
    }
    if (outcome != DTHROTTLE_SERVE) {
      close(fd);
      errno = error;
      return outcome;
    }
  }
  *connected = fd;
  return outcome;
}

static bool parse_unix(struct dthrottle_endpoint* endpoint, const char* path) {
  const size_t bytes = strlen(path);
  if (bytes == 0) {
    errno = EINVAL;
    return false;
  }
  if (bytes >= sizeof endpoint->address.un.sun_path) {
    errno = ENAMETOOLONG;
    return false;
  }
  endpoint->address.un.sun_family = AF_UNIX;
  memcpy(endpoint->address.un.sun_path, path, bytes + 1);
  endpoint->bytes = sizeof endpoint->address.un;
  return true;
}

/* "127.0.0.1:7311" or "[::1]:7311". Names would have to be looked up, which takes as long as it takes. */
static bool parse_tcp(struct dthrottle_endpoint* endpoint, const char* text) {
  char host[INET6_ADDRSTRLEN + 1];
  const bool six = *text == '[';
  const char* const begin = six ? text + 1 : text;
  const char* const end = strchr(begin, six ? ']' : ':');
  const char* const colon = end != NULL && six ? end + 1 : end;
  errno = EINVAL;
  if (end == NULL || *colon != ':' || (size_t)(end - begin) >= sizeof host) return false;
  memcpy(host, begin, (size_t)(end - begin));
  host[end - begin] = '\0';
  const char* const digits = colon + 1;
  const size_t digit_count = strspn(digits, "0123456789");
  if (digit_count == 0 || digit_count > 5 || digits[digit_count] != '\0') return false;
  const long port = strtol(digits, NULL, 10);
  if (port < 1 || port > 65535) return false;
  if (six) {
    endpoint->address.in6.sin6_family = AF_INET6;
    endpoint->address.in6.sin6_port = htons((uint16_t)port);
    endpoint->bytes = sizeof endpoint->address.in6;
    return inet_pton(AF_INET6, host, &endpoint->address.in6.sin6_addr) == 1;
  }
  endpoint->address.in.sin_family = AF_INET;
  endpoint->address.in.sin_port = htons((uint16_t)port);
  endpoint->bytes = sizeof endpoint->address.in;
  return inet_pton(AF_INET, host, &endpoint->address.in.sin_addr) == 1;
}

bool dthrottle_parse_endpoint(struct dthrottle_endpoint* endpoint, const char* address) {
  if (strncmp(address, "unix:", 5) == 0) return parse_unix(endpoint, address + 5);
  if (strncmp(address, "tcp:", 4) == 0) return parse_tcp(endpoint, address + 4);
  errno = EINVAL;
  return false;
}
