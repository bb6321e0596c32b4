/* The page that a worker reads refusals from, and the one in which it counts them: protocol/page.md. For both sides, in
 * C and C++; it knows neither clocks nor descriptors.
 *
 * A page is a head and sets of four entries, a cache line each. An entry says that a tag is refused until an instant. The
 * daemon alone writes it; threads of the worker read it without a lock, and count what they refuse by it.
 */
#ifndef DTHROTTLE_WORKER_PAGE_H
#define DTHROTTLE_WORKER_PAGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
extern "C" {
#endif

/* The socket for pages has the path of the one for queries, and this behind it. */
#define DTHROTTLE_PAGE_SUFFIX ".page"
#define DTHROTTLE_PAGE_MAGIC UINT64_C(0x3145474150485444) /* "DTHPAGE1" */

enum {
  DTHROTTLE_PAGE_WAYS = 4,
  DTHROTTLE_PAGE_ENTRIES_MAX = 65536, /* a power of two */
  DTHROTTLE_PAGE_TAG_BYTES_MAX = 255,
  DTHROTTLE_PAGE_NOTE_ONE_IN_MAX = 64,
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
  uint64_t name;    /* as dthrottle_page_name; 0: no entry */
  int64_t until_ns; /* CLOCK_MONOTONIC; the tag is refused before it */
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

/* The counts have a number for each entry: how often the worker has refused by it, modulo 2^32. */
static inline size_t dthrottle_page_count_bytes(uint32_t entries) {
  return entries * sizeof(uint32_t);
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

/* What a page calls a tag: its SipHash-1-3, odd so that it is never 0. Little-endian machines only. */
static inline uint64_t dthrottle_page_name(const uint64_t key[2], const char* tag, size_t bytes) {
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
  return (v[0] ^ v[1] ^ v[2] ^ v[3]) | 1;
}

/* The first of the entries that a tag of this name may have. */
static inline uint32_t dthrottle_page_set(uint64_t name, uint32_t entries) {
  return (uint32_t)(name >> 32) & (entries - 1) & ~(uint32_t)(DTHROTTLE_PAGE_WAYS - 1);
}

/* Until when the page says that the tag is refused, and in `entry` which of its entries says so; 0: it does not say.
 *
 * Instant and name are two words, and the daemon may write between two loads. It takes the name away before it writes
 * an instant for another tag, so a name that is still there after the instant was read is the name of that instant. */
static inline int64_t dthrottle_page_refused_until(const struct dthrottle_page* page, uint32_t entries, uint64_t name,
                                                   uint32_t* entry) {
  const uint32_t first = dthrottle_page_set(name, entries);
  for (uint32_t i = first; i < first + DTHROTTLE_PAGE_WAYS; i++) {
    const struct dthrottle_page_entry* const at = dthrottle_page_at(page, i);
    if (__atomic_load_n(&at->name, __ATOMIC_ACQUIRE) != name) continue;
    const int64_t until_ns = __atomic_load_n(&at->until_ns, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&at->name, __ATOMIC_RELAXED) != name) return 0;
    *entry = i;
    return until_ns;
  }
  return 0;
}

/* The daemon's: takes an entry away, or changes the instant of one that stays, or makes one where none is. */
static inline void dthrottle_page_clear(struct dthrottle_page_entry* at) {
  __atomic_store_n(&at->name, 0, __ATOMIC_RELEASE);
}

static inline void dthrottle_page_move(struct dthrottle_page_entry* at, int64_t until_ns) {
  __atomic_store_n(&at->until_ns, until_ns, __ATOMIC_RELEASE);
}

static inline void dthrottle_page_put(struct dthrottle_page_entry* at, uint64_t name, int64_t until_ns) {
  dthrottle_page_move(at, until_ns);
  __atomic_store_n(&at->name, name, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif
