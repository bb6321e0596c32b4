/* What the daemon lets this process refuse by itself: the page of a handle (protocol/page.md). Not for applications.
 *
 * A page is fetched when the daemon has refused something, never waited for, and given up without a word when anything
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

#ifdef __cplusplus
extern "C" {
#endif

struct dthrottle_page_view;

/* Zeros, but for the mutex: there are no pages. */
struct dthrottle_pages {
  struct dthrottle_page_view* view; /* now; NULL: there is no page. Atomic: threads look at it without the mutex */
  uint32_t refusals;                /* that were told or not; atomic */
  pthread_mutex_t mutex;            /* guards what follows; tried, and only waited for by fork */
  struct sockaddr_un address;       /* of the socket for pages; without a path there is none */
  int fd;                           /* to the daemon; -1: none */
  struct dthrottle_page_view* had;  /* views of before, and `view`: threads may look at them still */
  unsigned fetched;                 /* pages, ever */
  uint32_t* own;                    /* 0 in a child after fork; NULL: nothing was fetched yet */
  int64_t connected_at, retry_at, pause;
};

/* `address` is where queries are asked; NULL: there are no pages. REQUIRES: `pages` is zero. */
void dthrottle_pages_init(struct dthrottle_pages* pages, const struct sockaddr* address);

/* Whether the page says that the daemon would refuse the tag now. Counts it. Any thread. */
bool dthrottle_pages_refuse(const struct dthrottle_pages* pages, const char* tag, size_t tag_bytes);

/* The same of all of the tags, or nothing. `tag_bytes` may be NULL where all tags end in NUL. */
bool dthrottle_pages_refuse_all(const struct dthrottle_pages* pages, const char* const* tags, const size_t* tag_bytes,
                                size_t count);

/* The daemon has refused the tag, which may get into the page by that. Any thread; does nothing if another one is at
 * it. errno stays. */
void dthrottle_pages_refused(struct dthrottle_pages* pages, const char* tag, size_t tag_bytes);

/* REQUIRES: nobody uses it any more. */
void dthrottle_pages_close(struct dthrottle_pages* pages);

#ifdef __cplusplus
}
#endif

#endif
