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

/* What is further ahead is no instant of an entry. */
#define DTHROTTLE_PAGE_AHEAD_NS UINT64_C(60000000000)

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
  uint64_t name;  /* as dthrottle_page_name; 0: no entry */
  uint64_t until; /* ns of CLOCK_MONOTONIC before which the tag is refused, XOR its name */
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
 * Instant and name are two words, and the daemon may write between two loads, even this tag again after another one. So
 * an instant is kept XOR the name of its tag: under another name it is hardly ever within the next minute. */
static inline int64_t dthrottle_page_refused_until(const struct dthrottle_page* page, uint32_t entries, uint64_t name,
                                                   uint32_t* entry) {
  const uint32_t first = dthrottle_page_set(name, entries);
  for (uint32_t i = first; i < first + DTHROTTLE_PAGE_WAYS; i++) {
    const struct dthrottle_page_entry* const at = dthrottle_page_at(page, i);
    if (__atomic_load_n(&at->name, __ATOMIC_ACQUIRE) != name) continue;
    *entry = i;
    return (int64_t)(__atomic_load_n(&at->until, __ATOMIC_ACQUIRE) ^ name);
  }
  return 0;
}

/* Whether what dthrottle_page_refused_until has said refuses the tag now. */
static inline int dthrottle_page_refuses(int64_t until_ns, int64_t now_ns) {
  return (uint64_t)until_ns - (uint64_t)now_ns - 1 < DTHROTTLE_PAGE_AHEAD_NS;
}

/* The daemon's: takes an entry away, or changes the instant of one that stays, or makes one where none is. */
static inline void dthrottle_page_clear(struct dthrottle_page_entry* at) {
  __atomic_store_n(&at->name, 0, __ATOMIC_RELEASE);
}

static inline void dthrottle_page_move(struct dthrottle_page_entry* at, uint64_t name, int64_t until_ns) {
  __atomic_store_n(&at->until, (uint64_t)until_ns ^ name, __ATOMIC_RELEASE);
}

static inline void dthrottle_page_put(struct dthrottle_page_entry* at, uint64_t name, int64_t until_ns) {
  dthrottle_page_move(at, name, until_ns);
  __atomic_store_n(&at->name, name, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif
