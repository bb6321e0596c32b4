/* What a client holds of one leased resource: how much of it may be used at an instant, and how much to ask for. The
 * arithmetic of libdthrottle's leases without clocks, locks and sockets. Not for applications. Source: Doorman "Client
 * operation", "Client library".
 *
 * `boot` is an instant of the boot-time clock in ns: leases run out while the machine sleeps. `now` is monotonic, in
 * ns.
 */
#ifndef DTHROTTLE_HOLDING_H
#define DTHROTTLE_HOLDING_H

#include <stdbool.h>
#include <stdint.h>

#include "answers.h"
#include "dthrottle_lease.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dthrottle_holding {
  bool gauge; /* else a rate */
  enum dthrottle_lease_mode mode;
  double wants_fixed, wants_max; /* 0: none */

  /* The lease. */
  bool granted; /* there has been one */
  double capacity, safe;
  int64_t expiry; /* boot-time; 0: released */
  int64_t refresh;
  uint64_t token;
  int64_t learning; /* until then the master that granted it learns; boot-time */

  double wants; /* units to ask for */

  double level; /* of a rate: units that may be taken at `level_at`, boot-time */
  int64_t level_at;
  unsigned outstanding; /* of a gauge */
  unsigned waiting;     /* calls */

  /* How it was used since `window_at`, monotonic. */
  int64_t window_at, waiting_since, waited;
  uint64_t taken, missed; /* missed: not taken by the deadline */
  unsigned peak;          /* of a gauge: outstanding and wanted at once */
};

/* Nothing is leased yet. REQUIRES: the numbers of `options` are within their bounds. */
void dthrottle_holding_init(struct dthrottle_holding* holding, bool gauge, const dthrottle_resource_options* options,
                            int64_t now, int64_t boot);

/* Units, or units a second, that may be used, INFINITY if that is unlimited; and until when that is so, or INT64_MAX.
 */
double dthrottle_holding_capacity(const struct dthrottle_holding* holding, int64_t boot, int64_t* until);

/* Takes a unit if there is one. Else says when there may be one if nothing changes, in boot-time, or INT64_MAX. */
bool dthrottle_holding_take(struct dthrottle_holding* holding, int64_t boot, int64_t* next);

/* A call begins to wait for a unit; it ends with one or without. */
void dthrottle_holding_begin_wait(struct dthrottle_holding* holding, int64_t now);
void dthrottle_holding_end_wait(struct dthrottle_holding* holding, bool taken, int64_t now);

/* Sets what to ask for: what was fixed, or what use since the last call of this suggests. */
void dthrottle_holding_estimate(struct dthrottle_holding* holding, int64_t now);

/* Whether a request could bring more: there is nothing, or all that was wanted was granted. */
bool dthrottle_holding_may_gain(const struct dthrottle_holding* holding, int64_t boot);

/* Takes a lease that was asked for at `sent`, boot-time. It counts from then, so an answer that was long on its way
 * makes it no longer. False: its token is smaller than that of a lease that still holds, so it comes from a former
 * master and changes nothing. */
bool dthrottle_holding_grant(struct dthrottle_holding* holding, const struct dthrottle_lease_line* lease, int64_t sent,
                             int64_t boot);

#ifdef __cplusplus
}
#endif

#endif
