/* Asks dthrottled in the preaccess phase whether a request should be served. See README.md of src/integration.
 *
 * Each worker keeps a few connections to the daemon, and all requests that come in one turn of the loop go out in one
 * write: the queries of a connection wait in a queue, and answers come in the order of the queries. A request that
 * cannot wait any longer, or whose client has left, leaves its query behind in the queue, so that the late answer is
 * still taken for the right one and dropped.
 *
 * It fails open. After a failure nobody asks for a while, then one request does, and the pause doubles with each
 * failure: a daemon that is gone costs nothing, and one that hangs costs one request its timeout, now and then.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#define DTHROTTLE_DEFAULT_SERVER "unix:/run/dthrottle/query.sock"
#define DTHROTTLE_CONNECTIONS 2 /* of a worker to one daemon, unless the settings say otherwise */
#define DTHROTTLE_CONNECTIONS_MAX 64
#define DTHROTTLE_DEEP 64            /* queries on a connection from which on another one is better */
#define DTHROTTLE_EARLY 16           /* queries that do not wait for the end of the turn */
#define DTHROTTLE_QUERIES_MAX 1024   /* on one connection; whoever comes then is served unasked */
#define DTHROTTLE_OUT_BYTES 65536    /* queries that the socket has not taken yet */
#define DTHROTTLE_TAG_BYTES_MAX 4096 /* longer tags are cut, so they fit, and are throttled together */
#define DTHROTTLE_BACKOFF_MIN 10     /* ms */
#define DTHROTTLE_BACKOFF_MAX 5000   /* ms */
#define DTHROTTLE_ANSWER_BYTES 3     /* "OK\n" or "NO\n" */
#define DTHROTTLE_NS_PER_US 1000
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

typedef struct dthrottle_server_s dthrottle_server_t;
typedef struct dthrottle_connection_s dthrottle_connection_t;
typedef struct dthrottle_ctx_s dthrottle_ctx_t;

/* A query that the daemon has not answered. It outlives its request. */
typedef struct {
  ngx_queue_t queue;
  dthrottle_connection_t* connection;
  dthrottle_ctx_t* ctx; /* NULL: nobody waits for the answer any more */
  ngx_msec_t begin;
  unsigned retried : 1;
  unsigned probe : 1; /* finds out whether the daemon is back */
} dthrottle_query_t;

struct dthrottle_connection_s {
  dthrottle_server_t* server;
  ngx_connection_t* peer; /* NULL: not connected */
  ngx_queue_t queries;    /* oldest first */
  ngx_uint_t query_count;
  u_char *out, *out_begin, *out_end; /* queries to send */
  u_char answer[DTHROTTLE_ANSWER_BYTES];
  ngx_uint_t answer_bytes; /* of it that have come */
  ngx_event_t flush;
  unsigned connecting : 1;
  unsigned heard : 1; /* the daemon has answered on it */
};

/* A daemon, as a worker sees it. The settings make it; each worker has a copy of its own once it is forked. */
struct dthrottle_server_s {
  ngx_str_t name;
  struct sockaddr* sockaddr;
  socklen_t socklen;
  ngx_uint_t connection_count;
  dthrottle_connection_t* connections;
  ngx_queue_t free_queries;

  ngx_uint_t failures; /* in a row */
  ngx_msec_t failed_at;
  ngx_msec_t retry_at;
  unsigned probing : 1;
};

/* What is known of a request, which asks once, whatever becomes of it. */
struct dthrottle_ctx_s {
  ngx_http_request_t* request;
  dthrottle_query_t* query; /* NULL: not waiting */
  ngx_str_t tag;            /* and LF */
  ngx_event_t timer;
  dthrottle_status_t status;
  uint64_t begin_us, took_us;
  unsigned applied : 1; /* the status has had its effect */
};

typedef struct {
  ngx_array_t servers; /* of dthrottle_server_t* */
} dthrottle_main_conf_t;

typedef struct {
  ngx_flag_t enable;
  ngx_flag_t shadow;
  ngx_http_complex_value_t* tag;
  ngx_uint_t status;
  ngx_msec_t timeout;
  ngx_uint_t log_level;
  dthrottle_server_t* server;
} dthrottle_loc_conf_t;

extern ngx_module_t ngx_http_dthrottle_module;

static void dthrottle_flush(ngx_event_t* event);
static void dthrottle_read(ngx_event_t* event);
static void dthrottle_write(ngx_event_t* event);

static uint64_t dthrottle_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * DTHROTTLE_US_PER_S + (uint64_t)t.tv_nsec / DTHROTTLE_NS_PER_US;
}

/* ---- Failing and trying again ---- */

static ngx_flag_t dthrottle_backs_off(dthrottle_server_t* server) {
  return server->failures > 0 && (server->probing || (ngx_msec_int_t)(ngx_current_msec - server->retry_at) < 0);
}

/* Of queries that fail together the first counts, not each. Says whether this one did; then, and only then, it is in
 * the log. */
static ngx_flag_t dthrottle_failed(dthrottle_server_t* server, ngx_msec_t begin, const char* what) {
  ngx_msec_t pause = DTHROTTLE_BACKOFF_MIN;
  ngx_uint_t i;
  server->probing = 0;
  if (server->failures > 0 && (ngx_msec_int_t)(begin - server->failed_at) <= 0) return 0;
  server->failures++;
  for (i = 1; i < server->failures && pause < DTHROTTLE_BACKOFF_MAX; i++) pause *= 2;
  pause = ngx_min(pause, DTHROTTLE_BACKOFF_MAX);
  pause -= (ngx_msec_t)ngx_random() % (pause / 4 + 1); /* so that workers do not come back all at once */
  server->failed_at = ngx_current_msec;
  server->retry_at = ngx_current_msec + pause;
  ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0, "dthrottle: %V %s, requests are served unasked for %M ms",
                &server->name, what, pause);
  return 1;
}

static void dthrottle_succeeded(dthrottle_server_t* server) {
  if (server->failures == 0) return;
  server->failures = 0;
  server->probing = 0;
  ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0, "dthrottle: %V answers again", &server->name);
}

/* ---- Requests ---- */

/* Lets a request go on that has been waiting. It may be gone when this returns, and others too. */
static void dthrottle_resume(dthrottle_ctx_t* ctx, dthrottle_status_t status) {
  ngx_http_request_t* r = ctx->request;
  ngx_connection_t* c = r->connection;
  ctx->query = NULL;
  ctx->status = status;
  ctx->took_us = dthrottle_now_us() - ctx->begin_us;
  if (ctx->timer.timer_set) ngx_del_timer(&ctx->timer);
  ngx_http_set_log_request(c->log, r);
  r->read_event_handler = ngx_http_block_reading;
  r->write_event_handler = ngx_http_core_run_phases;
  ngx_http_core_run_phases(r);
  ngx_http_run_posted_requests(c);
}

/* ---- Connections ---- */

static dthrottle_query_t* dthrottle_oldest(ngx_queue_t* queries) {
  return ngx_queue_data(ngx_queue_head(queries), dthrottle_query_t, queue);
}

static dthrottle_query_t* dthrottle_new_query(dthrottle_server_t* server) {
  dthrottle_query_t* query;
  if (ngx_queue_empty(&server->free_queries)) return ngx_alloc(sizeof(dthrottle_query_t), ngx_cycle->log);
  query = dthrottle_oldest(&server->free_queries);
  ngx_queue_remove(&query->queue);
  return query;
}

static void dthrottle_free_query(dthrottle_server_t* server, dthrottle_query_t* query) {
  ngx_queue_insert_head(&server->free_queries, &query->queue);
}

/* Closes the connection and moves its queries to `left`. */
static void dthrottle_close(dthrottle_connection_t* connection, ngx_queue_t* left) {
  ngx_queue_init(left);
  if (!ngx_queue_empty(&connection->queries)) {
    ngx_queue_add(left, &connection->queries);
  }
  ngx_queue_init(&connection->queries);
  connection->query_count = 0;
  connection->out_begin = connection->out_end = connection->out;
  connection->answer_bytes = 0;
  if (connection->flush.posted) {
    ngx_delete_posted_event(&connection->flush);
  }
  if (connection->peer != NULL) ngx_close_connection(connection->peer);
  connection->peer = NULL;
}

/* Ends queries of a connection that is closed already: what resumes here may open it again. */
static void dthrottle_end_queries(dthrottle_server_t* server, ngx_queue_t* left, dthrottle_status_t status) {
  while (!ngx_queue_empty(left)) {
    dthrottle_query_t* query = dthrottle_oldest(left);
    dthrottle_ctx_t* ctx = query->ctx;
    ngx_queue_remove(&query->queue);
    dthrottle_free_query(server, query);
    if (ctx != NULL) dthrottle_resume(ctx, status);
  }
}

static void dthrottle_drop(dthrottle_connection_t* connection, dthrottle_status_t status) {
  ngx_queue_t left;
  dthrottle_close(connection, &left);
  dthrottle_end_queries(connection->server, &left, status);
}

static ngx_int_t dthrottle_connect(dthrottle_connection_t* connection) {
  dthrottle_server_t* server = connection->server;
  ngx_peer_connection_t pc;
  ngx_int_t rc;
  ngx_memzero(&pc, sizeof(pc));
  pc.sockaddr = server->sockaddr;
  pc.socklen = server->socklen;
  pc.name = &server->name;
  pc.get = ngx_event_get_peer;
  pc.log = ngx_cycle->log;
  pc.log_error = NGX_ERROR_ERR;
  rc = ngx_event_connect_peer(&pc);
  /* A full backlog of a Unix socket is EAGAIN at once: declined, like nobody there. */
  if (rc != NGX_OK && rc != NGX_AGAIN) return NGX_ERROR;
  connection->peer = pc.connection;
  connection->peer->data = connection;
  connection->peer->log = ngx_cycle->log;
  connection->peer->read->log = ngx_cycle->log;
  connection->peer->write->log = ngx_cycle->log;
  connection->peer->read->handler = dthrottle_read;
  connection->peer->write->handler = dthrottle_write;
  connection->flush.log = ngx_cycle->log; /* the log that read the settings is gone by now */
  connection->connecting = rc == NGX_AGAIN;
  connection->heard = 0;
  if (server->sockaddr->sa_family != AF_UNIX) (void)ngx_tcp_nodelay(connection->peer);
  return NGX_OK;
}

static ngx_flag_t dthrottle_has_room(dthrottle_connection_t* connection, size_t bytes) {
  return connection->query_count < DTHROTTLE_QUERIES_MAX &&
         (size_t)(connection->out + DTHROTTLE_OUT_BYTES - connection->out_end) >= bytes;
}

/* One on which little waits, else a new one, else the one on which least waits. NULL: none has room. */
static dthrottle_connection_t* dthrottle_choose(dthrottle_server_t* server, size_t bytes) {
  dthrottle_connection_t *least = NULL, *unconnected = NULL;
  ngx_uint_t i;
  for (i = 0; i < server->connection_count; i++) {
    dthrottle_connection_t* connection = &server->connections[i];
    if (connection->peer == NULL) {
      if (unconnected == NULL) unconnected = connection;
    } else if (dthrottle_has_room(connection, bytes)) {
      if (connection->query_count < DTHROTTLE_DEEP) return connection;
      if (least == NULL || connection->query_count < least->query_count) least = connection;
    }
  }
  return unconnected != NULL ? unconnected : least;
}

/* Sends what the socket takes. What goes wrong here goes wrong again in the flush that is posted. */
static void dthrottle_push(dthrottle_connection_t* connection) {
  ngx_connection_t* peer = connection->peer;
  const ssize_t sent = peer->send(peer, connection->out_begin, (size_t)(connection->out_end - connection->out_begin));
  if (sent > 0) connection->out_begin += sent;
}

/* Queues the query; it goes out at the end of this turn, with all others of the turn. In a long turn some go before, so
 * that the daemon works while nginx does. */
static void dthrottle_append(dthrottle_connection_t* connection, dthrottle_query_t* query) {
  connection->out_end = ngx_cpymem(connection->out_end, query->ctx->tag.data, query->ctx->tag.len);
  query->connection = connection;
  ngx_queue_insert_tail(&connection->queries, &query->queue);
  connection->query_count++;
  if (!connection->connecting) {
    ngx_post_event(&connection->flush, &ngx_posted_events); /* unless it is */
    if (connection->query_count % DTHROTTLE_EARLY == 0) dthrottle_push(connection);
  }
}

/* The other end is gone. A connection that has worked may just have ended with a daemon that was restarted, so those
 * who wait ask once more on a fresh one. */
static void dthrottle_disconnected(dthrottle_connection_t* connection) {
  dthrottle_server_t* server = connection->server;
  ngx_flag_t kept = connection->heard;
  ngx_queue_t left, lost;
  dthrottle_close(connection, &left);
  ngx_queue_init(&lost);
  while (!ngx_queue_empty(&left)) {
    dthrottle_query_t* query = dthrottle_oldest(&left);
    ngx_queue_remove(&query->queue);
    if (query->ctx == NULL) {
      dthrottle_free_query(server, query);
    } else if (kept && !query->retried && (connection->peer != NULL || dthrottle_connect(connection) == NGX_OK) &&
               dthrottle_has_room(connection, query->ctx->tag.len)) {
      query->retried = 1;
      dthrottle_append(connection, query);
    } else {
      kept = 0; /* one attempt to connect is enough */
      ngx_queue_insert_tail(&lost, &query->queue);
    }
  }
  if (ngx_queue_empty(&lost)) return;
  (void)dthrottle_failed(server, dthrottle_oldest(&lost)->begin, "has hung up");
  dthrottle_end_queries(server, &lost, DTHROTTLE_OPEN_ERROR);
}

static void dthrottle_flush(ngx_event_t* event) {
  dthrottle_connection_t* connection = event->data;
  ngx_connection_t* peer = connection->peer;
  while (connection->out_begin < connection->out_end) {
    const ssize_t sent = peer->send(peer, connection->out_begin, (size_t)(connection->out_end - connection->out_begin));
    if (sent == NGX_AGAIN) {
      if (ngx_handle_write_event(peer->write, 0) == NGX_OK) return;
      dthrottle_disconnected(connection);
      return;
    }
    if (sent <= 0) {
      dthrottle_disconnected(connection);
      return;
    }
    connection->out_begin += sent;
  }
  connection->out_begin = connection->out_end = connection->out;
}

static void dthrottle_write(ngx_event_t* event) {
  ngx_connection_t* peer = event->data;
  dthrottle_connection_t* connection = peer->data;
  if (connection->connecting) {
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == -1) error = ngx_socket_errno;
    if (error != 0) {
      dthrottle_disconnected(connection);
      return;
    }
    connection->connecting = 0;
  }
  if (connection->out_begin < connection->out_end) dthrottle_flush(&connection->flush);
}

/* The oldest query has its answer. False: there is none. */
static ngx_flag_t dthrottle_answered(dthrottle_connection_t* connection, dthrottle_status_t status) {
  dthrottle_query_t* query;
  dthrottle_ctx_t* ctx;
  if (ngx_queue_empty(&connection->queries)) return 0;
  query = dthrottle_oldest(&connection->queries);
  ctx = query->ctx;
  ngx_queue_remove(&query->queue);
  connection->query_count--;
  connection->heard = 1;
  dthrottle_free_query(connection->server, query);
  dthrottle_succeeded(connection->server);
  if (ctx != NULL) dthrottle_resume(ctx, status);
  return 1;
}

/* False: what has come is not the answers to what was asked. */
static ngx_flag_t dthrottle_read_answers(dthrottle_connection_t* connection, const u_char* data, ssize_t bytes) {
  ngx_connection_t* peer = connection->peer;
  ssize_t i;
  for (i = 0; i < bytes; i++) {
    ngx_flag_t ok;
    connection->answer[connection->answer_bytes++] = data[i];
    if (connection->answer_bytes < DTHROTTLE_ANSWER_BYTES) continue;
    connection->answer_bytes = 0;
    ok = ngx_memcmp(connection->answer, "OK\n", DTHROTTLE_ANSWER_BYTES) == 0;
    if (!ok && ngx_memcmp(connection->answer, "NO\n", DTHROTTLE_ANSWER_BYTES) != 0) return 0;
    if (!dthrottle_answered(connection, ok ? DTHROTTLE_SERVED : DTHROTTLE_THROTTLED)) return 0;
    if (connection->peer != peer) return 1; /* whoever has resumed has closed it */
  }
  return 1;
}

static void dthrottle_read(ngx_event_t* event) {
  ngx_connection_t* peer = event->data;
  dthrottle_connection_t* connection = peer->data;
  u_char data[DTHROTTLE_ANSWER_BYTES * 512];
  while (connection->peer == peer) {
    const ssize_t bytes = peer->recv(peer, data, sizeof(data));
    if (bytes == NGX_AGAIN) break;
    if (bytes <= 0) {
      dthrottle_disconnected(connection);
      return;
    }
    if (!dthrottle_read_answers(connection, data, bytes)) {
      (void)dthrottle_failed(connection->server, ngx_current_msec, "does not speak the query protocol");
      dthrottle_drop(connection, DTHROTTLE_OPEN_ERROR);
      return;
    }
  }
  if (connection->peer != peer) return;
  if (ngx_handle_read_event(peer->read, 0) != NGX_OK) dthrottle_disconnected(connection);
}

/* ---- Asking ---- */

static dthrottle_ctx_t* dthrottle_of_timer(ngx_event_t* timer) {
  return (dthrottle_ctx_t*)((u_char*)timer - offsetof(dthrottle_ctx_t, timer));
}

/* The query stays where it is, for the answer that may still come. */
static void dthrottle_abandon(dthrottle_ctx_t* ctx) {
  ctx->query->ctx = NULL;
  ctx->query = NULL;
}

/* The daemon hangs, or is slow. The second failure in a row, without an answer in between, ends the connection. */
static void dthrottle_timed_out(ngx_event_t* timer) {
  dthrottle_ctx_t* ctx = dthrottle_of_timer(timer);
  dthrottle_connection_t* connection = ctx->query->connection;
  dthrottle_server_t* server = connection->server;
  const ngx_flag_t counts = dthrottle_failed(server, ctx->query->begin, "does not answer in time");
  if (connection->connecting || (counts && server->failures > 1)) {
    dthrottle_drop(connection, DTHROTTLE_OPEN_TIMEOUT);
    return;
  }
  dthrottle_abandon(ctx);
  dthrottle_resume(ctx, DTHROTTLE_OPEN_TIMEOUT);
}

/* The request is over: its client may have left while it waited. */
static void dthrottle_cleanup(void* data) {
  dthrottle_ctx_t* ctx = data;
  if (ctx->timer.timer_set) ngx_del_timer(&ctx->timer);
  if (ctx->query == NULL) return;
  if (ctx->query->probe) ctx->query->connection->server->probing = 0; /* somebody else has to find out */
  dthrottle_abandon(ctx);
}

/* Sends the query on its way, or says why not. */
static dthrottle_status_t dthrottle_ask(dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  dthrottle_server_t* server = conf->server;
  dthrottle_connection_t* connection;
  dthrottle_query_t* query;
  if (dthrottle_backs_off(server)) return DTHROTTLE_OPEN_BACKOFF;
  connection = dthrottle_choose(server, ctx->tag.len);
  if (connection == NULL) return DTHROTTLE_OPEN_FULL;
  if (connection->peer == NULL && dthrottle_connect(connection) != NGX_OK) {
    (void)dthrottle_failed(server, ngx_current_msec, "cannot be reached");
    return DTHROTTLE_OPEN_ERROR;
  }
  query = dthrottle_new_query(server);
  if (query == NULL) return DTHROTTLE_OPEN_ERROR;
  query->ctx = ctx;
  query->begin = ngx_current_msec;
  query->retried = 0;
  query->probe = server->failures > 0;
  server->probing = query->probe;
  ctx->query = query;
  ctx->begin_us = dthrottle_now_us();
  dthrottle_append(connection, query);
  ctx->timer.handler = dthrottle_timed_out;
  ctx->timer.data = ctx->request->connection;
  ctx->timer.log = ctx->request->connection->log;
  ngx_add_timer(&ctx->timer, conf->timeout);
  return DTHROTTLE_OFF;
}

/* A tag is one line without blanks, whatever clients put into it. */
static ngx_int_t dthrottle_make_tag(ngx_http_request_t* r, ngx_http_complex_value_t* value, ngx_str_t* tag) {
  ngx_str_t text;
  size_t i;
  if (ngx_http_complex_value(r, value, &text) != NGX_OK) return NGX_ERROR;
  tag->len = ngx_min(text.len, DTHROTTLE_TAG_BYTES_MAX);
  tag->data = ngx_pnalloc(r->pool, tag->len + 1);
  if (tag->data == NULL) return NGX_ERROR;
  for (i = 0; i < tag->len; i++) {
    const u_char byte = text.data[i];
    tag->data[i] = byte <= ' ' || byte == 0x7f ? '_' : byte;
  }
  if (tag->len == 0) return NGX_DECLINED;
  tag->data[tag->len++] = '\n';
  return NGX_OK;
}

/* The context of a request. An internal redirect wipes it out, but leaves the clean-up. */
static dthrottle_ctx_t* dthrottle_get_ctx(ngx_http_request_t* r) {
  dthrottle_ctx_t* ctx = ngx_http_get_module_ctx(r, ngx_http_dthrottle_module);
  ngx_pool_cleanup_t* cleanup;
  if (ctx != NULL || !(r->internal || r->filter_finalize)) return ctx;
  for (cleanup = r->pool->cleanup; cleanup != NULL; cleanup = cleanup->next) {
    if (cleanup->handler == dthrottle_cleanup) return cleanup->data;
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
  cleanup->handler = dthrottle_cleanup;
  ngx_http_set_ctx(r, ctx, ngx_http_dthrottle_module);
  return ctx;
}

/* The daemon's answer, or that there is none, takes effect. */
static ngx_int_t dthrottle_apply(ngx_http_request_t* r, dthrottle_ctx_t* ctx, dthrottle_loc_conf_t* conf) {
  ngx_str_t tag = ctx->tag;
  ctx->applied = 1;
  if (ctx->status != DTHROTTLE_THROTTLED) return NGX_DECLINED;
  tag.len--;
  ngx_log_error(conf->log_level, r->connection->log, 0, "%s by dthrottle, tag \"%V\"",
                conf->shadow ? "would be throttled" : "throttled", &tag);
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
  if (ctx != NULL && ctx->query != NULL) return NGX_AGAIN;
  if (ctx != NULL) return ctx->applied ? NGX_DECLINED : dthrottle_apply(r, ctx, conf);

  ctx = dthrottle_new_ctx(r);
  if (ctx == NULL) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  rc = dthrottle_make_tag(r, conf->tag, &ctx->tag);
  if (rc == NGX_ERROR) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  if (rc == NGX_OK) ctx->status = dthrottle_ask(ctx, conf);
  if (ctx->query == NULL) return dthrottle_apply(r, ctx, conf);

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
  if (ctx == NULL || ctx->begin_us == 0) {
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

static ngx_int_t dthrottle_init_connections(ngx_conf_t* cf, dthrottle_server_t* server) {
  ngx_uint_t i;
  server->connections = ngx_pcalloc(cf->pool, server->connection_count * sizeof(dthrottle_connection_t));
  if (server->connections == NULL) return NGX_ERROR;
  for (i = 0; i < server->connection_count; i++) {
    dthrottle_connection_t* connection = &server->connections[i];
    connection->server = server;
    connection->out = ngx_palloc(cf->pool, DTHROTTLE_OUT_BYTES);
    if (connection->out == NULL) return NGX_ERROR;
    connection->out_begin = connection->out_end = connection->out;
    ngx_queue_init(&connection->queries);
    connection->flush.handler = dthrottle_flush;
    connection->flush.data = connection;
  }
  return NGX_OK;
}

/* The daemon at `url`, which all locations that name it share. NULL: the log says why there is none. */
static dthrottle_server_t* dthrottle_add_server(ngx_conf_t* cf, ngx_str_t url, ngx_uint_t connections) {
  dthrottle_main_conf_t* main_conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_dthrottle_module);
  dthrottle_server_t *server, **servers = main_conf->servers.elts, **slot;
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
  ngx_queue_init(&server->free_queries);
  return dthrottle_init_connections(cf, server) == NGX_OK ? server : NULL;
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
  return ngx_array_init(&conf->servers, cf->pool, 1, sizeof(dthrottle_server_t*)) == NGX_OK ? conf : NULL;
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

/* A worker leaves when no request is left; nginx complains about connections that are. */
static void dthrottle_exit_process(ngx_cycle_t* cycle) {
  dthrottle_main_conf_t* conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_dthrottle_module);
  dthrottle_server_t** servers = conf != NULL ? conf->servers.elts : NULL;
  ngx_uint_t i, j;
  for (i = 0; conf != NULL && i < conf->servers.nelts; i++) {
    for (j = 0; j < servers[i]->connection_count; j++) {
      ngx_queue_t left;
      dthrottle_close(&servers[i]->connections[j], &left);
    }
  }
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
    NULL, /* process */
    NULL, /* thread */
    NULL,
    dthrottle_exit_process,
    NULL,
    NGX_MODULE_V1_PADDING,
};
