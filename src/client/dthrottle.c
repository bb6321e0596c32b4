/* The client library: a few connections, one deadline over a whole call, and a pause after a failure.
 *
 * A call takes a connection of the handle for itself, asks, and gives it back, so answers can never go to somebody
 * else. A connection on which anything went wrong is closed: an answer that is late must not be taken for the next one.
 * The mutex guards who has which connection and when to try again; nobody holds it over a system call.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* ppoll, SOCK_CLOEXEC */
#endif
#define DTHROTTLE_API __attribute__((visibility("default")))

#include "dthrottle.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"
#include "endpoint.h"

enum {
  CONNECTIONS_DEFAULT = 16,
  CONNECTIONS_MAX = 1024,
  BACKOFF_MIN_DEFAULT_MS = 10,
  BACKOFF_MAX_DEFAULT_MS = 5000,
  SEND_BYTES = 4096,       /* of queries in one write: as much as the daemon reads at once */
  RECEIVE_BYTES = 3 * 512, /* of answers in one read */
};

static const int64_t NS_PER_MS = 1000000;

struct connection {
  int fd;    /* -1: none */
  bool busy; /* some call has it */
};

struct dthrottle {
  struct dthrottle *next, *previous; /* all handles, for fork */
  struct dthrottle_endpoint endpoint;
  int64_t backoff_min, backoff_max; /* ns */

  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t freed;  /* a connection is not busy any more, or asking has failed */
  unsigned failures;     /* in a row */
  int64_t failed_at;     /* the last of them */
  int64_t retry_at;      /* nobody asks before, and then one at first */
  bool probing;          /* that one is under way */
  uint64_t chance;
  unsigned connection_count;
  struct connection connections[];
};

/* One call: what is asked, how far that has come, and what it holds of the handle. */
struct call {
  const char* const* tags;
  const size_t* tag_bytes;
  size_t count;
  enum dthrottle_verdict* verdicts;
  size_t answered;

  int64_t begin, deadline; /* monotonic, ns */
  struct connection* connection;
  bool probe; /* the one that finds out whether the daemon is back */
};

static void close_connection(struct connection* connection) {
  if (connection->fd >= 0) close(connection->fd);
  connection->fd = -1;
}

/* ---- Sockets ---- */

static enum dthrottle_verdict connect_now(const dthrottle* handle, int* connected, int64_t deadline) {
  switch (dthrottle_connect_endpoint(&handle->endpoint, connected, deadline)) {
    case DTHROTTLE_CONNECTED:
      return DTHROTTLE_SERVE;
    case DTHROTTLE_CONNECT_TIMED_OUT:
      return DTHROTTLE_TIMED_OUT;
    default:
      return DTHROTTLE_UNREACHABLE;
  }
}

/* Whether a connection that was kept is still there, with nothing on it that nobody has asked for. */
static bool is_quiet(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/* ---- Queries and answers ---- */

/* Where the next byte of the queries comes from. */
struct cursor {
  size_t tag, offset;
};

/* Writes what fits of the queries that are left, and returns how much that is. A tag is one line whatever is in it. */
static size_t write_queries(const struct call* call, struct cursor* at, char* out, size_t room) {
  size_t used = 0;
  while (at->tag < call->count && used < room) {
    const char* const tag = call->tags[at->tag];
    const size_t bytes = call->tag_bytes != NULL ? call->tag_bytes[at->tag] : strlen(tag);
    if (at->offset == bytes) {
      out[used++] = '\n';
      *at = (struct cursor){at->tag + 1, 0};
      continue;
    }
    const char byte = tag[at->offset++];
    const bool unsendable = byte == '\n' || (byte == '\r' && at->offset == bytes);
    out[used++] = unsendable ? '_' : byte;
  }
  return used;
}

/* False: these are not the answers to what was asked. */
static bool read_answers(struct call* call, struct dthrottle_verdict_reader* reader, const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (call->answered == call->count) return false;
    const enum dthrottle_read read = dthrottle_read_verdict(reader, data[i]);
    if (read == DTHROTTLE_READ_BAD) return false;
    if (read == DTHROTTLE_READ_MORE) continue;
    call->verdicts[call->answered++] = read == DTHROTTLE_READ_OK ? DTHROTTLE_SERVE : DTHROTTLE_THROTTLE;
  }
  return true;
}

/* Sends all queries and reads all answers, both as far as they go: whoever only writes would wait for a daemon that
 * waits for him. SERVE: all is answered. `heard` tells whether the daemon has said anything. */
static enum dthrottle_verdict exchange(int fd, struct call* call, bool* heard) {
  struct cursor at = {0, 0};
  struct dthrottle_verdict_reader reader = {{0}, 0};
  char out[SEND_BYTES], in[RECEIVE_BYTES];
  size_t out_begin = 0, out_end = 0;
  while (call->answered < call->count) {
    if (out_begin == out_end) {
      out_begin = 0;
      out_end = write_queries(call, &at, out, sizeof out);
    }
    if (out_begin < out_end) {
      const ssize_t sent = send(fd, out + out_begin, out_end - out_begin, MSG_NOSIGNAL);
      if (sent >= 0) {
        out_begin += (size_t)sent;
      } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return DTHROTTLE_UNREACHABLE;
      }
    }
    const bool unsent = out_begin < out_end || at.tag < call->count;
    if (!dthrottle_wait_for(fd, unsent ? POLLIN | POLLOUT : POLLIN, call->deadline)) return DTHROTTLE_TIMED_OUT;
    const ssize_t received = recv(fd, in, sizeof in, 0);
    if (received == 0) return DTHROTTLE_UNREACHABLE;
    if (received < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return DTHROTTLE_UNREACHABLE;
      continue;
    }
    *heard = true;
    if (!read_answers(call, &reader, in, (size_t)received)) return DTHROTTLE_BAD_ANSWER;
  }
  return DTHROTTLE_SERVE;
}

/* Asks on the call's connection, or on a fresh one if it has none. A connection that was kept may have ended meanwhile,
 * with a daemon that was restarted: then once more, on a fresh one, unless something has been answered. */
static enum dthrottle_verdict converse(dthrottle* handle, struct call* call) {
  struct connection* const connection = call->connection;
  if (connection->fd >= 0 && !is_quiet(connection->fd)) close_connection(connection);
  bool kept = connection->fd >= 0;
  for (;;) {
    enum dthrottle_verdict verdict = DTHROTTLE_SERVE;
    bool heard = false;
    if (connection->fd < 0) verdict = connect_now(handle, &connection->fd, call->deadline);
    if (verdict == DTHROTTLE_SERVE) verdict = exchange(connection->fd, call, &heard);
    if (verdict == DTHROTTLE_SERVE) return verdict;
    close_connection(connection);
    if (!kept || heard || verdict != DTHROTTLE_UNREACHABLE) return verdict;
    kept = false;
  }
}

/* ---- Who may ask now ---- */

/* A number below 1024. */
static int64_t draw_1024(dthrottle* handle) {
  uint64_t x = handle->chance;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  handle->chance = x;
  return (int64_t)(x >> 54);
}

/* How long to wait after the failures so far: doubled each time, and shortened by up to a quarter by chance, so that
 * the workers of a host do not all come back at once. */
static int64_t backoff(dthrottle* handle) {
  int64_t pause = handle->backoff_min;
  for (unsigned i = 1; i < handle->failures && pause < handle->backoff_max; i++) pause *= 2;
  if (pause > handle->backoff_max) pause = handle->backoff_max;
  return pause - pause / 4096 * draw_1024(handle);
}

/* One that is connected, else one that is not. NULL: all are busy. */
static struct connection* find_connection(dthrottle* handle) {
  struct connection* unconnected = NULL;
  for (unsigned i = 0; i < handle->connection_count; i++) {
    struct connection* const connection = &handle->connections[i];
    if (connection->busy) continue;
    if (connection->fd >= 0) return connection;
    if (unconnected == NULL) unconnected = connection;
  }
  return unconnected;
}

/* Takes a connection for the call. SERVE: it has one, and must give it back. */
static enum dthrottle_verdict begin_call(dthrottle* handle, struct call* call) {
  enum dthrottle_verdict verdict = DTHROTTLE_TIMED_OUT;
  const struct timespec deadline = dthrottle_timespec(call->deadline);
  pthread_mutex_lock(&handle->mutex);
  do {
    if (handle->failures > 0 && (handle->probing || dthrottle_now_ns() < handle->retry_at)) {
      verdict = DTHROTTLE_BACKING_OFF;
      break;
    }
    call->connection = find_connection(handle);
    if (call->connection != NULL) {
      call->connection->busy = true;
      call->probe = handle->failures > 0;
      handle->probing = handle->probing || call->probe;
      verdict = DTHROTTLE_SERVE;
      break;
    }
  } while (pthread_cond_timedwait(&handle->freed, &handle->mutex, &deadline) == 0);
  pthread_mutex_unlock(&handle->mutex);
  return verdict;
}

/* Gives the connection back. Of calls that fail together the first counts, not each. */
static void end_call(dthrottle* handle, struct call* call, bool good) {
  pthread_mutex_lock(&handle->mutex);
  call->connection->busy = false;
  if (call->probe) handle->probing = false;
  if (good) {
    handle->failures = 0;
  } else if (handle->failures == 0 || call->begin >= handle->failed_at) {
    handle->failures++;
    handle->failed_at = dthrottle_now_ns();
    handle->retry_at = handle->failed_at + backoff(handle);
  }
  pthread_mutex_unlock(&handle->mutex);
  if (good) {
    pthread_cond_signal(&handle->freed);
  } else {
    pthread_cond_broadcast(&handle->freed);
  }
}

static enum dthrottle_verdict perform(dthrottle* handle, struct call* call, int deadline_ms) {
  call->begin = dthrottle_now_ns();
  call->deadline = call->begin + deadline_ms * NS_PER_MS;
  if (deadline_ms < 1) return DTHROTTLE_TIMED_OUT;
  enum dthrottle_verdict verdict = begin_call(handle, call);
  if (verdict != DTHROTTLE_SERVE) return verdict;
  verdict = converse(handle, call);
  end_call(handle, call, verdict == DTHROTTLE_SERVE);
  return verdict;
}

/* ---- Fork ----
 *
 * A child must not share connections with its parent, and only the thread that forked lives on in it. So nobody holds
 * a mutex while the process forks, and the child starts without connections. */

static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dthrottle* handles;
static pthread_once_t handles_once = PTHREAD_ONCE_INIT;
static int handles_error;

static void before_fork(void) {
  pthread_mutex_lock(&handles_mutex);
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) pthread_mutex_lock(&handle->mutex);
}

static void after_fork_in_parent(void) {
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) pthread_mutex_unlock(&handle->mutex);
  pthread_mutex_unlock(&handles_mutex);
}

static void init_freed(dthrottle* handle) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&handle->freed, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static void after_fork_in_child(void) {
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) {
    for (unsigned i = 0; i < handle->connection_count; i++) {
      close_connection(&handle->connections[i]);
      handle->connections[i].busy = false;
    }
    handle->probing = false;
    handle->chance ^= (uint64_t)getpid() << 20; /* other pauses than the parent's */
    init_freed(handle);                         /* whoever waited has stayed behind */
    pthread_mutex_unlock(&handle->mutex);
  }
  pthread_mutex_unlock(&handles_mutex);
}

static void watch_forks(void) {
  handles_error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- Handles ---- */

static unsigned or_default(unsigned value, unsigned otherwise) {
  return value != 0 ? value : otherwise;
}

dthrottle* dthrottle_open(const char* address, const dthrottle_options* options) {
  static const dthrottle_options defaults;
  const dthrottle_options* const given = options != NULL ? options : &defaults;
  const unsigned connections = or_default(given->connections_max, CONNECTIONS_DEFAULT);
  if (connections > CONNECTIONS_MAX) {
    errno = EINVAL;
    return NULL;
  }
  dthrottle* const handle = calloc(1, sizeof *handle + connections * sizeof handle->connections[0]);
  if (handle == NULL) return NULL;
  if (!dthrottle_parse_endpoint(&handle->endpoint, address != NULL ? address : DTHROTTLE_DEFAULT_ADDRESS)) {
    const int error = errno;
    free(handle);
    errno = error;
    return NULL;
  }
  handle->backoff_min = or_default(given->backoff_min_ms, BACKOFF_MIN_DEFAULT_MS) * NS_PER_MS;
  handle->backoff_max = or_default(given->backoff_max_ms, BACKOFF_MAX_DEFAULT_MS) * NS_PER_MS;
  handle->chance = ((uint64_t)dthrottle_now_ns() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)handle) | 1;
  handle->connection_count = connections;
  for (unsigned i = 0; i < connections; i++) handle->connections[i].fd = -1;

  pthread_once(&handles_once, watch_forks);
  if (handles_error != 0) {
    free(handle);
    errno = handles_error;
    return NULL;
  }
  pthread_mutex_init(&handle->mutex, NULL);
  init_freed(handle);
  pthread_mutex_lock(&handles_mutex);
  handle->next = handles;
  if (handles != NULL) handles->previous = handle;
  handles = handle;
  pthread_mutex_unlock(&handles_mutex);
  return handle;
}

enum dthrottle_verdict dthrottle_connect(dthrottle* handle, int deadline_ms) {
  struct call call = {.count = 0};
  return perform(handle, &call, deadline_ms);
}

enum dthrottle_verdict dthrottle_ask(dthrottle* handle, const char* tag, size_t tag_bytes, int deadline_ms) {
  enum dthrottle_verdict verdict = DTHROTTLE_SERVE;
  struct call call = {.tags = &tag, .tag_bytes = &tag_bytes, .count = 1, .verdicts = &verdict};
  const enum dthrottle_verdict failure = perform(handle, &call, deadline_ms);
  return failure != DTHROTTLE_SERVE ? failure : verdict;
}

size_t dthrottle_ask_batch(dthrottle* handle, const char* const* tags, const size_t* tag_bytes, size_t count,
                           enum dthrottle_verdict* verdicts, int deadline_ms) {
  struct call call = {.tags = tags, .tag_bytes = tag_bytes, .count = count, .verdicts = verdicts};
  if (count == 0) return 0;
  const enum dthrottle_verdict failure = perform(handle, &call, deadline_ms);
  for (size_t i = call.answered; i < count; i++) verdicts[i] = failure;
  return call.answered;
}

const char* dthrottle_verdict_name(enum dthrottle_verdict verdict) {
  static const char* const names[] = {"serve", "throttle", "timed out", "unreachable", "bad answer", "backing off"};
  const size_t index = (size_t)verdict;
  return index < sizeof names / sizeof names[0] ? names[index] : "unknown";
}

void dthrottle_close(dthrottle* handle) {
  if (handle == NULL) return;
  pthread_mutex_lock(&handles_mutex);
  if (handle->previous != NULL) {
    handle->previous->next = handle->next;
  } else {
    handles = handle->next;
  }
  if (handle->next != NULL) handle->next->previous = handle->previous;
  pthread_mutex_unlock(&handles_mutex);
  for (unsigned i = 0; i < handle->connection_count; i++) close_connection(&handle->connections[i]);
  pthread_cond_destroy(&handle->freed);
  pthread_mutex_destroy(&handle->mutex);
  free(handle);
}
