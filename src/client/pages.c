#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_GET_SEALS */
#endif
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/worker_page.h"
#include "endpoint.h"

static const int64_t PAUSE_MIN_NS = 1000000000, PAUSE_MAX_NS = 60 * (int64_t)1000000000;

enum {
  FETCHED_MAX = 1000, /* each leaves addresses behind, and hardly any memory */
  ASKED_TAGS = 4096,  /* remembered as asked for lately; a power of two */
};

struct dthrottle_page_view {
  struct dthrottle_page_view* before;
  const struct dthrottle_page* page;
  struct dthrottle_page_count* counts;
  uint32_t entries;
  int deciding;    /* a thread decides a question; another one asks the daemon */
  uint32_t* asked; /* a part of the hash of the last tag in each of ASKED_TAGS places; with the mutex */
};

/* ---- Looking ---- */

/* NULL: there is no page, or it is another process's. */
static struct dthrottle_page_view* view_of(const struct dthrottle_pages* pages) {
  struct dthrottle_page_view* const view = __atomic_load_n(&pages->view, __ATOMIC_ACQUIRE);
  return view != NULL && __atomic_load_n(pages->own, __ATOMIC_RELAXED) != 0 ? view : NULL;
}

enum dthrottle_page_verdict dthrottle_pages_decide(const struct dthrottle_pages* pages, const char* tag,
                                                   size_t tag_bytes, int64_t now_ns) {
  const struct dthrottle_page_view* const view = view_of(pages);
  if (view == NULL) return DTHROTTLE_PAGE_ASK;
  const uint64_t hash = dthrottle_page_hash(view->page->head.key, tag, tag_bytes);
  return dthrottle_page_decide(view->page, view->counts, view->entries, hash,
                               now_ns != 0 ? now_ns : dthrottle_now_ns());
}

enum dthrottle_page_verdict dthrottle_pages_decide_lately(const struct dthrottle_pages* pages, const char* tag,
                                                          size_t tag_bytes, int64_t now_ns) {
  const struct dthrottle_page_view* const view = view_of(pages);
  uint32_t entry;
  if (view == NULL) return DTHROTTLE_PAGE_ASK;
  const uint64_t hash = dthrottle_page_hash(view->page->head.key, tag, tag_bytes);
  if (now_ns == 0 || dthrottle_page_peek(view->page, view->counts, view->entries, hash, 1, now_ns, &entry) ==
                         DTHROTTLE_PAGE_REFUSE) {
    now_ns = dthrottle_now_ns();
  }
  return dthrottle_page_decide(view->page, view->counts, view->entries, hash, now_ns);
}

/* What the page says of the tags of a question. */
struct looked {
  int64_t now_ns;
  const dthrottle_tag* tags;
  size_t count;
  uint64_t hashes[DTHROTTLE_TAGS_MAX];
  uint32_t entries[DTHROTTLE_TAGS_MAX];
};

static bool is_named_before(const struct looked* looked, size_t tag) {
  for (size_t i = 0; i < tag; i++) {
    if (looked->hashes[i] == looked->hashes[tag]) return true;
  }
  return false;
}

/* Takes what each tag costs. Each had that a moment ago, and may have less only because the daemon takes tokens back
 * just now; then the tickets of the tags before it are lost. */
static enum dthrottle_page_verdict take_all(struct dthrottle_page_view* view, const struct looked* looked) {
  for (size_t i = 0; i < looked->count; i++) {
    if (!dthrottle_page_take(view->page, view->counts, looked->entries[i], looked->hashes[i], looked->tags[i].cost,
                             looked->now_ns)) {
      return DTHROTTLE_PAGE_ASK;
    }
  }
  return DTHROTTLE_PAGE_SERVE;
}

static enum dthrottle_page_verdict decide_all(struct dthrottle_page_view* view, const dthrottle_tag* tags, size_t count,
                                              int64_t now_ns, struct dthrottle_page_said* said) {
  struct looked looked = {.now_ns = now_ns, .tags = tags, .count = count};
  bool serves = true;
  for (size_t i = 0; i < count; i++) {
    looked.hashes[i] = dthrottle_page_hash(view->page->head.key, tags[i].text, tags[i].bytes);
    const enum dthrottle_page_verdict says = dthrottle_page_peek(
        view->page, view->counts, view->entries, looked.hashes[i], tags[i].cost, now_ns, &looked.entries[i]);
    if (says == DTHROTTLE_PAGE_REFUSE && tags[i].cost > 0) {
      dthrottle_page_refuse(&view->counts[looked.entries[i]]);
      said->refused = i;
      return DTHROTTLE_PAGE_REFUSE;
    }
    if (says == DTHROTTLE_PAGE_ASK) said->unknown |= UINT32_C(1) << i;
    serves &= says == DTHROTTLE_PAGE_SERVE && tags[i].cost > 0 && !is_named_before(&looked, i);
  }
  return serves ? take_all(view, &looked) : DTHROTTLE_PAGE_ASK;
}

enum dthrottle_page_verdict dthrottle_pages_decide_question(const struct dthrottle_pages* pages,
                                                            const dthrottle_tag* tags, size_t count, int64_t now_ns,
                                                            struct dthrottle_page_said* said) {
  struct dthrottle_page_view* const view = view_of(pages);
  said->unknown = view == NULL ? UINT32_MAX : 0;
  if (view == NULL || __atomic_exchange_n(&view->deciding, 1, __ATOMIC_ACQUIRE) != 0) return DTHROTTLE_PAGE_ASK;
  const enum dthrottle_page_verdict says =
      decide_all(view, tags, count, now_ns != 0 ? now_ns : dthrottle_now_ns(), said);
  __atomic_store_n(&view->deciding, 0, __ATOMIC_RELEASE);
  return says;
}

/* ---- Fetching; all with the mutex ---- */

/* Threads that are looking at a view find nothing in it from now on: zeros are mapped over it, and stay. */
static void blind(const struct dthrottle_page_view* view) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  mmap((void*)(uintptr_t)view->page, dthrottle_page_bytes(view->entries), PROT_READ, flags, -1, 0);
  mmap(view->counts, dthrottle_page_count_bytes(view->entries), PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void forget_asked(struct dthrottle_page_view* view) {
  free(view->asked);
  view->asked = NULL;
}

/* Asks as ever, and tries again after a while. */
static void give_up(struct dthrottle_pages* pages, int64_t now) {
  if (pages->view != NULL) {
    blind(pages->view);
    forget_asked(pages->view);
  }
  __atomic_store_n(&pages->view, NULL, __ATOMIC_RELEASE);
  if (pages->fd >= 0) close(pages->fd);
  pages->fd = -1;
  pages->pause = pages->pause == 0 ? PAUSE_MIN_NS : pages->pause * 2;
  if (pages->pause > PAUSE_MAX_NS) pages->pause = PAUSE_MAX_NS;
  pages->retry_at = now + pages->pause;
}

/* A word that is 1 in this process, and 0 in a child after any kind of fork. */
static bool make_own(struct dthrottle_pages* pages) {
  const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
  if (pages->own == NULL) {
    void* const at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return false;
    if (madvise(at, bytes, MADV_WIPEONFORK) != 0) {
      munmap(at, bytes);
      return false;
    }
    pages->own = at;
  }
  __atomic_store_n(pages->own, 1, __ATOMIC_RELEASE);
  return true;
}

static bool connect_to_daemon(struct dthrottle_pages* pages, int64_t now) {
  pages->connected_at = now;
  pages->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return pages->fd >= 0 && make_own(pages) &&
         connect(pages->fd, (const struct sockaddr*)&pages->address, sizeof pages->address) == 0;
}

/* Receives both descriptors. 1: they are there; 0: not yet; -1: this is no daemon that gives pages. */
static int receive_hello(int fd, struct dthrottle_page_hello* hello, int fds[2]) {
  struct iovec io = {.iov_base = hello, .iov_len = sizeof *hello};
  union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  const ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  const struct cmsghdr* const head = received > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (head == NULL || head->cmsg_type != SCM_RIGHTS) return -1;
  const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  memcpy(fds, CMSG_DATA(head), (count < 2 ? count : 2) * sizeof(int));
  return received == sizeof *hello && count == 2 ? 1 : -1;
}

/* Maps a file of exactly so many bytes that nobody can shrink. NULL: it is none. */
static void* map_sealed(int fd, size_t bytes, int protection) {
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &status) != 0 || (size_t)status.st_size != bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return NULL;
  }
  void* const at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

/* NULL: the descriptors are not what they should be, or there is no memory. */
static struct dthrottle_page_view* map_view(const int fds[2], uint32_t entries) {
  struct dthrottle_page_view* const view = calloc(1, sizeof *view);
  if (view == NULL) return NULL;
  view->entries = entries;
  view->page = map_sealed(fds[0], dthrottle_page_bytes(entries), PROT_READ);
  view->counts = map_sealed(fds[1], dthrottle_page_count_bytes(entries), PROT_READ | PROT_WRITE);
  view->asked = calloc(ASKED_TAGS, sizeof *view->asked);
  if (view->page != NULL && view->counts != NULL && view->asked != NULL) return view;
  if (view->page != NULL) munmap((void*)(uintptr_t)view->page, dthrottle_page_bytes(entries));
  if (view->counts != NULL) munmap(view->counts, dthrottle_page_count_bytes(entries));
  forget_asked(view);
  free(view);
  return NULL;
}

/* The instants of a page are of one clock, which a worker in a time namespace of its own does not have. */
static bool is_hello(const struct dthrottle_pages* pages, const struct dthrottle_page_hello* hello, int64_t now) {
  return hello->magic == DTHROTTLE_PAGE_MAGIC && hello->now_ns >= pages->connected_at && hello->now_ns <= now &&
         hello->entries >= DTHROTTLE_PAGE_WAYS && hello->entries <= DTHROTTLE_PAGE_ENTRIES_MAX &&
         (hello->entries & (hello->entries - 1)) == 0;
}

static void take_page(struct dthrottle_pages* pages, int64_t now) {
  struct dthrottle_page_hello hello;
  int fds[2] = {-1, -1};
  const int received = receive_hello(pages->fd, &hello, fds);
  if (received == 0) return;
  now = dthrottle_now_ns();    /* behind the daemon's */
  struct dthrottle_page_view* const view =
      received > 0 && is_hello(pages, &hello, now) ? map_view(fds, hello.entries) : NULL;
  for (int i = 0; i < 2; i++) {
    if (fds[i] >= 0) close(fds[i]);
  }
  if (view == NULL) {
    give_up(pages, now);
    return;
  }
  view->before = pages->had;
  pages->had = view;
  pages->fetched++;
  pages->pause = 0;
  __atomic_store_n(&pages->view, view, __ATOMIC_RELEASE);
}

/* What has the page of another process gives it up; what has none fetches one. */
static void fetch(struct dthrottle_pages* pages, int64_t now) {
  if (pages->own != NULL && *pages->own == 0) {
    give_up(pages, now);
    pages->pause = 0;
    pages->retry_at = now;
    if (!make_own(pages)) return;
  }
  if (pages->fd < 0) {
    if (now < pages->retry_at || pages->fetched >= FETCHED_MAX) return;
    if (!connect_to_daemon(pages, now)) give_up(pages, now);
  }
  if (pages->fd >= 0 && pages->view == NULL) take_page(pages, now);
}

/* ---- Telling ---- */

/* A tag that a query says in other bytes has no name that both sides know. */
static bool is_plain(const char* tag, size_t bytes) {
  return bytes > 0 && bytes <= DTHROTTLE_PAGE_TAG_BYTES_MAX && memchr(tag, '\n', bytes) == NULL &&
         tag[bytes - 1] != '\r';
}

/* Remembers that the tag was asked for, and returns whether it was so lately. */
static bool asked_again(struct dthrottle_page_view* view, const char* tag, size_t bytes) {
  const uint64_t hash = dthrottle_page_hash(view->page->head.key, tag, bytes);
  uint32_t* const place = &view->asked[hash % ASKED_TAGS];
  const uint32_t part = (uint32_t)(hash >> 32) | 1, before = *place;
  *place = part;
  return before == part;
}

static void tell(struct dthrottle_pages* pages, const char* tag, size_t bytes, int64_t now) {
  const uint32_t one_in = __atomic_load_n(&pages->view->page->head.note_one_in, __ATOMIC_RELAXED);
  if (one_in > 1 && pages->answers++ % one_in != 0) return;
  if (send(pages->fd, tag, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS) give_up(pages, now);
}

void dthrottle_pages_answered(struct dthrottle_pages* pages, const char* tag, size_t tag_bytes, bool refused) {
  const int error = errno;
  if (pages->address.sun_path[0] == '\0' || !is_plain(tag, tag_bytes)) return;
  if (pthread_mutex_trylock(&pages->mutex) != 0) return;
  const int64_t now = dthrottle_now_ns();
  fetch(pages, now);
  if (pages->view != NULL && (asked_again(pages->view, tag, tag_bytes) || refused)) tell(pages, tag, tag_bytes, now);
  pthread_mutex_unlock(&pages->mutex);
  errno = error;
}

/* What is a word of a question in the same bytes, whatever else is in the line. */
static bool is_word(const dthrottle_tag* tag) {
  return tag->bytes > 0 && memchr(tag->text, ' ', tag->bytes) == NULL && memchr(tag->text, '\\', tag->bytes) == NULL;
}

void dthrottle_pages_answered_question(struct dthrottle_pages* pages, const dthrottle_tag* tags, size_t count,
                                       const struct dthrottle_page_said* said, size_t refused) {
  for (size_t i = 0; i < count; i++) {
    const bool decided = refused == count || refused == i;
    if (!decided || (said->unknown >> i & 1) == 0 || !is_word(&tags[i])) continue;
    dthrottle_pages_answered(pages, tags[i].text, tags[i].bytes, refused == i);
  }
}

/* ---- Beginning and ending ---- */

/* Pages need loads and stores of 64 bits that are one, in the order of bytes that the hash has. */
void dthrottle_pages_init(struct dthrottle_pages* pages, const struct sockaddr* address) {
  const struct sockaddr_un* const un = (const struct sockaddr_un*)address;
  pages->fd = -1;
  pthread_mutex_init(&pages->mutex, NULL);
  if (address == NULL || address->sa_family != AF_UNIX) return;
  if (sizeof(void*) < 8 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) return;
  const size_t bytes = strnlen(un->sun_path, sizeof un->sun_path);
  if (bytes + sizeof DTHROTTLE_PAGE_SUFFIX > sizeof un->sun_path) return;
  pages->address = *un;
  memcpy(pages->address.sun_path + bytes, DTHROTTLE_PAGE_SUFFIX, sizeof DTHROTTLE_PAGE_SUFFIX);
}

void dthrottle_pages_close(struct dthrottle_pages* pages) {
  if (pages->fd >= 0) close(pages->fd);
  while (pages->had != NULL) {
    struct dthrottle_page_view* const view = pages->had;
    pages->had = view->before;
    munmap((void*)(uintptr_t)view->page, dthrottle_page_bytes(view->entries));
    munmap(view->counts, dthrottle_page_count_bytes(view->entries));
    forget_asked(view);
    free(view);
  }
  if (pages->own != NULL) munmap(pages->own, (size_t)sysconf(_SC_PAGESIZE));
  pthread_mutex_destroy(&pages->mutex);
}
