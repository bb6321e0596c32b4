/* Asks dthrottled without sockets, clocks and threads: questions and bytes go in, bytes and verdicts come out. What
 * owns the sockets (libdthrottle, the nginx module) is a skin around it. Not for applications.
 *
 * An asker has a few lines; each is a connection or the place for one. The daemon answers in order, so the questions of
 * a line wait in a queue. A question that is given up leaves only the number of its answers behind: they are dropped
 * when they come, and the next question still gets its own.
 *
 * It fails open. After a failure nothing is asked for a pause, then one question finds out whether the daemon is back;
 * the pause doubles with each failure. A dead daemon costs nothing, one that hangs costs a deadline now and then.
 *
 * It speaks the query protocol or the ask protocol. Either way it sends lines and gets an answer for each; only what an
 * answer says differs.
 *
 * Instants are monotonic nanoseconds. Functions of an asker need the asker for themselves; functions of a line need
 * only that line, so a thread may use them without a lock while it has the only question there.
 */
#ifndef DTHROTTLE_ASKER_H
#define DTHROTTLE_ASKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "answers.h"
#include "dthrottle.h"
#include "question.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DTHROTTLE_NEVER INT64_MAX

/* A place in a ring, or the head of one. */
struct dthrottle_link {
  struct dthrottle_link *next, *previous;
};

/* A question on its way: one or more tags that are asked for together on one line; by the ask protocol, one line of
 * question.h stands for the tag. */
struct dthrottle_pending {
  /* The caller's. All of it lives until the question is back or forgotten. */
  const char* const* tags; /* LF anywhere and CR at the end are sent as '_' */
  const size_t* tag_bytes; /* NULL: each tag ends in NUL */
  size_t count;
  enum dthrottle_verdict* verdicts; /* as many as are `answered` are written */
  dthrottle_answer* answer;         /* by the ask protocol: written when a verdict is */
  int64_t deadline;                 /* a tick gives it up */

  /* The asker's. */
  struct dthrottle_link place, due; /* `place` is on the line, then among those that are back */
  struct dthrottle_line* line;      /* NULL: on none */
  size_t answered;
  enum dthrottle_verdict outcome; /* once it is back: SERVE if all is answered, else why not */
  bool back;
  bool retried;
  int64_t begin;
  size_t skip; /* answers to drop before its own */
  size_t written_tags, written_bytes;
};

struct dthrottle_line {
  bool open;      /* it is connected */
  bool proven;    /* a question has been answered on it */
  size_t waiting; /* questions, and answers to drop */
  size_t skip;    /* answers to drop behind those of the last question */
  struct dthrottle_link questions;
  struct dthrottle_pending* writing; /* the first that is not wholly in the buffer */
  char* out;
  size_t out_room, out_begin, out_end;
  struct dthrottle_verdict_reader reader;
  char* in; /* by the ask protocol: what has come of an answer */
  size_t in_bytes;
  union {
    int fd;
    void* connection;
  } skin; /* the asker does not touch it */
};

/* What a skin decides, once. */
struct dthrottle_asker_options {
  struct dthrottle_line* lines;
  unsigned line_count;
  char* buffers; /* line_count times buffer_bytes, of which each line takes its part */
  size_t buffer_bytes;
  size_t deep;                      /* as many waiting on a line as make another line better */
  size_t waiting_max;               /* on one line */
  int64_t backoff_min, backoff_max; /* ns, at least 1 */
  uint64_t chance;                  /* seed */
  char*
      answers; /* NULL: by the query protocol. Else by the ask protocol: line_count times DTHROTTLE_ANSWER_LINE_BYTES */
};

struct dthrottle_asker {
  struct dthrottle_asker_options options;
  struct dthrottle_link backs, dues;
  unsigned failures;               /* in a row */
  int64_t failed_at;               /* the last of them */
  int64_t pause;                   /* after it; nothing is asked before failed_at + pause */
  struct dthrottle_pending* probe; /* finds out whether the daemon is back */
  uint64_t chance;
};

enum dthrottle_asked {
  DTHROTTLE_ASKED,  /* it is on question->line; that line has to be connected if it is not open */
  DTHROTTLE_PAUSED, /* asking has failed a moment ago */
  DTHROTTLE_FULL,   /* no line has room */
};

/* No line is open and nothing is asked, whatever was before. REQUIRES: what `options` points to outlives the asker. */
void dthrottle_asker_init(struct dthrottle_asker* asker, const struct dthrottle_asker_options* options);

/* Puts the question on a line: one on which little waits, else one that is not connected yet, else the one on which
 * least waits. */
enum dthrottle_asked dthrottle_asker_ask(struct dthrottle_asker* asker, struct dthrottle_pending* question,
                                         int64_t now);

/* The line is connected. A question without tags is back by that. */
void dthrottle_asker_opened(struct dthrottle_asker* asker, struct dthrottle_line* line);

/* The connection of the line is gone, or could not be made, or must not be used any more; the skin has closed it.
 * `why` is TIMED_OUT, UNREACHABLE or BAD_ANSWER. A connection that has worked may have ended with a daemon that was
 * restarted: then questions stay on the line, once, and it has to be connected anew. All others are back, and together
 * they are one failure. */
void dthrottle_asker_ended(struct dthrottle_asker* asker, struct dthrottle_line* line, enum dthrottle_verdict why,
                           int64_t now);

/* Takes what the daemon has sent. False: these are no answers to what was asked, so the line has to end. */
bool dthrottle_asker_heard(struct dthrottle_asker* asker, struct dthrottle_line* line, const char* data, size_t bytes);

/* The earliest deadline of a question on a line, or DTHROTTLE_NEVER. */
int64_t dthrottle_asker_next_deadline(const struct dthrottle_asker* asker);

/* Gives up what is due. The second failure in a row ends a line. Returns a line whose connection the skin has to close,
 * after which it calls again; NULL: nothing is due any more. */
struct dthrottle_line* dthrottle_asker_tick(struct dthrottle_asker* asker, int64_t now);

/* The next question that is back, in the order in which they came back; NULL: none. */
struct dthrottle_pending* dthrottle_asker_next_back(struct dthrottle_asker* asker);

/* Knows the question no more, whether it waits, is back or was never asked. REQUIRES: none of its tags is as long as
 * the buffer of a line, so that all of a tag is in the buffer or nothing. */
void dthrottle_asker_forget(struct dthrottle_asker* asker, struct dthrottle_pending* question);

/* What is to be sent on the line; `bytes` 0: nothing. Valid until the next call for this line. */
const char* dthrottle_line_output(struct dthrottle_line* line, size_t* bytes);

/* So many of these bytes have been sent. */
void dthrottle_line_sent(struct dthrottle_line* line, size_t bytes);

/* Whether questions wait for a line that is not connected. */
bool dthrottle_line_wants_connection(const struct dthrottle_line* line);

/* A number below 1024. REQUIRES: the state is not 0. */
int64_t dthrottle_draw_1024(uint64_t* state);

#ifdef __cplusplus
}
#endif

#endif
