/* Asks dthrottled in the preaccess phase whether a request should be served. See README.md of src/integration.
 *
 * Here are the phase, the variables and the directives; ngx_dthrottle_daemon.h has the way to a daemon.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_dthrottle_daemon.h"

#define DTHROTTLE_DEFAULT_SERVER "unix:/run/dthrottle/query.sock"
#define DTHROTTLE_CONNECTIONS 2 /* of a worker to one daemon, unless the settings say otherwise */
#define DTHROTTLE_CONNECTIONS_MAX 64
#define DTHROTTLE_TAG_BYTES_MAX 4096 /* longer tags are cut, so they fit, and are throttled together */
#define DTHROTTLE_US_PER_S 1000000

typedef enum {
  DTHROTTLE_OFF = 0,
  DTHROTTLE_SERVED,
  DTHROTTLE_THROTTLED,
  DTHROTTLE_SHADOWED,
  DTHROTTLE_OPEN_TIMEOUT,
  DTHROTTLE_OPEN_ERROR,
  DTHROTTLE_OPEN_BACKOFF,
  DTHROTTLE_OPEN_FULL
} dthrottle_status_t;

static ngx_str_t dthrottle_status_names[] = {
    ngx_string("OFF"),          ngx_string("SERVED"),     ngx_string("THROTTLED"),    ngx_string("SHADOWED"),
    ngx_string("OPEN_TIMEOUT"), ngx_string("OPEN_ERROR"), ngx_string("OPEN_BACKOFF"), ngx_string("OPEN_FULL"),
};

/* What is known of a request, which asks once, whatever becomes of it. */
typedef struct {
  ngx_http_request_t* request;
  dthrottle_daemon_t* server; /* NULL: not asked */
  struct dthrottle_pending question;
  enum dthrottle_verdict verdict;
  ngx_str_t tag;
  const char* tag_data;
  dthrottle_status_t status;
  uint64_t took_us;
  unsigned waiting : 1;
  unsigned applied : 1; /* the status has had its effect */
} dthrottle_ctx_t;

typedef struct {
  ngx_array_t servers; /* of dthrottle_daemon_t* */
} dthrottle_main_conf_t;

typedef struct {
  ngx_flag_t enable;
  ngx_flag_t shadow;
  ngx_http_complex_value_t* tag;
  ngx_uint_t status;
  ngx_msec_t timeout;
  ngx_uint_t log_level;
  dthrottle_daemon_t* server;
} dthrottle_loc_conf_t;

extern ngx_module_t ngx_http_dthrottle_module;

/* ---- Requests ---- */

/* Lets a request go on that has been waiting. It may be gone when this returns, and others too. */
static void resume(dthrottle_ctx_t* ctx) {
  ngx_http_request_t* r = ctx->request;
  ngx_connection_t* c = r->connection;
  ctx->waiting = 0;
  ngx_http_set_log_request(c->log, r);
  r->read_event_handler = ngx_http_block_reading;
  r->write_event_handler = ngx_http_core_run_phases;
  ngx_http_core_run_phases(r);
  ngx_http_run_posted_requests(c);
}

static void take_outcome(dthrottle_ctx_t* ctx) {
  ctx->took_us = (uint64_t)(ngx_dthrottle_now_ns() - ctx->question.begin) / DTHROTTLE_NS_PER_US;
  switch (ctx->question.outcome) {
    case DTHROTTLE_SERVE:
      ctx->status = ctx->verdict == DTHROTTLE_THROTTLE ? DTHROTTLE_THROTTLED : DTHROTTLE_SERVED;
      break;
    case DTHROTTLE_TIMED_OUT:
      ctx->status = DTHROTTLE_OPEN_TIMEOUT;
      break;
    default:
      ctx->status = DTHROTTLE_OPEN_ERROR;
  }
}

/* A daemon's answer lets its request go on. */
static void go_on(struct dthrottle_pending* question) {
  dthrottle_ctx_t* ctx = (dthrottle_ctx_t*)((u_char*)question - offsetof(dthrottle_ctx_t, question));
  take_outcome(ctx);
  resume(ctx);
}

/* ---- Asking ---- */

/* The request is over: its client may have left while it waited. */
static void end_request(void* data) {
  dthrottle_ctx_t* ctx = data;
  if (!ctx->waiting) return;
  ngx_dthrottle_daemon_forget(ctx->server, &ctx->question);
}

/* Sends the query on its way, or says why not. */
static void ask(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  ctx->tag_data = (const char*)ctx->tag.data;
  ctx->question.tags = &ctx->tag_data;
  ctx->question.tag_bytes = &ctx->tag.len;
  ctx->question.count = 1;
  ctx->question.verdicts = &ctx->verdict;
  switch (ngx_dthrottle_daemon_ask(conf->server, &ctx->question, conf->timeout)) {
    case DTHROTTLE_PAUSED:
      ctx->status = DTHROTTLE_OPEN_BACKOFF;
      return;
    case DTHROTTLE_FULL:
      ctx->status = DTHROTTLE_OPEN_FULL;
      return;
    case DTHROTTLE_ASKED:
      break;
  }
  if (ctx->question.back) {
    take_outcome(ctx);
    return;
  }
  ctx->server = conf->server;
  ctx->waiting = 1;
}

/* A tag is one line without blanks, whatever clients put into it. */
static ngx_int_t dthrottle_make_tag(ngx_http_request_t* r, ngx_http_complex_value_t* value, ngx_str_t* tag) {
  ngx_str_t text;
  size_t i;
  if (ngx_http_complex_value(r, value, &text) != NGX_OK) return NGX_ERROR;
  tag->len = ngx_min(text.len, DTHROTTLE_TAG_BYTES_MAX);
  tag->data = ngx_pnalloc(r->pool, tag->len);
  if (tag->data == NULL) return NGX_ERROR;
  for (i = 0; i < tag->len; i++) {
    const u_char byte = text.data[i];
    tag->data[i] = byte <= ' ' || byte == 0x7f ? '_' : byte;
  }
  return tag->len > 0 ? NGX_OK : NGX_DECLINED;
}

/* The context of a request. An internal redirect wipes it out, but leaves the clean-up. */
static dthrottle_ctx_t* dthrottle_get_ctx(ngx_http_request_t* r) {
  dthrottle_ctx_t* ctx = ngx_http_get_module_ctx(r, ngx_http_dthrottle_module);
  ngx_pool_cleanup_t* cleanup;
  if (ctx != NULL || !(r->internal || r->filter_finalize)) return ctx;
  for (cleanup = r->pool->cleanup; cleanup != NULL; cleanup = cleanup->next) {
    if (cleanup->handler == end_request) return cleanup->data;
  }
  return NULL;
}

static dthrottle_ctx_t* dthrottle_new_ctx(ngx_http_request_t* r) {
  ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(r->pool, sizeof(dthrottle_ctx_t));
  dthrottle_ctx_t* ctx;
  if (cleanup == NULL) return NULL;
  ctx = cleanup->data;
  ngx_memzero(ctx, sizeof(*ctx));
  ctx->request = r;
  cleanup->handler = end_request;
  ngx_http_set_ctx(r, ctx, ngx_http_dthrottle_module);
  return ctx;
}

/* The daemon's answer, or that there is none, takes effect. */
static ngx_int_t dthrottle_apply(ngx_http_request_t* r, dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  ctx->applied = 1;
  if (ctx->status != DTHROTTLE_THROTTLED) return NGX_DECLINED;
  ngx_log_error(conf->log_level, r->connection->log, 0, "%s by dthrottle, tag \"%V\"",
                conf->shadow ? "would be throttled" : "throttled", &ctx->tag);
  if (!conf->shadow) return (ngx_int_t)conf->status;
  ctx->status = DTHROTTLE_SHADOWED;
  return NGX_DECLINED;
}

static ngx_int_t dthrottle_handler(ngx_http_request_t* r) {
  dthrottle_loc_conf_t* conf = ngx_http_get_module_loc_conf(r, ngx_http_dthrottle_module);
  dthrottle_ctx_t* ctx;
  ngx_int_t rc;
  if (!conf->enable || r != r->main) return NGX_DECLINED;
  ctx = dthrottle_get_ctx(r);
  if (ctx != NULL && ctx->waiting) return NGX_AGAIN;
  if (ctx != NULL) return ctx->applied ? NGX_DECLINED : dthrottle_apply(r, ctx, conf);

  ctx = dthrottle_new_ctx(r);
  if (ctx == NULL) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  rc = dthrottle_make_tag(r, conf->tag, &ctx->tag);
  if (rc == NGX_ERROR) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  if (rc == NGX_OK) ask(ctx, conf);
  if (!ctx->waiting) return dthrottle_apply(r, ctx, conf);

  /* While it waits, the client's connection is only watched for its end. */
  r->read_event_handler = ngx_http_test_reading;
  r->write_event_handler = ngx_http_request_empty_handler;
  if (r->connection->read->ready) {
    ngx_post_event(r->connection->read, &ngx_posted_events);
  } else if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
    return NGX_HTTP_INTERNAL_SERVER_ERROR;
  }
  return NGX_AGAIN;
}

/* ---- Variables ---- */

static ngx_int_t dthrottle_status_variable(ngx_http_request_t* r, ngx_http_variable_value_t* v, uintptr_t data) {
  dthrottle_ctx_t* ctx = dthrottle_get_ctx(r->main);
  const ngx_str_t* name = &dthrottle_status_names[ctx != NULL ? ctx->status : DTHROTTLE_OFF];
  (void)data;
  v->data = name->data;
  v->len = (unsigned)name->len;
  v->valid = 1;
  v->not_found = 0;
  v->no_cacheable = 1;
  return NGX_OK;
}

static ngx_int_t dthrottle_time_variable(ngx_http_request_t* r, ngx_http_variable_value_t* v, uintptr_t data) {
  dthrottle_ctx_t* ctx = dthrottle_get_ctx(r->main);
  (void)data;
  if (ctx == NULL || ctx->server == NULL) {
    v->not_found = 1;
    return NGX_OK;
  }
  v->data = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
  if (v->data == NULL) return NGX_ERROR;
  v->len = (unsigned)(ngx_sprintf(v->data, "%uL.%06uL", ctx->took_us / DTHROTTLE_US_PER_S,
                                  ctx->took_us % DTHROTTLE_US_PER_S) -
                      v->data);
  v->valid = 1;
  v->not_found = 0;
  v->no_cacheable = 1;
  return NGX_OK;
}

static ngx_http_variable_t dthrottle_variables[] = {
    {ngx_string("dthrottle_status"), NULL, dthrottle_status_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_time"), NULL, dthrottle_time_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0},
    ngx_http_null_variable,
};

static ngx_int_t dthrottle_add_variables(ngx_conf_t* cf) {
  ngx_http_variable_t* known;
  for (known = dthrottle_variables; known->name.len > 0; known++) {
    ngx_http_variable_t* variable = ngx_http_add_variable(cf, &known->name, known->flags);
    if (variable == NULL) return NGX_ERROR;
    variable->get_handler = known->get_handler;
    variable->data = known->data;
  }
  return NGX_OK;
}

/* ---- Settings ---- */

/* The daemon at `url`, which all locations that name it share. NULL: the log says why there is none. */
static dthrottle_daemon_t* dthrottle_add_server(ngx_conf_t* cf, ngx_str_t url, ngx_uint_t connections) {
  dthrottle_main_conf_t* main_conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_dthrottle_module);
  dthrottle_daemon_t *server, **servers = main_conf->servers.elts, **slot;
  ngx_uint_t i;
  ngx_url_t u;
  ngx_memzero(&u, sizeof(u));
  u.url = url;
  u.default_port = 7311;
  if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in \"%V\" of dthrottle_server", u.err != NULL ? u.err : "error", &url);
    return NULL;
  }
  for (i = 0; i < main_conf->servers.nelts; i++) {
    server = servers[i];
    if (server->connection_count == connections &&
        ngx_cmp_sockaddr(server->sockaddr, server->socklen, u.addrs[0].sockaddr, u.addrs[0].socklen, 1) == NGX_OK) {
      return server;
    }
  }
  server = ngx_pcalloc(cf->pool, sizeof(*server));
  slot = ngx_array_push(&main_conf->servers);
  if (server == NULL || slot == NULL) return NULL;
  *slot = server;
  server->name = url;
  server->sockaddr = u.addrs[0].sockaddr;
  server->socklen = u.addrs[0].socklen;
  server->connection_count = connections;
  server->answered = go_on;
  return ngx_dthrottle_daemon_init(cf, server) == NGX_OK ? server : NULL;
}

/* dthrottle_server ADDRESS [connections=N] */
static char* dthrottle_set_server(ngx_conf_t* cf, ngx_command_t* cmd, void* data) {
  dthrottle_loc_conf_t* conf = data;
  ngx_str_t* words = cf->args->elts;
  ngx_int_t connections = DTHROTTLE_CONNECTIONS;
  static const ngx_str_t key = ngx_string("connections=");
  (void)cmd;
  if (conf->server != NULL) return "is duplicate";
  if (cf->args->nelts == 3) {
    if (ngx_strncmp(words[2].data, key.data, key.len) != 0) return "has an unknown parameter";
    connections = ngx_atoi(words[2].data + key.len, words[2].len - key.len);
    if (connections < 1 || connections > DTHROTTLE_CONNECTIONS_MAX) return "needs connections between 1 and 64";
  }
  conf->server = dthrottle_add_server(cf, words[1], (ngx_uint_t)connections);
  return conf->server != NULL ? NGX_CONF_OK : NGX_CONF_ERROR;
}

static char* dthrottle_check_status(ngx_conf_t* cf, void* post, void* data) {
  const ngx_uint_t* status = data;
  (void)cf;
  (void)post;
  return *status >= 400 && *status <= 599 ? NGX_CONF_OK : "must be between 400 and 599";
}

static char* dthrottle_check_timeout(ngx_conf_t* cf, void* post, void* data) {
  const ngx_msec_t* timeout = data;
  (void)cf;
  (void)post;
  return *timeout >= 1 ? NGX_CONF_OK : "must be at least 1ms";
}

static void* dthrottle_create_main_conf(ngx_conf_t* cf) {
  dthrottle_main_conf_t* conf = ngx_pcalloc(cf->pool, sizeof(*conf));
  if (conf == NULL) return NULL;
  return ngx_array_init(&conf->servers, cf->pool, 1, sizeof(dthrottle_daemon_t*)) == NGX_OK ? conf : NULL;
}

static void* dthrottle_create_loc_conf(ngx_conf_t* cf) {
  dthrottle_loc_conf_t* conf = ngx_pcalloc(cf->pool, sizeof(*conf));
  if (conf == NULL) return NULL;
  conf->enable = NGX_CONF_UNSET;
  conf->shadow = NGX_CONF_UNSET;
  conf->status = NGX_CONF_UNSET_UINT;
  conf->timeout = NGX_CONF_UNSET_MSEC;
  conf->log_level = NGX_CONF_UNSET_UINT;
  return conf;
}

static ngx_http_complex_value_t* dthrottle_default_tag(ngx_conf_t* cf) {
  ngx_str_t text = ngx_string("$remote_addr");
  ngx_http_complex_value_t* value = ngx_pcalloc(cf->pool, sizeof(*value));
  ngx_http_compile_complex_value_t compile;
  if (value == NULL) return NULL;
  ngx_memzero(&compile, sizeof(compile));
  compile.cf = cf;
  compile.value = &text;
  compile.complex_value = value;
  return ngx_http_compile_complex_value(&compile) == NGX_OK ? value : NULL;
}

static char* dthrottle_merge_loc_conf(ngx_conf_t* cf, void* parent, void* child) {
  dthrottle_loc_conf_t *prev = parent, *conf = child;
  static const ngx_str_t server = ngx_string(DTHROTTLE_DEFAULT_SERVER);
  ngx_conf_merge_value(conf->enable, prev->enable, 0);
  ngx_conf_merge_value(conf->shadow, prev->shadow, 0);
  ngx_conf_merge_uint_value(conf->status, prev->status, 429);
  ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 20);
  ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_NOTICE);
  if (conf->tag == NULL) conf->tag = prev->tag;
  if (conf->server == NULL) conf->server = prev->server;
  if (!conf->enable) return NGX_CONF_OK;
  if (conf->tag == NULL) conf->tag = dthrottle_default_tag(cf);
  if (conf->server == NULL) conf->server = dthrottle_add_server(cf, server, DTHROTTLE_CONNECTIONS);
  return conf->tag != NULL && conf->server != NULL ? NGX_CONF_OK : NGX_CONF_ERROR;
}

static ngx_int_t dthrottle_init(ngx_conf_t* cf) {
  ngx_http_core_main_conf_t* core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
  ngx_http_handler_pt* handler = ngx_array_push(&core->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
  if (handler == NULL) return NGX_ERROR;
  *handler = dthrottle_handler;
  return NGX_OK;
}

/* Workers shall not try again at the same instants. */
static ngx_int_t dthrottle_init_process(ngx_cycle_t* cycle) {
  dthrottle_main_conf_t* conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_dthrottle_module);
  dthrottle_daemon_t** servers = conf != NULL ? conf->servers.elts : NULL;
  ngx_uint_t i;
  for (i = 0; conf != NULL && i < conf->servers.nelts; i++) {
    servers[i]->asker.chance = (uint64_t)ngx_random() << 32 | (uint64_t)ngx_random() | 1;
  }
  return NGX_OK;
}

/* A worker leaves when no request is left; nginx complains about connections that are. */
static void dthrottle_exit_process(ngx_cycle_t* cycle) {
  dthrottle_main_conf_t* conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_dthrottle_module);
  dthrottle_daemon_t** servers = conf != NULL ? conf->servers.elts : NULL;
  ngx_uint_t i;
  for (i = 0; conf != NULL && i < conf->servers.nelts; i++) ngx_dthrottle_daemon_close(servers[i]);
}

static ngx_conf_enum_t dthrottle_log_levels[] = {
    {ngx_string("debug"), NGX_LOG_DEBUG}, {ngx_string("info"), NGX_LOG_INFO}, {ngx_string("notice"), NGX_LOG_NOTICE},
    {ngx_string("warn"), NGX_LOG_WARN},   {ngx_string("error"), NGX_LOG_ERR}, {ngx_null_string, 0},
};

static ngx_conf_post_t dthrottle_status_post = {dthrottle_check_status};
static ngx_conf_post_t dthrottle_timeout_post = {dthrottle_check_timeout};

#define DTHROTTLE_ANYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)

static ngx_command_t dthrottle_commands[] = {
    {ngx_string("dthrottle"), DTHROTTLE_ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(dthrottle_loc_conf_t, enable), NULL},
    {ngx_string("dthrottle_shadow"), DTHROTTLE_ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, shadow), NULL},
    {ngx_string("dthrottle_server"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE12, dthrottle_set_server,
     NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},
    {ngx_string("dthrottle_tag"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_http_set_complex_value_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, tag), NULL},
    {ngx_string("dthrottle_status"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_num_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, status), &dthrottle_status_post},
    {ngx_string("dthrottle_timeout"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, timeout), &dthrottle_timeout_post},
    {ngx_string("dthrottle_log_level"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, log_level), dthrottle_log_levels},
    ngx_null_command,
};

static ngx_http_module_t dthrottle_http_module = {
    dthrottle_add_variables,    /* before the settings are read */
    dthrottle_init,             /* after */
    dthrottle_create_main_conf, /* main */
    NULL,
    NULL, /* server */
    NULL,
    dthrottle_create_loc_conf, /* location */
    dthrottle_merge_loc_conf,
};

ngx_module_t ngx_http_dthrottle_module = {
    NGX_MODULE_V1,
    &dthrottle_http_module,
    dthrottle_commands,
    NGX_HTTP_MODULE,
    NULL, /* master */
    NULL, /* module */
    dthrottle_init_process,
    NULL, /* thread */
    NULL,
    dthrottle_exit_process,
    NULL,
    NGX_MODULE_V1_PADDING,
};
