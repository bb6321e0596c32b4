#include "holding.h"

#include <math.h>
#include <string.h>

static const double NS_PER_S = 1e9;
static const double BURST_S = 0.1;              /* a rate's units that may come at once, in seconds of the rate */
static const int64_t WINDOW_MIN_NS = 100000000; /* use over less than this says nothing */
static const int64_t FOREVER = INT64_MAX;

static double larger(double a, double b) {
  return a > b ? a : b;
}

double dthrottle_holding_capacity(const struct dthrottle_holding* h, int64_t boot, int64_t* until) {
  if (boot < h->expiry) {
    *until = h->expiry;
    return h->capacity;
  }
  *until = FOREVER;
  switch (h->mode) {
    case DTHROTTLE_OPTIMISTIC:
      return larger(h->wants, 1);
    case DTHROTTLE_SAFE:
      return !h->granted ? 0 : h->safe < 0 ? INFINITY : h->safe;
    default:
      return 0;
  }
}

/* Fills the level up to `boot`, over the end of the lease if that lies between. */
static void advance(struct dthrottle_holding* h, int64_t boot) {
  while (h->level_at < boot) {
    int64_t until;
    const double capacity = dthrottle_holding_capacity(h, h->level_at, &until);
    const int64_t end = until < boot ? until : boot;
    const double burst = isinf(capacity) ? 1 : larger(1, capacity * BURST_S);
    h->level = isinf(capacity) ? 1 : h->level + capacity * (double)(end - h->level_at) / NS_PER_S;
    if (h->level > burst) h->level = burst;
    h->level_at = end;
  }
}

bool dthrottle_holding_take(struct dthrottle_holding* h, int64_t boot, int64_t* next) {
  const double capacity = dthrottle_holding_capacity(h, boot, next);
  if (h->gauge) {
    if ((double)h->outstanding + 1 > capacity + 1e-9) return false;
    h->outstanding++;
    return true;
  }
  advance(h, boot);
  if (capacity <= 0) return false;
  if (h->level >= 1) {
    h->level -= isinf(capacity) ? 0 : 1;
    return true;
  }
  const double due = (1 - h->level) / capacity * NS_PER_S + 1;
  if (due < 1e18 && boot + (int64_t)due < *next) *next = boot + (int64_t)due;
  return false;
}

static void forget_use(struct dthrottle_holding* h, int64_t now) {
  h->window_at = now;
  h->waiting_since = now;
  h->waited = 0;
  h->taken = h->missed = 0;
  h->peak = h->outstanding + h->waiting;
}

/* A client that had to wait for a rate may need more than it got, and nobody knows how much: it asks for twice as much.
 * A request falls by half at a time. */
void dthrottle_holding_estimate(struct dthrottle_holding* h, int64_t now) {
  const int64_t window = now - h->window_at;
  if (h->wants_fixed > 0) {
    h->wants = h->wants_fixed;
  } else if (h->gauge) {
    h->wants = larger(h->peak, h->wants / 2 < 0.5 ? 0 : h->wants / 2);
  } else if (window < WINDOW_MIN_NS) {
    h->wants = larger(h->wants, h->waiting);
  } else {
    if (h->waiting > 0) h->waited += now - h->waiting_since;
    const double used = (double)(h->taken + h->missed) / ((double)window / NS_PER_S);
    const bool starved = h->waited > window / 10;
    h->wants = larger(starved ? larger(2 * used, h->waiting) : 1.1 * used, h->wants / 2);
    if (h->wants < 1e-3) h->wants = 0;
  }
  if (h->wants_fixed == 0 && h->wants_max > 0 && h->wants > h->wants_max) h->wants = h->wants_max;
  if (h->wants > DTHROTTLE_AMOUNT_MAX) h->wants = DTHROTTLE_AMOUNT_MAX;
  forget_use(h, now);
}

bool dthrottle_holding_may_gain(const struct dthrottle_holding* h, int64_t boot) {
  int64_t until;
  const double capacity = dthrottle_holding_capacity(h, boot, &until);
  if (capacity <= 0) return true;
  return h->wants_fixed == 0 && capacity >= h->wants * 0.999 && (h->wants_max == 0 || h->wants < h->wants_max);
}

bool dthrottle_holding_grant(struct dthrottle_holding* h, const struct dthrottle_lease_line* lease, int64_t sent,
                             int64_t boot) {
  if (boot < h->expiry && lease->token < h->token) return false;
  advance(h, boot); /* under the old lease */
  h->granted = true;
  h->capacity = lease->capacity;
  h->safe = lease->safe;
  h->refresh = (int64_t)(lease->refresh_s * NS_PER_S);
  h->expiry = sent + (int64_t)(lease->expiry_s * NS_PER_S);
  h->token = lease->token;
  h->learning = lease->learning_s > 0 ? sent + (int64_t)(lease->learning_s * NS_PER_S) : 0;
  return true;
}

void dthrottle_holding_begin_wait(struct dthrottle_holding* h, int64_t now) {
  if (h->waiting++ == 0) h->waiting_since = now;
  if (h->outstanding + h->waiting > h->peak) h->peak = h->outstanding + h->waiting;
}

void dthrottle_holding_end_wait(struct dthrottle_holding* h, bool taken, int64_t now) {
  if (--h->waiting == 0) h->waited += now - h->waiting_since;
  h->taken += taken;
  h->missed += !taken;
}

void dthrottle_holding_init(struct dthrottle_holding* h, bool gauge, const dthrottle_resource_options* options,
                            int64_t now, int64_t boot) {
  memset(h, 0, sizeof *h);
  h->gauge = gauge;
  h->mode = options->mode;
  h->wants_fixed = options->wants;
  h->wants_max = options->wants_max;
  h->wants = options->wants > 0 ? options->wants : 1;
  h->level_at = boot;
  forget_use(h, now);
}
