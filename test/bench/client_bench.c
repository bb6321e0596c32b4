/* What a question costs through libdthrottle: wall clock and this process's CPU, one thread, one question at a time,
 * and batches. Prints the best of a few rounds, since other work on the machine only adds to it.
 *
 *   client_bench ADDRESS [QUESTIONS [TAG]]
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/dthrottle.h"

enum { ROUNDS = 7, BATCH = 64 };

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void measure(const char* what, dthrottle* handle, const char* tag, int questions, int batch) {
  const char* tags[BATCH];
  enum dthrottle_verdict verdicts[BATCH];
  double wall = 1e9, cpu = 1e9;
  for (int i = 0; i < BATCH; i++) tags[i] = tag;
  for (int round = 0; round < ROUNDS; round++) {
    const double wall_begin = seconds(CLOCK_MONOTONIC), cpu_begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < questions; i += batch) {
      if (dthrottle_ask_batch(handle, tags, NULL, (size_t)batch, verdicts, 1000) != (size_t)batch) exit(1);
    }
    const double wall_now = seconds(CLOCK_MONOTONIC) - wall_begin,
                 cpu_now = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin;
    if (wall_now < wall) wall = wall_now;
    if (cpu_now < cpu) cpu = cpu_now;
  }
  printf("%-16s %8.0f ns wall, %8.0f ns CPU a question\n", what, wall / questions * 1e9, cpu / questions * 1e9);
}

int main(int argc, char** argv) {
  if (argc < 2) return 64;
  const int questions = argc > 2 ? atoi(argv[2]) : 64000;
  const char* const tag = argc > 3 ? argv[3] : "203.0.113.77";
  dthrottle* const handle = dthrottle_open(argv[1], NULL);
  if (handle == NULL || dthrottle_connect(handle, 1000) != DTHROTTLE_SERVE) return 1;
  measure("one at a time", handle, tag, questions, 1);
  measure("batches of 64", handle, tag, questions, BATCH);
  dthrottle_close(handle);
  return 0;
}
