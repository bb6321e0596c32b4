/* Takes and gives back places of a gauge from several threads, for test/system/test_lease.py: hold_places ADDRESS
 * RESOURCE WANTS. Writes + after each place taken and - before each given back, until it is killed. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/dthrottle_lease.h"

enum { THREADS = 4, HOLD_US = 5000 };

static void say(char what) {
  if (write(STDOUT_FILENO, &what, 1) != 1) _exit(1);
}

static void* hold(void* gauge) {
  for (;;) {
    dthrottle_resource_take(gauge, -1);
    say('+');
    usleep(HOLD_US);
    say('-');
    dthrottle_resource_release(gauge);
  }
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  dthrottle_resource_options options;
  memset(&options, 0, sizeof options);
  options.wants = strtod(argv[3], NULL);
  dthrottle_leases* const leases = dthrottle_leases_open(argv[1], NULL);
  dthrottle_resource* const gauge = leases != NULL ? dthrottle_gauge_open(leases, argv[2], &options) : NULL;
  if (gauge == NULL) return 1;
  pthread_t thread;
  for (int i = 1; i < THREADS; i++) {
    if (pthread_create(&thread, NULL, hold, gauge) != 0) return 1;
  }
  hold(gauge);
}
