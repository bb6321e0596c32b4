#include "question.h"

#include <string.h>

enum {
  VERB_BYTES = 4,
  COST_BYTES = 10,               /* "4294967295" */
  AROUND_BYTES = COST_BYTES + 2, /* a cost, and the blanks in front of it and of its tag */
  ESCAPE_BYTES = 4,              /* "\\x20" */
  TELL_BYTES = 11,               /* of the word that asks for the limit, and the blank in front of it */
  TTL_BYTES = COST_BYTES + 1,    /* at most, with the blank in front of it */
  WAIT_BYTES = 6 + COST_BYTES,   /* of the word that says how long it would wait, and the blank in front of it */
  KEEP_BYTES = 5,                /* of the word that keeps the wait, and the blank in front of it */
};

/* A wait outlasts its connection, on which others ask too. */
static const char tell_limit[] = " tell=limit", wait_for[] = " wait=", keep[] = " keep";

/* ---- Asking ---- */

static const char* verb_word(enum dthrottle_verb verb) {
  switch (verb) {
    case DTHROTTLE_TAKE:
      return "take";
    case DTHROTTLE_PEEK:
      return "peek";
    case DTHROTTLE_HOLD:
      return "hold";
  }
  return NULL;
}

static bool can_wait(const dthrottle_question* question) {
  return question->wait_ms != 0 && question->verb != DTHROTTLE_HOLD;
}

/* Bytes in front of the tags at most. */
static size_t head_bytes(const dthrottle_question* question) {
  size_t bytes = VERB_BYTES;
  if (question->tell_limit != 0) bytes += TELL_BYTES;
  if (question->verb == DTHROTTLE_HOLD) bytes += TTL_BYTES;
  if (can_wait(question)) bytes += WAIT_BYTES + KEEP_BYTES;
  return bytes;
}

/* Bytes of a tag's word at most, so that as many words as there are tags fit into a line. */
static size_t word_bytes_max(const dthrottle_question* question) {
  return (DTHROTTLE_QUESTION_LINE_BYTES - head_bytes(question)) / question->count - AROUND_BYTES;
}

size_t dthrottle_question_room(const dthrottle_question* question) {
  if (verb_word(question->verb) == NULL || question->count == 0 || question->count > DTHROTTLE_TAGS_MAX) return 0;
  const size_t most = word_bytes_max(question);
  size_t room = head_bytes(question);
  for (size_t i = 0; i < question->count; i++) {
    const size_t bytes = question->tags[i].bytes;
    const size_t word_bytes = bytes < most / ESCAPE_BYTES ? bytes * ESCAPE_BYTES + 1 : most;
    room += AROUND_BYTES + (word_bytes < most ? word_bytes : most);
  }
  return room;
}

/* The escape that stands for the first of `bytes` bytes; NULL: the byte stands for itself. */
static const char* escape_of(const char* text, size_t bytes) {
  if (*text == ' ') return "\\x20";
  if (bytes < ESCAPE_BYTES) return NULL;
  return memcmp(text, "\\x20", ESCAPE_BYTES) == 0 || memcmp(text, "\\x5c", ESCAPE_BYTES) == 0 ? "\\x5c" : NULL;
}

static char* write_word(char* out, const dthrottle_tag* tag, size_t most) {
  const char* const begin = out;
  for (size_t i = 0; i < tag->bytes; i++) {
    const char* const escape = escape_of(tag->text + i, tag->bytes - i);
    const size_t bytes = escape != NULL ? ESCAPE_BYTES : 1;
    if ((size_t)(out - begin) + bytes > most) break;
    memcpy(out, escape != NULL ? escape : tag->text + i, bytes);
    if (*out == '\n') *out = '_';
    out += bytes;
  }
  if (out == begin) *out++ = '_';     /* a word has a byte at least */
  if (out[-1] == '\r') out[-1] = '_'; /* behind the last word the daemon would drop it */
  return out;
}

static char* write_text(char* out, const char* text) {
  const size_t bytes = strlen(text);
  memcpy(out, text, bytes);
  return out + bytes;
}

static char* write_number(char* out, uint32_t cost) {
  char digits[COST_BYTES];
  size_t count = 0;
  do {
    digits[count++] = (char)('0' + cost % 10);
  } while ((cost /= 10) > 0);
  while (count > 0) *out++ = digits[--count];
  return out;
}

/* "COST TAG", once for each tag, with a blank in front. */
static char* write_costs(char* out, const dthrottle_tag* tags, size_t count, size_t word_bytes_most) {
  for (size_t i = 0; i < count; i++) {
    *out++ = ' ';
    out = write_number(out, tags[i].cost);
    *out++ = ' ';
    out = write_word(out, &tags[i], word_bytes_most);
  }
  return out;
}

size_t dthrottle_write_question(const dthrottle_question* question, char* line) {
  char* out = line;
  memcpy(out, verb_word(question->verb), VERB_BYTES);
  out += VERB_BYTES;
  if (can_wait(question)) out = write_text(write_number(write_text(out, wait_for), question->wait_ms), keep);
  if (question->tell_limit != 0) out = write_text(out, tell_limit);
  if (question->verb == DTHROTTLE_HOLD) {
    *out++ = ' ';
    out = write_number(out, question->ttl_ms);
  }
  return (size_t)(write_costs(out, question->tags, question->count, word_bytes_max(question)) - line);
}

size_t dthrottle_write_refund(const dthrottle_tag* tags, size_t count, char* line) {
  char* const out = write_text(line, "refund");
  const size_t part = (DTHROTTLE_QUESTION_LINE_BYTES - (size_t)(out - line)) / count;
  return (size_t)(write_costs(out, tags, count, part - AROUND_BYTES) - line);
}

size_t dthrottle_write_settlement(uint64_t hold, const uint32_t* actual, size_t count, char* line) {
  char* out = write_text(line, count > 0 ? "commit " : "release ");
  int shift = 60;
  while (shift > 0 && hold >> shift == 0) shift -= 4;
  for (; shift >= 0; shift -= 4) *out++ = "0123456789abcdef"[hold >> shift & 15];
  for (size_t i = 0; i < count; i++) {
    *out++ = ' ';
    out = write_number(out, actual[i]);
  }
  return (size_t)(out - line);
}

/* Nine digits and a power of ten, without the decimal point of a locale: 420000000e-10. */
size_t dthrottle_write_indication(double value, const dthrottle_tag* tag, char* line) {
  char* out = write_text(line, "indicate ");
  int exponent = 0;
  for (; value < 1e8 && exponent > -300; exponent--) value *= 10;
  for (; value >= 1e9; exponent++) value /= 10;
  out = write_number(out, (uint32_t)value);
  out = write_text(out, exponent < 0 ? "e-" : "e");
  out = write_number(out, (uint32_t)(exponent < 0 ? -exponent : exponent));
  *out++ = ' ';
  out = write_word(out, tag, DTHROTTLE_QUESTION_LINE_BYTES - (size_t)(out - line));
  return (size_t)(out - line);
}

size_t dthrottle_write_absence(const dthrottle_tag* tags, size_t count, char* line) {
  char* out = write_text(line, "absent");
  const size_t part = (DTHROTTLE_QUESTION_LINE_BYTES - (size_t)(out - line)) / count - 1;
  for (size_t i = 0; i < count; i++) {
    *out++ = ' ';
    out = write_word(out, &tags[i], part);
  }
  return (size_t)(out - line);
}

/* ---- Words ---- */

struct word {
  const char* begin;
  size_t bytes; /* 0: there is none */
};

/* Takes the next word off a text. */
static struct word next_word(struct word* text) {
  for (; text->bytes > 0 && *text->begin == ' '; text->bytes--) text->begin++;
  const char* const blank = text->bytes > 0 ? memchr(text->begin, ' ', text->bytes) : NULL;
  const struct word word = {text->begin, blank != NULL ? (size_t)(blank - text->begin) : text->bytes};
  if (word.bytes > 0) text->begin += word.bytes; /* a text without words may be NULL */
  text->bytes -= word.bytes;
  return word;
}

static bool same(struct word a, struct word b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.begin, b.begin, a.bytes) == 0);
}

static bool says(struct word word, const char* text) {
  const struct word other = {text, strlen(text)};
  return same(word, other);
}

static bool begins(struct word word, const char* text) {
  const size_t bytes = strlen(text);
  return word.bytes >= bytes && memcmp(word.begin, text, bytes) == 0;
}

/* ---- Hearing ---- */

static bool read_number(struct word word, int64_t* number) {
  int64_t value = 0;
  for (size_t i = 0; i < word.bytes; i++) {
    const int64_t digit = word.begin[i] - '0';
    if (digit < 0 || digit > 9 || value > (INT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *number = value;
  return word.bytes > 0;
}

static bool read_left(struct word word, int64_t* left) {
  *left = DTHROTTLE_UNLIMITED;
  return says(word, "-") || read_number(word, left);
}

/* The words of the tags that a line asks about. Returns how many. */
static size_t split_tags(struct word asked, struct word* tags) {
  size_t count = 0;
  const bool holds = says(next_word(&asked), verb_word(DTHROTTLE_HOLD));
  struct word rest = asked;
  if (begins(next_word(&rest), wait_for + 1)) asked = rest;
  rest = asked;
  if (says(next_word(&rest), keep + 1)) asked = rest;
  rest = asked;
  if (says(next_word(&rest), tell_limit + 1)) asked = rest;
  if (holds) next_word(&asked);
  for (; count < DTHROTTLE_TAGS_MAX && next_word(&asked).bytes > 0; count++) {
    tags[count] = next_word(&asked);
  }
  return count;
}

/* The first place at which the tag stands; `count`: at none. */
static size_t place_of(struct word tag, const struct word* tags, size_t count) {
  size_t place = 0;
  while (place < count && !same(tag, tags[place])) place++;
  return place;
}

static void copy_rule(struct word rule, char* copy) {
  const size_t bytes = rule.bytes < DTHROTTLE_RULE_BYTES ? rule.bytes : DTHROTTLE_RULE_BYTES - 1;
  memcpy(copy, rule.begin, bytes);
  copy[bytes] = '\0';
}

/* "RULE TAG [QUOTA WINDOW NEXT]", and nothing behind it. */
static bool read_limit(struct word text, const struct word* tags, size_t count, dthrottle_answer* answer) {
  const struct word rule = next_word(&text);
  answer->nearest = place_of(next_word(&text), tags, count);
  if (answer->nearest == count) return false;
  copy_rule(rule, answer->rule);
  const struct word quota = next_word(&text), window = next_word(&text), next = next_word(&text);
  if (next_word(&text).bytes > 0) return false;
  if (quota.bytes == 0 || says(quota, "-")) return true;
  return read_number(quota, &answer->quota) && read_number(window, &answer->window_ms) &&
         read_number(next, &answer->next_ms);
}

/* "LEFT... [RULE TAG QUOTA WINDOW NEXT]"; a tag that is named more than once has one LEFT, at its first place. */
static bool read_served(struct word text, const struct word* tags, size_t count, dthrottle_answer* answer) {
  for (size_t i = 0; i < count; i++) {
    const size_t first = place_of(tags[i], tags, count);
    if (first == i && !read_left(next_word(&text), &answer->left[i])) return false;
    answer->left[i] = answer->left[first];
  }
  struct word rest = text;
  return next_word(&rest).bytes == 0 || read_limit(text, tags, count, answer);
}

/* "WHY WAIT LEFT RULE TAG [QUOTA WINDOW NEXT]" */
static bool read_refused(struct word text, const struct word* tags, size_t count, dthrottle_answer* answer) {
  const struct word why = next_word(&text), wait = next_word(&text), left = next_word(&text);
  answer->reason = says(why, "limit")   ? DTHROTTLE_REASON_LIMIT
                   : says(why, "never") ? DTHROTTLE_REASON_NEVER
                   : says(why, "shed")  ? DTHROTTLE_REASON_SHED
                   : says(why, "busy")  ? DTHROTTLE_REASON_BUSY
                                        : DTHROTTLE_REASON_NONE;
  if (answer->reason == DTHROTTLE_REASON_NONE) return false;
  if (answer->reason == DTHROTTLE_REASON_LIMIT ? !read_number(wait, &answer->wait_ms) : !says(wait, "-")) return false;
  if (!read_limit(text, tags, count, answer)) return false;
  answer->refused = answer->nearest;
  return read_left(left, &answer->left[answer->refused]);
}

/* Milliseconds with up to three digits behind a point. */
static bool read_delay(struct word word, int64_t* us) {
  const char* const point = memchr(word.begin, '.', word.bytes);
  const struct word whole = {word.begin, point != NULL ? (size_t)(point - word.begin) : word.bytes};
  int64_t ms = 0;
  if (!read_number(whole, &ms) || ms > UINT32_MAX) return false;
  *us = ms * 1000;
  if (point == NULL) return true;
  const size_t digits = word.bytes - whole.bytes - 1;
  int64_t unit = 100;
  for (size_t i = 1; i <= digits; i++, unit /= 10) {
    if (point[i] < '0' || point[i] > '9' || unit == 0) return false;
    *us += unit * (point[i] - '0');
  }
  return digits > 0;
}

static bool read_hold(struct word word, uint64_t* hold) {
  uint64_t value = 0;
  for (size_t i = 0; i < word.bytes; i++) {
    const char c = word.begin[i];
    if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) return false;
    value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  *hold = value;
  return word.bytes <= 16 && value != 0;
}

/* "MS ID" of an answer that begins with WAIT; ID is "-" if it cannot be given up. */
static bool read_wait(struct word* text, dthrottle_answer* answer) {
  const struct word ms = next_word(text), id = next_word(text);
  return read_delay(ms, &answer->delay_us) && (says(id, "-") || read_hold(id, &answer->hold));
}

/* "OK committed ACTUAL...", "OK released", "OK expired", "NO unknown" or "ERR TEXT" */
static bool read_settled(struct word text, enum dthrottle_verdict* verdict) {
  const struct word first = next_word(&text), what = next_word(&text);
  const bool settled =
      says(first, "OK") && (says(what, "committed") || says(what, "released") || says(what, "expired"));
  *verdict = settled ? DTHROTTLE_SERVE : DTHROTTLE_BAD_QUESTION;
  return settled || says(first, "ERR") || (says(first, "NO") && says(what, "unknown"));
}

/* "OK serve", "OK refuse" or "ERR TEXT" */
static bool read_absence(struct word text, enum dthrottle_verdict* verdict) {
  const struct word first = next_word(&text), what = next_word(&text);
  const bool error = says(first, "ERR"), refuse = says(what, "refuse");
  *verdict = error ? DTHROTTLE_BAD_QUESTION : refuse ? DTHROTTLE_THROTTLE : DTHROTTLE_SERVE;
  return error || (says(first, "OK") && (refuse || says(what, "serve")));
}

bool dthrottle_read_answer(const char* asked, size_t asked_bytes, const char* text, size_t bytes,
                           enum dthrottle_verdict* verdict, dthrottle_answer* answer) {
  const struct word line = {asked, asked_bytes};
  struct word asked_rest = line;
  const struct word verb = next_word(&asked_rest);
  struct word rest = {text, bytes}, tags[DTHROTTLE_TAGS_MAX];
  dthrottle_answer read = {.reason = DTHROTTLE_REASON_NONE};
  if (says(verb, "commit") || says(verb, "release")) {
    *answer = read;
    return read_settled(rest, verdict);
  }
  if (says(verb, "absent")) {
    *answer = read;
    return read_absence(rest, verdict);
  }
  if (says(verb, "indicate") || says(verb, "refund")) {
    const bool taken = bytes == 2 && memcmp(text, "OK", 2) == 0;
    *answer = read;
    *verdict = taken ? DTHROTTLE_SERVE : DTHROTTLE_BAD_QUESTION;
    return taken || says(next_word(&rest), "ERR");
  }
  const size_t count = split_tags(line, tags);
  const struct word first = next_word(&rest);
  const bool waits = says(first, "WAIT"), served = waits || says(first, "OK"), refused = says(first, "NO");
  if (!served && !refused && !says(first, "ERR")) return false;
  if (served && says(verb, verb_word(DTHROTTLE_HOLD)) && !read_hold(next_word(&rest), &read.hold)) return false;
  if (waits && !read_wait(&rest, &read)) return false;
  if (served && !read_served(rest, tags, count, &read)) return false;
  if (refused && !read_refused(rest, tags, count, &read)) return false;
  *verdict = served ? DTHROTTLE_SERVE : refused ? DTHROTTLE_THROTTLE : DTHROTTLE_BAD_QUESTION;
  *answer = read;
  return true;
}
