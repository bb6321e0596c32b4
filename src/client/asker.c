#include "asker.h"

#include <string.h>

/* ---- Rings ---- */

#define QUESTION_AT(link, member) \
  ((struct dthrottle_pending*)(void*)((char*)(link)-offsetof(struct dthrottle_pending, member)))

static void make_ring(struct dthrottle_link* link) {
  link->next = link->previous = link;
}

static void insert_before(struct dthrottle_link* where, struct dthrottle_link* link) {
  link->next = where;
  link->previous = where->previous;
  where->previous->next = link;
  where->previous = link;
}

static void take_out(struct dthrottle_link* link) {
  link->next->previous = link->previous;
  link->previous->next = link->next;
  make_ring(link);
}

static struct dthrottle_pending* first_of(const struct dthrottle_line* line) {
  return line->questions.next == &line->questions ? NULL : QUESTION_AT(line->questions.next, place);
}

static struct dthrottle_pending* next_of(const struct dthrottle_pending* question) {
  return question->place.next == &question->line->questions ? NULL : QUESTION_AT(question->place.next, place);
}

/* Deadlines are seldom out of order: the search from the end is short. */
static void insert_due(struct dthrottle_asker* asker, struct dthrottle_pending* question) {
  struct dthrottle_link* at = &asker->dues;
  while (at->previous != &asker->dues && QUESTION_AT(at->previous, due)->deadline > question->deadline) {
    at = at->previous;
  }
  insert_before(at, &question->due);
}

/* ---- Failing and trying again ---- */

int64_t dthrottle_draw_1024(uint64_t* state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  *state = x;
  return (int64_t)(x >> 54);
}

static bool backs_off(const struct dthrottle_asker* asker, int64_t now) {
  return asker->failures > 0 && (asker->probe != NULL || now - asker->failed_at < asker->pause);
}

/* A question that began before the last failure has failed together with it: that counts once. The pause is shortened
 * by up to a quarter by chance, so that the workers of a host do not all come back at once. */
static bool count_failure(struct dthrottle_asker* asker, int64_t began, int64_t now) {
  const int64_t most = asker->options.backoff_max;
  int64_t pause = asker->options.backoff_min;
  if (asker->failures > 0 && began <= asker->failed_at) return false;
  asker->failures++;
  for (unsigned i = 1; i < asker->failures && pause < most; i++) pause *= 2;
  if (pause > most) pause = most;
  asker->pause = pause - pause / 4096 * dthrottle_draw_1024(&asker->chance);
  asker->failed_at = now;
  return true;
}

/* ---- Questions ---- */

/* Moves a question from its line to those that are back. */
static void bring_back(struct dthrottle_asker* asker, struct dthrottle_pending* question,
                       enum dthrottle_verdict outcome) {
  if (question->line->writing == question) question->line->writing = next_of(question);
  take_out(&question->place);
  take_out(&question->due);
  insert_before(&asker->backs, &question->place);
  if (asker->probe == question) asker->probe = NULL;
  question->line = NULL;
  question->outcome = outcome;
  question->back = true;
}

/* Leaves the answers that are still to come to the question behind it, or to the end of the line. */
static void leave_answers(struct dthrottle_pending* question) {
  struct dthrottle_line* const line = question->line;
  struct dthrottle_pending* const next = next_of(question);
  const size_t to_come = question->written_tags - question->answered;
  *(next != NULL ? &next->skip : &line->skip) += question->skip + to_come;
  line->waiting += to_come;
  line->waiting--;
}

static void bring_back_answered(struct dthrottle_asker* asker, struct dthrottle_line* line) {
  for (struct dthrottle_pending* first;
       (first = first_of(line)) != NULL && first->skip == 0 && first->answered == first->count;) {
    line->waiting--;
    line->proven = true;
    asker->failures = 0;
    bring_back(asker, first, DTHROTTLE_SERVE);
  }
}

/* False: nobody has asked. */
static bool take_verdict(struct dthrottle_asker* asker, struct dthrottle_line* line, enum dthrottle_verdict verdict) {
  struct dthrottle_pending* const first = first_of(line);
  size_t* const skip = first != NULL ? &first->skip : &line->skip;
  if (*skip > 0) {
    --*skip;
    line->waiting--;
    line->proven = true;
    asker->failures = 0;
    return true;
  }
  if (first == NULL || first->answered == first->written_tags) return false;
  first->verdicts[first->answered++] = verdict;
  bring_back_answered(asker, line);
  return true;
}

/* ---- Lines ---- */

static void clear_line(struct dthrottle_line* line) {
  line->open = line->proven = false;
  line->waiting = line->skip = 0;
  line->writing = NULL;
  line->out_begin = line->out_end = line->in_bytes = 0;
  memset(&line->reader, 0, sizeof line->reader);
}

static size_t bytes_of_tag(const struct dthrottle_pending* question, size_t index) {
  return question->tag_bytes != NULL ? question->tag_bytes[index] : strlen(question->tags[index]);
}

static struct dthrottle_line* choose_line(const struct dthrottle_asker* asker) {
  struct dthrottle_line *least = NULL, *unconnected = NULL;
  for (unsigned i = 0; i < asker->options.line_count; i++) {
    struct dthrottle_line* const line = &asker->options.lines[i];
    if (line->waiting >= asker->options.waiting_max) continue;
    if (!line->open && line->waiting == 0) {
      if (unconnected == NULL) unconnected = line;
    } else if (line->waiting < asker->options.deep) {
      return line;
    } else if (least == NULL || line->waiting < least->waiting) {
      least = line;
    }
  }
  return unconnected != NULL ? unconnected : least;
}

/* Copies up to `bytes` of the tag that is being written, and LF if that was all. False: the buffer is full. */
static bool write_tag(struct dthrottle_line* line, struct dthrottle_pending* question, size_t tag_bytes) {
  const char* const tag = question->tags[question->written_tags] + question->written_bytes;
  const size_t left = tag_bytes - question->written_bytes, room = line->out_room - line->out_end;
  const size_t bytes = left < room ? left : room;
  char* const out = line->out + line->out_end;
  for (size_t i = 0; i < bytes; i++) {
    const bool unsendable = tag[i] == '\n' || (tag[i] == '\r' && i + 1 == left);
    out[i] = unsendable ? '_' : tag[i];
  }
  question->written_bytes += bytes;
  line->out_end += bytes;
  if (bytes == room) return false;
  out[bytes] = '\n';
  line->out_end++;
  question->written_tags++;
  question->written_bytes = 0;
  return true;
}

/* Fills the buffer with whole tags. Only a tag that is longer than the buffer goes through in pieces. */
static void fill(struct dthrottle_line* line) {
  while (line->writing != NULL) {
    struct dthrottle_pending* const question = line->writing;
    if (question->written_tags == question->count) {
      line->writing = next_of(question);
      continue;
    }
    const size_t tag_bytes = bytes_of_tag(question, question->written_tags);
    if (tag_bytes - question->written_bytes >= line->out_room - line->out_end && line->out_end > 0) {
      if (line->out_begin == 0) return;
      memmove(line->out, line->out + line->out_begin, line->out_end - line->out_begin);
      line->out_end -= line->out_begin;
      line->out_begin = 0;
      continue;
    }
    if (!write_tag(line, question, tag_bytes)) return;
  }
}

const char* dthrottle_line_output(struct dthrottle_line* line, size_t* bytes) {
  fill(line);
  *bytes = line->out_end - line->out_begin;
  return line->out + line->out_begin;
}

void dthrottle_line_sent(struct dthrottle_line* line, size_t bytes) {
  line->out_begin += bytes;
  if (line->out_begin == line->out_end) line->out_begin = line->out_end = 0;
}

bool dthrottle_line_wants_connection(const struct dthrottle_line* line) {
  return !line->open && line->waiting > 0;
}

/* ---- The asker ---- */

void dthrottle_asker_init(struct dthrottle_asker* asker, const struct dthrottle_asker_options* options) {
  memset(asker, 0, sizeof *asker);
  asker->options = *options;
  asker->chance = options->chance | 1;
  make_ring(&asker->backs);
  make_ring(&asker->dues);
  for (unsigned i = 0; i < options->line_count; i++) {
    struct dthrottle_line* const line = &options->lines[i];
    clear_line(line);
    make_ring(&line->questions);
    line->out = options->buffers + i * options->buffer_bytes;
    line->out_room = options->buffer_bytes;
    line->in = options->answers != NULL ? options->answers + i * DTHROTTLE_ANSWER_LINE_BYTES : NULL;
  }
}

enum dthrottle_asked dthrottle_asker_ask(struct dthrottle_asker* asker, struct dthrottle_pending* question,
                                         int64_t now) {
  if (backs_off(asker, now)) return DTHROTTLE_PAUSED;
  struct dthrottle_line* const line = choose_line(asker);
  if (line == NULL) return DTHROTTLE_FULL;
  question->line = line;
  question->answered = question->written_tags = question->written_bytes = 0;
  question->back = question->retried = false;
  question->begin = now;
  question->skip = line->skip;
  line->skip = 0;
  line->waiting++;
  insert_before(&line->questions, &question->place);
  insert_due(asker, question);
  if (line->writing == NULL) line->writing = question;
  fill(line);
  if (asker->failures > 0) asker->probe = question;
  return DTHROTTLE_ASKED;
}

void dthrottle_asker_opened(struct dthrottle_asker* asker, struct dthrottle_line* line) {
  line->open = true;
  bring_back_answered(asker, line);
}

void dthrottle_asker_ended(struct dthrottle_asker* asker, struct dthrottle_line* line, enum dthrottle_verdict why,
                           int64_t now) {
  const bool again = why == DTHROTTLE_UNREACHABLE && line->proven;
  bool failed = false;
  clear_line(line);
  if (why == DTHROTTLE_BAD_ANSWER && first_of(line) == NULL) count_failure(asker, now, now);
  for (struct dthrottle_link *at = line->questions.next, *next; at != &line->questions; at = next) {
    struct dthrottle_pending* const question = QUESTION_AT(at, place);
    next = at->next;
    question->skip = 0;
    if (again && !question->retried && question->answered == 0) {
      question->retried = true;
      question->written_tags = question->written_bytes = 0;
      if (line->writing == NULL) line->writing = question;
      line->waiting++;
      continue;
    }
    if (!failed) count_failure(asker, question->begin, now);
    failed = true;
    bring_back(asker, question, why);
  }
  fill(line);
}

static bool hear_verdicts(struct dthrottle_asker* asker, struct dthrottle_line* line, const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    switch (dthrottle_read_verdict(&line->reader, data[i])) {
      case DTHROTTLE_READ_MORE:
        break;
      case DTHROTTLE_READ_OK:
        if (!take_verdict(asker, line, DTHROTTLE_SERVE)) return false;
        break;
      case DTHROTTLE_READ_NO:
        if (!take_verdict(asker, line, DTHROTTLE_THROTTLE)) return false;
        break;
      case DTHROTTLE_READ_BAD:
        return false;
    }
  }
  return true;
}

/* The line of an answer has come. False: it answers nothing that was asked. */
static bool take_answer(struct dthrottle_asker* asker, struct dthrottle_line* line) {
  const struct dthrottle_pending* const first = first_of(line);
  enum dthrottle_verdict verdict = DTHROTTLE_SERVE;
  if (first != NULL && first->skip == 0 && first->answered < first->written_tags &&
      !dthrottle_read_answer(first->tags[0], bytes_of_tag(first, 0), line->in, line->in_bytes, &verdict,
                             first->answer)) {
    return false;
  }
  return take_verdict(asker, line, verdict);
}

static bool hear_answers(struct dthrottle_asker* asker, struct dthrottle_line* line, const char* data, size_t bytes) {
  while (bytes > 0) {
    const char* const lf = memchr(data, '\n', bytes);
    const size_t piece = lf != NULL ? (size_t)(lf - data) : bytes;
    if (piece > DTHROTTLE_ANSWER_LINE_BYTES - line->in_bytes) return false;
    memcpy(line->in + line->in_bytes, data, piece);
    line->in_bytes += piece;
    if (lf == NULL) return true;
    if (!take_answer(asker, line)) return false;
    line->in_bytes = 0;
    data += piece + 1;
    bytes -= piece + 1;
  }
  return true;
}

bool dthrottle_asker_heard(struct dthrottle_asker* asker, struct dthrottle_line* line, const char* data, size_t bytes) {
  return asker->options.answers != NULL ? hear_answers(asker, line, data, bytes)
                                        : hear_verdicts(asker, line, data, bytes);
}

int64_t dthrottle_asker_next_deadline(const struct dthrottle_asker* asker) {
  return asker->dues.next == &asker->dues ? DTHROTTLE_NEVER : QUESTION_AT(asker->dues.next, due)->deadline;
}

struct dthrottle_line* dthrottle_asker_tick(struct dthrottle_asker* asker, int64_t now) {
  while (dthrottle_asker_next_deadline(asker) <= now) {
    struct dthrottle_pending* const question = QUESTION_AT(asker->dues.next, due);
    struct dthrottle_line* const line = question->line;
    const bool counts = count_failure(asker, question->begin, now);
    if (!line->open || question->written_bytes > 0 || (counts && asker->failures > 1)) {
      dthrottle_asker_ended(asker, line, DTHROTTLE_TIMED_OUT, now);
      return line;
    }
    leave_answers(question);
    bring_back(asker, question, DTHROTTLE_TIMED_OUT);
  }
  return NULL;
}

struct dthrottle_pending* dthrottle_asker_next_back(struct dthrottle_asker* asker) {
  if (asker->backs.next == &asker->backs) return NULL;
  struct dthrottle_pending* const question = QUESTION_AT(asker->backs.next, place);
  take_out(&question->place);
  return question;
}

void dthrottle_asker_forget(struct dthrottle_asker* asker, struct dthrottle_pending* question) {
  if (question->line != NULL) {
    leave_answers(question);
    bring_back(asker, question, DTHROTTLE_TIMED_OUT);
  }
  if (question->back) take_out(&question->place);
}
