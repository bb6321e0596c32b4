/* Leases from dthrottled, for programs that would rather go slower than be refused, in plain C. libdthrottle(3).
 *
 *   dthrottle_leases *leases = dthrottle_leases_open("tcp:10.0.0.1:7315,tcp:10.0.0.2:7315", NULL);
 *   dthrottle_resource *calls = dthrottle_rate_open(leases, "backend-calls", NULL);
 *   while (work() && dthrottle_resource_take(calls, -1)) call();
 *   dthrottle_resource_close(calls);
 *   dthrottle_leases_close(leases);
 *
 * A thread of the handle asks for leases and renews them, finds the master among the servers, and releases what is not
 * used any more. A call that takes looks only at what the thread has brought, and waits if it has to. All
 * functions but the two that close may be called by all threads at once. A child after fork has no such thread: it opens
 * handles of its own. What it has from its parent it may only release and close, which frees memory and changes nothing
 * else.
 */
#ifndef DTHROTTLE_LEASE_H
#define DTHROTTLE_LEASE_H

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DTHROTTLE_API
#define DTHROTTLE_API
#endif

#define DTHROTTLE_DEFAULT_LEASE_ADDRESS "unix:/run/dthrottle/lease.sock"

typedef struct dthrottle_leases dthrottle_leases;
typedef struct dthrottle_resource dthrottle_resource;

/* What may be used when a lease has expired and no server has renewed it. */
enum dthrottle_lease_mode {
  DTHROTTLE_PESSIMISTIC = 0, /* nothing */
  DTHROTTLE_OPTIMISTIC = 1,  /* as much as is wanted */
  DTHROTTLE_SAFE = 2         /* the safe capacity that came with the last lease; nothing before there was one */
};

/* Zero stands for the default, so begin with `dthrottle_leases_options options = {0}`. */
typedef struct dthrottle_leases_options {
  const char* client;  /* who asks, 1 to 255 bytes without blanks, unique; HOST:PID:NUMBER:DIGITS, these random */
  unsigned timeout_ms; /* for one server to answer; 1000 */
  unsigned retry_ms;   /* pause after all of them have failed, give or take a quarter; 1000 */
  unsigned reserved[6];
} dthrottle_leases_options;

typedef struct dthrottle_resource_options {
  enum dthrottle_lease_mode mode;
  double wants;     /* what is asked for; 0: what seems to be needed, by how it is used */
  double wants_max; /* of that estimate; 0: none */
  long long priority;
  unsigned reserved[6];
} dthrottle_resource_options;

typedef struct dthrottle_lease_status {
  int leased;               /* whether there is a lease now */
  double capacity;          /* that may be used now, by the lease or, without one, by the mode; negative: unlimited */
  double wants;             /* that is asked for */
  double expires_in_s;      /* of the lease; negative: there is none */
  double refresh_s;         /* how often it is renewed */
  double safe;              /* capacity for when no server answers; negative: unlimited */
  unsigned long long token; /* of the master that granted it */
  unsigned outstanding;     /* of a gauge, taken and not released */
  char trouble[128];        /* why the last request failed; empty if it did not */
  double learning_s;        /* a new master gives nobody more than it had for so long; 0: it does not learn */
} dthrottle_lease_status;

/* A handle for servers at `addresses`, "unix:/path" or "tcp:ADDRESS:PORT" with numeric addresses and commas between;
 * NULL is the default address. Nothing is connected yet. NULL with errno EINVAL, ENAMETOOLONG, ENOMEM or EAGAIN if
 * there cannot be one. `options` may be NULL. */
DTHROTTLE_API dthrottle_leases* dthrottle_leases_open(const char* addresses, const dthrottle_leases_options* options);

/* Releases what is still leased, which takes timeout_ms for each server at most, and frees a handle whose resources
 * nobody uses any more. NULL is allowed. */
DTHROTTLE_API void dthrottle_leases_close(dthrottle_leases* leases);

/* A resource whose capacity is a rate, in units a second, or a gauge, in units at a time. Opened again it is the same
 * one, and the options are those of the first time. A name has 1 to 255 bytes without blanks. NULL with errno EINVAL or
 * ENOMEM, and EINVAL too if the name is open as the other kind. `options` may be NULL. */
DTHROTTLE_API dthrottle_resource* dthrottle_rate_open(dthrottle_leases* leases, const char* name,
                                                      const dthrottle_resource_options* options);
DTHROTTLE_API dthrottle_resource* dthrottle_gauge_open(dthrottle_leases* leases, const char* name,
                                                       const dthrottle_resource_options* options);

/* Takes one unit: waits for its turn at a rate, for a free place at a gauge. Returns 1 if it was taken, 0 if it was not
 * within `deadline_ms` milliseconds; 0 does not wait, a negative deadline waits for ever. Units of a rate come evenly,
 * at most as many in a burst as are due in a tenth of a second. */
DTHROTTLE_API int dthrottle_resource_take(dthrottle_resource* resource, int deadline_ms);

/* Gives back a unit of a gauge. REQUIRES: it was taken. */
DTHROTTLE_API void dthrottle_resource_release(dthrottle_resource* resource);

/* Asks for so much from now on; 0: by estimate. Negative or not a number: no change. */
DTHROTTLE_API void dthrottle_resource_set_wants(dthrottle_resource* resource, double wants);

DTHROTTLE_API void dthrottle_resource_status(dthrottle_resource* resource, dthrottle_lease_status* status);

/* Ends one opening. With the last one the lease is released. NULL is allowed. */
DTHROTTLE_API void dthrottle_resource_close(dthrottle_resource* resource);

#ifdef __cplusplus
}
#endif

#endif /* DTHROTTLE_LEASE_H */
