/* Asks dthrottled, by libdthrottle, whether a request should be served: early, before anything costly. See
 * ../README.md.
 *
 * Each child process has a handle for each daemon that the settings name, and its threads share it. Everything that has
 * to do with time, failures and connections is the library's. settings.h has the directives, board.h the counts,
 * holding.h the requests that wait without a thread.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POLLRDHUP */
#endif
#include <ap_expr.h>
#include <ap_mpm.h>
#include <apr_atomic.h>
#include <apr_portable.h>
#include <apr_strings.h>
#include <apr_time.h>
#include <errno.h>
#include <http_config.h>
#include <http_core.h>
#include <http_log.h>
#include <http_protocol.h>
#include <http_request.h>
#include <httpd.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "board.h"
#include "client/dthrottle.h"
#include "client/endpoint.h"
#include "gate.h"
#include "holding.h"
#include "settings.h"

module AP_MODULE_DECLARE_DATA dthrottle_module;
APLOG_USE_MODULE(dthrottle);

enum {
  STATUS_DEFAULT = HTTP_TOO_MANY_REQUESTS,
  TIMEOUT_DEFAULT_MS = 20,
  LOG_PAUSE_S = 1 /* between two lines about a daemon that fails */
};

/* ---- A request ---- */

/* Nothing that a client puts into a tag makes two of it, or a tag that looks like another one in a log. */
static dthrottle_tag make_tag(request_rec* r, const struct tag_conf* conf) {
  const char* error = NULL;
  const char* const text = conf->text != NULL ? ap_expr_str_exec(r, conf->text, &error) : r->useragent_ip;
  if (error != NULL) ap_log_rerror(APLOG_MARK, APLOG_ERR, 0, r, "dthrottle: the tag cannot be made: %s", error);
  char* const tag = apr_pstrdup(r->pool, error == NULL && text != NULL ? text : "");
  for (char* byte = tag; *byte != '\0'; byte++) {
    if ((unsigned char)*byte <= ' ' || *byte == 0x7f) *byte = '_';
  }
  const dthrottle_tag made = {.text = tag, .bytes = strlen(tag), .cost = conf->cost};
  return made;
}

/* A request that is asked for. Tags without a byte are not. */
struct asking {
  struct daemon* daemon;
  dthrottle_tag tags[DTHROTTLE_TAGS_MAX];
  size_t tag_count;
  dthrottle_answer answer;
  enum dthrottle_verdict verdict;
};

static void make_tags(request_rec* r, const apr_array_header_t* confs, struct asking* asking) {
  static const struct tag_conf address = {.cost = 1};
  const int count = confs != NULL ? confs->nelts : 1;
  for (int i = 0; i < count; i++) {
    asking->tags[asking->tag_count] = make_tag(r, confs != NULL ? &APR_ARRAY_IDX(confs, i, struct tag_conf) : &address);
    if (asking->tags[asking->tag_count].bytes > 0) asking->tag_count++;
  }
}

/* A page knows nothing that header fields could say. */
static void ask(struct asking* asking, int timeout_ms, unsigned wait_ms, bool tells) {
  dthrottle* const handle = asking->daemon->handle;
  const dthrottle_question question = {
      .tags = asking->tags, .count = asking->tag_count, .tell_limit = 1, .wait_ms = wait_ms, .by_page = !tells};
  asking->verdict = asking->daemon->asks_questions
                        ? dthrottle_ask_question(handle, &question, &asking->answer, timeout_ms)
                        : dthrottle_ask(handle, asking->tags[0].text, asking->tags[0].bytes, timeout_ms);
}

/* Counts a failure, and logs it unless there has been a line this second: all threads fail at once. */
static void note_failure(request_rec* r, struct daemon* daemon, enum dthrottle_verdict verdict, int error, bool closed) {
  const enum dthrottle_failure failure = dthrottle_failure_of(verdict, error);
  const apr_uint32_t second = (apr_uint32_t)apr_time_sec(apr_time_now());
  const apr_uint32_t logged = apr_atomic_read32(&daemon->logged);
  dthrottle_count_failure(daemon->counts, failure);
  if (second - logged < LOG_PAUSE_S || apr_atomic_cas32(&daemon->logged, second, logged) != logged) return;
  ap_log_rerror(APLOG_MARK, APLOG_WARNING, 0, r, "dthrottle: %s: %s (%s), requests are %s unasked", daemon->address,
                dthrottle_verdict_name(verdict), dthrottle_failure_name(failure), closed ? "refused" : "served");
}

/* For logs and for what the server's own means make of a refusal. */
static void set_environment(request_rec* r, const struct asking* asking, enum dthrottle_fate fate, apr_time_t took) {
  const dthrottle_answer* const answer = &asking->answer;
  apr_table_t* const env = r->subprocess_env;
  const apr_int64_t retry = dthrottle_retry_after(answer);
  apr_table_setn(r->notes, "dthrottle-status", dthrottle_fate_name(fate));
  apr_table_setn(env, "DTHROTTLE_STATUS", dthrottle_fate_name(fate));
  apr_table_setn(env, "DTHROTTLE_TIME", apr_psprintf(r->pool, "%" APR_TIME_T_FMT, took));
  if (answer->delay_us > 0) {
    apr_table_setn(env, "DTHROTTLE_DELAY", apr_psprintf(r->pool, "%" APR_INT64_T_FMT, (apr_int64_t)answer->delay_us));
  }
  if (retry > 0) apr_table_setn(env, "DTHROTTLE_RETRY_AFTER", apr_psprintf(r->pool, "%" APR_INT64_T_FMT, retry));
  if (answer->quota == 0) return;
  apr_table_setn(env, "DTHROTTLE_RULE", apr_pstrdup(r->pool, answer->rule));
  apr_table_setn(env, "DTHROTTLE_LIMIT", apr_psprintf(r->pool, "%" APR_INT64_T_FMT, (apr_int64_t)answer->quota));
  apr_table_setn(env, "DTHROTTLE_REMAINING",
                 apr_psprintf(r->pool, "%" APR_INT64_T_FMT, (apr_int64_t)answer->left[answer->nearest]));
}

/* ---- Holding a request ----
 *
 * Without a thread where that can be done (holding.h). Else its thread sleeps with it, and at most half of a child's do at
 * once. */

static volatile apr_uint32_t sleeping;
static apr_uint32_t sleeping_max = 1;

/* A place for a request that is to be held; and what gives back its slot. */
struct place {
  request_rec* r;
  struct dthrottle_hold* hold; /* NULL: a thread sleeps */
  struct daemon* daemon;
  uint64_t slot;
  int timeout_ms;
  bool held;                /* without a thread */
  enum dthrottle_fate fate; /* of what is held: it is counted when the request ends, as its client may leave before */
};

static apr_status_t count_held(void* baton) {
  const struct place* const place = baton;
  if (place->held) dthrottle_count_fate(place->daemon->counts, place->fate);
  return APR_SUCCESS;
}

/* NULL: the request may not be held, or too many are. What is not NULL is to be followed by await_turn. */
static struct place* take_place(request_rec* r, const struct dir_conf* conf, struct daemon* daemon, int timeout_ms) {
  if (conf->delay_ms <= 0 || conf->shadow == 1) return NULL;
  struct place* const place = apr_pcalloc(r->pool, sizeof *place);
  apr_pool_cleanup_register(r->pool, place, count_held, apr_pool_cleanup_null); /* runs behind that of the hold */
  const bool sleeps = !dthrottle_can_hold(r);
  struct dthrottle_hold* const hold = sleeps ? NULL : dthrottle_begin_hold(r);
  if (!sleeps && hold == NULL) return NULL;
  if (sleeps && apr_atomic_inc32(&sleeping) >= sleeping_max) {
    apr_atomic_dec32(&sleeping);
    return NULL;
  }
  *place = (struct place){.r = r, .hold = hold, .daemon = daemon, .timeout_ms = timeout_ms};
  return place;
}

static void leave_place(struct place* place) {
  if (place->hold != NULL) {
    dthrottle_end_hold(place->hold);
  } else {
    apr_atomic_dec32(&sleeping);
  }
}

/* Its client has left, and its slot is another's. */
static void give_slot_back(void* place) {
  struct place* const left = place;
  left->fate = DTHROTTLE_FATE_LEFT;
  apr_table_setn(left->r->subprocess_env, "DTHROTTLE_STATUS", dthrottle_fate_name(left->fate));
  if (left->daemon->handle != NULL) dthrottle_release(left->daemon->handle, left->slot, left->timeout_ms);
}

/* Sleeps until it is the turn of a request. False: its client has left. */
static bool sleep_on(request_rec* r, apr_int64_t us) {
  conn_rec* const connection = r->connection->master != NULL ? r->connection->master : r->connection;
  apr_socket_t* const client = ap_get_conn_socket(connection);
  struct pollfd fd = {.fd = -1, .events = POLLRDHUP};
  const int64_t end = dthrottle_now_ns() + us * DTHROTTLE_NS_PER_US;
  if (client != NULL) apr_os_sock_get(&fd.fd, client);
  for (int64_t left = us * DTHROTTLE_NS_PER_US; left > 0; left = end - dthrottle_now_ns()) {
    const struct timespec rest = dthrottle_timespec(left);
    if (ppoll(&fd, 1, &rest, NULL) > 0) return false;
  }
  return true;
}

/* The turn of a request that was served comes before its handler runs, or has come. False: its client has left. */
static bool await_turn(request_rec* r, struct place* place, const struct asking* asking) {
  const apr_int64_t delay_us = asking->verdict == DTHROTTLE_SERVE ? asking->answer.delay_us : 0;
  place->slot = asking->answer.hold;
  place->held = delay_us > 0 && place->hold != NULL && dthrottle_set_hold(place->hold, delay_us, give_slot_back, place);
  if (place->held) return true;
  const bool stays = delay_us <= 0 || sleep_on(r, delay_us);
  leave_place(place);
  if (stays) return true;
  give_slot_back(place);
  r->connection->aborted = 1;
  return false;
}

/* They stay with the response, whatever ErrorDocument makes the body. */
static void set_fields(request_rec* r, const dthrottle_answer* answer, bool refused, int style) {
  struct dthrottle_field fields[DTHROTTLE_FIELDS_MAX];
  const size_t count = dthrottle_make_fields(
      answer, refused, style != DTHROTTLE_UNSET ? (enum dthrottle_fields)style : DTHROTTLE_FIELDS_DRAFT_10, fields);
  for (size_t i = 0; i < count; i++) apr_table_set(r->err_headers_out, fields[i].name, fields[i].value);
}

/* An internal redirect is part of the request that it comes from: it has been asked for with it, and logs and error
 * pages find the same variables. */
static bool was_asked(request_rec* r) {
  static const char* const names[] = {"DTHROTTLE_STATUS",      "DTHROTTLE_TIME", "DTHROTTLE_DELAY",
                                      "DTHROTTLE_RETRY_AFTER", "DTHROTTLE_RULE", "DTHROTTLE_LIMIT",
                                      "DTHROTTLE_REMAINING"};
  const request_rec* asked = r;
  while (asked != NULL && apr_table_get(asked->notes, "dthrottle-status") == NULL) asked = asked->prev;
  for (size_t i = 0; asked != NULL && asked != r && i < sizeof names / sizeof names[0]; i++) {
    const char* const value = apr_table_get(asked->subprocess_env, names[i]);
    if (value != NULL) apr_table_setn(r->subprocess_env, names[i], value);
  }
  return asked != NULL;
}

/* Runs behind all that may have redirected the request within itself to where other settings hold, such as
 * DirectoryIndex. */
static int check_request(request_rec* r) {
  const struct dir_conf* const conf = ap_get_module_config(r->per_dir_config, &dthrottle_module);
  if (r->main != NULL || was_asked(r) || conf->enable != 1) return DECLINED;
  struct asking asking = {.daemon = dthrottle_daemon_of(conf)};
  if (asking.daemon->handle == NULL) return DECLINED;
  make_tags(r, conf->tags, &asking);
  if (asking.tag_count == 0) return DECLINED;

  const apr_time_t begin = apr_time_now();
  const bool shadow = conf->shadow == 1;
  const int timeout_ms = conf->timeout_ms != DTHROTTLE_UNSET ? conf->timeout_ms : TIMEOUT_DEFAULT_MS;
  struct place* const place = take_place(r, conf, asking.daemon, timeout_ms);
  ask(&asking, timeout_ms, place != NULL ? (unsigned)conf->delay_ms : 0, conf->fields != DTHROTTLE_FIELDS_NONE);
  const int error = errno;
  const apr_time_t took = apr_time_now() - begin;
  const bool stays = place == NULL || await_turn(r, place, &asking);
  const bool throttled = asking.verdict == DTHROTTLE_THROTTLE;
  const enum dthrottle_fate answered = dthrottle_fate_of(asking.verdict, &asking.answer);
  const bool closed = conf->fail_closed == 1 && !shadow && answered > DTHROTTLE_FATE_SHADOWED;
  const enum dthrottle_fate fate = !stays                ? DTHROTTLE_FATE_LEFT
                                   : throttled && shadow ? DTHROTTLE_FATE_SHADOWED
                                   : closed              ? DTHROTTLE_FATE_CLOSED
                                                         : answered;
  if (place != NULL && place->held) {
    place->fate = fate;
  } else {
    dthrottle_count_fate(asking.daemon->counts, fate);
  }
  set_environment(r, &asking, fate, took);
  if (!stays) return HTTP_REQUEST_TIME_OUT;
  set_fields(r, &asking.answer, throttled && !shadow, conf->fields);
  if (answered == DTHROTTLE_FATE_TIMEOUT || answered == DTHROTTLE_FATE_ERROR) {
    note_failure(r, asking.daemon, asking.verdict, error, closed);
  }
  if (closed) return HTTP_SERVICE_UNAVAILABLE;
  if (!throttled) return DECLINED;
  ap_log_rerror(APLOG_MARK, APLOG_INFO, 0, r, "dthrottle: %s, tag \"%s\"", shadow ? "would be throttled" : "throttled",
                asking.tags[asking.answer.refused].text);
  if (shadow) return DECLINED;
  return conf->status != DTHROTTLE_UNSET ? conf->status : STATUS_DEFAULT;
}

/* Runs before access is checked, so that `Satisfy Any` cannot pass over a refusal. One question has all tags of a
 * location, so it waits for the user if one of them does. */
static int check_early(request_rec* r) {
  const struct dir_conf* const conf = ap_get_module_config(r->per_dir_config, &dthrottle_module);
  for (int i = 0; conf->tags != NULL && i < conf->tags->nelts; i++) {
    if (APR_ARRAY_IDX(conf->tags, i, struct tag_conf).names_user) return DECLINED;
  }
  return check_request(r);
}

/* ---- Processes ---- */

static apr_status_t close_daemon(void* closed) {
  struct daemon* const daemon = closed;
  dthrottle_close(daemon->handle);
  daemon->handle = NULL; /* requests that are held end later */
  return APR_SUCCESS;
}

static void begin_child(apr_pool_t* pool, server_rec* server) {
  int threads = 0;
  dthrottle_options options = {0};
  ap_mpm_query(AP_MPMQ_MAX_THREADS, &threads);
  sleeping_max = threads < 2 ? 1 : (apr_uint32_t)threads / 2;
  options.connections_max = threads < 1 ? 1 : threads < 1024 ? (unsigned)threads : 1024;
  const apr_array_header_t* const daemons = dthrottle_daemons();
  for (int i = 0; daemons != NULL && i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    daemon->handle = daemon->asks_questions ? dthrottle_open_ask(daemon->address, &options)
                                            : dthrottle_open(daemon->address, &options);
    if (daemon->handle != NULL) {
      apr_pool_cleanup_register(pool, daemon, close_daemon, apr_pool_cleanup_null);
    } else {
      ap_log_error(APLOG_MARK, APLOG_ERR, errno, server, "dthrottle: %s cannot be opened", daemon->address);
    }
  }
  dthrottle_begin_holding(pool, threads); /* so it ends before they are closed */
}

static void register_hooks(apr_pool_t* pool) {
  (void)pool;
  dthrottle_register_settings();
  ap_hook_child_init(begin_child, NULL, NULL, APR_HOOK_MIDDLE);
  dthrottle_register_holding();
  ap_hook_header_parser(check_early, NULL, NULL, APR_HOOK_LAST);
  ap_hook_fixups(check_request, NULL, NULL, APR_HOOK_REALLY_LAST);
  dthrottle_register_board();
}

__attribute__((visibility("default"))) module AP_MODULE_DECLARE_DATA dthrottle_module = {
    STANDARD20_MODULE_STUFF, dthrottle_create_dir_conf, dthrottle_merge_dir_conf, NULL, NULL, dthrottle_commands,
    register_hooks, 0,
};
