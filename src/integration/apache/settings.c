#include "settings.h"

#include <apr_strings.h>
#include <http_core.h>
#include <http_log.h>
#include <string.h>
#include <strings.h>

#include "board.h"

extern module AP_MODULE_DECLARE_DATA dthrottle_module;
APLOG_USE_MODULE(dthrottle);

enum { TIMEOUT_MAX_MS = 60000, DELAY_MAX_MS = 60000 };

static apr_array_header_t* daemons;
static struct daemon *default_server, *default_ask; /* where none is named */
static bool section_asks;                           /* a section names an ask socket */

const apr_array_header_t* dthrottle_daemons(void) { return daemons; }

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

/* Whether the query protocol can ask so. */
static bool is_one_query(const struct dir_conf* conf) {
  const apr_array_header_t* const tags = conf->tags;
  return conf->delay_ms <= 0 &&
         (tags == NULL || (tags->nelts == 1 && APR_ARRAY_IDX(tags, 0, struct tag_conf).cost == 1));
}

struct daemon* dthrottle_daemon_of(const struct dir_conf* conf) {
  if (conf->ask != NULL) return conf->ask;
  if (!is_one_query(conf)) return default_ask;
  return conf->server != NULL ? conf->server : default_server;
}

static int begin_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool) {
  (void)log_pool;
  (void)temp_pool;
  daemons = apr_array_make(pool, 1, sizeof(struct daemon*));
  section_asks = false;
  return OK;
}

void* dthrottle_create_dir_conf(apr_pool_t* pool, char* dir) {
  (void)dir;
  struct dir_conf* const conf = apr_pcalloc(pool, sizeof *conf);
  conf->enable = conf->shadow = conf->fail_closed = conf->status = DTHROTTLE_UNSET;
  conf->timeout_ms = conf->delay_ms = conf->fields = DTHROTTLE_UNSET;
  return conf;
}

void* dthrottle_merge_dir_conf(apr_pool_t* pool, void* base_conf, void* new_conf) {
  const struct dir_conf *const base = base_conf, *const over = new_conf;
  struct dir_conf* const conf = apr_pcalloc(pool, sizeof *conf);
  conf->enable = over->enable != DTHROTTLE_UNSET ? over->enable : base->enable;
  conf->shadow = over->shadow != DTHROTTLE_UNSET ? over->shadow : base->shadow;
  conf->fail_closed = over->fail_closed != DTHROTTLE_UNSET ? over->fail_closed : base->fail_closed;
  conf->status = over->status != DTHROTTLE_UNSET ? over->status : base->status;
  conf->timeout_ms = over->timeout_ms != DTHROTTLE_UNSET ? over->timeout_ms : base->timeout_ms;
  conf->delay_ms = over->delay_ms != DTHROTTLE_UNSET ? over->delay_ms : base->delay_ms;
  conf->fields = over->fields != DTHROTTLE_UNSET ? over->fields : base->fields;
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
  if (cmd->path != NULL) section_asks = true;
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
                                                     : DTHROTTLE_UNSET;
  return conf->fields != DTHROTTLE_UNSET ? NULL : "DthrottleHeaders must be none, off, draft-10 or draft-03";
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

const command_rec dthrottle_commands[] = {
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

/* ---- Whether a daemon that is named can be asked ----
 *
 * Which sections a request meets is known when it is there. So a section is read as if it met those around it alone,
 * and if it names no daemon itself it is let pass where any section names an ask socket. */

static const char* find_unaskable(apr_pool_t* pool, struct dir_conf* around, ap_conf_vector_t* level);

static const char* find_unaskable_within(apr_pool_t* pool, struct dir_conf* around,
                                         const apr_array_header_t* sections) {
  const char* found = NULL;
  for (int i = 0; sections != NULL && found == NULL && i < sections->nelts; i++) {
    found = find_unaskable(pool, around, APR_ARRAY_IDX(sections, i, ap_conf_vector_t*));
  }
  return found;
}

/* The name of a level of the settings that has a question for a query socket; NULL: there is none. */
static const char* find_unaskable(apr_pool_t* pool, struct dir_conf* around, ap_conf_vector_t* level) {
  struct dir_conf* const own = ap_get_module_config(level, &dthrottle_module);
  const core_dir_config* const core = ap_get_core_module_config(level);
  struct dir_conf* const conf = own != NULL ? dthrottle_merge_dir_conf(pool, around, own) : around;
  const bool decided = own != NULL && (own->server != NULL || !section_asks);
  if (decided && conf->enable == 1 && conf->server != NULL && conf->ask == NULL && !is_one_query(conf)) {
    return core->d != NULL && core->d[0] != '\0' ? core->d : "server";
  }
  const char* const found = find_unaskable_within(pool, conf, core->sec_file);
  return found != NULL ? found : find_unaskable_within(pool, conf, core->sec_if);
}

static int check_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool, server_rec* servers) {
  (void)pool;
  (void)log_pool;
  for (server_rec* server = servers; server != NULL; server = server->next) {
    const core_server_config* const core = ap_get_core_module_config(server->module_config);
    struct dir_conf* const whole = ap_get_module_config(server->lookup_defaults, &dthrottle_module);
    const char* found = find_unaskable(temp_pool, whole, server->lookup_defaults);
    if (found == NULL) found = find_unaskable_within(temp_pool, whole, core->sec_dir);
    if (found == NULL) found = find_unaskable_within(temp_pool, whole, core->sec_url);
    if (found == NULL) continue;
    ap_log_error(APLOG_MARK, APLOG_EMERG, 0, server,
                 "dthrottle: \"%s\" asks about several tags, a cost or a delay, which DthrottleServer cannot: "
                 "name the ask socket there by DthrottleAsk", found);
    return HTTP_INTERNAL_SERVER_ERROR;
  }
  return OK;
}

/* Daemons that have counts are first, lest others take their places. */
static void count_daemons(struct dthrottle_board* board) {
  dthrottle_board_read(board);
  for (int i = 0; i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    dthrottle_board_find(board, daemon->address, strlen(daemon->address));
  }
  for (int i = 0; i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    daemon->counts = dthrottle_board_make(board, daemon->address, strlen(daemon->address));
  }
}

static int end_settings(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool, server_rec* server) {
  (void)log_pool;
  (void)temp_pool;
  const int named = daemons->nelts;
  default_server = find_daemon(pool, DTHROTTLE_DEFAULT_ADDRESS, false);
  default_ask = find_daemon(pool, DTHROTTLE_DEFAULT_ASK_ADDRESS, true);
  struct dthrottle_board* const board = dthrottle_open_board(server->process->pool);
  if (board == NULL) {
    ap_log_error(APLOG_MARK, APLOG_EMERG, 0, server, "dthrottle: no memory for counts");
    return HTTP_INTERNAL_SERVER_ERROR;
  }
  count_daemons(board);
  int shared = 0;
  for (int i = 0; i < daemons->nelts; i++) {
    struct daemon* const daemon = APR_ARRAY_IDX(daemons, i, struct daemon*);
    dthrottle_board_name(board, daemon->counts);
    shared += dthrottle_board_shares(board, daemon->counts);
    /* It may be that no location asks it any more. */
    if (i >= named) dthrottle_forget_failure(daemon->counts);
  }
  if (shared > 0) {
    ap_log_error(APLOG_MARK, APLOG_WARNING, 0, server,
                 "dthrottle: more than %d daemons: %d of them are counted together, as \"others\"", DTHROTTLE_BOARD_MAX,
                 shared);
  }
  return OK;
}

void dthrottle_register_settings(void) {
  ap_hook_pre_config(begin_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_check_config(check_settings, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_post_config(end_settings, NULL, NULL, APR_HOOK_MIDDLE);
}
