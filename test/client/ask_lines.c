/* Asks for each line of standard input, over one handle, and prints the verdict and how many microseconds it took.
 *
 *   ask_lines ADDRESS DEADLINE_MS              a line is a tag
 *   ask_lines ADDRESS DEADLINE_MS questions    a line is "COST TAG [COST TAG]...", and what the answer says is printed
 *                                              behind the microseconds: reason, refused, wait, rule, left of each tag;
 *                                              %XX in a tag is a byte. "learn TAG..." prints what was learned of them
 *                                              in place of that: "serve" or "refuse"; "refund COST TAG..." gives back;
 *                                              "indicate VALUE TAG" reports; "wait MS COST TAG..." waits rather than
 *                                              being refused, and prints for how many milliseconds and by which name;
 *                                              "release NAME" gives that up
 *   ask_lines ADDRESS DEADLINE_MS by-page      as questions, but a page may decide
 *   ask_lines ADDRESS DEADLINE_MS waits        the same, but a question waits within the deadline rather than being
 *                                              refused, and the line ends with the microseconds that it waited and the
 *                                              instant at which it went on
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/dthrottle.h"

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Puts bytes for %XX, and returns how many bytes the text has then. */
static size_t decode(char* text) {
  char* out = text;
  for (const char* at = text; *at != '\0'; out++) {
    const char hex[] = {at[0] == '%' ? at[1] : '\0', at[0] == '%' ? at[2] : '\0', '\0'};
    *out = hex[0] != '\0' ? (char)strtol(hex, NULL, 16) : *at;
    at += hex[0] != '\0' ? 3 : 1;
  }
  return (size_t)(out - text);
}

/* Returns how many tags there are. */
static size_t split(char* line, dthrottle_tag* tags) {
  size_t count = 0;
  for (char* cost = strtok(line, " \n"); cost != NULL && count < DTHROTTLE_TAGS_MAX; cost = strtok(NULL, " \n")) {
    char* const tag = strtok(NULL, " \n");
    if (tag == NULL) exit(65);
    const dthrottle_tag named = {tag, decode(tag), (uint32_t)strtoul(cost, NULL, 10), 0};
    tags[count++] = named;
  }
  return count;
}

/* Takes "TAG [TAG]...". */
static void learn(dthrottle* handle, char* line, int deadline_ms) {
  static int refuse;
  dthrottle_tag tags[DTHROTTLE_TAGS_MAX];
  size_t count = 0;
  for (char* tag = strtok(line, " \n"); tag != NULL && count < DTHROTTLE_TAGS_MAX; tag = strtok(NULL, " \n")) {
    const dthrottle_tag named = {tag, decode(tag), 0, 0};
    tags[count++] = named;
  }
  const enum dthrottle_verdict verdict = dthrottle_learn(handle, tags, count, &refuse, deadline_ms);
  printf("%s/0/%s\n", dthrottle_verdict_name(verdict), refuse != 0 ? "refuse" : "serve");
  fflush(stdout);
}

/* Takes "COST TAG [COST TAG]...". */
static void refund(dthrottle* handle, char* line, int deadline_ms) {
  dthrottle_tag tags[DTHROTTLE_TAGS_MAX];
  const size_t count = split(line, tags);
  printf("%s/0/-\n", dthrottle_verdict_name(dthrottle_refund(handle, tags, count, deadline_ms)));
  fflush(stdout);
}

/* Takes "VALUE TAG". */
static void indicate(dthrottle* handle, char* line, int deadline_ms) {
  char* tag;
  const double value = strtod(line, &tag);
  tag = strtok(tag, " \n");
  if (tag == NULL) exit(65);
  const size_t bytes = decode(tag);
  printf("%s/0/-\n", dthrottle_verdict_name(dthrottle_indicate(handle, tag, bytes, value, deadline_ms)));
  fflush(stdout);
}

static void print_answer(const dthrottle_answer* answer, size_t count) {
  printf("/%d %zu %" PRId64 " %s", answer->reason, answer->refused, answer->wait_ms,
         answer->rule[0] != '\0' ? answer->rule : "-");
  for (size_t i = 0; i < count; i++) printf(" %" PRId64, answer->left[i]);
}

/* Takes "MS COST TAG [COST TAG]...". */
static void wait_for(dthrottle* handle, char* line, int deadline_ms) {
  char* costs;
  dthrottle_tag tags[DTHROTTLE_TAGS_MAX];
  dthrottle_question question = {.tags = tags, .wait_ms = (unsigned)strtoul(line, &costs, 10)};
  dthrottle_answer answer;
  question.count = split(costs, tags);
  printf("%s/0", dthrottle_verdict_name(dthrottle_ask_question(handle, &question, &answer, deadline_ms)));
  print_answer(&answer, question.count);
  printf(" %" PRId64, (answer.delay_us + 500) / 1000);
  answer.hold != 0 ? printf(" %" PRIx64 "\n", answer.hold) : printf(" -\n");
  fflush(stdout);
}

/* Takes "NAME". */
static void release(dthrottle* handle, const char* line, int deadline_ms) {
  const enum dthrottle_verdict verdict = dthrottle_release(handle, strtoull(line, NULL, 16), deadline_ms);
  printf("%s/0/-\n", dthrottle_verdict_name(verdict));
  fflush(stdout);
}

int main(int argc, char** argv) {
  const int waits = argc == 4 && strcmp(argv[3], "waits") == 0;
  const int by_page = argc == 4 && strcmp(argv[3], "by-page") == 0;
  const int questions = waits || by_page || (argc == 4 && strcmp(argv[3], "questions") == 0);
  if (argc != 3 && !questions) return 64;
  dthrottle* const handle = questions ? dthrottle_open_ask(argv[1], NULL) : dthrottle_open(argv[1], NULL);
  const int deadline_ms = atoi(argv[2]);
  if (handle == NULL) return 64;
  char line[65536];
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (questions && strncmp(line, "learn ", 6) == 0) {
      learn(handle, line + 6, deadline_ms);
      continue;
    }
    if (questions && strncmp(line, "refund ", 7) == 0) {
      refund(handle, line + 7, deadline_ms);
      continue;
    }
    if (questions && strncmp(line, "indicate ", 9) == 0) {
      indicate(handle, line + 9, deadline_ms);
      continue;
    }
    if (questions && strncmp(line, "wait ", 5) == 0) {
      wait_for(handle, line + 5, deadline_ms);
      continue;
    }
    if (questions && strncmp(line, "release ", 8) == 0) {
      release(handle, line + 8, deadline_ms);
      continue;
    }
    dthrottle_tag tags[DTHROTTLE_TAGS_MAX];
    dthrottle_question question = {.tags = tags, .sleeps = (unsigned)waits, .by_page = (unsigned)by_page};
    dthrottle_answer answer;
    if (questions) question.count = split(line, tags);
    const double begin = now_us();
    const enum dthrottle_verdict verdict = questions ? dthrottle_ask_question(handle, &question, &answer, deadline_ms)
                                                     : dthrottle_ask(handle, line, strcspn(line, "\n"), deadline_ms);
    const double end = now_us();
    printf("%s/%.0f", dthrottle_verdict_name(verdict), end - begin);
    if (questions) print_answer(&answer, question.count);
    if (waits) printf("/%" PRId64 " %.0f", answer.delay_us, end);
    printf("\n");
    fflush(stdout);
  }
  dthrottle_close(handle);
  return 0;
}
