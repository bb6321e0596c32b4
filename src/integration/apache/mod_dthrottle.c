/* Asks dthrottled, by libdthrottle, whether a request should be served: early, before anything costly. See
 * ../README.md.
 *
 * Each child process has a handle for each daemon that the settings name, and its threads share it. Everything that has
 * to do with time, failures and connections is the library's. board.h has the counts, holding.h the requests that wait
 * without a thread.
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

enum {
  STATUS_DEFAULT = HTTP_TOO_MANY_REQUESTS,
  TIMEOUT_DEFAULT_MS = 20,
  TIMEOUT_MAX_MS = 60000,
  DELAY_MAX_MS = 60000,
  LOG_PAUSE_S = 1, /* between two lines about a daemon that fails */
  UNSET = -1
};

/* A daemon. The settings make it, a child opens it. */
struct daemon {
  const char* address;
  bool asks_questions;          /* by the ask protocol */
  dthrottle* handle;            /* NULL before the child begins */
  volatile apr_uint32_t logged; /* the second of the last line about a failure */
  struct dthrottle_counts* counts;
};

/* A tag as the settings have it. */
struct tag_conf {
  const ap_expr_info_t* text; /* NULL: the client's address */
  apr_uint32_t cost;
  bool names_user; /* it is known when the password has been checked */
};

struct dir_conf {
  int enable, shadow, fail_closed, status, timeout_ms;
  int delay_ms; /* a request is rather held so long than refused */
  int fields; /* enum dthrottle_fields */
  apr_array_header_t* tags;
  struct daemon *server, *ask;
};

module AP_MODULE_DECLARE_DATA dthrottle_module;
APLOG_USE_MODULE(dthrottle);

/* The daemons that the settings name, by address: all locations that name one share it. Each reading makes them anew.
 */
static apr_array_header_t* daemons;
static struct daemon *default_server, *default_ask; /* where none is named */

static struct daemon* find_daemon(apr_pool_t* pool, const char* address, bool asks_questions) {
  for (int i = 0; i < daemons->nelts; i++) {
    struct daemon* const known = APR_ARRAY_IDX(daemons, i, struct daemon*);
    if (known->asks_questions == asks_questions && strcmp(known->address, address) == 0) return known;
  }
  struct daemon* const made = apr_pcalloc(pool, sizeof *made);
  made->address = apr_pstrdup(pool, address);
  made->asks_questions = asks_questions;
  APR_ARRAY_PUSH(daemons, struct daemon*) = made;
  return made;
}

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

/* The daemon that the settings name, by either protocol; the query protocol asks for one tag and one token. */
static struct daemon* daemon_of(const struct dir_conf* conf) {
  const bool one_tag =
      conf->tags == NULL || (conf->tags->nelts == 1 && APR_ARRAY_IDX(conf->tags, 0, struct tag_conf).cost == 1);
  const bool one_query = one_tag && conf->delay_ms <= 0;
  if (conf->ask != NULL) return conf->ask;
  if (!one_query) return default_ask;
  return conf->server != NULL ? conf->server : default_server;
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
  struct dthrottle_hold* hold; /* NULL: a thread sleeps */
  struct daemon* daemon;
  uint64_t slot;
  int timeout_ms;
};

/* NULL: the request may not be held, or too many are. What is not NULL is to be followed by await_turn. */
static struct place* take_place(request_rec* r, const struct dir_conf* conf, struct daemon* daemon, int timeout_ms) {
  if (conf->delay_ms <= 0 || conf->shadow == 1) return NULL;
  const bool sleeps = !dthrottle_can_hold(r);
  struct dthrottle_hold* const hold = sleeps ? NULL : dthrottle_begin_hold(r);
  if (!sleeps && hold == NULL) return NULL;
  if (sleeps && apr_atomic_inc32(&sleeping) >= sleeping_max) {
    apr_atomic_dec32(&sleeping);
    return NULL;
  }
  struct place* const place = apr_pcalloc(r->pool, sizeof *place);
  *place = (struct place){.hold = hold, .daemon = daemon, .timeout_ms = timeout_ms};
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
  const struct place* const left = place;
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
  if (delay_us > 0 && place->hold != NULL && dthrottle_set_hold(place->hold, delay_us, give_slot_back, place)) return true;
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
      answer, refused, style != UNSET ? (enum dthrottle_fields)style : DTHROTTLE_FIELDS_DRAFT_10, fields);
  for (size_t i = 0; i < count; i++) apr_table_set(r->err_headers_out, fields[i].name, fields[i].value);
}

/* An internal redirect is part of the request that it comes from. */
static bool was_asked(const request_rec* r) {
  for (; r != NULL; r = r->prev) {
    if (apr_table_get(r->notes, "dthrottle-status") != NULL) return true;
  }
  return false;
}

/* Runs behind all that may have redirected the request within itself to where other settings hold, such as
 * DirectoryIndex. */
static int check_request(request_rec* r) {
  const struct dir_conf* const conf = ap_get_module_config(r->per_dir_config, &dthrottle_module);
  if (conf->enable != 1 || r->main != NULL || was_asked(r)) return DECLINED;
  struct asking asking = {.daemon = daemon_of(conf)};
  if (asking.daemon->handle == NULL) return DECLINED;
  make_tags(r, conf->tags, &asking);
  if (asking.tag_count == 0) return DECLINED;

  const apr_time_t begin = apr_time_now();
  const bool shadow = conf->shadow == 1;
  const int timeout_ms = conf->timeout_ms != UNSET ? conf->timeout_ms : TIMEOUT_DEFAULT_MS;
  struct place* const place = take_place(r, conf, asking.daemon, timeout_ms);
  ask(&asking, timeout_ms, place != NULL ? (unsigned)conf->delay_ms : 0, conf->fields != DTHROTTLE_FIELDS_NONE);
  const int error = errno;
  const apr_time_t took = apr_time_now() - begin;
  const bool stays = place == NULL || await_turn(r, place, &asking);
  const bool throttled = asking.verdict == DTHROTTLE_THROTTLE;
  const enum dthrottle_fate answered = dthrottle_fate_of(asking.verdict, &asking.answer);
  const bool closed = conf->fail_closed == 1 && !shadow && answered > DTHROTTLE_FATE_SHADOWED;
  const enum dthrottle_fate fate = throttled && shadow ? DTHROTTLE_FATE_SHADOWED
                                   : closed            ? DTHROTTLE_FATE_CLOSED
                                                       : answered;
  dthrottle_count_fate(asking.daemon->counts, fate);
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
  return conf->status != UNSET ? conf->status : STATUS_DEFAULT;
}

/* Runs before access is checked, so that `Satisfy Any` cannot pass over a refusal. One question has all tags of a location,
 * so it waits for the user if one of them does. */
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
  dthrottle_begin_holding(threads);
  options.connections_max = threads < 1 ? 1 : threads < 1024 ? (unsigned)threads : 1024;
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
}

/* ---- Settings ---- */

static int begin_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool) {
  (void)log_pool;
  (void)temp_pool;
  daemons = apr_array_make(pool, 1, sizeof(struct daemon*));
  return OK;
}

static void* create_dir_conf(apr_pool_t* pool, char* dir) {
  (void)dir;
  struct dir_conf* const conf = apr_pcalloc(pool, sizeof *conf);
  conf->enable = conf->shadow = conf->fail_closed = conf->status = conf->timeout_ms = conf->delay_ms = conf->fields = UNSET;
  return conf;
}

static void* merge_dir_conf(apr_pool_t* pool, void* base_conf, void* new_conf) {
  const struct dir_conf *const base = base_conf, *const over = new_conf;
  struct dir_conf* const conf = apr_pcalloc(pool, sizeof *conf);
  conf->enable = over->enable != UNSET ? over->enable : base->enable;
  conf->shadow = over->shadow != UNSET ? over->shadow : base->shadow;
  conf->fail_closed = over->fail_closed != UNSET ? over->fail_closed : base->fail_closed;
  conf->status = over->status != UNSET ? over->status : base->status;
  conf->timeout_ms = over->timeout_ms != UNSET ? over->timeout_ms : base->timeout_ms;
  conf->delay_ms = over->delay_ms != UNSET ? over->delay_ms : base->delay_ms;
  conf->fields = over->fields != UNSET ? over->fields : base->fields;
  conf->tags = over->tags != NULL ? over->tags : base->tags;
  /* A level that names a daemon has it asked, by whichever protocol. */
  const struct dir_conf* const naming = over->server != NULL || over->ask != NULL ? over : base;
  conf->server = naming->server;
  conf->ask = naming->ask;
  return conf;
}

/* A section for some methods, <Limit POST>, would set it for all. */
static const char* set_flag(cmd_parms* cmd, void* data, int on) {
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  return misplaced != NULL ? misplaced : ap_set_flag_slot(cmd, data, on);
}

static const char* find_named(cmd_parms* cmd, const char* address, struct daemon** daemon, bool asks_questions) {
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  if (misplaced != NULL) return misplaced;
  dthrottle* const handle = dthrottle_open(address, NULL);
  if (handle == NULL) {
    return apr_pstrcat(cmd->pool, cmd->cmd->name, " must be unix:/path or tcp:ADDRESS:PORT with a numeric address",
                       NULL);
  }
  dthrottle_close(handle);
  *daemon = find_daemon(cmd->pool, address, asks_questions);
  return NULL;
}

static const char* set_server(cmd_parms* cmd, void* data, const char* address) {
  return find_named(cmd, address, &((struct dir_conf*)data)->server, false);
}

static const char* set_ask(cmd_parms* cmd, void* data, const char* address) {
  return find_named(cmd, address, &((struct dir_conf*)data)->ask, true);
}

/* True, and the number, if the text is one and lies within. */
static bool read_number(const char* text, int least, int most, int* number) {
  char* end = NULL;
  const apr_int64_t value = apr_strtoi64(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most) return false;
  *number = (int)value;
  return true;
}

/* Whether an expression has something that is known only when the password has been checked. */
static bool names_user(const char* text) {
  static const char* const names[] = {"{REMOTE_USER}", "{AUTH_TYPE}", "env:REMOTE_USER", "env:AUTHENTICATE_",
                                      "env:AUTHORIZE_"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (ap_strcasestr(text, names[i]) != NULL) return true;
  }
  return false;
}

/* DthrottleTag EXPRESSION [cost=N], once for each tag */
static const char* set_tag(cmd_parms* cmd, void* data, const char* text, const char* cost) {
  struct dir_conf* const conf = data;
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  const char* error = NULL;
  int tokens = 1;
  if (misplaced != NULL) return misplaced;
  if (cost != NULL && (strncmp(cost, "cost=", 5) != 0 || !read_number(cost + 5, 0, INT32_MAX, &tokens))) {
    return "DthrottleTag takes an expression and cost=0 to 2147483647";
  }
  if (conf->tags == NULL) conf->tags = apr_array_make(cmd->pool, 1, sizeof(struct tag_conf));
  if (conf->tags->nelts == DTHROTTLE_TAGS_MAX) return "DthrottleTag stands more than 16 times";
  struct tag_conf* const tag = apr_array_push(conf->tags);
  tag->cost = (apr_uint32_t)tokens;
  tag->names_user = names_user(text);
  tag->text = ap_expr_parse_cmd(cmd, text, AP_EXPR_FLAG_STRING_RESULT, &error, NULL);
  return error != NULL ? apr_pstrcat(cmd->pool, "DthrottleTag: ", error, NULL) : NULL;
}

static const char* set_headers(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  if (misplaced != NULL) return misplaced;
  conf->fields = strcasecmp(text, "none") == 0       ? DTHROTTLE_FIELDS_NONE
                 : strcasecmp(text, "off") == 0      ? DTHROTTLE_FIELDS_OFF
                 : strcasecmp(text, "draft-10") == 0 ? DTHROTTLE_FIELDS_DRAFT_10
                 : strcasecmp(text, "draft-03") == 0 ? DTHROTTLE_FIELDS_DRAFT_03
                                                     : UNSET;
  return conf->fields != UNSET ? NULL : "DthrottleHeaders must be none, off, draft-10 or draft-03";
}

static const char* set_status(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  if (misplaced != NULL) return misplaced;
  return read_number(text, 400, 599, &conf->status) ? NULL : "DthrottleStatus must be between 400 and 599";
}

/* A number that may end in "ms". */
static bool read_ms(cmd_parms* cmd, const char* text, int least, int most, int* ms) {
  const char* const unit = strstr(text, "ms");
  const bool with_unit = unit != NULL && unit[2] == '\0';
  if (with_unit) text = apr_pstrmemdup(cmd->temp_pool, text, (apr_size_t)(unit - text));
  return read_number(text, least, most, ms);
}

static const char* set_timeout(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  if (misplaced != NULL) return misplaced;
  if (read_ms(cmd, text, 1, TIMEOUT_MAX_MS, &conf->timeout_ms)) return NULL;
  return "DthrottleTimeout must be between 1 and 60000 milliseconds";
}

static const char* set_delay(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* const misplaced = ap_check_cmd_context(cmd, NOT_IN_LIMIT);
  if (misplaced != NULL) return misplaced;
  if (read_ms(cmd, text, 0, DELAY_MAX_MS, &conf->delay_ms)) return NULL;
  return "DthrottleDelay must be between 0 and 60000 milliseconds";
}

/* A .htaccess may choose what is asked and how it is refused, but no daemon, which a child has to open when it begins,
 * nor how long a request may take. */
#define DTHROTTLE_SERVER (RSRC_CONF | ACCESS_CONF)
#define DTHROTTLE_ANYWHERE (DTHROTTLE_SERVER | OR_LIMIT)
#define FLAG(name) ((void*)APR_OFFSETOF(struct dir_conf, name))

static const command_rec commands[] = {
    AP_INIT_FLAG("Dthrottle", set_flag, FLAG(enable), DTHROTTLE_ANYWHERE, "On or Off: whether requests are asked for"),
    AP_INIT_FLAG("DthrottleShadow", set_flag, FLAG(shadow), DTHROTTLE_ANYWHERE, "On: ask and log, but refuse nobody"),
    AP_INIT_FLAG("DthrottleFailClosed", set_flag, FLAG(fail_closed), DTHROTTLE_ANYWHERE,
                 "On: refuse with 503 what the daemon does not answer"),
    AP_INIT_TAKE1("DthrottleServer", set_server, NULL, DTHROTTLE_SERVER, "unix:/path or tcp:ADDRESS:PORT"),
    AP_INIT_TAKE1("DthrottleAsk", set_ask, NULL, DTHROTTLE_SERVER, "unix:/path or tcp:ADDRESS:PORT of the ask socket"),
    AP_INIT_TAKE12("DthrottleTag", set_tag, NULL, DTHROTTLE_ANYWHERE,
                   "an expression, such as %{REMOTE_ADDR}, and cost=N"),
    AP_INIT_TAKE1("DthrottleHeaders", set_headers, NULL, DTHROTTLE_ANYWHERE, "off, draft-10 or draft-03"),
    AP_INIT_TAKE1("DthrottleStatus", set_status, NULL, DTHROTTLE_ANYWHERE, "the status of a refusal, 400 to 599"),
    AP_INIT_TAKE1("DthrottleTimeout", set_timeout, NULL, DTHROTTLE_SERVER, "milliseconds to wait for an answer"),
    AP_INIT_TAKE1("DthrottleDelay", set_delay, NULL, DTHROTTLE_SERVER,
                  "milliseconds to hold a request rather than refuse it"),
    {NULL, {NULL}, NULL, 0, RAW_ARGS, NULL},
};

static int end_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool, server_rec* server) {
  (void)log_pool;
  (void)temp_pool;
  const int named = daemons->nelts;
  default_server = find_daemon(pool, DTHROTTLE_DEFAULT_ADDRESS, false);
  default_ask = find_daemon(pool, DTHROTTLE_DEFAULT_ASK_ADDRESS, true);
  struct dthrottle_board* board = dthrottle_open_board(server->process->pool);
  for (int i = 0; board != NULL && i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    daemon->counts = dthrottle_board_counts(board, daemon->address, strlen(daemon->address));
    if (daemon->counts == NULL) board = NULL;
    /* It may be that no location asks it any more. */
    if (daemon->counts != NULL && i >= named) dthrottle_forget_failure(daemon->counts);
  }
  if (board != NULL) return OK;
  ap_log_error(APLOG_MARK, APLOG_EMERG, 0, server, "dthrottle: no memory for counts, or more than %d daemons",
               DTHROTTLE_BOARD_MAX);
  return HTTP_INTERNAL_SERVER_ERROR;
}

static void register_hooks(apr_pool_t* pool) {
  (void)pool;
  ap_hook_pre_config(begin_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_post_config(end_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_child_init(begin_child, NULL, NULL, APR_HOOK_MIDDLE);
  dthrottle_register_holding();
  ap_hook_header_parser(check_early, NULL, NULL, APR_HOOK_LAST);
  ap_hook_fixups(check_request, NULL, NULL, APR_HOOK_REALLY_LAST);
  dthrottle_register_board();
}

__attribute__((visibility("default"))) module AP_MODULE_DECLARE_DATA dthrottle_module = {
    STANDARD20_MODULE_STUFF, create_dir_conf, merge_dir_conf, NULL, NULL, commands, register_hooks, 0,
};
