/* Questions of the ask protocol (protocol/ask.md) as text: the line that asks one, and what its answer says. Not for
 * applications.
 *
 * Whatever is in a tag, its question is one line that the daemon takes, and the same tag is the same word wherever it
 * is asked: a client that has a part in choosing a tag can neither ask for others nor get away from its own.
 */
#ifndef DTHROTTLE_QUESTION_H
#define DTHROTTLE_QUESTION_H

#include <stdbool.h>
#include <stddef.h>

#include "dthrottle.h"

#define DTHROTTLE_INDICATED_MAX 1e12 /* as at the daemon */

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DTHROTTLE_QUESTION_LINE_BYTES = 8192,                             /* at most, as the daemon takes it; without LF */
  DTHROTTLE_SETTLEMENT_BYTES = 8 + 16 + DTHROTTLE_TAGS_MAX * 11,    /* at most; without LF */
  DTHROTTLE_ANSWER_LINE_BYTES = DTHROTTLE_QUESTION_LINE_BYTES + 512 /* at most, a tag among them; without LF */
};

/* Bytes that the line of the question may take; 0: it is none. */
size_t dthrottle_question_room(const dthrottle_question* question);

/* Writes the line that asks, without its LF, and returns its bytes. A tag that is longer than its part of a line is
 * cut. REQUIRES: `line` has the room that dthrottle_question_room tells, which is not 0. */
size_t dthrottle_write_question(const dthrottle_question* question, char* line);

/* Writes the line that settles a hold, without its LF, and returns its bytes. `count` 0: all comes back. REQUIRES:
 * count <= DTHROTTLE_TAGS_MAX; `line` has DTHROTTLE_SETTLEMENT_BYTES. */
size_t dthrottle_write_settlement(uint64_t hold, const uint32_t* actual, size_t count, char* line);

/* Writes the line that reports `value` of a tag, without its LF, and returns its bytes; a tag that is longer than its
 * part of a line is cut. REQUIRES: 0 < value <= DTHROTTLE_INDICATED_MAX; `line` has DTHROTTLE_QUESTION_LINE_BYTES. */
size_t dthrottle_write_indication(double value, const dthrottle_tag* tag, char* line);

/* Writes the line that asks what to do about these tags while nobody answers, without its LF, and returns its bytes; a tag
 * that is longer than its part of a line is cut. REQUIRES: 0 < count <= DTHROTTLE_TAGS_MAX; `line` has
 * DTHROTTLE_QUESTION_LINE_BYTES. */
size_t dthrottle_write_absence(const dthrottle_tag* tags, size_t count, char* line);

/* Writes the line that gives back what these tags cost, without its LF, and returns its bytes. As
 * dthrottle_write_absence. */
size_t dthrottle_write_refund(const dthrottle_tag* tags, size_t count, char* line);

/* Reads the answer to the line `asked`, both without LF: THROTTLE, SERVE, or BAD_QUESTION where the daemon says ERR.
 * That to dthrottle_write_absence is what to do, THROTTLE or SERVE.
 * False: it is no answer to this line, and nothing is written. */
bool dthrottle_read_answer(const char* asked, size_t asked_bytes, const char* text, size_t bytes,
                           enum dthrottle_verdict* verdict, dthrottle_answer* answer);

#ifdef __cplusplus
}
#endif

#endif
