/* For LD_PRELOAD: monotonic clocks that run fast by DRIFT_PPM millionths from the start of the process on, as on another
   machine. Waits until an instant end too late or too early by as much, which is milliseconds in a test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static int (*true_clock)(clockid_t, struct timespec *);
static int64_t drift_ppm, begun_ns;

static int64_t nanoseconds(const struct timespec *t) { return t->tv_sec * INT64_C(1000000000) + t->tv_nsec; }

__attribute__((constructor)) static void begin(void) {
  struct timespec now;
  *(void **)&true_clock = dlsym(RTLD_NEXT, "clock_gettime");
  true_clock(CLOCK_MONOTONIC, &now);
  begun_ns = nanoseconds(&now);
  const char *ppm = getenv("DRIFT_PPM");
  drift_ppm = ppm != NULL ? atoll(ppm) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (true_clock == NULL) begin();
  const int result = true_clock(clock, t);
  if (result != 0 || (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE && clock != CLOCK_BOOTTIME)) {
    return result;
  }
  const int64_t ns = nanoseconds(t), shown = ns + (ns - begun_ns) / 1000000 * drift_ppm;
  t->tv_sec = shown / 1000000000;
  t->tv_nsec = shown % 1000000000;
  return result;
}
