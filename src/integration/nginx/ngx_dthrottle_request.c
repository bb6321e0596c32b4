#include "ngx_dthrottle_request.h"

#define DTHROTTLE_US_PER_S 1000000

typedef struct dthrottle_asking_s dthrottle_asking_t;

/* What is known of a request, which asks once, whatever becomes of it. */
typedef struct {
  ngx_http_request_t* request;
  dthrottle_daemon_t* daemon; /* NULL: not asked */
  dthrottle_asking_t* asking; /* NULL: the page of this worker has decided */
  enum dthrottle_fate fate;
  unsigned waiting : 1; /* for the answer, or because it is held */
  unsigned held : 1;
  unsigned applied : 1; /* the fate has had its effect */
  unsigned local : 1;   /* the page of this worker may decide */
  struct dthrottle_page_said said; /* by the page, of several tags */
  size_t tag_count;
  dthrottle_tag tags[]; /* room for those of the location */
} dthrottle_ctx_t;

/* A request that sends its question to the daemon. */
struct dthrottle_asking_s {
  dthrottle_ctx_t* ctx;
  struct dthrottle_pending question;
  enum dthrottle_verdict verdict;
  dthrottle_answer answer; /* by the ask protocol */
  const char* line;        /* that is sent, without its LF */
  size_t line_bytes;
  uint64_t took_us;
  ngx_event_t timer; /* of a request that is held */
  int64_t until;     /* it goes on then */
};

/* ---- Pages ---- */

/* A page knows neither what header fields say nor whose turn is when. */
static ngx_flag_t is_local(const dthrottle_loc_conf_t* conf) {
  return !conf->daemon->asks_questions || (conf->fields == DTHROTTLE_FIELDS_NONE && (conf->delay == 0 || conf->shadow));
}

/* By the clock itself: that of nginx is old under timer_resolution, and where the worker has had to stand. */
static enum dthrottle_page_verdict page_says(dthrottle_ctx_t* ctx) {
  const struct dthrottle_pages* pages = &ctx->daemon->pages;
  if (!ctx->local) return DTHROTTLE_PAGE_ASK;
  if (!ctx->daemon->asks_questions) {
    return dthrottle_pages_decide(pages, ctx->tags[0].text, ctx->tags[0].bytes, 0);
  }
  return dthrottle_pages_decide_question(pages, ctx->tags, ctx->tag_count, 0, &ctx->said);
}

/* The daemon has answered. */
static void tell_pages(dthrottle_ctx_t* ctx, const dthrottle_answer* answer) {
  struct dthrottle_pages* pages = &ctx->daemon->pages;
  const ngx_flag_t refused = ctx->fate == DTHROTTLE_FATE_THROTTLED;
  if (!ctx->local) return;
  if (!ctx->daemon->asks_questions) {
    dthrottle_pages_answered(pages, ctx->tags[0].text, ctx->tags[0].bytes, refused);
    return;
  }
  dthrottle_pages_answered_question(pages, ctx->tags, ctx->tag_count, &ctx->said,
                                    refused ? answer->refused : ctx->tag_count);
}

/* ---- Waiting ---- */

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

static void set_hold_timer(dthrottle_asking_t* asking, int64_t left) {
  ngx_add_timer(&asking->timer, (ngx_msec_t)((left + DTHROTTLE_NS_PER_MS - 1) / DTHROTTLE_NS_PER_MS));
}

/* The clock of nginx's timers is coarse: one may fire some milliseconds early. */
static void end_hold(ngx_event_t* timer) {
  dthrottle_asking_t* asking = timer->data;
  const int64_t left = asking->until - ngx_dthrottle_now_ns();
  if (left > 0) {
    set_hold_timer(asking, left);
    return;
  }
  asking->ctx->held = 0;
  resume(asking->ctx);
}

/* Holds a request until it is its turn. */
static void hold(dthrottle_asking_t* asking) {
  const int64_t delay = asking->answer.delay_us * DTHROTTLE_NS_PER_US;
  asking->ctx->held = 1;
  asking->until = ngx_dthrottle_now_ns() + delay;
  asking->timer.handler = end_hold;
  asking->timer.data = asking;
  asking->timer.log = asking->ctx->request->connection->log;
  set_hold_timer(asking, delay);
}

static void take_outcome(dthrottle_asking_t* asking) {
  dthrottle_ctx_t* ctx = asking->ctx;
  const enum dthrottle_verdict outcome = asking->question.outcome;
  asking->took_us = (uint64_t)(ngx_dthrottle_now_ns() - asking->question.begin) / DTHROTTLE_NS_PER_US;
  ctx->fate = dthrottle_fate_of(outcome == DTHROTTLE_SERVE ? asking->verdict : outcome, &asking->answer);
  if (outcome == DTHROTTLE_SERVE) tell_pages(ctx, &asking->answer);
}

void ngx_dthrottle_go_on(struct dthrottle_pending* question) {
  dthrottle_asking_t* asking = (dthrottle_asking_t*)((u_char*)question - offsetof(dthrottle_asking_t, question));
  take_outcome(asking);
  if (asking->ctx->fate == DTHROTTLE_FATE_DELAYED) {
    hold(asking);
  } else {
    resume(asking->ctx);
  }
}

/* The request is over. Its client may have left while it waited: then its slot in the queue is another's. */
static void end_request(void* data) {
  dthrottle_ctx_t* ctx = data;
  char line[DTHROTTLE_SETTLEMENT_BYTES];
  uint64_t slot;
  if (!ctx->waiting) return;
  dthrottle_count_fate(ctx->daemon->counts, DTHROTTLE_FATE_LEFT);
  if (!ctx->held) {
    ngx_dthrottle_daemon_forget(ctx->daemon, &ctx->asking->question);
    return;
  }
  ngx_del_timer(&ctx->asking->timer);
  slot = ctx->asking->answer.hold;
  if (slot == 0) return;
  ngx_dthrottle_daemon_tell(ctx->daemon, line, dthrottle_write_settlement(slot, NULL, 0, line));
}

/* ---- Asking ---- */

/* Whether one of eight bytes is a blank, a control character or DEL. */
static ngx_flag_t has_odd_byte(const u_char* at) {
  const uint64_t each = UINT64_C(0x0101010101010101);
  uint64_t bytes, del;
  ngx_memcpy(&bytes, at, sizeof(bytes));
  del = bytes ^ each * 0x7f;
  return ((((bytes - each * 0x21) & ~bytes) | ((del - each) & ~del)) & each * 0x80) != 0;
}

void ngx_dthrottle_clean_tag(ngx_str_t* tag) {
  u_char *at = tag->data, *end;
  tag->len = ngx_min(tag->len, DTHROTTLE_TAG_BYTES_MAX);
  end = at + tag->len;
  while (end - at >= 8 && !has_odd_byte(at)) at += 8;
  for (; at != end; at++) {
    if (*at <= ' ' || *at == 0x7f) *at = '_';
  }
}

/* Tags without a byte are not asked for. A text with variables is a copy of this request's own. */
static ngx_int_t dthrottle_make_tags(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  dthrottle_tag_conf_t* tags = conf->tags->elts;
  ngx_uint_t i;
  for (i = 0; i < conf->tags->nelts; i++) {
    dthrottle_tag* tag = &ctx->tags[ctx->tag_count];
    ngx_str_t text;
    if (ngx_http_complex_value(ctx->request, &tags[i].text, &text) != NGX_OK) return NGX_ERROR;
    if (tags[i].text.lengths != NULL) ngx_dthrottle_clean_tag(&text);
    tag->text = (const char*)text.data;
    tag->bytes = text.len;
    tag->cost = tags[i].cost;
    tag->reserved = 0;
    if (tag->bytes > 0) ctx->tag_count++;
  }
  return NGX_OK;
}

/* The line that asks: a tag, or a question about all of them. */
static ngx_int_t dthrottle_make_line(dthrottle_asking_t* asking, dthrottle_loc_conf_t* conf) {
  dthrottle_ctx_t* ctx = asking->ctx;
  dthrottle_question question;
  char* line;
  if (!conf->daemon->asks_questions) {
    asking->line = ctx->tags[0].text;
    asking->line_bytes = ctx->tags[0].bytes;
    return NGX_OK;
  }
  ngx_memzero(&question, sizeof(question));
  question.tags = ctx->tags;
  question.count = ctx->tag_count;
  question.tell_limit = 1;
  question.wait_ms = conf->shadow ? 0 : (unsigned)conf->delay;
  line = ngx_pnalloc(ctx->request->pool, dthrottle_question_room(&question));
  if (line == NULL) return NGX_ERROR;
  asking->line_bytes = dthrottle_write_question(&question, line);
  asking->line = line;
  return NGX_OK;
}

/* Sends the question on its way, or says why not. */
static ngx_int_t ask(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  dthrottle_asking_t* asking = ngx_pcalloc(ctx->request->pool, sizeof(*asking));
  if (asking == NULL) return NGX_ERROR;
  asking->ctx = ctx;
  ctx->asking = asking;
  if (dthrottle_make_line(asking, conf) != NGX_OK) return NGX_ERROR;
  asking->question.tags = &asking->line;
  asking->question.tag_bytes = &asking->line_bytes;
  asking->question.count = 1;
  asking->question.verdicts = &asking->verdict;
  asking->question.answer = &asking->answer;
  switch (ngx_dthrottle_daemon_ask(ctx->daemon, &asking->question, conf->timeout)) {
    case DTHROTTLE_PAUSED:
      ctx->fate = DTHROTTLE_FATE_BACKOFF;
      break;
    case DTHROTTLE_FULL:
      ctx->fate = DTHROTTLE_FATE_FULL;
      break;
    case DTHROTTLE_ASKED:
      ctx->waiting = !asking->question.back;
      if (asking->question.back) take_outcome(asking);
      break;
  }
  return NGX_OK;
}

/* The page of this worker decides, or the daemon is asked. */
static ngx_int_t dthrottle_decide(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  ctx->daemon = conf->daemon;
  ctx->local = is_local(conf);
  switch (page_says(ctx)) {
    case DTHROTTLE_PAGE_SERVE:
      ctx->fate = DTHROTTLE_FATE_SERVED;
      return NGX_OK;
    case DTHROTTLE_PAGE_REFUSE:
      ctx->fate = DTHROTTLE_FATE_THROTTLED;
      return NGX_OK;
    case DTHROTTLE_PAGE_ASK:
      break;
  }
  return ask(ctx, conf);
}

/* ---- The phase ---- */

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

static dthrottle_ctx_t* dthrottle_new_ctx(ngx_http_request_t* r, size_t tags) {
  ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(r->pool, sizeof(dthrottle_ctx_t) + tags * sizeof(dthrottle_tag));
  dthrottle_ctx_t* ctx;
  if (cleanup == NULL) return NULL;
  ctx = cleanup->data;
  ngx_memzero(ctx, sizeof(*ctx));
  ctx->request = r;
  cleanup->handler = end_request;
  ngx_http_set_ctx(r, ctx, ngx_http_dthrottle_module);
  return ctx;
}

static ngx_int_t dthrottle_add_field(ngx_http_request_t* r, const struct dthrottle_field* field) {
  ngx_table_elt_t* header = ngx_list_push(&r->headers_out.headers);
  if (header == NULL) return NGX_ERROR;
  ngx_memzero(header, sizeof(*header));
  header->key.data = (u_char*)field->name;
  header->key.len = ngx_strlen(field->name);
  header->value.len = field->bytes;
  header->value.data = ngx_pnalloc(r->pool, header->value.len);
  if (header->value.data == NULL) return NGX_ERROR;
  ngx_memcpy(header->value.data, field->value, header->value.len);
  header->hash = 1;
  return NGX_OK;
}

/* They stay with the request through error_page, whatever makes the body. */
static ngx_int_t dthrottle_add_fields(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf, ngx_flag_t refused) {
  struct dthrottle_field fields[DTHROTTLE_FIELDS_MAX];
  const enum dthrottle_fields style = (enum dthrottle_fields)conf->fields;
  size_t i, count = 0;
  if (ctx->asking != NULL) count = dthrottle_make_fields(&ctx->asking->answer, refused, style, fields);
  for (i = 0; i < count; i++) {
    if (dthrottle_add_field(ctx->request, &fields[i]) != NGX_OK) return NGX_ERROR;
  }
  return NGX_OK;
}

/* The daemon's answer, or that there is none, takes effect. */
static ngx_int_t dthrottle_apply(ngx_http_request_t* r, dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  const ngx_flag_t throttled = ctx->fate == DTHROTTLE_FATE_THROTTLED;
  const ngx_flag_t closed = conf->fail_closed && !conf->shadow && ctx->fate > DTHROTTLE_FATE_SHADOWED;
  ctx->applied = 1;
  if (ctx->daemon == NULL) return NGX_DECLINED;
  if (throttled && conf->shadow) ctx->fate = DTHROTTLE_FATE_SHADOWED;
  if (closed) ctx->fate = DTHROTTLE_FATE_CLOSED;
  dthrottle_count_fate(ctx->daemon->counts, ctx->fate);
  if (dthrottle_add_fields(ctx, conf, throttled && !conf->shadow) != NGX_OK) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  if (closed) return NGX_HTTP_SERVICE_UNAVAILABLE;
  if (!throttled) return NGX_DECLINED;
  {
    const dthrottle_tag* tag = &ctx->tags[ctx->asking != NULL ? ctx->asking->answer.refused : ctx->said.refused];
    const ngx_str_t text = {tag->bytes, (u_char*)tag->text};
    ngx_log_error(conf->log_level, r->connection->log, 0, "%s by dthrottle, tag \"%V\"",
                  conf->shadow ? "would be throttled" : "throttled", &text);
  }
  return conf->shadow ? NGX_DECLINED : (ngx_int_t)conf->status;
}

/* While it waits, the client's connection is only watched for its end. */
static ngx_int_t dthrottle_wait(ngx_http_request_t* r) {
  r->read_event_handler = ngx_http_test_reading;
  r->write_event_handler = ngx_http_request_empty_handler;
  if (r->connection->read->ready) {
    ngx_post_event(r->connection->read, &ngx_posted_events);
  } else if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
    return NGX_HTTP_INTERNAL_SERVER_ERROR;
  }
  return NGX_AGAIN;
}

ngx_int_t ngx_dthrottle_handle(ngx_http_request_t* r) {
  dthrottle_loc_conf_t* conf = ngx_http_get_module_loc_conf(r, ngx_http_dthrottle_module);
  dthrottle_ctx_t* ctx;
  if (!conf->enable || r != r->main) return NGX_DECLINED;
  ctx = dthrottle_get_ctx(r);
  if (ctx != NULL && ctx->waiting) return NGX_AGAIN;
  if (ctx != NULL && !ctx->applied) return dthrottle_apply(r, ctx, conf);
  /* Where all tags were empty, the location that an internal redirect leads to has others. */
  if (ctx != NULL && ctx->daemon != NULL) return NGX_DECLINED;

  ctx = dthrottle_new_ctx(r, conf->tags->nelts);
  if (ctx == NULL || dthrottle_make_tags(ctx, conf) != NGX_OK) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  if (ctx->tag_count > 0 && dthrottle_decide(ctx, conf) != NGX_OK) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  return ctx->waiting ? dthrottle_wait(r) : dthrottle_apply(r, ctx, conf);
}

/* ---- Variables ---- */

static ngx_int_t dthrottle_set_value(ngx_http_variable_value_t* v, const void* data, size_t bytes) {
  v->data = (u_char*)data;
  v->len = (unsigned)bytes;
  v->valid = 1;
  v->not_found = 0;
  v->no_cacheable = 1;
  return NGX_OK;
}

static ngx_int_t dthrottle_set_number(ngx_http_request_t* r, ngx_http_variable_value_t* v, int64_t number) {
  u_char* text = ngx_pnalloc(r->pool, NGX_INT64_LEN);
  if (text == NULL) return NGX_ERROR;
  return dthrottle_set_value(v, text, (size_t)(ngx_sprintf(text, "%L", number) - text));
}

static ngx_int_t dthrottle_set_seconds(ngx_http_request_t* r, ngx_http_variable_value_t* v, uint64_t us) {
  u_char* text = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
  u_char* end;
  if (text == NULL) return NGX_ERROR;
  end = ngx_sprintf(text, "%uL.%06uL", us / DTHROTTLE_US_PER_S, us % DTHROTTLE_US_PER_S);
  return dthrottle_set_value(v, text, (size_t)(end - text));
}

static ngx_int_t dthrottle_status_variable(ngx_http_request_t* r, ngx_http_variable_value_t* v, uintptr_t data) {
  dthrottle_ctx_t* ctx = dthrottle_get_ctx(r->main);
  enum dthrottle_fate fate = ctx != NULL ? ctx->fate : DTHROTTLE_FATE_OFF;
  const char* name;
  if (ctx != NULL && ctx->waiting) fate = DTHROTTLE_FATE_LEFT; /* it is logged, and is gone next */
  name = dthrottle_fate_name(fate);
  (void)data;
  return dthrottle_set_value(v, name, ngx_strlen(name));
}

enum { TOOK, DELAY };

static ngx_int_t dthrottle_seconds_variable(ngx_http_request_t* r, ngx_http_variable_value_t* v, uintptr_t data) {
  dthrottle_ctx_t* ctx = dthrottle_get_ctx(r->main);
  uint64_t us = 0;
  if (ctx == NULL || ctx->daemon == NULL) {
    v->not_found = 1;
    return NGX_OK;
  }
  if (ctx->asking != NULL) us = data == DELAY ? (uint64_t)ctx->asking->answer.delay_us : ctx->asking->took_us;
  return dthrottle_set_seconds(r, v, us);
}

enum { RETRY_AFTER, LIMIT, REMAINING, RULE };

/* What the answer says of a limit; not found where it says nothing. */
static ngx_int_t dthrottle_limit_variable(ngx_http_request_t* r, ngx_http_variable_value_t* v, uintptr_t data) {
  dthrottle_ctx_t* ctx = dthrottle_get_ctx(r->main);
  const dthrottle_answer* answer = ctx != NULL && ctx->asking != NULL ? &ctx->asking->answer : NULL;
  if (answer != NULL && data == RETRY_AFTER && dthrottle_retry_after(answer) > 0) {
    return dthrottle_set_number(r, v, dthrottle_retry_after(answer));
  }
  if (answer == NULL || answer->quota == 0 || data == RETRY_AFTER) {
    v->not_found = 1;
    return NGX_OK;
  }
  if (data == RULE) return dthrottle_set_value(v, answer->rule, ngx_strlen(answer->rule));
  return dthrottle_set_number(r, v, data == LIMIT ? answer->quota : answer->left[answer->nearest]);
}

static ngx_http_variable_t dthrottle_variables[] = {
    {ngx_string("dthrottle_status"), NULL, dthrottle_status_variable, 0, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_time"), NULL, dthrottle_seconds_variable, TOOK, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_delay"), NULL, dthrottle_seconds_variable, DELAY, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_retry_after"), NULL, dthrottle_limit_variable, RETRY_AFTER, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_limit"), NULL, dthrottle_limit_variable, LIMIT, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_remaining"), NULL, dthrottle_limit_variable, REMAINING, NGX_HTTP_VAR_NOCACHEABLE, 0},
    {ngx_string("dthrottle_rule"), NULL, dthrottle_limit_variable, RULE, NGX_HTTP_VAR_NOCACHEABLE, 0},
    ngx_http_null_variable,
};

ngx_int_t ngx_dthrottle_add_variables(ngx_conf_t* cf) {
  ngx_http_variable_t* known;
  for (known = dthrottle_variables; known->name.len > 0; known++) {
    ngx_http_variable_t* variable = ngx_http_add_variable(cf, &known->name, known->flags);
    if (variable == NULL) return NGX_ERROR;
    variable->get_handler = known->get_handler;
    variable->data = known->data;
  }
  return NGX_OK;
}
