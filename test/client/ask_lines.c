/* Asks for each line of standard input, over one handle, and prints the verdict and how many microseconds it took.
 *
 *   ask_lines ADDRESS DEADLINE_MS
 */
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

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  dthrottle* const handle = dthrottle_open(argv[1], NULL);
  if (handle == NULL) return 64;
  char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    const double begin = now_us();
    const enum dthrottle_verdict verdict = dthrottle_ask(handle, line, strcspn(line, "\n"), atoi(argv[2]));
    printf("%s/%.0f\n", dthrottle_verdict_name(verdict), now_us() - begin);
    fflush(stdout);
  }
  dthrottle_close(handle);
  return 0;
}
