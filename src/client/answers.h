/* What servers answer, read without sockets: verdicts of the query protocol and lines of the lease protocol. Answers come
 * from any program that listens at the address, so every value has a bound, and what does not fit is no answer. */
#ifndef DTHROTTLE_ANSWERS_H
#define DTHROTTLE_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DTHROTTLE_ANSWER_BYTES = 3, /* "OK\n" or "NO\n" */
};

/* Verdicts as they come in, cut anywhere. Zeros to begin with. */
struct dthrottle_verdict_reader {
  char begun[DTHROTTLE_ANSWER_BYTES];
  size_t begun_bytes;
};

enum dthrottle_read {
  DTHROTTLE_READ_MORE, /* the answer is not whole yet */
  DTHROTTLE_READ_OK,
  DTHROTTLE_READ_NO,
  DTHROTTLE_READ_BAD, /* this is no answer; the reader is of no use any more */
};

/* Takes the next byte. */
enum dthrottle_read dthrottle_read_verdict(struct dthrottle_verdict_reader* reader, char byte);

/* "lease CAPACITY EXPIRY REFRESH SAFE TOKEN", and " learning SECONDS" from a master that learns. */
struct dthrottle_lease_line {
  double capacity, safe;      /* units; safe < 0: unlimited */
  double expiry_s, refresh_s; /* at most DTHROTTLE_LEASE_S_MAX */
  uint64_t token;             /* at most INT64_MAX */
  double learning_s;          /* at most DTHROTTLE_LEASE_S_MAX; 0: it does not learn */
};

#define DTHROTTLE_AMOUNT_MAX 1e15   /* of anything, as at the server */
#define DTHROTTLE_LEASE_S_MAX 86400 /* the longest lease that a [[resource]] may grant */

/* Reads what stands behind the first word, up to its NUL. False: it is no lease. */
bool dthrottle_read_lease(const char* text, struct dthrottle_lease_line* lease);

#ifdef __cplusplus
}
#endif

#endif
