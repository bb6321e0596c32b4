/* Asks dthrottled, by libdthrottle, whether a request should be served: early, before anything costly. See
 * ../README.md.
 *
 * Each child process has a handle for each daemon that the settings name, and its threads share it. Everything that has
 * to do with time, failures and connections is the library's.
 */
#include <ap_expr.h>
#include <ap_mpm.h>
#include <apr_atomic.h>
#include <apr_strings.h>
#include <apr_time.h>
#include <http_config.h>
#include <http_core.h>
#include <http_log.h>
#include <http_protocol.h>
#include <http_request.h>
#include <httpd.h>
#include <stdbool.h>
#include <string.h>

#include "client/dthrottle.h"

enum {
  STATUS_DEFAULT = HTTP_TOO_MANY_REQUESTS,
  TIMEOUT_DEFAULT_MS = 20,
  TIMEOUT_MAX_MS = 60000,
  LOG_PAUSE_S = 1, /* between two lines about a daemon that fails */
  UNSET = -1
};

/* A daemon. The settings make it, a child opens it. */
struct daemon {
  const char* address;
  dthrottle* handle;            /* NULL before the child begins */
  volatile apr_uint32_t logged; /* the second of the last line about a failure */
};

struct dir_conf {
  int enable, shadow, status, timeout_ms;
  const ap_expr_info_t* tag;
  struct daemon* daemon;
};

module AP_MODULE_DECLARE_DATA dthrottle_module;
APLOG_USE_MODULE(dthrottle);

/* The daemons that the settings name, by address: all locations that name one share it. Each reading makes them anew. */
static apr_array_header_t* daemons;
static struct daemon* default_daemon; /* where none is named */

static struct daemon* find_daemon(apr_pool_t* pool, const char* address) {
  for (int i = 0; i < daemons->nelts; i++) {
    struct daemon* const known = APR_ARRAY_IDX(daemons, i, struct daemon*);
    if (strcmp(known->address, address) == 0) return known;
  }
  struct daemon* const made = apr_pcalloc(pool, sizeof *made);
  made->address = apr_pstrdup(pool, address);
  APR_ARRAY_PUSH(daemons, struct daemon*) = made;
  return made;
}

/* ---- A request ---- */

/* Nothing that a client puts into a tag makes two of it, or a tag that looks like another one in a log. */
static char* make_tag(request_rec* r, const struct dir_conf* conf, const char** error) {
  *error = NULL;
  const char* const text = conf->tag != NULL ? ap_expr_str_exec(r, conf->tag, error) : r->useragent_ip;
  if (*error != NULL || text == NULL) return NULL;
  char* const tag = apr_pstrdup(r->pool, text);
  for (char* byte = tag; *byte != '\0'; byte++) {
    if ((unsigned char)*byte <= ' ' || *byte == 0x7f) *byte = '_';
  }
  return tag;
}

static const char* status_name(enum dthrottle_verdict verdict, bool shadow) {
  switch (verdict) {
    case DTHROTTLE_SERVE:
      return "SERVED";
    case DTHROTTLE_THROTTLE:
      return shadow ? "SHADOWED" : "THROTTLED";
    case DTHROTTLE_TIMED_OUT:
      return "OPEN_TIMEOUT";
    case DTHROTTLE_BACKING_OFF:
      return "OPEN_BACKOFF";
    case DTHROTTLE_UNREACHABLE:
    case DTHROTTLE_BAD_ANSWER:
    case DTHROTTLE_BAD_QUESTION:
      break;
  }
  return "OPEN_ERROR";
}

/* A line about a failure, unless there has been one this second: all threads fail at once. */
static void log_failure(request_rec* r, struct daemon* daemon, enum dthrottle_verdict verdict) {
  const apr_uint32_t second = (apr_uint32_t)apr_time_sec(apr_time_now());
  const apr_uint32_t logged = apr_atomic_read32(&daemon->logged);
  if (second - logged < LOG_PAUSE_S || apr_atomic_cas32(&daemon->logged, second, logged) != logged) return;
  ap_log_rerror(APLOG_MARK, APLOG_WARNING, 0, r, "dthrottle: %s: %s, requests are served unasked", daemon->address,
                dthrottle_verdict_name(verdict));
}

static int check_access(request_rec* r) {
  const struct dir_conf* const conf = ap_get_module_config(r->per_dir_config, &dthrottle_module);
  /* A subrequest or an internal redirect is part of a request that has been asked for. */
  if (conf->enable != 1 || r->main != NULL || r->prev != NULL) return DECLINED;
  struct daemon* const daemon = conf->daemon != NULL ? conf->daemon : default_daemon;
  if (daemon->handle == NULL) return DECLINED;
  const char* error = NULL;
  const char* const tag = make_tag(r, conf, &error);
  if (error != NULL) {
    ap_log_rerror(APLOG_MARK, APLOG_ERR, 0, r, "dthrottle: the tag cannot be made: %s", error);
  }
  if (tag == NULL || *tag == '\0') return DECLINED;

  const apr_time_t begin = apr_time_now();
  const int timeout_ms = conf->timeout_ms != UNSET ? conf->timeout_ms : TIMEOUT_DEFAULT_MS;
  const enum dthrottle_verdict verdict = dthrottle_ask(daemon->handle, tag, strlen(tag), timeout_ms);
  const char* const name = status_name(verdict, conf->shadow == 1);
  apr_table_setn(r->notes, "dthrottle-status", name);
  apr_table_setn(r->subprocess_env, "DTHROTTLE_STATUS", name);
  apr_table_setn(r->subprocess_env, "DTHROTTLE_TIME",
                 apr_psprintf(r->pool, "%" APR_TIME_T_FMT, apr_time_now() - begin));
  if (verdict != DTHROTTLE_THROTTLE) {
    if (verdict != DTHROTTLE_SERVE && verdict != DTHROTTLE_BACKING_OFF) log_failure(r, daemon, verdict);
    return DECLINED;
  }
  ap_log_rerror(APLOG_MARK, APLOG_INFO, 0, r, "dthrottle: %s, tag \"%s\"",
                conf->shadow == 1 ? "would be throttled" : "throttled", tag);
  if (conf->shadow == 1) return DECLINED;
  return conf->status != UNSET ? conf->status : STATUS_DEFAULT;
}

/* ---- Processes ---- */

static apr_status_t close_handle(void* handle) {
  dthrottle_close(handle);
  return APR_SUCCESS;
}

static void begin_child(apr_pool_t* pool, server_rec* server) {
  int threads = 0;
  dthrottle_options options = {0};
  ap_mpm_query(AP_MPMQ_MAX_THREADS, &threads);
  options.connections_max = threads < 1 ? 1 : threads < 1024 ? (unsigned)threads : 1024;
  for (int i = 0; daemons != NULL && i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    daemon->handle = dthrottle_open(daemon->address, &options);
    if (daemon->handle != NULL) {
      apr_pool_cleanup_register(pool, daemon->handle, close_handle, apr_pool_cleanup_null);
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
  conf->enable = conf->shadow = conf->status = conf->timeout_ms = UNSET;
  return conf;
}

static void* merge_dir_conf(apr_pool_t* pool, void* base_conf, void* new_conf) {
  const struct dir_conf *const base = base_conf, *const over = new_conf;
  struct dir_conf* const conf = apr_pcalloc(pool, sizeof *conf);
  conf->enable = over->enable != UNSET ? over->enable : base->enable;
  conf->shadow = over->shadow != UNSET ? over->shadow : base->shadow;
  conf->status = over->status != UNSET ? over->status : base->status;
  conf->timeout_ms = over->timeout_ms != UNSET ? over->timeout_ms : base->timeout_ms;
  conf->tag = over->tag != NULL ? over->tag : base->tag;
  conf->daemon = over->daemon != NULL ? over->daemon : base->daemon;
  return conf;
}

static const char* set_enable(cmd_parms* cmd, void* data, int on) {
  struct dir_conf* const conf = data;
  (void)cmd;
  conf->enable = on;
  return NULL;
}

static const char* set_shadow(cmd_parms* cmd, void* data, int on) {
  struct dir_conf* const conf = data;
  (void)cmd;
  conf->shadow = on;
  return NULL;
}

static const char* set_server(cmd_parms* cmd, void* data, const char* address) {
  struct dir_conf* const conf = data;
  dthrottle* const handle = dthrottle_open(address, NULL);
  if (handle == NULL) return "DthrottleServer must be unix:/path or tcp:ADDRESS:PORT with a numeric address";
  dthrottle_close(handle);
  conf->daemon = find_daemon(cmd->pool, address);
  return NULL;
}

static const char* set_tag(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* error = NULL;
  conf->tag = ap_expr_parse_cmd(cmd, text, AP_EXPR_FLAG_STRING_RESULT, &error, NULL);
  return error != NULL ? apr_pstrcat(cmd->pool, "DthrottleTag: ", error, NULL) : NULL;
}

/* True, and the number, if the text is one and lies within. */
static bool read_number(const char* text, int least, int most, int* number) {
  char* end = NULL;
  const apr_int64_t value = apr_strtoi64(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most) return false;
  *number = (int)value;
  return true;
}

static const char* set_status(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  (void)cmd;
  return read_number(text, 400, 599, &conf->status) ? NULL : "DthrottleStatus must be between 400 and 599";
}

static const char* set_timeout(cmd_parms* cmd, void* data, const char* text) {
  struct dir_conf* const conf = data;
  const char* const unit = strstr(text, "ms");
  const bool with_unit = unit != NULL && unit[2] == '\0';
  if (with_unit) text = apr_pstrmemdup(cmd->temp_pool, text, (apr_size_t)(unit - text));
  if (read_number(text, 1, TIMEOUT_MAX_MS, &conf->timeout_ms)) return NULL;
  return "DthrottleTimeout must be between 1 and 60000 milliseconds";
}

#define DTHROTTLE_WHERE (RSRC_CONF | ACCESS_CONF)

static const command_rec commands[] = {
    AP_INIT_FLAG("Dthrottle", set_enable, NULL, DTHROTTLE_WHERE, "On or Off: whether requests are asked for"),
    AP_INIT_FLAG("DthrottleShadow", set_shadow, NULL, DTHROTTLE_WHERE, "On: ask and log, but refuse nobody"),
    AP_INIT_TAKE1("DthrottleServer", set_server, NULL, DTHROTTLE_WHERE, "unix:/path or tcp:ADDRESS:PORT"),
    AP_INIT_TAKE1("DthrottleTag", set_tag, NULL, DTHROTTLE_WHERE, "an expression, such as %{REMOTE_ADDR}"),
    AP_INIT_TAKE1("DthrottleStatus", set_status, NULL, DTHROTTLE_WHERE, "the status of a refusal, 400 to 599"),
    AP_INIT_TAKE1("DthrottleTimeout", set_timeout, NULL, DTHROTTLE_WHERE, "milliseconds to wait for an answer"),
    {NULL, {NULL}, NULL, 0, RAW_ARGS, NULL},
};

static int end_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool, server_rec* server) {
  (void)log_pool;
  (void)temp_pool;
  (void)server;
  default_daemon = find_daemon(pool, DTHROTTLE_DEFAULT_ADDRESS);
  return OK;
}

static void register_hooks(apr_pool_t* pool) {
  (void)pool;
  ap_hook_pre_config(begin_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_post_config(end_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_child_init(begin_child, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_access_checker(check_access, NULL, NULL, APR_HOOK_FIRST);
}

__attribute__((visibility("default"))) module AP_MODULE_DECLARE_DATA dthrottle_module = {
    STANDARD20_MODULE_STUFF, create_dir_conf, merge_dir_conf, NULL, NULL, commands, register_hooks, 0,
};
