#include "ngx_dthrottle_daemon.h"

#define DTHROTTLE_DEEP 64          /* queries on a connection from which on another one is better */
#define DTHROTTLE_EARLY 16         /* queries that do not wait for the end of the turn */
#define DTHROTTLE_QUERIES_MAX 1024 /* on one connection; a request beyond them is served unasked */
#define DTHROTTLE_OUT_BYTES 65536  /* queries that the socket has not taken yet */
#define DTHROTTLE_TELL_TIMEOUT 1000 /* ms; nobody waits for it */
#define DTHROTTLE_BACKOFF_MIN 10   /* ms */
#define DTHROTTLE_BACKOFF_MAX 5000 /* ms */

static void read_answers(ngx_event_t* event);
static void write_queries(ngx_event_t* event);

int64_t ngx_dthrottle_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * DTHROTTLE_NS_PER_S + t.tv_nsec;
}

/* ---- Connections ---- */

static void close_connection(dthrottle_connection_t* connection) {
  if (connection->flush.posted) {
    ngx_delete_posted_event(&connection->flush);
  }
  if (connection->peer != NULL) ngx_close_connection(connection->peer);
  connection->peer = NULL;
}

/* NGX_OK, or an errno where the kernel says why not. */
static int open_connection(dthrottle_connection_t* connection) {
  dthrottle_daemon_t* daemon = connection->daemon;
  ngx_peer_connection_t pc;
  ngx_int_t rc;
  ngx_memzero(&pc, sizeof(pc));
  pc.sockaddr = daemon->sockaddr;
  pc.socklen = daemon->socklen;
  pc.name = &daemon->name;
  pc.get = ngx_event_get_peer;
  pc.log = ngx_cycle->log;
  pc.log_error = NGX_ERROR_ERR;
  ngx_set_errno(0); /* nginx tells its log, not us, what connect said */
  rc = ngx_event_connect_peer(&pc);
  /* A full backlog of a Unix socket is EAGAIN at once: declined, like nobody there. */
  if (rc != NGX_OK && rc != NGX_AGAIN) return ngx_errno != 0 ? ngx_errno : NGX_ERROR;
  connection->peer = pc.connection;
  connection->peer->data = connection;
  connection->peer->log = ngx_cycle->log;
  connection->peer->read->log = ngx_cycle->log;
  connection->peer->write->log = ngx_cycle->log;
  connection->peer->read->handler = read_answers;
  connection->peer->write->handler = write_queries;
  connection->flush.log = ngx_cycle->log; /* the log that read the settings is gone by now */
  if (daemon->sockaddr->sa_family != AF_UNIX) (void)ngx_tcp_nodelay(connection->peer);
  if (rc == NGX_OK) dthrottle_asker_opened(&daemon->asker, connection->line);
  return NGX_OK;
}

static const char* dthrottle_what_failed(const dthrottle_daemon_t* daemon, enum dthrottle_failure failure) {
  switch (failure) {
    case DTHROTTLE_FAILED_PERMISSION:
      return "may not be asked by the user of this worker";
    case DTHROTTLE_FAILED_TIMEOUT:
      return "does not answer in time";
    case DTHROTTLE_FAILED_PROTOCOL:
      return daemon->asks_questions ? "does not speak the ask protocol" : "does not speak the query protocol";
    case DTHROTTLE_FAILED_CONNECTION:
      return "has hung up";
    case DTHROTTLE_FAILED_ABSENT:
    case DTHROTTLE_FAILED_NOBODY:
    case DTHROTTLE_FAILURES:
      break;
  }
  return "cannot be reached";
}

/* Counts and logs that the daemon has failed once more since there were `before` failures, or answers again. */
static void note_change(dthrottle_daemon_t* daemon, unsigned before, enum dthrottle_failure failure) {
  const unsigned failures = daemon->asker.failures;
  if (failures > before) {
    dthrottle_count_failure(daemon->counts, failure);
    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0, "dthrottle: %V %s, no request asks it for %M ms",
                  &daemon->name, dthrottle_what_failed(daemon, failure),
                  (ngx_msec_t)(daemon->asker.pause / DTHROTTLE_NS_PER_MS));
  } else if (failures == 0 && before > 0) {
    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0, "dthrottle: %V answers again", &daemon->name);
  }
}

/* Ends the connection, and opens another one if queries are to be asked once more. */
static void end_connection(dthrottle_connection_t* connection, enum dthrottle_verdict why, int error) {
  dthrottle_daemon_t* daemon = connection->daemon;
  do {
    const unsigned before = daemon->asker.failures;
    close_connection(connection);
    dthrottle_asker_ended(&daemon->asker, connection->line, why, ngx_dthrottle_now_ns());
    note_change(daemon, before, dthrottle_failure_of(why, error));
  } while (dthrottle_line_wants_connection(connection->line) && (error = open_connection(connection)) != NGX_OK);
  if (connection->line->open) {
    ngx_post_event(&connection->flush, &ngx_posted_events);
  }
}

/* Sends what the socket takes. */
static ssize_t push_queries(dthrottle_connection_t* connection) {
  ngx_connection_t* peer = connection->peer;
  size_t bytes;
  const char* out = dthrottle_line_output(connection->line, &bytes);
  ssize_t sent;
  if (bytes == 0) return 0;
  sent = peer->send(peer, (u_char*)out, bytes);
  if (sent > 0) dthrottle_line_sent(connection->line, (size_t)sent);
  return sent != 0 ? sent : NGX_ERROR;
}

/* ---- Questions and their deadlines ---- */

static void set_timer(dthrottle_daemon_t* daemon) {
  const int64_t due = dthrottle_asker_next_deadline(&daemon->asker);
  int64_t left;
  if (daemon->timer.timer_set && due == daemon->timer_due) return;
  if (daemon->timer.timer_set) ngx_del_timer(&daemon->timer);
  if (due == DTHROTTLE_NEVER) return;
  left = due - ngx_dthrottle_now_ns();
  daemon->timer_due = due;
  daemon->timer.log = ngx_cycle->log;
  ngx_add_timer(&daemon->timer, left > 0 ? (ngx_msec_t)((left + DTHROTTLE_NS_PER_MS - 1) / DTHROTTLE_NS_PER_MS) : 1);
}

/* What comes of something that has happened to the asker. */
static void settle(dthrottle_daemon_t* daemon) {
  struct dthrottle_pending* question;
  while ((question = dthrottle_asker_next_back(&daemon->asker)) != NULL) daemon->answered(question);
  set_timer(daemon);
}

/* ---- Events ---- */

static void flush_queries(ngx_event_t* event) {
  dthrottle_connection_t* connection = event->data;
  ssize_t sent;
  do {
    sent = push_queries(connection);
  } while (sent > 0);
  if (sent == 0 || (sent == NGX_AGAIN && ngx_handle_write_event(connection->peer->write, 0) == NGX_OK)) return;
  end_connection(connection, DTHROTTLE_UNREACHABLE, 0);
  settle(connection->daemon);
}

/* Whether connecting has failed, which is an event to read and to write; then the connection has ended. Reading would
 * take the reason away. */
static ngx_flag_t has_failed_to_open(dthrottle_connection_t* connection) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (connection->line->open) return 0;
  if (getsockopt(connection->peer->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == -1) error = ngx_socket_errno;
  if (error == 0) return 0;
  end_connection(connection, DTHROTTLE_UNREACHABLE, error);
  settle(connection->daemon);
  return 1;
}

static void write_queries(ngx_event_t* event) {
  ngx_connection_t* peer = event->data;
  dthrottle_connection_t* connection = peer->data;
  if (has_failed_to_open(connection)) return;
  if (!connection->line->open) dthrottle_asker_opened(&connection->daemon->asker, connection->line);
  flush_queries(&connection->flush);
}

static void read_answers(ngx_event_t* event) {
  ngx_connection_t* peer = event->data;
  dthrottle_connection_t* connection = peer->data;
  dthrottle_daemon_t* daemon = connection->daemon;
  const unsigned before = daemon->asker.failures;
  u_char data[1536];
  ssize_t bytes;
  ngx_flag_t good = 1;
  if (has_failed_to_open(connection)) return;
  while (good && (bytes = peer->recv(peer, data, sizeof(data))) > 0) {
    good = dthrottle_asker_heard(&daemon->asker, connection->line, (const char*)data, (size_t)bytes);
  }
  note_change(daemon, before, DTHROTTLE_FAILED_CONNECTION);
  if (!good) {
    end_connection(connection, DTHROTTLE_BAD_ANSWER, 0);
  } else if (bytes != NGX_AGAIN || ngx_handle_read_event(peer->read, 0) != NGX_OK) {
    end_connection(connection, DTHROTTLE_UNREACHABLE, 0);
  }
  settle(daemon);
}

/* The daemon hangs, or is slow. */
static void give_up(ngx_event_t* timer) {
  dthrottle_daemon_t* daemon = timer->data;
  const int64_t now = ngx_dthrottle_now_ns();
  struct dthrottle_line* line;
  unsigned before = daemon->asker.failures;
  while ((line = dthrottle_asker_tick(&daemon->asker, now)) != NULL) close_connection(line->skin.connection);
  note_change(daemon, before, DTHROTTLE_FAILED_TIMEOUT);
  settle(daemon);
}

/* ---- Asking ---- */

/* Connects the line of a new question, or sees to it that it goes out at the end of this turn, with all others of the
 * turn. In a long turn some go before, so that the daemon works while nginx does. */
static void send_soon(dthrottle_connection_t* connection) {
  const int error = connection->peer == NULL ? open_connection(connection) : NGX_OK;
  if (error != NGX_OK) {
    end_connection(connection, DTHROTTLE_UNREACHABLE, error);
    return;
  }
  if (!connection->line->open) return;
  ngx_post_event(&connection->flush, &ngx_posted_events); /* unless it is */
  /* What goes wrong here goes wrong again in the flush. */
  if (connection->line->waiting % DTHROTTLE_EARLY == 0) (void)push_queries(connection);
}

enum dthrottle_asked ngx_dthrottle_daemon_ask(dthrottle_daemon_t* daemon, struct dthrottle_pending* question,
                                              ngx_msec_t timeout) {
  const int64_t now = ngx_dthrottle_now_ns();
  enum dthrottle_asked asked;
  question->deadline = now + (int64_t)timeout * DTHROTTLE_NS_PER_MS;
  asked = dthrottle_asker_ask(&daemon->asker, question, now);
  if (asked != DTHROTTLE_ASKED) return asked;
  send_soon(question->line->skin.connection);
  if (question->back) {
    dthrottle_asker_forget(&daemon->asker, question);
  } else {
    set_timer(daemon);
  }
  return asked;
}

void ngx_dthrottle_daemon_tell(dthrottle_daemon_t* daemon, const char* line, size_t bytes) {
  enum dthrottle_verdict verdict;
  dthrottle_answer answer;
  struct dthrottle_pending told;
  ngx_memzero(&told, sizeof(told));
  told.tags = &line;
  told.tag_bytes = &bytes;
  told.count = 1;
  told.verdicts = &verdict;
  told.answer = &answer;
  if (ngx_dthrottle_daemon_ask(daemon, &told, DTHROTTLE_TELL_TIMEOUT) == DTHROTTLE_ASKED && !told.back) {
    ngx_dthrottle_daemon_forget(daemon, &told);
  }
}

void ngx_dthrottle_daemon_forget(dthrottle_daemon_t* daemon, struct dthrottle_pending* question) {
  dthrottle_asker_forget(&daemon->asker, question);
  set_timer(daemon);
}

void ngx_dthrottle_daemon_close(dthrottle_daemon_t* daemon) {
  ngx_uint_t i;
  for (i = 0; i < daemon->connection_count; i++) close_connection(&daemon->connections[i]);
}

ngx_int_t ngx_dthrottle_daemon_init(ngx_conf_t* cf, dthrottle_daemon_t* daemon) {
  const ngx_uint_t count = daemon->connection_count;
  struct dthrottle_asker_options options;
  ngx_uint_t i;
  ngx_memzero(&options, sizeof(options));
  options.lines = ngx_pcalloc(cf->pool, count * sizeof(struct dthrottle_line));
  options.line_count = (unsigned)count;
  options.buffers = ngx_palloc(cf->pool, count * DTHROTTLE_OUT_BYTES);
  options.buffer_bytes = DTHROTTLE_OUT_BYTES;
  options.deep = DTHROTTLE_DEEP;
  options.waiting_max = DTHROTTLE_QUERIES_MAX;
  options.backoff_min = (int64_t)DTHROTTLE_BACKOFF_MIN * DTHROTTLE_NS_PER_MS;
  options.backoff_max = (int64_t)DTHROTTLE_BACKOFF_MAX * DTHROTTLE_NS_PER_MS;
  if (daemon->asks_questions) options.answers = ngx_palloc(cf->pool, count * DTHROTTLE_ANSWER_LINE_BYTES);
  if (daemon->asks_questions && options.answers == NULL) return NGX_ERROR;
  daemon->connections = ngx_pcalloc(cf->pool, count * sizeof(dthrottle_connection_t));
  if (daemon->connections == NULL || options.lines == NULL || options.buffers == NULL) return NGX_ERROR;
  dthrottle_asker_init(&daemon->asker, &options);
  dthrottle_pages_init(&daemon->pages, daemon->sockaddr);
  daemon->timer.handler = give_up;
  daemon->timer.data = daemon;
  for (i = 0; i < count; i++) {
    dthrottle_connection_t* connection = &daemon->connections[i];
    connection->daemon = daemon;
    connection->line = &options.lines[i];
    connection->line->skin.connection = connection;
    connection->flush.handler = flush_queries;
    connection->flush.data = connection;
  }
  return NGX_OK;
}
