/* What the modules for web servers have in common: what becomes of a request, counts of it in memory that all workers
 * share, the header fields that tell a client its limit, and a page of the counts for Prometheus.
 *
 * It owns no memory, no clock and no socket, and knows no web server.
 */
#ifndef DTHROTTLE_GATE_H
#define DTHROTTLE_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/dthrottle.h"

/* What became of a request. TIMEOUT to FULL were served without an answer. */
enum dthrottle_fate {
  DTHROTTLE_FATE_OFF = 0, /* not asked for */
  DTHROTTLE_FATE_SERVED,
  DTHROTTLE_FATE_DELAYED, /* served, after it was held for a while */
  DTHROTTLE_FATE_THROTTLED,
  DTHROTTLE_FATE_SHADOWED, /* would have been throttled */
  DTHROTTLE_FATE_TIMEOUT,
  DTHROTTLE_FATE_ERROR,
  DTHROTTLE_FATE_BACKOFF, /* asking has failed a moment ago */
  DTHROTTLE_FATE_FULL,    /* too many wait */
  DTHROTTLE_FATE_CLOSED,  /* refused without an answer, where the settings want that */
  DTHROTTLE_FATE_LEFT,    /* its client has left while it waited */
  DTHROTTLE_FATES
};

/* "OFF", "SERVED", "DELAYED", "THROTTLED", "SHADOWED", "OPEN_TIMEOUT", "OPEN_ERROR", "OPEN_BACKOFF", "OPEN_FULL",
 * "CLOSED", "LEFT". */
const char* dthrottle_fate_name(enum dthrottle_fate fate);

/* `answer` is all zero where the daemon says no more than its verdict. */
enum dthrottle_fate dthrottle_fate_of(enum dthrottle_verdict verdict, const dthrottle_answer* answer);

/* Why a daemon did not answer. */
enum dthrottle_failure {
  DTHROTTLE_FAILED_PERMISSION = 0, /* this user may not connect to the socket */
  DTHROTTLE_FAILED_ABSENT,         /* there is no such socket */
  DTHROTTLE_FAILED_NOBODY,         /* nobody listens there */
  DTHROTTLE_FAILED_TIMEOUT,
  DTHROTTLE_FAILED_PROTOCOL, /* what answers is not dthrottled, or not by this protocol */
  DTHROTTLE_FAILED_CONNECTION,
  DTHROTTLE_FAILURES
};

/* "permission", "absent", "nobody", "timeout", "protocol", "connection". */
const char* dthrottle_failure_name(enum dthrottle_failure failure);

/* `error` is an errno of connecting, or 0. */
enum dthrottle_failure dthrottle_failure_of(enum dthrottle_verdict verdict, int error);

/* What is counted for one daemon. */
struct dthrottle_counts {
  uint64_t fates[DTHROTTLE_FATES];
  uint64_t failures[DTHROTTLE_FAILURES];
  uint64_t last_failure; /* 1 + an enum dthrottle_failure; 0: the last attempt was answered */
};

enum { DTHROTTLE_BOARD_MAX = 32, DTHROTTLE_BOARD_NAME_BYTES = 128 };

/* Counts of daemons since the web server started, in memory that all workers share. Zero is the beginning. Where all
 * places are taken, a new daemon has that of one that settings do not name any more. Where there is none, it shares the
 * last place, "others". */
struct dthrottle_board {
  size_t count;
  struct dthrottle_board_entry {
    char name[DTHROTTLE_BOARD_NAME_BYTES];
    struct dthrottle_counts counts;
    bool named; /* by the settings that are in force; others have named the rest */
    bool kept;  /* by the settings that were read last, which may not be in force yet */
  } entries[DTHROTTLE_BOARD_MAX + 1];
};

/* Settings are read, which keep no counts yet: those that are there are found, and then the others are made. For the
 * process that reads settings, while no other does. */
void dthrottle_board_read(struct dthrottle_board* board);

/* The counts of the daemon at an address, which are kept. NULL: there are none. For the same process. */
struct dthrottle_counts* dthrottle_board_find(struct dthrottle_board* board, const char* address, size_t bytes);

/* Does what dthrottle_board_find does, and makes them if they are not there. Workers of earlier settings may go on for
 * a while to count there for the daemon that had the place before. */
struct dthrottle_counts* dthrottle_board_make(struct dthrottle_board* board, const char* address, size_t bytes);

/* Whether these counts are those of "others". */
bool dthrottle_board_shares(const struct dthrottle_board* board, const struct dthrottle_counts* counts);

/* Settings come into force: they name no daemon yet. For the same process. */
void dthrottle_board_begin(struct dthrottle_board* board);

/* They name the daemon of these counts, which are of the board. */
void dthrottle_board_name(struct dthrottle_board* board, const struct dthrottle_counts* counts);

enum { DTHROTTLE_PAGE_BYTES = 1024 + (DTHROTTLE_BOARD_MAX + 1) * 4096 };

/* Writes the board as Prometheus reads it into DTHROTTLE_PAGE_BYTES of `text`, and returns the bytes. `server` is
 * "nginx" or "apache". A daemon that the settings do not name has counts, but is neither up nor down. */
size_t dthrottle_write_page(const char* server, const struct dthrottle_board* board, char* text);

/* Any worker and thread. */
void dthrottle_count_fate(struct dthrottle_counts* counts, enum dthrottle_fate fate);
void dthrottle_count_failure(struct dthrottle_counts* counts, enum dthrottle_failure failure);

/* Takes a daemon for one that has not been asked yet. */
void dthrottle_forget_failure(struct dthrottle_counts* counts);

/* Which header fields tell a client its limit. */
enum dthrottle_fields {
  DTHROTTLE_FIELDS_NONE = 0, /* then a question may be decided by a page, which knows nothing that they could say */
  DTHROTTLE_FIELDS_OFF,      /* only Retry-After */
  DTHROTTLE_FIELDS_DRAFT_10,
  DTHROTTLE_FIELDS_DRAFT_03
};

enum {
  DTHROTTLE_FIELDS_MAX = 4,
  DTHROTTLE_FIELD_BYTES = 160, /* of a value at most, with its NUL */
};

struct dthrottle_field {
  const char* name; /* a constant */
  size_t bytes;     /* of the value, without its NUL */
  char value[DTHROTTLE_FIELD_BYTES];
};

/* The fields of a response whose question had `tell_limit`, as /check states them (protocol/http.md); returns how many.
 * A refusal has Retry-After unless waiting does not help, whatever `style` is but NONE. */
size_t dthrottle_make_fields(const dthrottle_answer* answer, bool refused, enum dthrottle_fields style,
                             struct dthrottle_field fields[DTHROTTLE_FIELDS_MAX]);

/* Seconds of Retry-After, at least 1; 0: waiting does not help, or nobody is refused. */
int64_t dthrottle_retry_after(const dthrottle_answer* answer);

#endif
