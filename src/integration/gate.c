#include "gate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MS_PER_S = 1000, NUMBER_BYTES = 21 /* of an int64_t, with its NUL */ };

/* ---- Names ---- */

const char* dthrottle_fate_name(enum dthrottle_fate fate) {
  static const char* const names[DTHROTTLE_FATES] = {"OFF",       "SERVED",       "DELAYED",    "THROTTLED",
                                                     "SHADOWED",  "OPEN_TIMEOUT", "OPEN_ERROR", "OPEN_BACKOFF",
                                                     "OPEN_FULL", "CLOSED",       "LEFT"};
  return names[fate];
}

enum dthrottle_fate dthrottle_fate_of(enum dthrottle_verdict verdict, const dthrottle_answer* answer) {
  switch (verdict) {
    case DTHROTTLE_SERVE:
      return answer->delay_us > 0 ? DTHROTTLE_FATE_DELAYED : DTHROTTLE_FATE_SERVED;
    case DTHROTTLE_THROTTLE:
      return DTHROTTLE_FATE_THROTTLED;
    case DTHROTTLE_TIMED_OUT:
      return DTHROTTLE_FATE_TIMEOUT;
    case DTHROTTLE_BACKING_OFF:
      return DTHROTTLE_FATE_BACKOFF;
    case DTHROTTLE_UNREACHABLE:
    case DTHROTTLE_BAD_ANSWER:
    case DTHROTTLE_BAD_QUESTION:
      break;
  }
  return DTHROTTLE_FATE_ERROR;
}

const char* dthrottle_failure_name(enum dthrottle_failure failure) {
  static const char* const names[DTHROTTLE_FAILURES] = {"permission", "absent",   "nobody",
                                                        "timeout",    "protocol", "connection"};
  return names[failure];
}

enum dthrottle_failure dthrottle_failure_of(enum dthrottle_verdict verdict, int error) {
  if (verdict == DTHROTTLE_TIMED_OUT) return DTHROTTLE_FAILED_TIMEOUT;
  if (verdict == DTHROTTLE_BAD_ANSWER || verdict == DTHROTTLE_BAD_QUESTION) return DTHROTTLE_FAILED_PROTOCOL;
  switch (error) {
    case EACCES:
    case EPERM:
      return DTHROTTLE_FAILED_PERMISSION;
    case ENOENT:
      return DTHROTTLE_FAILED_ABSENT;
    case ECONNREFUSED:
      return DTHROTTLE_FAILED_NOBODY;
    default:
      return DTHROTTLE_FAILED_CONNECTION;
  }
}

/* ---- Counting ---- */

/* An address as it stands between quotes on the page. */
static void write_name(const char* address, size_t bytes, char name[DTHROTTLE_BOARD_NAME_BYTES]) {
  if (bytes >= DTHROTTLE_BOARD_NAME_BYTES) bytes = DTHROTTLE_BOARD_NAME_BYTES - 1;
  for (size_t i = 0; i < bytes; i++) {
    name[i] = (unsigned char)address[i] < ' ' || address[i] == '"' || address[i] == '\\' ? '_' : address[i];
  }
  memset(name + bytes, '\0', DTHROTTLE_BOARD_NAME_BYTES - bytes);
}

/* Where there is room for the counts of one more daemon. */
static struct dthrottle_board_entry* place_for(struct dthrottle_board* board) {
  if (board->count < DTHROTTLE_BOARD_MAX) return &board->entries[board->count++];
  for (size_t i = 0; i < DTHROTTLE_BOARD_MAX; i++) {
    if (!board->entries[i].named && !board->entries[i].kept) return &board->entries[i];
  }
  board->count = DTHROTTLE_BOARD_MAX + 1;
  return &board->entries[DTHROTTLE_BOARD_MAX];
}

void dthrottle_board_read(struct dthrottle_board* board) {
  for (size_t i = 0; i < board->count; i++) board->entries[i].kept = false;
}

struct dthrottle_counts* dthrottle_board_find(struct dthrottle_board* board, const char* address, size_t bytes) {
  char name[DTHROTTLE_BOARD_NAME_BYTES];
  write_name(address, bytes, name);
  for (size_t i = 0; i < board->count; i++) {
    struct dthrottle_board_entry* const entry = &board->entries[i];
    if (strcmp(entry->name, name) != 0) continue;
    entry->kept = true;
    return &entry->counts;
  }
  return NULL;
}

struct dthrottle_counts* dthrottle_board_make(struct dthrottle_board* board, const char* address, size_t bytes) {
  struct dthrottle_counts* const found = dthrottle_board_find(board, address, bytes);
  if (found != NULL) return found;
  struct dthrottle_board_entry* const entry = place_for(board);
  if (dthrottle_board_shares(board, &entry->counts)) {
    write_name("others", strlen("others"), entry->name);
  } else {
    memset(&entry->counts, 0, sizeof entry->counts);
    write_name(address, bytes, entry->name);
  }
  entry->kept = true;
  return &entry->counts;
}

bool dthrottle_board_shares(const struct dthrottle_board* board, const struct dthrottle_counts* counts) {
  return counts == &board->entries[DTHROTTLE_BOARD_MAX].counts;
}

void dthrottle_board_begin(struct dthrottle_board* board) {
  for (size_t i = 0; i < board->count; i++) __atomic_store_n(&board->entries[i].named, false, __ATOMIC_RELAXED);
}

void dthrottle_board_name(struct dthrottle_board* board, const struct dthrottle_counts* counts) {
  for (size_t i = 0; i < board->count; i++) {
    if (&board->entries[i].counts == counts) __atomic_store_n(&board->entries[i].named, true, __ATOMIC_RELAXED);
  }
}

void dthrottle_count_fate(struct dthrottle_counts* counts, enum dthrottle_fate fate) {
  __atomic_fetch_add(&counts->fates[fate], 1, __ATOMIC_RELAXED);
  /* Only where it changes, so that workers do not write to one word all the time. */
  if (fate <= DTHROTTLE_FATE_SHADOWED && __atomic_load_n(&counts->last_failure, __ATOMIC_RELAXED) != 0) {
    __atomic_store_n(&counts->last_failure, 0, __ATOMIC_RELAXED);
  }
}

void dthrottle_count_failure(struct dthrottle_counts* counts, enum dthrottle_failure failure) {
  __atomic_fetch_add(&counts->failures[failure], 1, __ATOMIC_RELAXED);
  __atomic_store_n(&counts->last_failure, 1 + (uint64_t)failure, __ATOMIC_RELAXED);
}

void dthrottle_forget_failure(struct dthrottle_counts* counts) {
  __atomic_store_n(&counts->last_failure, 0, __ATOMIC_RELAXED);
}

/* ---- Fields ---- */

static int64_t whole_seconds(int64_t ms) {
  return ms / MS_PER_S + (ms % MS_PER_S > 0);
}

int64_t dthrottle_retry_after(const dthrottle_answer* answer) {
  if (answer->reason != DTHROTTLE_REASON_LIMIT || answer->wait_ms == 0) return 0;
  const int64_t seconds = whole_seconds(answer->wait_ms);
  return seconds > 1 ? seconds : 1;
}

/* A value in the making. Not printf: a busy server makes two values for each response. */
static struct dthrottle_field* begin_field(struct dthrottle_field* fields, size_t* count, const char* name) {
  struct dthrottle_field* const field = &fields[(*count)++];
  field->name = name;
  field->bytes = 0;
  return field;
}

static void put(struct dthrottle_field* field, const char* text) {
  const size_t bytes = strlen(text);
  memcpy(field->value + field->bytes, text, bytes + 1);
  field->bytes += bytes;
}

static void put_number(struct dthrottle_field* field, const char* in_front, int64_t number) {
  char digits[NUMBER_BYTES];
  char* begin = digits + sizeof digits;
  uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  *--begin = '\0';
  do {
    *--begin = (char)('0' + rest % 10);
  } while ((rest /= 10) > 0);
  if (number < 0) *--begin = '-';
  put(field, in_front);
  put(field, begin);
}

static void put_policy(struct dthrottle_field* field, const char* policy) {
  put(field, "\"");
  put(field, policy);
  put(field, "\"");
}

size_t dthrottle_make_fields(const dthrottle_answer* answer, bool refused, enum dthrottle_fields style,
                             struct dthrottle_field fields[DTHROTTLE_FIELDS_MAX]) {
  const int64_t left = answer->left[answer->nearest], next = whole_seconds(answer->next_ms);
  const char* const policy = strcmp(answer->rule, "-") != 0 ? answer->rule : "override";
  const int64_t retry = refused ? dthrottle_retry_after(answer) : 0;
  struct dthrottle_field* field;
  size_t count = 0;
  if (answer->quota > 0 && style == DTHROTTLE_FIELDS_DRAFT_10) {
    field = begin_field(fields, &count, "RateLimit-Policy");
    put_policy(field, policy);
    put_number(field, ";q=", answer->quota);
    put_number(field, ";w=", whole_seconds(answer->window_ms));
    field = begin_field(fields, &count, "RateLimit");
    put_policy(field, policy);
    put_number(field, ";r=", left);
    put_number(field, ";t=", next);
  } else if (answer->quota > 0 && style == DTHROTTLE_FIELDS_DRAFT_03) {
    put_number(begin_field(fields, &count, "X-RateLimit-Limit"), "", answer->quota);
    put_number(begin_field(fields, &count, "X-RateLimit-Remaining"), "", left);
    put_number(begin_field(fields, &count, "X-RateLimit-Reset"), "", next);
  }
  if (retry > 0 && style != DTHROTTLE_FIELDS_NONE) put_number(begin_field(fields, &count, "Retry-After"), "", retry);
  return count;
}

/* ---- The page ---- */

/* Text of bounded room; what does not fit is left out. */
struct text {
  char* begin;
  size_t bytes, room;
};

__attribute__((format(printf, 2, 3))) static void append(struct text* text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int bytes = vsnprintf(text->begin + text->bytes, text->room - text->bytes, format, values);
  va_end(values);
  if (bytes > 0 && (size_t)bytes < text->room - text->bytes) text->bytes += (size_t)bytes;
}

static void append_requests(struct text* text, const char* server, const struct dthrottle_board_entry* daemon) {
  for (unsigned fate = DTHROTTLE_FATE_SERVED; fate < DTHROTTLE_FATES; fate++) {
    append(text, "dthrottle_%s_requests_total{daemon=\"%s\",status=\"%s\"} %" PRIu64 "\n", server, daemon->name,
           dthrottle_fate_name((enum dthrottle_fate)fate),
           __atomic_load_n(&daemon->counts.fates[fate], __ATOMIC_RELAXED));
  }
}

static void append_failures(struct text* text, const char* server, const struct dthrottle_board_entry* daemon) {
  for (unsigned failure = 0; failure < DTHROTTLE_FAILURES; failure++) {
    append(text, "dthrottle_%s_failures_total{daemon=\"%s\",why=\"%s\"} %" PRIu64 "\n", server, daemon->name,
           dthrottle_failure_name((enum dthrottle_failure)failure),
           __atomic_load_n(&daemon->counts.failures[failure], __ATOMIC_RELAXED));
  }
}

static void append_up(struct text* text, const char* server, const struct dthrottle_board_entry* daemon) {
  if (!__atomic_load_n(&daemon->named, __ATOMIC_RELAXED)) return;
  append(text, "dthrottle_%s_up{daemon=\"%s\"} %d\n", server, daemon->name,
         __atomic_load_n(&daemon->counts.last_failure, __ATOMIC_RELAXED) == 0);
}

static const struct {
  const char *name, *type, *help;
  void (*append)(struct text* text, const char* server, const struct dthrottle_board_entry* daemon);
} families[] = {
    {"requests_total", "counter", "Requests by what became of them; OPEN_ ones were served without an answer.",
     append_requests},
    {"failures_total", "counter", "Times that the daemon did not answer, by why.", append_failures},
    {"up", "gauge", "1 unless the last attempt to ask the daemon failed.", append_up},
};

size_t dthrottle_write_page(const char* server, const struct dthrottle_board* board, char* text) {
  struct text page = {text, 0, DTHROTTLE_PAGE_BYTES};
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    append(&page, "# HELP dthrottle_%s_%s %s\n", server, families[i].name, families[i].help);
    append(&page, "# TYPE dthrottle_%s_%s %s\n", server, families[i].name, families[i].type);
    for (size_t at = 0; at < board->count; at++) families[i].append(&page, server, &board->entries[at]);
  }
  return page.bytes;
}
