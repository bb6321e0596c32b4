/* Addresses and connecting, for the parts of libdthrottle. Not for applications. */
#ifndef DTHROTTLE_ENDPOINT_H
#define DTHROTTLE_ENDPOINT_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct dthrottle_endpoint {
  union {
    struct sockaddr any;
    struct sockaddr_un un;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
  } address;
  socklen_t bytes;
};

enum dthrottle_connected { DTHROTTLE_CONNECTED, DTHROTTLE_CONNECT_TIMED_OUT, DTHROTTLE_CONNECT_FAILED };

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t dthrottle_now_ns(void);

struct timespec dthrottle_timespec(int64_t ns);

/* "unix:/path" or "tcp:ADDRESS:PORT" with a numeric address. False with errno EINVAL or ENAMETOOLONG. REQUIRES:
 * `endpoint` is zero. */
bool dthrottle_parse_endpoint(struct dthrottle_endpoint* endpoint, const char* address);

/* A non-blocking socket in `connected`, by the deadline. A full backlog of a Unix socket fails at once. */
enum dthrottle_connected dthrottle_connect_endpoint(const struct dthrottle_endpoint* endpoint, int* connected,
                                                    int64_t deadline);

/* Waits until one of `events` or an error. False: it is too late. */
bool dthrottle_wait_for(int fd, short events, int64_t deadline);

#endif
