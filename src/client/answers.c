#include "answers.h"

#include <string.h>

enum dthrottle_read dthrottle_read_verdict(struct dthrottle_verdict_reader* reader, char byte) {
  static const char ok[] = "OK\n", no[] = "NO\n";
  const size_t at = reader->begun_bytes;
  reader->begun[at] = byte;
  const bool may_be_ok = memcmp(reader->begun, ok, at + 1) == 0;
  if (!may_be_ok && memcmp(reader->begun, no, at + 1) != 0) return DTHROTTLE_READ_BAD;
  reader->begun_bytes = (at + 1) % DTHROTTLE_ANSWER_BYTES;
  if (reader->begun_bytes != 0) return DTHROTTLE_READ_MORE;
  return may_be_ok ? DTHROTTLE_READ_OK : DTHROTTLE_READ_NO;
}

/* A word that is a number, and what is behind it. Not strtod: the locale may have another point. */
static bool read_number(const char** text, double* number) {
  const char* at = *text;
  while (*at == ' ') at++;
  const bool negative = *at == '-';
  if (negative) at++;
  double value = 0, unit = 1;
  bool digits = false, point = false;
  for (; (*at >= '0' && *at <= '9') || (*at == '.' && !point); at++) {
    if (*at == '.') {
      point = true;
      continue;
    }
    digits = true;
    if (point) {
      value += (unit /= 10) * (*at - '0');
    } else {
      value = value * 10 + (*at - '0');
    }
  }
  if (!digits || (*at != ' ' && *at != '\0') || value > 1e18) return false;
  *number = negative ? -value : value;
  *text = at;
  return true;
}

/* Digits only. strtoull would take "-1" for the greatest token of all, after which no master counts. */
static bool read_token(const char** text, uint64_t* token) {
  uint64_t value = 0;
  const char* at = *text;
  while (*at == ' ') at++;
  if (*at == '\0') return false;
  for (; *at >= '0' && *at <= '9'; at++) {
    const uint64_t digit = (uint64_t)(*at - '0');
    if (value > ((uint64_t)INT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *token = value;
  *text = at;
  return *at == ' ' || *at == '\0';
}

/* What may stand behind a lease. */
static bool read_learning(const char* text, double* seconds) {
  static const char word[] = " learning ";
  *seconds = 0;
  if (*text == '\0') return true;
  if (strncmp(text, word, sizeof word - 1) != 0) return false;
  text += sizeof word - 1;
  return read_number(&text, seconds) && *text == '\0' && *seconds >= 0 && *seconds <= DTHROTTLE_LEASE_S_MAX;
}

bool dthrottle_read_lease(const char* text, struct dthrottle_lease_line* lease) {
  return read_number(&text, &lease->capacity) && read_number(&text, &lease->expiry_s) &&
         read_number(&text, &lease->refresh_s) && read_number(&text, &lease->safe) && read_token(&text, &lease->token) &&
         read_learning(text, &lease->learning_s) &&
         lease->capacity >= 0 && lease->capacity <= DTHROTTLE_AMOUNT_MAX && lease->safe <= DTHROTTLE_AMOUNT_MAX &&
         lease->expiry_s >= 0 && lease->expiry_s <= DTHROTTLE_LEASE_S_MAX && lease->refresh_s > 0 &&
         lease->refresh_s <= DTHROTTLE_LEASE_S_MAX;
}
