/* Addresses, connecting and talking over a socket by a deadline, for the parts of libdthrottle. Not for applications.
 */
#ifndef DTHROTTLE_ENDPOINT_H
#define DTHROTTLE_ENDPOINT_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "dthrottle.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dthrottle_endpoint {
  union {
    struct sockaddr any;
    struct sockaddr_un un;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
  } address;
  socklen_t bytes;
};

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t dthrottle_now_ns(void);

struct timespec dthrottle_timespec(int64_t ns);

/* "unix:/path" or "tcp:ADDRESS:PORT" with a numeric address. False with errno EINVAL or ENAMETOOLONG. REQUIRES:
 * `endpoint` is zero. */
bool dthrottle_parse_endpoint(struct dthrottle_endpoint* endpoint, const char* address);

/* Puts a non-blocking socket into `connected`: SERVE, or TIMED_OUT or UNREACHABLE with errno. A full backlog of a Unix
 * socket fails at once. */
enum dthrottle_verdict dthrottle_connect_endpoint(const struct dthrottle_endpoint* endpoint, int* connected,
                                                  int64_t deadline);

/* What one end says and hears. */
struct dthrottle_talk {
  const char* (*output)(void* self, size_t* bytes); /* what is to be sent next; 0 bytes: nothing */
  void (*sent)(void* self, size_t bytes);           /* so much of it is sent */
  /* Takes what has come. SERVE: the talk is over, and good; TIMED_OUT: it goes on; BAD_ANSWER: it must not go on. */
  enum dthrottle_verdict (*hear)(void* self, const char* data, size_t bytes);
};

/* Sends and reads at the same time: an end that only writes would wait for one that waits for it to read. SERVE,
 * TIMED_OUT, UNREACHABLE or BAD_ANSWER. What has come by the time that it looks is heard, even if that is late. */
enum dthrottle_verdict dthrottle_talk_on(int fd, const struct dthrottle_talk* talk, void* self, int64_t deadline);

/* A condition whose waits end at instants of CLOCK_MONOTONIC. */
void dthrottle_init_condition(pthread_cond_t* condition);

#ifdef __cplusplus
}
#endif

#endif
