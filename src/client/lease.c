/* Lease clients: a top half that takes, in the threads of the application, and a bottom half that keeps leases, in a
 * thread of its own. Between them stands what is held of each resource (holding.h), under one mutex of the handle,
 * which no thread holds over a system call. Source: Doorman "Client operation", "Client library".
 *
 * Each exchange has a connection of its own: they are seconds apart, and a server holds more clients than connections.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#endif
#define DTHROTTLE_API __attribute__((visibility("default")))

#include "dthrottle_lease.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"
#include "asker.h"
#include "endpoint.h"
#include "holding.h"

enum {
  NAME_BYTES_MAX = 255,
  ADDRESSES_MAX = 16,
  REDIRECTS_MAX = 3, /* of one exchange */
  BATCH_MAX = 32,    /* requests of one exchange */
  LINE_BYTES_MAX = 700,
  ANSWER_BYTES_MAX = 512,
  TIMEOUT_DEFAULT_MS = 1000,
  RETRY_DEFAULT_MS = 1000,
};

static const int64_t NS_PER_MS = 1000000;
static const double NS_PER_S = 1e9;
static const int64_t EARLY_NS = 1100000000; /* no more than one request within this, if not for a refresh */
static const int64_t FOREVER = INT64_MAX;

struct dthrottle_resource {
  struct dthrottle_resource* next;
  dthrottle_leases* leases;
  char name[NAME_BYTES_MAX + 1];
  long long priority;
  unsigned references;    /* 0: to be released and freed */
  pthread_cond_t changed; /* a lease, or a place of a gauge */
  struct dthrottle_holding holding;
  char trouble[128];
  int64_t asked_at, ask_at; /* monotonic */
};

struct dthrottle_leases {
  struct dthrottle_endpoint endpoints[ADDRESSES_MAX];
  unsigned endpoint_count;
  char client[NAME_BYTES_MAX + 1];
  int64_t timeout, retry;
  pid_t process; /* that has opened it */

  pthread_mutex_t mutex; /* guards what follows, and the resources */
  pthread_cond_t work;   /* for the bottom half */
  pthread_t thread;
  bool closing;
  struct dthrottle_resource* resources;

  /* The bottom half uses these alone. */
  struct dthrottle_endpoint master; /* as far as it is known; bytes 0: not */
  uint64_t chance;
};

static int64_t boot_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Until a monotonic instant, or for ever. */
static void wait_on(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t until) {
  if (until == FOREVER) {
    pthread_cond_wait(condition, mutex);
  } else {
    const struct timespec at = dthrottle_timespec(until > 0 ? until : 0);
    pthread_cond_timedwait(condition, mutex, &at);
  }
}

/* ---- The top half ---- */

int dthrottle_resource_take(dthrottle_resource* r, int deadline_ms) {
  dthrottle_leases* const leases = r->leases;
  const int64_t begin = dthrottle_now_ns();
  const int64_t deadline = deadline_ms < 0 ? FOREVER : begin + deadline_ms * NS_PER_MS;
  bool taken = false;
  pthread_mutex_lock(&leases->mutex);
  dthrottle_holding_begin_wait(&r->holding, begin);
  for (;;) {
    const int64_t now = dthrottle_now_ns(), boot = boot_now();
    int64_t next;
    taken = dthrottle_holding_take(&r->holding, boot, &next);
    if (taken) break;
    int64_t until = next == FOREVER ? FOREVER : now + (next - boot);
    if (dthrottle_holding_may_gain(&r->holding, boot) && r->ask_at > r->asked_at + EARLY_NS) {
      if (now >= r->asked_at + EARLY_NS) {
        r->ask_at = now;
        pthread_cond_signal(&leases->work);
      } else if (r->asked_at + EARLY_NS < until) {
        until = r->asked_at + EARLY_NS;
      }
    }
    if (now >= deadline) break;
    wait_on(&r->changed, &leases->mutex, until < deadline ? until : deadline);
  }
  dthrottle_holding_end_wait(&r->holding, taken, dthrottle_now_ns());
  pthread_mutex_unlock(&leases->mutex);
  return taken;
}

/* A child after fork has no bottom half, and a mutex that another thread of its parent may have held. */
static bool is_child(const dthrottle_leases* leases) { return leases->process != getpid(); }

void dthrottle_resource_release(dthrottle_resource* r) {
  if (is_child(r->leases)) return;
  pthread_mutex_lock(&r->leases->mutex);
  if (r->holding.gauge && r->holding.outstanding > 0) r->holding.outstanding--;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->leases->mutex);
}

void dthrottle_resource_set_wants(dthrottle_resource* r, double wants) {
  if (!(wants >= 0)) return;
  pthread_mutex_lock(&r->leases->mutex);
  r->holding.wants_fixed = wants < DTHROTTLE_AMOUNT_MAX ? wants : DTHROTTLE_AMOUNT_MAX;
  const int64_t early = r->asked_at + EARLY_NS;
  if (early < r->ask_at) r->ask_at = early;
  pthread_cond_signal(&r->leases->work);
  pthread_mutex_unlock(&r->leases->mutex);
}

void dthrottle_resource_status(dthrottle_resource* r, dthrottle_lease_status* status) {
  const struct dthrottle_holding* const holding = &r->holding;
  pthread_mutex_lock(&r->leases->mutex);
  const int64_t now = boot_now();
  int64_t until;
  const double capacity = dthrottle_holding_capacity(holding, now, &until);
  status->leased = now < holding->expiry;
  status->capacity = isinf(capacity) ? -1 : capacity;
  status->wants = holding->wants;
  status->expires_in_s = status->leased ? (double)(holding->expiry - now) / NS_PER_S : -1;
  status->refresh_s = (double)holding->refresh / NS_PER_S;
  status->safe = holding->safe;
  status->token = holding->token;
  status->outstanding = holding->outstanding;
  status->learning_s = now < holding->learning ? (double)(holding->learning - now) / NS_PER_S : 0;
  memcpy(status->trouble, r->trouble, sizeof status->trouble);
  pthread_mutex_unlock(&r->leases->mutex);
}

/* ---- Lines ---- */

/* Numbers without the locale, which may have another point. */
static int write_number(char* out, size_t room, double number) {
  if (number >= 1e12) return snprintf(out, room, "%lld", (long long)number);
  const long long micro = (long long)(number * 1e6);
  return snprintf(out, room, "%lld.%06lld", micro / 1000000, micro % 1000000);
}

/* ---- The bottom half ---- */

/* One exchange: requests for some resources and what came of them. */
struct batch {
  dthrottle_resource* resources[BATCH_MAX];
  bool release[BATCH_MAX];
  unsigned count;
  char request[BATCH_MAX * LINE_BYTES_MAX];
  size_t request_bytes;
  size_t said;  /* of the request */
  int64_t sent; /* boot-time: before it went out */
  char answers[BATCH_MAX * ANSWER_BYTES_MAX];
  size_t heard, begun; /* of the answers; where the line begins that is coming in */
  const char* answer[BATCH_MAX];
  unsigned answer_count;
  char trouble[128];
};

/* Between `nominal` and a quarter more or less. */
static int64_t around(dthrottle_leases* leases, int64_t nominal) {
  return nominal - nominal / 4 + nominal / 2048 * dthrottle_draw_1024(&leases->chance);
}

static void add_request(struct batch* batch, const dthrottle_leases* leases, dthrottle_resource* r, int64_t now) {
  char* const line = batch->request + batch->request_bytes;
  const size_t room = LINE_BYTES_MAX;
  const bool release = r->references == 0;
  int bytes;
  if (release) {
    bytes = snprintf(line, room, "release %s %s\n", leases->client, r->name);
  } else {
    char wants[40], has[40];
    dthrottle_holding_estimate(&r->holding, now);
    r->asked_at = now;
    write_number(wants, sizeof wants, r->holding.wants);
    const int64_t left = r->holding.expiry - boot_now();
    write_number(has, sizeof has, left > 0 ? r->holding.capacity : 0);
    bytes = snprintf(line, room, "get %s %s %s %s %lld %llu %lld.%03lld\n", leases->client, r->name, wants, has,
                     r->priority, (unsigned long long)r->holding.token, (long long)(left > 0 ? left / 1000000000 : 0),
                     (long long)(left > 0 ? left / NS_PER_MS % 1000 : 0));
  }
  batch->request_bytes += (size_t)bytes;
  batch->release[batch->count] = release;
  batch->resources[batch->count++] = r;
}

static const char* say(void* self, size_t* bytes) {
  const struct batch* const batch = self;
  *bytes = batch->request_bytes - batch->said;
  return batch->request + batch->said;
}

static void said(void* self, size_t bytes) {
  ((struct batch*)self)->said += bytes;
}

static enum dthrottle_verdict hear(void* self, const char* data, size_t bytes) {
  struct batch* const batch = self;
  for (size_t i = 0; i < bytes && batch->answer_count < batch->count; i++) {
    if (batch->heard == sizeof batch->answers) return DTHROTTLE_BAD_ANSWER;
    batch->answers[batch->heard++] = data[i] != '\n' ? data[i] : '\0';
    if (data[i] != '\n') continue;
    batch->answer[batch->answer_count++] = batch->answers + batch->begun;
    batch->begun = batch->heard;
  }
  return batch->answer_count == batch->count ? DTHROTTLE_SERVE : DTHROTTLE_TIMED_OUT;
}

/* Sends the requests and reads as many lines. False with batch->trouble. */
static bool converse(const struct dthrottle_endpoint* endpoint, struct batch* batch, int64_t timeout) {
  static const struct dthrottle_talk talk = {say, said, hear};
  static const char* const connecting[] = {"the server does not accept in time", "the server cannot be reached"};
  static const char* const talking[] = {"the server does not answer in time", "the server hangs up"};
  const int64_t deadline = dthrottle_now_ns() + timeout;
  int fd = -1;
  batch->sent = boot_now();
  batch->said = batch->heard = batch->begun = 0;
  batch->answer_count = 0;
  enum dthrottle_verdict verdict = dthrottle_connect_endpoint(endpoint, &fd, deadline);
  const char* const* const troubles = verdict == DTHROTTLE_SERVE ? talking : connecting;
  if (verdict == DTHROTTLE_SERVE) verdict = dthrottle_talk_on(fd, &talk, batch, deadline);
  if (fd >= 0) close(fd);
  const char* const trouble =
      verdict == DTHROTTLE_BAD_ANSWER ? "the server's answer is too long" : troubles[verdict != DTHROTTLE_TIMED_OUT];
  snprintf(batch->trouble, sizeof batch->trouble, "%s", trouble);
  return verdict == DTHROTTLE_SERVE;
}

/* Where an answer sends us, "-" for nowhere; NULL if it does not. */
static const char* elsewhere(const struct batch* batch) {
  for (unsigned i = 0; i < batch->count; i++) {
    if (strncmp(batch->answer[i], "elsewhere ", 10) == 0) return batch->answer[i] + 10;
  }
  return NULL;
}

/* Asks the master, wherever it is: first where it was, then where the servers say, each of them once. */
static bool ask_master(dthrottle_leases* leases, struct batch* batch) {
  unsigned redirects = 0, next = 0;
  struct dthrottle_endpoint at = leases->master;
  if (at.bytes == 0) at = leases->endpoints[next++];
  for (;;) {
    if (converse(&at, batch, leases->timeout)) {
      const char* const address = elsewhere(batch);
      if (address == NULL) {
        leases->master = at;
        return true;
      }
      snprintf(batch->trouble, sizeof batch->trouble, "no server knows who is master");
      struct dthrottle_endpoint master;
      memset(&master, 0, sizeof master);
      if (redirects < REDIRECTS_MAX && dthrottle_parse_endpoint(&master, address)) {
        redirects++;
        at = master;
        continue;
      }
    }
    if (next == leases->endpoint_count) break;
    at = leases->endpoints[next++];
  }
  memset(&leases->master, 0, sizeof leases->master);
  return false;
}

/* A server's words end up in logs and on terminals. */
static void complain(dthrottle_resource* r, const char* trouble) {
  snprintf(r->trouble, sizeof r->trouble, "%s", trouble);
  for (char* at = r->trouble; *at != '\0'; at++) {
    if (*at < ' ' || *at > '~') *at = '?';
  }
}

static void take_lease(dthrottle_resource* r, const struct dthrottle_lease_line* lease, int64_t sent, int64_t now) {
  const int64_t boot = boot_now();
  if (!dthrottle_holding_grant(&r->holding, lease, sent, boot)) {
    complain(r, "a server that is master no more has answered");
    return;
  }
  r->trouble[0] = '\0';
  r->ask_at = now + r->holding.refresh - (boot - sent);
}

/* Called with the mutex. */
static void apply(dthrottle_leases* leases, struct batch* batch, bool answered) {
  const int64_t now = dthrottle_now_ns();
  for (unsigned i = 0; i < batch->count; i++) {
    dthrottle_resource* const r = batch->resources[i];
    if (batch->release[i]) {
      r->holding.expiry = 0;
      r->ask_at = now; /* if it has been opened again meanwhile */
      continue;
    }
    const char* const answer = answered ? batch->answer[i] : NULL;
    struct dthrottle_lease_line lease;
    r->ask_at = now + around(leases, leases->retry);
    if (answer == NULL) {
      complain(r, batch->trouble);
    } else if (strncmp(answer, "lease ", 6) == 0 && dthrottle_read_lease(answer + 6, &lease)) {
      take_lease(r, &lease, batch->sent, now);
    } else {
      complain(r, strncmp(answer, "error ", 6) == 0 ? answer + 6 : "the answer is none");
    }
    pthread_cond_broadcast(&r->changed);
  }
}

/* Frees what has been released, and returns when the next one is due. */
static int64_t collect(dthrottle_leases* leases, struct batch* batch, int64_t now) {
  int64_t next = FOREVER;
  for (dthrottle_resource* r = leases->resources; r != NULL; r = r->next) {
    const bool release = r->references == 0 && r->holding.expiry != 0;
    if ((release || (r->references > 0 && r->ask_at <= now)) && batch->count < BATCH_MAX) {
      add_request(batch, leases, r, now);
    } else if (r->references > 0 && r->ask_at < next) {
      next = r->ask_at;
    }
  }
  return next;
}

static void free_unused(dthrottle_leases* leases) {
  for (dthrottle_resource** at = &leases->resources; *at != NULL;) {
    dthrottle_resource* const r = *at;
    if (r->references > 0 || r->holding.expiry != 0) {
      at = &r->next;
      continue;
    }
    *at = r->next;
    pthread_cond_destroy(&r->changed);
    free(r);
  }
}

static void* bottom_half(void* handle) {
  dthrottle_leases* const leases = handle;
  static const size_t bytes = sizeof(struct batch);
  struct batch* const batch = malloc(bytes);
  pthread_mutex_lock(&leases->mutex);
  while (batch != NULL) {
    batch->count = 0;
    batch->request_bytes = 0;
    free_unused(leases);
    const int64_t next = collect(leases, batch, dthrottle_now_ns());
    if (batch->count == 0) {
      if (leases->closing) break;
      wait_on(&leases->work, &leases->mutex, next);
      continue;
    }
    pthread_mutex_unlock(&leases->mutex);
    const bool answered = ask_master(leases, batch);
    pthread_mutex_lock(&leases->mutex);
    apply(leases, batch, answered);
  }
  pthread_mutex_unlock(&leases->mutex);
  free(batch);
  return NULL;
}

/* ---- Handles ---- */

static bool is_name(const char* text) {
  const size_t bytes = strlen(text);
  for (size_t i = 0; i < bytes; i++) {
    if ((unsigned char)text[i] < 0x21 || text[i] == 0x7f) return false;
  }
  return bytes > 0 && bytes <= NAME_BYTES_MAX;
}

/* HOST:PID:NUMBER, as the document has it, and random digits: containers may have the name of their host in common, and
 * each of them a process 1. */
static void name_client(dthrottle_leases* leases) {
  static unsigned handles;
  char host[128] = "";
  if (gethostname(host, sizeof host - 1) != 0 || !is_name(host)) snprintf(host, sizeof host, "localhost");
  uint32_t digits;
  if (getrandom(&digits, sizeof digits, GRND_NONBLOCK) != (ssize_t)sizeof digits) {
    digits = (uint32_t)((uint64_t)boot_now() ^ (uint64_t)(uintptr_t)leases >> 4);
  }
  snprintf(leases->client, sizeof leases->client, "%s:%ld:%u:%08" PRIx32, host, (long)getpid(),
           __atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED), digits);
}

static bool parse_addresses(dthrottle_leases* leases, const char* addresses) {
  while (leases->endpoint_count < ADDRESSES_MAX) {
    char address[160];
    const size_t bytes = strcspn(addresses, ",");
    errno = ENAMETOOLONG;
    if (bytes >= sizeof address) return false;
    memcpy(address, addresses, bytes);
    address[bytes] = '\0';
    if (!dthrottle_parse_endpoint(&leases->endpoints[leases->endpoint_count++], address)) return false;
    if (addresses[bytes] == '\0') return true;
    addresses += bytes + 1;
  }
  errno = EINVAL;
  return false;
}

static int start_thread(dthrottle_leases* leases) {
  sigset_t all, before; /* signals are the application's */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&leases->thread, NULL, bottom_half, leases);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

dthrottle_leases* dthrottle_leases_open(const char* addresses, const dthrottle_leases_options* options) {
  static const dthrottle_leases_options defaults;
  const dthrottle_leases_options* const given = options != NULL ? options : &defaults;
  if (given->client != NULL && !is_name(given->client)) {
    errno = EINVAL;
    return NULL;
  }
  dthrottle_leases* const leases = calloc(1, sizeof *leases);
  if (leases == NULL) return NULL;
  if (!parse_addresses(leases, addresses != NULL ? addresses : DTHROTTLE_DEFAULT_LEASE_ADDRESS)) {
    const int error = errno;
    free(leases);
    errno = error;
    return NULL;
  }
  if (given->client != NULL) {
    memcpy(leases->client, given->client, strlen(given->client) + 1);
  } else {
    name_client(leases);
  }
  leases->timeout = (given->timeout_ms != 0 ? given->timeout_ms : TIMEOUT_DEFAULT_MS) * NS_PER_MS;
  leases->retry = (given->retry_ms != 0 ? given->retry_ms : RETRY_DEFAULT_MS) * NS_PER_MS;
  leases->process = getpid();
  leases->chance = ((uint64_t)boot_now() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)leases) | 1;
  pthread_mutex_init(&leases->mutex, NULL);
  dthrottle_init_condition(&leases->work);
  const int error = start_thread(leases);
  if (error != 0) {
    pthread_cond_destroy(&leases->work);
    pthread_mutex_destroy(&leases->mutex);
    free(leases);
    errno = error;
    return NULL;
  }
  return leases;
}

static void free_in_child(dthrottle_leases* leases) {
  for (dthrottle_resource* r = leases->resources; r != NULL;) {
    dthrottle_resource* const next = r->next;
    free(r);
    r = next;
  }
  free(leases);
}

void dthrottle_leases_close(dthrottle_leases* leases) {
  if (leases == NULL) return;
  if (is_child(leases)) {
    free_in_child(leases);
    return;
  }
  pthread_mutex_lock(&leases->mutex);
  leases->closing = true;
  for (dthrottle_resource* r = leases->resources; r != NULL; r = r->next) r->references = 0;
  pthread_cond_signal(&leases->work);
  pthread_mutex_unlock(&leases->mutex);
  pthread_join(leases->thread, NULL);
  pthread_cond_destroy(&leases->work);
  pthread_mutex_destroy(&leases->mutex);
  free(leases);
}

static dthrottle_resource* make_resource(dthrottle_leases* leases, const char* name, bool gauge,
                                         const dthrottle_resource_options* options) {
  dthrottle_resource* const r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->leases = leases;
  memcpy(r->name, name, strlen(name) + 1);
  r->priority = options->priority;
  const int64_t now = dthrottle_now_ns();
  r->asked_at = now - EARLY_NS;
  r->ask_at = now;
  dthrottle_init_condition(&r->changed);
  dthrottle_holding_init(&r->holding, gauge, options, now, boot_now());
  r->next = leases->resources;
  leases->resources = r;
  return r;
}

static dthrottle_resource* open_resource(dthrottle_leases* leases, const char* name, bool gauge,
                                         const dthrottle_resource_options* options) {
  static const dthrottle_resource_options defaults;
  const dthrottle_resource_options* const given = options != NULL ? options : &defaults;
  const unsigned mode = (unsigned)given->mode;
  if (!is_name(name) || mode > DTHROTTLE_SAFE || !(given->wants >= 0 && given->wants <= DTHROTTLE_AMOUNT_MAX) ||
      !(given->wants_max >= 0 && given->wants_max <= DTHROTTLE_AMOUNT_MAX)) {
    errno = EINVAL;
    return NULL;
  }
  pthread_mutex_lock(&leases->mutex);
  dthrottle_resource* r = leases->resources;
  while (r != NULL && strcmp(r->name, name) != 0) r = r->next;
  const bool other_kind = r != NULL && r->holding.gauge != gauge;
  if (r == NULL) r = make_resource(leases, name, gauge, given);
  if (r != NULL && !other_kind) {
    r->references++;
    pthread_cond_signal(&leases->work);
  }
  pthread_mutex_unlock(&leases->mutex);
  if (other_kind) errno = EINVAL;
  return other_kind ? NULL : r;
}

dthrottle_resource* dthrottle_rate_open(dthrottle_leases* leases, const char* name,
                                        const dthrottle_resource_options* options) {
  return open_resource(leases, name, false, options);
}

dthrottle_resource* dthrottle_gauge_open(dthrottle_leases* leases, const char* name,
                                         const dthrottle_resource_options* options) {
  return open_resource(leases, name, true, options);
}

void dthrottle_resource_close(dthrottle_resource* r) {
  if (r == NULL || is_child(r->leases)) return;
  dthrottle_leases* const leases = r->leases;
  pthread_mutex_lock(&leases->mutex);
  if (r->references > 0) r->references--;
  pthread_cond_signal(&leases->work);
  pthread_mutex_unlock(&leases->mutex);
}
