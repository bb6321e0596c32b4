/* What the daemon lets this process decide by itself: the page of a handle (protocol/page.md). Not for applications.
 *
 * A page is fetched when the daemon has decided something, never waited for, and given up without a word when anything
 * about it is wrong: then all is asked as ever. Looking into it takes no lock and no system call. A child after fork has
 * its parent's page no more, and fetches one of its own.
 */
#ifndef DTHROTTLE_PAGES_H
#define DTHROTTLE_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/worker_page.h"
#include "dthrottle.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dthrottle_page_view;

/* Zeros, but for the mutex: there are no pages. */
struct dthrottle_pages {
  struct dthrottle_page_view* view; /* now; NULL: there is no page. Atomic: threads look at it without the mutex */
  pthread_mutex_t mutex;            /* guards what follows; tried, and only waited for by fork */
  uint32_t answers;                 /* that were told or not */
  struct sockaddr_un address;       /* of the socket for pages; without a path there is none */
  int fd;                           /* to the daemon; -1: none */
  struct dthrottle_page_view* had;  /* views of before, and `view`: threads may look at them still */
  unsigned fetched;                 /* pages, ever */
  uint32_t* own;                    /* 0 in a child after fork; NULL: nothing was fetched yet */
  int64_t connected_at, retry_at, pause;
};

/* `address` is where queries or questions are asked; NULL: there are no pages. REQUIRES: `pages` is zero. */
void dthrottle_pages_init(struct dthrottle_pages* pages, const struct sockaddr* address);

/* What the page says of the tag at `now_ns` of CLOCK_MONOTONIC; 0: now. It is decided by that, unless it is ASK. Any
 * thread. */
enum dthrottle_page_verdict dthrottle_pages_decide(const struct dthrottle_pages* pages, const char* tag,
                                                   size_t tag_bytes, int64_t now_ns);

/* The same by a time that was read a while ago: the page may serve by it, and refuses by the clock alone. */
enum dthrottle_page_verdict dthrottle_pages_decide_lately(const struct dthrottle_pages* pages, const char* tag,
                                                          size_t tag_bytes, int64_t now_ns);

/* The daemon has answered for the tag, which may get into the page by that: a tag that is refused at once, another one
 * when it is asked for again. Any thread; does nothing if another one is at it. errno stays. */
void dthrottle_pages_answered(struct dthrottle_pages* pages, const char* tag, size_t tag_bytes, bool refused);

/* What the page has said of a question about several tags. */
struct dthrottle_page_said {
  uint32_t unknown; /* a bit for each tag of which it said nothing */
  size_t refused;   /* the place of the tag that refuses */
};

/* The same for a question about these tags: it is refused if one of them is, and nothing is spent, or each tag spends
 * what it costs, 1 to DTHROTTLE_PAGE_COST_MAX tokens. Any thread; ASK while another thread decides. REQUIRES: 0 < count
 * <= DTHROTTLE_TAGS_MAX. */
enum dthrottle_page_verdict dthrottle_pages_decide_question(const struct dthrottle_pages* pages,
                                                            const dthrottle_tag* tags, size_t count, int64_t now_ns,
                                                            struct dthrottle_page_said* said);

/* The daemon has answered a question of which the page had `said` so much. `refused` is the place of the tag that
 * refuses; `count`: it is served. As dthrottle_pages_answered. */
void dthrottle_pages_answered_question(struct dthrottle_pages* pages, const dthrottle_tag* tags, size_t count,
                                       const struct dthrottle_page_said* said, size_t refused);

/* REQUIRES: nobody uses it any more. */
void dthrottle_pages_close(struct dthrottle_pages* pages);

#ifdef __cplusplus
}
#endif

#endif
