/* The page by which a worker decides, and the one in which it counts what it decided: protocol/page.md. For both sides,
 * in C and C++; it knows neither clocks nor descriptors.
 *
 * A page is a head and sets of four entries, a cache line each. An entry says until when a tag is refused, and how many
 * tokens of it are lent to this worker. The daemon alone writes it; threads of the worker read it without a lock, and
 * count what they refuse and which tokens they take.
 */
#ifndef DTHROTTLE_WORKER_PAGE_H
#define DTHROTTLE_WORKER_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
extern "C" {
#endif

/* A socket for pages has the path of the one for queries or for questions, and this behind it. */
#define DTHROTTLE_PAGE_SUFFIX ".page"
#define DTHROTTLE_PAGE_MAGIC UINT64_C(0x3345474150485444) /* "DTHPAGE3" */

/* Instants in an entry have a unit of 1024 ns. No entry has one that is further ahead than the first of these. Tokens
 * may be taken until `next` and as much longer as the second says. */
#define DTHROTTLE_PAGE_AHEAD (INT64_C(2) << 20)
#define DTHROTTLE_PAGE_GRACE (INT64_C(1) << 19)
#define DTHROTTLE_PAGE_UNIT_NS INT64_C(1024)

enum {
  DTHROTTLE_PAGE_WAYS = 4,
  DTHROTTLE_PAGE_ENTRIES_MAX = 65536, /* a power of two */
  DTHROTTLE_PAGE_TAG_BYTES_MAX = 255,
  DTHROTTLE_PAGE_NOTE_ONE_IN_MAX = 64,
  DTHROTTLE_PAGE_COST_MAX = 256, /* tokens that a page serves at once */
};

/* The first and only message of the daemon, with the descriptors of the page and of the counts. */
struct dthrottle_page_hello {
  uint64_t magic;
  int64_t now_ns;   /* the daemon's clock, so that a worker with another one finds out */
  uint32_t entries; /* a power of two */
  uint32_t reserved;
};

/* One cache line. */
struct dthrottle_page_head {
  uint64_t key[2];      /* of the hash; this page's own */
  uint32_t note_one_in; /* refusals, of which the worker tells one; 0 is as 1 */
  uint32_t reserved[11];
};

struct dthrottle_page_entry {
  uint64_t word;  /* name of the tag, whose lowest 16 bits are `allowed`, a count of tickets; 0: no entry */
  uint64_t times; /* upper 44 bits: `due`; lower 20 bits: how much later `next` is. XOR the name */
};

/* What a worker counts for the entry of the same number, each modulo 2^32. */
struct dthrottle_page_count {
  uint32_t taken;   /* tickets; each is good for a token while it is below `allowed` */
  uint32_t refused; /* queries */
  uint32_t more;    /* tickets beyond the first one of each query that was served */
  uint32_t unused;
};

/* The head, and behind it the sets, of DTHROTTLE_PAGE_WAYS entries each. */
struct dthrottle_page {
  struct dthrottle_page_head head;
};

static inline struct dthrottle_page_entry* dthrottle_page_at(const struct dthrottle_page* page, uint32_t entry) {
  return (struct dthrottle_page_entry*)(uintptr_t)(page + 1) + entry;
}

static inline size_t dthrottle_page_bytes(uint32_t entries) {
  return sizeof(struct dthrottle_page_head) + entries * sizeof(struct dthrottle_page_entry);
}

static inline size_t dthrottle_page_count_bytes(uint32_t entries) {
  return entries * sizeof(struct dthrottle_page_count);
}

#define DTHROTTLE_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static inline void dthrottle_sip_round(uint64_t v[4]) {
  v[0] += v[1], v[2] += v[3];
  v[1] = DTHROTTLE_ROTATE(v[1], 13) ^ v[0], v[3] = DTHROTTLE_ROTATE(v[3], 16) ^ v[2];
  v[0] = DTHROTTLE_ROTATE(v[0], 32);
  v[2] += v[1], v[0] += v[3];
  v[1] = DTHROTTLE_ROTATE(v[1], 17) ^ v[2], v[3] = DTHROTTLE_ROTATE(v[3], 21) ^ v[0];
  v[2] = DTHROTTLE_ROTATE(v[2], 32);
}

/* SipHash-1-3 of a tag. Little-endian machines only. */
static inline uint64_t dthrottle_page_hash(const uint64_t key[2], const char* tag, size_t bytes) {
  uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                   key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
  uint64_t word, last = (uint64_t)bytes << 56;
  const size_t tail = bytes % 8;
  const char* const end = tag + (bytes - tail);
  for (; tag != end; tag += 8) {
    memcpy(&word, tag, 8);
    v[3] ^= word;
    dthrottle_sip_round(v);
    v[0] ^= word;
  }
  for (size_t i = 0; i < tail; i++) last |= (uint64_t)(unsigned char)tag[i] << (8 * i);
  v[3] ^= last;
  dthrottle_sip_round(v);
  v[0] ^= last;
  v[2] ^= 0xff;
  for (int i = 0; i < 3; i++) dthrottle_sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#define DTHROTTLE_PAGE_ALLOWED UINT64_C(0xffff)
#define DTHROTTLE_PAGE_LENGTH UINT64_C(0xfffff)

/* What a page calls a tag: the upper 48 bits of its hash, never 0. */
static inline uint64_t dthrottle_page_name(uint64_t hash) {
  return (hash & ~DTHROTTLE_PAGE_ALLOWED) | (DTHROTTLE_PAGE_ALLOWED + 1);
}

/* The first of the entries that the tag may have, by bits of the hash that its name lacks. */
static inline uint32_t dthrottle_page_set(uint64_t hash, uint32_t entries) {
  return (uint32_t)(hash * DTHROTTLE_PAGE_WAYS) & (entries - 1);
}

/* `due` and `next` in one word. An instant that is no multiple of the unit is rounded up as `due`, and down as `next`,
 * which is never before `due`, nor more than a second behind it. */
static inline uint64_t dthrottle_page_times(int64_t due_ns, int64_t next_ns) {
  const int64_t due = (due_ns + DTHROTTLE_PAGE_UNIT_NS - 1) / DTHROTTLE_PAGE_UNIT_NS;
  const int64_t length = next_ns / DTHROTTLE_PAGE_UNIT_NS - due;
  const uint64_t most = DTHROTTLE_PAGE_LENGTH;
  return (uint64_t)due << 20 | (length <= 0 ? 0 : (uint64_t)length < most ? (uint64_t)length : most);
}

enum dthrottle_page_verdict { DTHROTTLE_PAGE_ASK = 0, DTHROTTLE_PAGE_SERVE, DTHROTTLE_PAGE_REFUSE };

/* What an entry says to a worker that needs `cost` tickets, of which `ticket` is the first. Before `due` it refuses. From
 * then on it serves tickets below `allowed`; where there are too few, it refuses until `next`. `now` is in units. */
static inline enum dthrottle_page_verdict dthrottle_page_says(uint64_t word, uint64_t times, uint32_t ticket,
                                                              uint32_t cost, uint64_t now) {
  const int64_t length = (int64_t)(times & DTHROTTLE_PAGE_LENGTH);
  const int64_t since = (int64_t)((now << 20) - (times & ~DTHROTTLE_PAGE_LENGTH)) >> 20;
  if (since < 0) return since >= -DTHROTTLE_PAGE_AHEAD ? DTHROTTLE_PAGE_REFUSE : DTHROTTLE_PAGE_ASK;
  const bool enough = cost <= DTHROTTLE_PAGE_COST_MAX && (int16_t)(uint16_t)(word - ticket) >= (int)cost;
  if (enough && since < length + DTHROTTLE_PAGE_GRACE) return DTHROTTLE_PAGE_SERVE;
  return since < length ? DTHROTTLE_PAGE_REFUSE : DTHROTTLE_PAGE_ASK;
}

static inline uint64_t dthrottle_page_units(int64_t ns) {
  return (uint64_t)ns / (uint64_t)DTHROTTLE_PAGE_UNIT_NS;
}

/* What the page says of a tag with this hash, which costs so many tokens, 1 at least, at `now_ns` of CLOCK_MONOTONIC;
 * nothing is counted. Writes the number of the entry unless it is ASK.
 *
 * Word and times are two words, and the daemon may write between two loads, even the same tag again after another one.
 * So times are kept XOR the name, and the word is read again behind them: they are the times of this tag. */
static inline enum dthrottle_page_verdict dthrottle_page_peek(const struct dthrottle_page* page,
                                                              const struct dthrottle_page_count* counts,
                                                              uint32_t entries, uint64_t hash, uint32_t cost,
                                                              int64_t now_ns, uint32_t* entry) {
  const uint64_t name = dthrottle_page_name(hash);
  const uint32_t first = dthrottle_page_set(hash, entries);
  for (uint32_t i = first; i < first + DTHROTTLE_PAGE_WAYS; i++) {
    const struct dthrottle_page_entry* const at = dthrottle_page_at(page, i);
    const uint64_t word = __atomic_load_n(&at->word, __ATOMIC_ACQUIRE);
    if ((word & ~DTHROTTLE_PAGE_ALLOWED) != name) continue;
    const uint64_t times = __atomic_load_n(&at->times, __ATOMIC_ACQUIRE) ^ name;
    const uint32_t taken = __atomic_load_n(&counts[i].taken, __ATOMIC_RELAXED);
    const uint64_t again = __atomic_load_n(&at->word, __ATOMIC_ACQUIRE);
    if ((again & ~DTHROTTLE_PAGE_ALLOWED) != name) break;
    *entry = i;
    return dthrottle_page_says(word, times, taken, cost, dthrottle_page_units(now_ns));
  }
  return DTHROTTLE_PAGE_ASK;
}

/* Counts a query that the entry refuses. */
static inline void dthrottle_page_refuse(struct dthrottle_page_count* count) {
  __atomic_fetch_add(&count->refused, 1, __ATOMIC_RELAXED);
}

/* Takes a ticket for each token out of that entry, which the tag with this hash had. False: the tickets are good for
 * nothing by now.
 *
 * The tickets come first and the word that allows them second, both in the one order of all threads, while the daemon
 * lowers `allowed` first and reads the tickets second: one of the two sees the other. Nobody gives a ticket back. */
static inline bool dthrottle_page_take(const struct dthrottle_page* page, struct dthrottle_page_count* counts,
                                       uint32_t entry, uint64_t hash, uint32_t cost, int64_t now_ns) {
  const struct dthrottle_page_entry* const at = dthrottle_page_at(page, entry);
  const uint64_t name = dthrottle_page_name(hash);
  const uint32_t ticket = __atomic_fetch_add(&counts[entry].taken, cost, __ATOMIC_SEQ_CST);
  const uint64_t word = __atomic_load_n(&at->word, __ATOMIC_SEQ_CST);
  if ((word & ~DTHROTTLE_PAGE_ALLOWED) != name) return false;
  const uint64_t times = __atomic_load_n(&at->times, __ATOMIC_ACQUIRE) ^ name;
  if (dthrottle_page_says(word, times, ticket, cost, dthrottle_page_units(now_ns)) != DTHROTTLE_PAGE_SERVE) return false;
  if (cost > 1) __atomic_fetch_add(&counts[entry].more, cost - 1, __ATOMIC_RELAXED);
  return true;
}

/* Decides about one token as dthrottle_page_peek says, and counts it. */
static inline enum dthrottle_page_verdict dthrottle_page_decide(const struct dthrottle_page* page,
                                                                struct dthrottle_page_count* counts, uint32_t entries,
                                                                uint64_t hash, int64_t now_ns) {
  uint32_t entry;
  switch (dthrottle_page_peek(page, counts, entries, hash, 1, now_ns, &entry)) {
    case DTHROTTLE_PAGE_REFUSE:
      dthrottle_page_refuse(&counts[entry]);
      return DTHROTTLE_PAGE_REFUSE;
    case DTHROTTLE_PAGE_SERVE:
      if (dthrottle_page_take(page, counts, entry, hash, 1, now_ns)) return DTHROTTLE_PAGE_SERVE;
      break;
    case DTHROTTLE_PAGE_ASK:
      break;
  }
  return DTHROTTLE_PAGE_ASK;
}

/* The daemon's: takes an entry away. REQUIRES: nothing is lent by it. */
static inline void dthrottle_page_clear(struct dthrottle_page_entry* at) {
  __atomic_store_n(&at->word, 0, __ATOMIC_RELEASE);
}

/* Makes an entry, or changes that of the same tag. A worker that sees the new `allowed` sees the new times. */
static inline void dthrottle_page_put(struct dthrottle_page_entry* at, uint64_t name, uint32_t allowed, uint64_t times) {
  __atomic_store_n(&at->times, times ^ name, __ATOMIC_RELEASE);
  __atomic_store_n(&at->word, name | (allowed & DTHROTTLE_PAGE_ALLOWED), __ATOMIC_RELEASE);
}

/* Lowers `allowed`. Tickets that are read afterwards are all that the worker may have served by. */
static inline void dthrottle_page_lower(struct dthrottle_page_entry* at, uint64_t name, uint32_t allowed) {
  __atomic_store_n(&at->word, name | (allowed & DTHROTTLE_PAGE_ALLOWED), __ATOMIC_SEQ_CST);
}

static inline uint32_t dthrottle_page_taken(const struct dthrottle_page_count* count) {
  return __atomic_load_n(&count->taken, __ATOMIC_SEQ_CST);
}

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif
