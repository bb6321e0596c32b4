/* libdthrottle: asks the dthrottled of this host whether somebody should be served, in plain C. libdthrottle(3).
 *
 *   dthrottle *throttle = dthrottle_open(NULL, NULL);
 *   if (dthrottle_ask(throttle, tag, tag_bytes, 20) == DTHROTTLE_THROTTLE) refuse();
 *
 * It fails open: THROTTLE comes from the daemon and from nowhere else, every other verdict means serve. No call lasts
 * longer than its deadline, and after a failure the daemon is left alone for a while, so one that is dead or hangs
 * costs next to nothing. A handle may be used by all threads at once, and by a child after fork.
 */
#ifndef DTHROTTLE_H
#define DTHROTTLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DTHROTTLE_API
#define DTHROTTLE_API
#endif

#define DTHROTTLE_DEFAULT_ADDRESS "unix:/run/dthrottle/query.sock"

typedef struct dthrottle dthrottle;

enum dthrottle_verdict {
  DTHROTTLE_SERVE = 0,    /* the daemon says OK */
  DTHROTTLE_THROTTLE = 1, /* the daemon says NO */
  /* Nobody has answered: serve. */
  DTHROTTLE_TIMED_OUT = 2,   /* no answer before the deadline */
  DTHROTTLE_UNREACHABLE = 3, /* no connection, or it ended without an answer */
  DTHROTTLE_BAD_ANSWER = 4,  /* what answers is not dthrottled */
  DTHROTTLE_BACKING_OFF = 5  /* not asked, because asking has failed a moment ago */
};

/* Zero stands for the default, so begin with `dthrottle_options options = {0}`. */
typedef struct dthrottle_options {
  unsigned connections_max; /* of one handle, open at a time; 16, at most 1024 */
  unsigned backoff_min_ms;  /* pause after the first failure; 10 */
  unsigned backoff_max_ms;  /* it doubles with each further one, up to this; 5000 */
  unsigned reserved[5];     /* zero */
} dthrottle_options;

/* A handle that asks at `address`, "unix:/path" or "tcp:ADDRESS:PORT" with a numeric address; NULL is the default
 * address. Nothing is connected yet. NULL with errno EINVAL, ENAMETOOLONG or ENOMEM if there cannot be one. `options`
 * may be NULL. */
DTHROTTLE_API dthrottle* dthrottle_open(const char* address, const dthrottle_options* options);

/* Opens a connection for the first ask to find. Nobody has to call this. SERVE, or what ask would say. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_connect(dthrottle* handle, int deadline_ms);

/* Asks for one tag. LF anywhere in it and CR at its end are sent as '_', all else as it is. Returns within
 * `deadline_ms` milliseconds, TIMED_OUT at once if that is less than 1. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_ask(dthrottle* handle, const char* tag, size_t tag_bytes,
                                                   int deadline_ms);

/* Asks for `count` tags in one go and writes as many verdicts. `tag_bytes` may be NULL where all tags end in NUL. The
 * deadline is for all of them together: what has been answered by then has its verdict, the others say why not. Returns
 * how many the daemon has answered. */
DTHROTTLE_API size_t dthrottle_ask_batch(dthrottle* handle, const char* const* tags, const size_t* tag_bytes,
                                         size_t count, enum dthrottle_verdict* verdicts, int deadline_ms);

/* "serve", "throttle", "timed out", "unreachable", "bad answer", "backing off". Never NULL. */
DTHROTTLE_API const char* dthrottle_verdict_name(enum dthrottle_verdict verdict);

/* Frees a handle that nobody uses any more. NULL is allowed. */
DTHROTTLE_API void dthrottle_close(dthrottle* handle);

#ifdef __cplusplus
}
#endif

#endif /* DTHROTTLE_H */
