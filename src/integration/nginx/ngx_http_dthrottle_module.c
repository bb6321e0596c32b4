/* Asks dthrottled in the preaccess phase whether a request should be served. See README.md of src/integration.
 *
 * Here are the directives and the processes; ngx_dthrottle_request.h has what happens to a request,
 * ngx_dthrottle_daemon.h the way to a daemon, ngx_dthrottle_board.h the counts.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_dthrottle_board.h"
#include "ngx_dthrottle_daemon.h"
#include "ngx_dthrottle_request.h"

#define DTHROTTLE_CONNECTIONS 2 /* of a worker to one daemon, unless the settings say otherwise */
#define DTHROTTLE_CONNECTIONS_MAX 64
#define DTHROTTLE_DELAY_MAX 60000 /* ms */

typedef struct {
  ngx_array_t servers;   /* of dthrottle_daemon_t* */
  ngx_shm_zone_t* board; /* of their counts */
} dthrottle_main_conf_t;

/* The daemon at `url`, which all locations that name it share. NULL: the log says why there is none. */
static dthrottle_daemon_t* dthrottle_add_daemon(ngx_conf_t* cf, ngx_str_t url, ngx_uint_t connections,
                                                ngx_flag_t asks_questions) {
  dthrottle_main_conf_t* main_conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_dthrottle_module);
  dthrottle_daemon_t *server, **servers = main_conf->servers.elts, **slot;
  ngx_uint_t i;
  ngx_url_t u;
  ngx_memzero(&u, sizeof(u));
  u.url = url;
  u.default_port = 7311;
  if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in \"%V\", the address of a daemon",
                       u.err != NULL ? u.err : "error", &url);
    return NULL;
  }
  for (i = 0; i < main_conf->servers.nelts; i++) {
    server = servers[i];
    if (server->connection_count == connections && server->asks_questions == asks_questions &&
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
  server->asks_questions = asks_questions;
  server->answered = ngx_dthrottle_go_on;
  return ngx_dthrottle_daemon_init(cf, server) == NGX_OK ? server : NULL;
}

/* The number behind `key` where the second parameter has it; NGX_ERROR: it is something else. */
static ngx_int_t dthrottle_read_parameter(ngx_conf_t* cf, const char* key, ngx_int_t otherwise) {
  ngx_str_t* words = cf->args->elts;
  const size_t key_bytes = ngx_strlen(key);
  if (cf->args->nelts < 3) return otherwise;
  if (words[2].len <= key_bytes || ngx_strncmp(words[2].data, key, key_bytes) != 0) return NGX_ERROR;
  return ngx_atoi(words[2].data + key_bytes, words[2].len - key_bytes);
}

/* dthrottle_server ADDRESS [connections=N], and dthrottle_ask with the same words */
static char* dthrottle_set_daemon(ngx_conf_t* cf, ngx_command_t* cmd, void* data) {
  const ngx_flag_t asks_questions = cmd->offset == offsetof(dthrottle_loc_conf_t, ask);
  dthrottle_daemon_t** daemon = (dthrottle_daemon_t**)((u_char*)data + cmd->offset);
  ngx_str_t* words = cf->args->elts;
  const ngx_int_t connections = dthrottle_read_parameter(cf, "connections=", DTHROTTLE_CONNECTIONS);
  if (*daemon != NULL) return "is duplicate";
  if (connections < 1 || connections > DTHROTTLE_CONNECTIONS_MAX) return "takes an address and connections=1 to 64";
  *daemon = dthrottle_add_daemon(cf, words[1], (ngx_uint_t)connections, asks_questions);
  return *daemon != NULL ? NGX_CONF_OK : NGX_CONF_ERROR;
}

/* The next tag of a list that is made when it is needed. */
static dthrottle_tag_conf_t* dthrottle_push_tag(ngx_conf_t* cf, ngx_array_t** tags, ngx_str_t* text) {
  ngx_http_compile_complex_value_t compile;
  dthrottle_tag_conf_t* tag;
  if (*tags == NULL) *tags = ngx_array_create(cf->pool, 1, sizeof(dthrottle_tag_conf_t));
  tag = *tags != NULL ? ngx_array_push(*tags) : NULL;
  if (tag == NULL) return NULL;
  ngx_memzero(tag, sizeof(*tag));
  ngx_memzero(&compile, sizeof(compile));
  compile.cf = cf;
  compile.value = text;
  compile.complex_value = &tag->text;
  tag->cost = 1;
  if (ngx_http_compile_complex_value(&compile) != NGX_OK) return NULL;
  if (tag->text.lengths == NULL) ngx_dthrottle_clean_tag(&tag->text.value);
  return tag;
}

/* dthrottle_tag TEXT [cost=N], once for each tag */
static char* dthrottle_set_tag(ngx_conf_t* cf, ngx_command_t* cmd, void* data) {
  dthrottle_loc_conf_t* conf = data;
  ngx_str_t* words = cf->args->elts;
  const ngx_int_t cost = dthrottle_read_parameter(cf, "cost=", 1);
  dthrottle_tag_conf_t* tag;
  (void)cmd;
  if (cost < 0 || cost > UINT32_MAX) return "takes a tag and cost=0 to 4294967295";
  if (conf->tags != NULL && conf->tags->nelts == DTHROTTLE_TAGS_MAX) return "stands more than 16 times";
  tag = dthrottle_push_tag(cf, &conf->tags, &words[1]);
  if (tag == NULL) return NGX_CONF_ERROR;
  tag->cost = (uint32_t)cost;
  return NGX_CONF_OK;
}

static ngx_int_t dthrottle_send_metrics(ngx_http_request_t* r) {
  dthrottle_main_conf_t* main_conf = ngx_http_get_module_main_conf(r, ngx_http_dthrottle_module);
  const ngx_int_t rc = ngx_http_discard_request_body(r);
  if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) return NGX_HTTP_NOT_ALLOWED;
  return rc != NGX_OK ? rc : ngx_dthrottle_board_send(r, main_conf->board);
}

static char* dthrottle_set_metrics(ngx_conf_t* cf, ngx_command_t* cmd, void* data) {
  ngx_http_core_loc_conf_t* core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
  (void)cmd;
  (void)data;
  core->handler = dthrottle_send_metrics;
  return NGX_CONF_OK;
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

static char* dthrottle_check_delay(ngx_conf_t* cf, void* post, void* data) {
  const ngx_msec_t* delay = data;
  (void)cf;
  (void)post;
  return *delay <= DTHROTTLE_DELAY_MAX ? NGX_CONF_OK : "must be at most 1m";
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
  conf->fail_closed = NGX_CONF_UNSET;
  conf->status = NGX_CONF_UNSET_UINT;
  conf->fields = NGX_CONF_UNSET_UINT;
  conf->timeout = NGX_CONF_UNSET_MSEC;
  conf->delay = NGX_CONF_UNSET_MSEC;
  conf->log_level = NGX_CONF_UNSET_UINT;
  return conf;
}

/* Whether the query protocol can ask for these tags. */
static ngx_flag_t dthrottle_is_one_query(const ngx_array_t* tags) {
  const dthrottle_tag_conf_t* first = tags->elts;
  return tags->nelts == 1 && first->cost == 1;
}

/* Which daemon is asked. One that is named is never passed over for another one. */
static char* dthrottle_choose_daemon(ngx_conf_t* cf, dthrottle_loc_conf_t* conf) {
  static ngx_str_t server = ngx_string(DTHROTTLE_DEFAULT_ADDRESS), ask = ngx_string(DTHROTTLE_DEFAULT_ASK_ADDRESS),
                   whole = ngx_string("server");
  const ngx_http_core_loc_conf_t* core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
  const ngx_flag_t one_query = conf->delay == 0 && dthrottle_is_one_query(conf->tags);
  conf->daemon = conf->ask != NULL ? conf->ask : conf->server;
  if (conf->daemon == NULL) {
    conf->daemon = dthrottle_add_daemon(cf, one_query ? server : ask, DTHROTTLE_CONNECTIONS, !one_query);
  } else if (conf->ask == NULL && !one_query) {
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\" asks about several tags, a cost or a delay, which "
                       "\"dthrottle_server\" cannot: name the ask socket there by \"dthrottle_ask\"",
                       core->name.len > 0 ? &core->name : &whole);
    return NGX_CONF_ERROR;
  }
  return conf->daemon != NULL ? NGX_CONF_OK : NGX_CONF_ERROR;
}

static char* dthrottle_merge_loc_conf(ngx_conf_t* cf, void* parent, void* child) {
  dthrottle_loc_conf_t *prev = parent, *conf = child;
  static ngx_str_t tag = ngx_string("$remote_addr");
  ngx_conf_merge_value(conf->enable, prev->enable, 0);
  ngx_conf_merge_value(conf->shadow, prev->shadow, 0);
  ngx_conf_merge_value(conf->fail_closed, prev->fail_closed, 0);
  ngx_conf_merge_uint_value(conf->status, prev->status, 429);
  ngx_conf_merge_uint_value(conf->fields, prev->fields, DTHROTTLE_FIELDS_DRAFT_10);
  ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 20);
  ngx_conf_merge_msec_value(conf->delay, prev->delay, 0);
  ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_NOTICE);
  if (conf->tags == NULL) conf->tags = prev->tags;
  /* A level that names a daemon has it asked, by whichever protocol. */
  if (conf->server == NULL && conf->ask == NULL) {
    conf->server = prev->server;
    conf->ask = prev->ask;
  }
  if (!conf->enable) return NGX_CONF_OK;
  if (conf->tags == NULL && dthrottle_push_tag(cf, &conf->tags, &tag) == NULL) return NGX_CONF_ERROR;
  return dthrottle_choose_daemon(cf, conf);
}

static ngx_int_t dthrottle_init(ngx_conf_t* cf) {
  ngx_http_core_main_conf_t* core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
  dthrottle_main_conf_t* conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_dthrottle_module);
  ngx_http_handler_pt* handler = ngx_array_push(&core->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
  if (handler == NULL) return NGX_ERROR;
  *handler = ngx_dthrottle_handle;
  conf->board = ngx_dthrottle_board_add(cf, &ngx_http_dthrottle_module, &conf->servers);
  return conf->board != NULL ? NGX_OK : NGX_ERROR;
}

/* Nothing can keep the settings from coming into force any more: their sockets are open. */
static ngx_int_t dthrottle_init_module(ngx_cycle_t* cycle) {
  const dthrottle_main_conf_t* conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_dthrottle_module);
  if (conf != NULL) ngx_dthrottle_board_name(conf->board);
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

static ngx_conf_enum_t dthrottle_field_styles[] = {
    {ngx_string("none"), DTHROTTLE_FIELDS_NONE},
    {ngx_string("off"), DTHROTTLE_FIELDS_OFF},
    {ngx_string("draft-10"), DTHROTTLE_FIELDS_DRAFT_10},
    {ngx_string("draft-03"), DTHROTTLE_FIELDS_DRAFT_03},
    {ngx_null_string, 0},
};

static ngx_conf_post_t dthrottle_status_post = {dthrottle_check_status};
static ngx_conf_post_t dthrottle_timeout_post = {dthrottle_check_timeout};
static ngx_conf_post_t dthrottle_delay_post = {dthrottle_check_delay};

#define DTHROTTLE_ANYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)

static ngx_command_t dthrottle_commands[] = {
    {ngx_string("dthrottle"), DTHROTTLE_ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(dthrottle_loc_conf_t, enable), NULL},
    {ngx_string("dthrottle_shadow"), DTHROTTLE_ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, shadow), NULL},
    {ngx_string("dthrottle_fail_closed"), DTHROTTLE_ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, fail_closed), NULL},
    {ngx_string("dthrottle_server"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE12, dthrottle_set_daemon,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, server), NULL},
    {ngx_string("dthrottle_ask"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE12, dthrottle_set_daemon, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(dthrottle_loc_conf_t, ask), NULL},
    {ngx_string("dthrottle_tag"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE12, dthrottle_set_tag, NGX_HTTP_LOC_CONF_OFFSET, 0,
     NULL},
    {ngx_string("dthrottle_headers"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, fields), dthrottle_field_styles},
    {ngx_string("dthrottle_metrics"), NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS, dthrottle_set_metrics,
     NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},
    {ngx_string("dthrottle_status"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_num_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, status), &dthrottle_status_post},
    {ngx_string("dthrottle_timeout"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, timeout), &dthrottle_timeout_post},
    {ngx_string("dthrottle_delay"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, delay), &dthrottle_delay_post},
    {ngx_string("dthrottle_log_level"), DTHROTTLE_ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(dthrottle_loc_conf_t, log_level), dthrottle_log_levels},
    ngx_null_command,
};

static ngx_http_module_t dthrottle_http_module = {
    ngx_dthrottle_add_variables, /* before the settings are read */
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
    dthrottle_init_module, /* module */
    dthrottle_init_process,
    NULL, /* thread */
    NULL,
    dthrottle_exit_process,
    NULL,
    NGX_MODULE_V1_PADDING,
};
