/* The page of a thread of Node (protocol/page.md), as an addon of Node-API, for pages.js.
 *
 *   const page = require('dthrottle-pages.node').open('/run/dthrottle/query.sock')
 *   page.decide(tag)               0: ask, 1: serve, 2: refuse
 *   page.answered(tag, refused)    the daemon has decided that
 *   page.close()                   gives the page up; the next answer fetches another one
 *
 * A tag is a string or a Buffer. Nothing waits. The functions of a page need no `this`: each has the page with it,
 * which ends with the last of them or with their thread.
 */
#define NAPI_VERSION 5
#include <node/node_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "client/pages.h"

enum {
  TEXT_BYTES = DTHROTTLE_PAGE_TAG_BYTES_MAX + 5, /* a longer tag is still too long when its last character is cut off */
  FUNCTIONS = 3,
};

struct page {
  struct dthrottle_pages pages;
  struct sockaddr_un address; /* of queries; without a path there are no pages */
  unsigned users;
};

static void begin(struct page* page) {
  memset(&page->pages, 0, sizeof page->pages);
  const bool named = page->address.sun_path[0] != '\0';
  dthrottle_pages_init(&page->pages, named ? (const struct sockaddr*)&page->address : NULL);
}

static void leave(struct page* page) {
  if (--page->users > 0) return;
  dthrottle_pages_close(&page->pages);
  free(page);
}

/* ---- Tags ---- */

struct tag {
  const char* bytes;
  size_t count;
  char text[TEXT_BYTES];
};

/* False: it is no tag that a page may have. Allocates nothing for a string. */
static bool read_tag(napi_env env, napi_value value, struct tag* tag) {
  tag->bytes = tag->text;
  if (napi_get_value_string_utf8(env, value, tag->text, sizeof tag->text, &tag->count) != napi_ok) {
    bool is_buffer = false;
    void* bytes = NULL;
    if (napi_is_buffer(env, value, &is_buffer) != napi_ok || !is_buffer) return false;
    if (napi_get_buffer_info(env, value, &bytes, &tag->count) != napi_ok) return false;
    tag->bytes = bytes;
  }
  return tag->count > 0 && tag->count <= DTHROTTLE_PAGE_TAG_BYTES_MAX;
}

/* ---- The functions of a page ---- */

static napi_value decide(napi_env env, napi_callback_info info) {
  napi_value argument, said = NULL;
  size_t count = 1;
  void* page;
  if (napi_get_cb_info(env, info, &count, &argument, NULL, &page) != napi_ok) return NULL;
  struct tag tag;
  enum dthrottle_page_verdict verdict = DTHROTTLE_PAGE_ASK;
  if (read_tag(env, argument, &tag)) {
    verdict = dthrottle_pages_decide(&((struct page*)page)->pages, tag.bytes, tag.count, 0);
  }
  napi_create_uint32(env, verdict, &said);
  return said;
}

static napi_value answered(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  size_t count = 2;
  void* page;
  if (napi_get_cb_info(env, info, &count, arguments, NULL, &page) != napi_ok) return NULL;
  struct tag tag;
  bool refused = false;
  napi_get_value_bool(env, arguments[1], &refused);
  if (!read_tag(env, arguments[0], &tag)) return NULL;
  dthrottle_pages_answered(&((struct page*)page)->pages, tag.bytes, tag.count, refused);
  return NULL;
}

static napi_value close_page(napi_env env, napi_callback_info info) {
  void* page;
  if (napi_get_cb_info(env, info, NULL, NULL, NULL, &page) != napi_ok) return NULL;
  dthrottle_pages_close(&((struct page*)page)->pages);
  begin(page);
  return NULL;
}

/* ---- Opening ---- */

static void finalize(napi_env env, void* data, void* hint) {
  (void)env, (void)hint;
  leave(data);
}

static bool add_function(napi_env env, napi_value object, struct page* page, const char* name, napi_callback call) {
  napi_value function;
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, call, page, &function) != napi_ok) return false;
  if (napi_add_finalizer(env, function, page, finalize, NULL, NULL) != napi_ok) return false;
  page->users++;
  return napi_set_named_property(env, object, name, function) == napi_ok;
}

/* A path that is too long has no pages, and neither has one of the abstract sockets, which begin with a NUL. */
static bool read_path(napi_env env, napi_value value, struct sockaddr_un* address) {
  char path[sizeof address->sun_path + 4]; /* with room for the character that makes it too long */
  size_t bytes;
  if (napi_get_value_string_utf8(env, value, path, sizeof path, &bytes) != napi_ok) return false;
  address->sun_family = AF_UNIX;
  if (bytes < sizeof address->sun_path && strlen(path) == bytes) memcpy(address->sun_path, path, bytes + 1);
  return true;
}

static napi_value open_page(napi_env env, napi_callback_info info) {
  napi_value argument, object;
  size_t count = 1;
  if (napi_get_cb_info(env, info, &count, &argument, NULL, NULL) != napi_ok) return NULL;
  struct page* const page = calloc(1, sizeof *page);
  if (page == NULL || !read_path(env, argument, &page->address)) {
    napi_throw_type_error(env, NULL, page == NULL ? "no memory" : "open() takes the path of a socket");
    free(page);
    return NULL;
  }
  begin(page);
  page->users = 1; /* until all functions have it */
  static const struct {
    const char* name;
    napi_callback call;
  } functions[FUNCTIONS] = {{"decide", decide}, {"answered", answered}, {"close", close_page}};
  bool made = napi_create_object(env, &object) == napi_ok;
  for (int i = 0; made && i < FUNCTIONS; i++) {
    made = add_function(env, object, page, functions[i].name, functions[i].call);
  }
  leave(page);
  if (made) return object;
  napi_throw_error(env, NULL, "no memory");
  return NULL;
}

NAPI_MODULE_INIT() {
  napi_value function;
  if (napi_create_function(env, "open", NAPI_AUTO_LENGTH, open_page, NULL, &function) == napi_ok) {
    napi_set_named_property(env, exports, "open", function);
  }
  return exports;
}
