/* The client library: threads, sockets and deadlines around an asker.
 *
 * A call takes a line of the asker for itself, and with it that line's connection, and gives both back, so answers can
 * never go to another call. A connection on which anything went wrong is closed: a late answer must not be taken for
 * the next one. The mutex guards the asker; no thread holds it while it waits for a socket.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#endif
#define DTHROTTLE_API __attribute__((visibility("default")))

#include "dthrottle.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "asker.h"
#include "endpoint.h"
#include "pages.h"

enum {
  CONNECTIONS_DEFAULT = 16,
  CONNECTIONS_MAX = 1024,
  BACKOFF_MIN_DEFAULT_MS = 10,
  BACKOFF_MAX_DEFAULT_MS = 5000,
  SEND_BYTES = 4096, /* of queries in one write: as much as the daemon reads at once */
};

static const int64_t NS_PER_MS = 1000000, NS_PER_US = 1000;

struct dthrottle {
  struct dthrottle *next, *previous; /* all handles, for fork */
  struct dthrottle_endpoint endpoint;
  struct dthrottle_pages pages; /* what is decided without asking */
  pthread_mutex_t mutex;        /* guards what follows */
  pthread_cond_t freed;         /* a line is free again, or asking has failed */
  struct dthrottle_asker asker;
  char* buffers;                 /* to send from */
  char* answers;                 /* to hear answers to questions in; NULL: it asks for tags */
  struct dthrottle_line lines[]; /* skin.fd -1: no connection */
};

/* One call: what it asks, and where. */
struct call {
  dthrottle* handle;
  struct dthrottle_pending question;
  struct dthrottle_line* line; /* its own until the question is back */
};

static void close_connection(struct dthrottle_line* line) {
  if (line->skin.fd >= 0) close(line->skin.fd);
  line->skin.fd = -1;
}

/* ---- A call on its line ---- */

/* Whether a connection that was kept is still there, with nothing on it that was not asked for. */
static bool is_quiet(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/* What is written of a line needs no mutex: nothing else is asked on it. */
static const char* say(void* self, size_t* bytes) {
  return dthrottle_line_output(((struct call*)self)->line, bytes);
}

static void said(void* self, size_t bytes) {
  dthrottle_line_sent(((struct call*)self)->line, bytes);
}

/* True: the question is back, and its line is another call's from now on. REQUIRES: the mutex. */
static bool is_back(struct call* call) {
  if (call->question.back) dthrottle_asker_forget(&call->handle->asker, &call->question);
  return call->question.back;
}

/* Ends the connection of the line. False: the question has to be asked anew. REQUIRES: the mutex. */
static bool end_line(struct call* call, enum dthrottle_verdict why) {
  close_connection(call->line);
  dthrottle_asker_ended(&call->handle->asker, call->line, why, dthrottle_now_ns());
  return is_back(call);
}

static enum dthrottle_verdict hear(void* self, const char* data, size_t bytes) {
  struct call* const call = self;
  enum dthrottle_verdict heard = DTHROTTLE_SERVE;
  pthread_mutex_lock(&call->handle->mutex);
  if (!dthrottle_asker_heard(&call->handle->asker, call->line, data, bytes)) {
    end_line(call, heard = DTHROTTLE_BAD_ANSWER);
  } else if (!is_back(call)) {
    heard = DTHROTTLE_TIMED_OUT;
  }
  pthread_mutex_unlock(&call->handle->mutex);
  return heard;
}

/* Asks on the connection of the line, or on a fresh one if there is none. */
static enum dthrottle_verdict talk(struct call* call) {
  static const struct dthrottle_talk asking = {say, said, hear};
  struct dthrottle_line* const line = call->line;
  const int64_t deadline = call->question.deadline;
  if (line->skin.fd < 0) {
    const enum dthrottle_verdict connected =
        dthrottle_connect_endpoint(&call->handle->endpoint, &line->skin.fd, deadline);
    if (connected != DTHROTTLE_SERVE) return connected;
  } else if (!is_quiet(line->skin.fd)) {
    return DTHROTTLE_UNREACHABLE;
  }
  if (!line->open || call->question.count == 0) {
    pthread_mutex_lock(&call->handle->mutex);
    dthrottle_asker_opened(&call->handle->asker, line);
    const bool back = is_back(call);
    pthread_mutex_unlock(&call->handle->mutex);
    if (back) return DTHROTTLE_SERVE;
  }
  return dthrottle_talk_on(line->skin.fd, &asking, call, deadline);
}

/* ---- Calls ---- */

/* Puts the question on a line, and waits for one if all are taken. SERVE: it is there. */
static enum dthrottle_verdict take_line(struct call* call, int64_t now) {
  dthrottle* const handle = call->handle;
  const struct timespec deadline = dthrottle_timespec(call->question.deadline);
  enum dthrottle_asked asked;
  pthread_mutex_lock(&handle->mutex);
  while ((asked = dthrottle_asker_ask(&handle->asker, &call->question, now)) == DTHROTTLE_FULL &&
         pthread_cond_timedwait(&handle->freed, &handle->mutex, &deadline) == 0) {
    now = dthrottle_now_ns();
  }
  pthread_mutex_unlock(&handle->mutex);
  call->line = call->question.line;
  return asked == DTHROTTLE_ASKED  ? DTHROTTLE_SERVE
         : asked == DTHROTTLE_FULL ? DTHROTTLE_TIMED_OUT
                                   : DTHROTTLE_BACKING_OFF;
}

static enum dthrottle_verdict perform(struct call* call, int deadline_ms) {
  dthrottle* const handle = call->handle;
  if (deadline_ms < 1) return DTHROTTLE_TIMED_OUT;
  const int64_t now = dthrottle_now_ns();
  call->question.deadline = now + deadline_ms * NS_PER_MS;
  enum dthrottle_verdict verdict = take_line(call, now);
  if (verdict != DTHROTTLE_SERVE) return verdict;
  int why = 0;
  for (bool back = false; !back;) {
    errno = 0;
    verdict = talk(call);
    why = errno;
    if (verdict == DTHROTTLE_SERVE || verdict == DTHROTTLE_BAD_ANSWER) break;
    pthread_mutex_lock(&handle->mutex);
    back = end_line(call, verdict);
    pthread_mutex_unlock(&handle->mutex);
  }
  if (verdict == DTHROTTLE_SERVE) {
    pthread_cond_signal(&handle->freed);
  } else {
    pthread_cond_broadcast(&handle->freed);
  }
  errno = why;
  return verdict;
}

/* ---- Fork ----
 *
 * A child must not share connections with its parent, and only the thread that forked lives on in it. So no thread
 * holds a mutex while the process forks, and the child starts without connections. */

static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dthrottle* handles;
static pthread_once_t handles_once = PTHREAD_ONCE_INIT;
static int handles_error;

static void before_fork(void) {
  pthread_mutex_lock(&handles_mutex);
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) {
    pthread_mutex_lock(&handle->pages.mutex);
    pthread_mutex_lock(&handle->mutex);
  }
}

static void unlock_handle(dthrottle* handle) {
  pthread_mutex_unlock(&handle->mutex);
  pthread_mutex_unlock(&handle->pages.mutex);
}

static void after_fork_in_parent(void) {
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) unlock_handle(handle);
  pthread_mutex_unlock(&handles_mutex);
}

static void close_connections(dthrottle* handle) {
  for (unsigned i = 0; i < handle->asker.options.line_count; i++) close_connection(&handle->lines[i]);
}

/* Calls under way have stayed behind with their threads. */
static void after_fork_in_child(void) {
  for (dthrottle* handle = handles; handle != NULL; handle = handle->next) {
    const struct dthrottle_asker parents = handle->asker;
    struct dthrottle_asker_options options = parents.options;
    options.chance ^= (uint64_t)getpid() << 20; /* other pauses than the parent's */
    close_connections(handle);
    dthrottle_asker_init(&handle->asker, &options);
    handle->asker.failures = parents.failures;
    handle->asker.failed_at = parents.failed_at;
    handle->asker.pause = parents.pause;
    dthrottle_init_condition(&handle->freed);
    unlock_handle(handle);
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

/* Frees all of a handle that is not among the others. */
static void free_handle(dthrottle* handle) {
  free(handle->buffers);
  free(handle->answers);
  free(handle);
}

/* NULL with errno. */
static dthrottle* make_handle(const char* address, const dthrottle_options* options, unsigned connections,
                              bool asks_questions) {
  dthrottle* const handle = calloc(1, sizeof *handle + connections * sizeof handle->lines[0]);
  if (handle == NULL) return NULL;
  handle->buffers = malloc((size_t)connections * SEND_BYTES);
  if (asks_questions) handle->answers = malloc((size_t)connections * DTHROTTLE_ANSWER_LINE_BYTES);
  if (handle->buffers == NULL || (asks_questions && handle->answers == NULL) ||
      !dthrottle_parse_endpoint(&handle->endpoint, address)) {
    const int error = errno;
    free_handle(handle);
    errno = error;
    return NULL;
  }
  const struct dthrottle_asker_options asker = {
      .lines = handle->lines,
      .line_count = connections,
      .buffers = handle->buffers,
      .buffer_bytes = SEND_BYTES,
      .deep = 1,
      .waiting_max = 1,
      .backoff_min = or_default(options->backoff_min_ms, BACKOFF_MIN_DEFAULT_MS) * NS_PER_MS,
      .backoff_max = or_default(options->backoff_max_ms, BACKOFF_MAX_DEFAULT_MS) * NS_PER_MS,
      .chance = (uint64_t)dthrottle_now_ns() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)handle,
      .answers = handle->answers,
  };
  dthrottle_asker_init(&handle->asker, &asker);
  for (unsigned i = 0; i < connections; i++) handle->lines[i].skin.fd = -1;
  return handle;
}

static dthrottle* open_handle(const char* address, const dthrottle_options* options, bool asks_questions) {
  static const dthrottle_options defaults;
  const dthrottle_options* const given = options != NULL ? options : &defaults;
  const unsigned connections = or_default(given->connections_max, CONNECTIONS_DEFAULT);
  if (connections > CONNECTIONS_MAX) {
    errno = EINVAL;
    return NULL;
  }
  dthrottle* const handle = make_handle(address, given, connections, asks_questions);
  if (handle == NULL) return NULL;
  pthread_once(&handles_once, watch_forks);
  if (handles_error != 0) {
    free_handle(handle);
    errno = handles_error;
    return NULL;
  }
  pthread_mutex_init(&handle->mutex, NULL);
  dthrottle_pages_init(&handle->pages, &handle->endpoint.address.any);
  dthrottle_init_condition(&handle->freed);
  pthread_mutex_lock(&handles_mutex);
  handle->next = handles;
  if (handles != NULL) handles->previous = handle;
  handles = handle;
  pthread_mutex_unlock(&handles_mutex);
  return handle;
}

dthrottle* dthrottle_open(const char* address, const dthrottle_options* options) {
  return open_handle(address != NULL ? address : DTHROTTLE_DEFAULT_ADDRESS, options, false);
}

dthrottle* dthrottle_open_ask(const char* address, const dthrottle_options* options) {
  return open_handle(address != NULL ? address : DTHROTTLE_DEFAULT_ASK_ADDRESS, options, true);
}

enum dthrottle_verdict dthrottle_connect(dthrottle* handle, int deadline_ms) {
  struct call call = {.handle = handle};
  return perform(&call, deadline_ms);
}

static bool decided_by_page(const dthrottle* handle, const char* tag, size_t tag_bytes, int64_t now_ns,
                            enum dthrottle_verdict* verdict) {
  const enum dthrottle_page_verdict says = dthrottle_pages_decide_lately(&handle->pages, tag, tag_bytes, now_ns);
  if (says == DTHROTTLE_PAGE_ASK) return false;
  *verdict = says == DTHROTTLE_PAGE_SERVE ? DTHROTTLE_SERVE : DTHROTTLE_THROTTLE;
  return true;
}

enum dthrottle_verdict dthrottle_ask(dthrottle* handle, const char* tag, size_t tag_bytes, int deadline_ms) {
  return dthrottle_ask_at(handle, tag, tag_bytes, deadline_ms, 0);
}

enum dthrottle_verdict dthrottle_ask_at(dthrottle* handle, const char* tag, size_t tag_bytes, int deadline_ms,
                                        int64_t now_ns) {
  enum dthrottle_verdict verdict = DTHROTTLE_SERVE;
  struct call call = {
      .handle = handle,
      .question = {.tags = &tag, .tag_bytes = &tag_bytes, .count = 1, .verdicts = &verdict},
  };
  if (handle->answers != NULL) return DTHROTTLE_BAD_QUESTION;
  if (deadline_ms > 0 && decided_by_page(handle, tag, tag_bytes, now_ns, &verdict)) return verdict;
  const enum dthrottle_verdict failure = perform(&call, deadline_ms);
  if (failure != DTHROTTLE_SERVE) return failure;
  dthrottle_pages_answered(&handle->pages, tag, tag_bytes, verdict == DTHROTTLE_THROTTLE);
  return verdict;
}

/* Asks a line of the ask protocol. */
static enum dthrottle_verdict ask_line(dthrottle* handle, const char* line, size_t bytes, dthrottle_answer* answer,
                                       int deadline_ms) {
  enum dthrottle_verdict verdict = DTHROTTLE_BAD_QUESTION;
  struct call call = {
      .handle = handle,
      .question = {.tags = &line, .tag_bytes = &bytes, .count = 1, .verdicts = &verdict, .answer = answer},
  };
  if (handle->answers == NULL) return verdict;
  const enum dthrottle_verdict failure = perform(&call, deadline_ms);
  return failure != DTHROTTLE_SERVE ? failure : verdict;
}

static enum dthrottle_verdict settle(dthrottle* handle, uint64_t hold, const uint32_t* actual, size_t count,
                                     int deadline_ms) {
  char line[DTHROTTLE_SETTLEMENT_BYTES];
  dthrottle_answer nothing;
  if (hold == 0) return DTHROTTLE_SERVE;
  return ask_line(handle, line, dthrottle_write_settlement(hold, actual, count, line), &nothing, deadline_ms);
}

enum dthrottle_verdict dthrottle_commit(dthrottle* handle, uint64_t hold, const uint32_t* actual, size_t count,
                                        int deadline_ms) {
  if (count == 0 || count > DTHROTTLE_TAGS_MAX) return DTHROTTLE_BAD_QUESTION;
  return settle(handle, hold, actual, count, deadline_ms);
}

enum dthrottle_verdict dthrottle_release(dthrottle* handle, uint64_t hold, int deadline_ms) {
  return settle(handle, hold, NULL, 0, deadline_ms);
}

/* Sleeps until the caller may go on. A slot that is later than the deadline is given back. */
static enum dthrottle_verdict sleep_on(dthrottle* handle, dthrottle_answer* answer, int64_t deadline) {
  const int64_t now = dthrottle_now_ns(), until = now + answer->delay_us * NS_PER_US;
  if (until <= deadline) {
    const struct timespec end = dthrottle_timespec(until);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) continue;
    return DTHROTTLE_SERVE;
  }
  dthrottle_release(handle, answer->hold, (int)((deadline - now) / NS_PER_MS));
  answer->reason = DTHROTTLE_REASON_LIMIT;
  answer->wait_ms = (until - now + NS_PER_MS - 1) / NS_PER_MS;
  answer->hold = 0;
  answer->delay_us = 0;
  return DTHROTTLE_THROTTLE;
}

/* Whether the page of this process may decide the question. */
static bool may_be_local(const dthrottle* handle, const dthrottle_question* question, const dthrottle_answer* answer) {
  return handle->answers != NULL && (answer == NULL || question->by_page != 0) && question->verb == DTHROTTLE_TAKE &&
         question->wait_ms == 0 && question->sleeps == 0 && dthrottle_question_room(question) > 0;
}

static bool all_decided_by_page(const dthrottle* handle, const dthrottle_question* question,
                                struct dthrottle_page_said* said, dthrottle_answer* answer,
                                enum dthrottle_verdict* verdict) {
  const enum dthrottle_page_verdict says =
      dthrottle_pages_decide_question(&handle->pages, question->tags, question->count, 0, said);
  if (says == DTHROTTLE_PAGE_ASK) return false;
  *verdict = says == DTHROTTLE_PAGE_SERVE ? DTHROTTLE_SERVE : DTHROTTLE_THROTTLE;
  if (answer != NULL) *answer = (dthrottle_answer){.reason = DTHROTTLE_REASON_NONE};
  if (answer != NULL && says == DTHROTTLE_PAGE_REFUSE) {
    answer->reason = DTHROTTLE_REASON_LIMIT;
    answer->refused = said->refused;
  }
  return true;
}

enum dthrottle_verdict dthrottle_ask_question(dthrottle* handle, const dthrottle_question* question,
                                              dthrottle_answer* answer, int deadline_ms) {
  char line[DTHROTTLE_QUESTION_LINE_BYTES];
  dthrottle_answer heard = {.reason = DTHROTTLE_REASON_NONE};
  dthrottle_question asked = *question;
  struct dthrottle_page_said said;
  enum dthrottle_verdict verdict = DTHROTTLE_BAD_QUESTION;
  const bool local = may_be_local(handle, question, answer);
  if (local && deadline_ms > 0 && all_decided_by_page(handle, question, &said, answer, &verdict)) return verdict;
  const int64_t deadline = dthrottle_now_ns() + deadline_ms * NS_PER_MS;
  if (asked.sleeps != 0 && deadline_ms > 0 && (asked.wait_ms == 0 || asked.wait_ms > (unsigned)deadline_ms)) {
    asked.wait_ms = (unsigned)deadline_ms;
  }
  if (dthrottle_question_room(&asked) > 0) {
    verdict = ask_line(handle, line, dthrottle_write_question(&asked, line), &heard, deadline_ms);
  }
  if (local && (verdict == DTHROTTLE_SERVE || verdict == DTHROTTLE_THROTTLE)) {
    const size_t refused = verdict == DTHROTTLE_SERVE ? asked.count : heard.refused;
    dthrottle_pages_answered_question(&handle->pages, asked.tags, asked.count, &said, refused);
  }
  if (asked.sleeps != 0 && asked.verb == DTHROTTLE_TAKE && heard.delay_us > 0) {
    verdict = sleep_on(handle, &heard, deadline);
  }
  if (answer != NULL) *answer = heard;
  return verdict;
}

enum dthrottle_verdict dthrottle_refund(dthrottle* handle, const dthrottle_tag* tags, size_t count, int deadline_ms) {
  char line[DTHROTTLE_QUESTION_LINE_BYTES];
  dthrottle_answer nothing;
  if (count == 0 || count > DTHROTTLE_TAGS_MAX) return DTHROTTLE_BAD_QUESTION;
  return ask_line(handle, line, dthrottle_write_refund(tags, count, line), &nothing, deadline_ms);
}

enum dthrottle_verdict dthrottle_learn(dthrottle* handle, const dthrottle_tag* tags, size_t count, int* refuse,
                                       int deadline_ms) {
  char line[DTHROTTLE_QUESTION_LINE_BYTES];
  dthrottle_answer nothing;
  if (count == 0 || count > DTHROTTLE_TAGS_MAX) return DTHROTTLE_BAD_QUESTION;
  const size_t bytes = dthrottle_write_absence(tags, count, line);
  const enum dthrottle_verdict said = ask_line(handle, line, bytes, &nothing, deadline_ms);
  if (said != DTHROTTLE_SERVE && said != DTHROTTLE_THROTTLE) return said;
  *refuse = said == DTHROTTLE_THROTTLE;
  return DTHROTTLE_SERVE;
}

enum dthrottle_verdict dthrottle_indicate(dthrottle* handle, const char* tag, size_t tag_bytes, double value,
                                          int deadline_ms) {
  char line[DTHROTTLE_QUESTION_LINE_BYTES];
  dthrottle_answer nothing;
  const dthrottle_tag named = {.text = tag, .bytes = tag_bytes};
  if (!(value > 0 && value <= DTHROTTLE_INDICATED_MAX)) return DTHROTTLE_BAD_QUESTION;
  return ask_line(handle, line, dthrottle_write_indication(value, &named, line), &nothing, deadline_ms);
}

static size_t bytes_of(const char* const* tags, const size_t* tag_bytes, size_t index) {
  return tag_bytes != NULL ? tag_bytes[index] : strlen(tags[index]);
}

size_t dthrottle_ask_batch(dthrottle* handle, const char* const* tags, const size_t* tag_bytes, size_t count,
                           enum dthrottle_verdict* verdicts, int deadline_ms) {
  size_t local = 0; /* the first tags, in order, as far as the page says something */
  while (deadline_ms > 0 && local < count &&
         decided_by_page(handle, tags[local], bytes_of(tags, tag_bytes, local), 0, &verdicts[local])) {
    local++;
  }
  if (local == count) return count;
  struct call call = {
      .handle = handle,
      .question = {.tags = tags + local,
                   .tag_bytes = tag_bytes != NULL ? tag_bytes + local : NULL,
                   .count = count - local,
                   .verdicts = verdicts + local},
  };
  const enum dthrottle_verdict failure = handle->answers != NULL ? DTHROTTLE_BAD_QUESTION : perform(&call, deadline_ms);
  const size_t answered = local + call.question.answered;
  for (size_t i = answered; i < count; i++) verdicts[i] = failure;
  for (size_t i = local; i < answered; i++) {
    dthrottle_pages_answered(&handle->pages, tags[i], bytes_of(tags, tag_bytes, i), verdicts[i] == DTHROTTLE_THROTTLE);
  }
  return answered;
}

const char* dthrottle_verdict_name(enum dthrottle_verdict verdict) {
  static const char* const names[] = {"serve",      "throttle",    "timed out",   "unreachable",
                                      "bad answer", "backing off", "bad question"};
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
  close_connections(handle);
  dthrottle_pages_close(&handle->pages);
  pthread_cond_destroy(&handle->freed);
  pthread_mutex_destroy(&handle->mutex);
  free_handle(handle);
}
