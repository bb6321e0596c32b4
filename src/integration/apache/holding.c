#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POLLRDHUP */
#endif
#include "holding.h"

#include <ap_mpm.h>
#include <apr_atomic.h>
#include <apr_portable.h>
#include <apr_thread_mutex.h>
#include <http_config.h>
#include <http_connection.h>
#include <http_core.h>
#include <http_protocol.h>
#include <http_request.h>
#include <poll.h>
#include <scoreboard.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/endpoint.h"

#ifndef AP_MPMQ_CAN_WAITIO /* the headers of an older httpd; these values are those of all that can */
#define AP_MPMQ_CAN_WAITIO 19
#define CONN_STATE_ASYNC_WAITIO 8
#endif

extern module AP_MODULE_DECLARE_DATA dthrottle_module;

struct dthrottle_hold {
  request_rec* r;
  void (*left)(void* baton);
  void* baton;
  int64_t turn_ns; /* of CLOCK_MONOTONIC */
  int timer, set;      /* descriptors; the set has the timer and the client. -1 until the hold is set */
  int client;          /* while `set` stands in its place; else -1 */
  const char* handler; /* that of the request, while it is suspended */
  struct dthrottle_hold *next, **link; /* `link` points to it among all that are set; NULL: it is not set */
};

/* What is known of a connection. */
struct connection {
  bool inside;                 /* a request of it is being processed */
  struct dthrottle_hold* held; /* its request is suspended */
};

static volatile apr_uint32_t held;
static apr_uint32_t held_max; /* 0: the MPM does not wait for connections */
static double worker_factor = 2; /* AsyncRequestWorkerFactor */
static struct dthrottle_hold* set_holds; /* of this process */
static apr_thread_mutex_t* set_mutex;    /* guards them */

static struct connection* find_connection(conn_rec* c) {
  struct connection* connection = ap_get_module_config(c->conn_config, &dthrottle_module);
  if (connection == NULL) {
    connection = apr_pcalloc(c->pool, sizeof *connection);
    ap_set_module_config(c->conn_config, &dthrottle_module, connection);
  }
  return connection;
}

/* ---- The descriptor of a connection ---- */

static void put_descriptor(conn_rec* c, int fd) {
  apr_socket_t* socket = ap_get_conn_socket(c);
  apr_os_sock_put(&socket, &fd, c->pool);
}

/* The MPM shall wait for the set. It would close a connection that waits as long as the server's timeout, so the timer
 * ends earlier then, and the request is suspended again. */
static void put_set(struct dthrottle_hold* hold) {
  const int64_t hop = dthrottle_now_ns() + hold->r->server->timeout * DTHROTTLE_NS_PER_US / 2;
  const struct itimerspec when = {.it_value = dthrottle_timespec(hold->turn_ns < hop ? hold->turn_ns : hop)};
  timerfd_settime(hold->timer, TFD_TIMER_ABSTIME, &when, NULL);
  apr_os_sock_get(&hold->client, ap_get_conn_socket(hold->r->connection));
  put_descriptor(hold->r->connection, hold->set);
}

static void put_client(struct dthrottle_hold* hold) {
  int fd = -1;
  if (hold->client < 0) return;
  apr_os_sock_get(&fd, ap_get_conn_socket(hold->r->connection));
  if (fd == hold->set) {
    put_descriptor(hold->r->connection, hold->client);
  } else { /* the MPM has closed the connection, that is the set */
    close(hold->client);
    hold->set = -1;
  }
  hold->client = -1;
}

static bool client_has_left(request_rec* r) {
  struct pollfd fd = {.fd = -1, .events = POLLRDHUP};
  apr_os_sock_get(&fd.fd, ap_get_conn_socket(r->connection));
  return poll(&fd, 1, 0) > 0;
}

/* ---- Going on ---- */

static void give_up(struct dthrottle_hold* hold) {
  if (hold->left != NULL) hold->left(hold->baton);
  hold->left = NULL;
}

/* What ap_invoke_handler does behind the hook that has suspended the request. */
static int run_handlers(request_rec* r, const char* handler) {
  const char* const usual = r->handler;
  r->handler = handler;
  const int status = ap_run_handler(r);
  r->handler = usual;
  return status == DECLINED ? HTTP_INTERNAL_SERVER_ERROR : status;
}

/* What ap_process_async_request does then. */
static void finish(request_rec* r, int status) {
  if (status == OK || status == DONE) {
    ap_finalize_request_protocol(r);
  } else {
    r->status = HTTP_OK; /* it has not been refused before */
    ap_die(status, r);
  }
  ap_process_request_after_handler(r);
}

static void go_on(struct dthrottle_hold* hold, bool served) {
  request_rec* const r = hold->r;
  conn_rec* const c = r->connection;
  const char* const handler = hold->handler;
  ap_update_child_status(c->sbh, SERVER_BUSY_WRITE, r);
  if (ap_extended_status) ap_time_process_request(c->sbh, START_PREQUEST);
  if (!served) {
    give_up(hold);
    c->aborted = 1;
  }
  dthrottle_end_hold(hold);
  c->cs->state = CONN_STATE_HANDLER;
  apr_thread_mutex_lock(r->invoke_mtx);
  const int status = served ? run_handlers(r, handler) : HTTP_REQUEST_TIME_OUT;
  if (status == SUSPENDED) c->cs->state = CONN_STATE_SUSPENDED; /* by another module */
  apr_thread_mutex_unlock(r->invoke_mtx);
  if (status != SUSPENDED) finish(r, status);
}

/* A thread has the connection again: it is the request's turn, or its client has left, or neither. */
static void take_up(struct connection* connection) {
  struct dthrottle_hold* const hold = connection->held;
  put_client(hold);
  const bool turn = dthrottle_now_ns() >= hold->turn_ns;
  if (!turn && !client_has_left(hold->r)) return;
  connection->held = NULL;
  go_on(hold, turn);
}

/* Stands around the processing of each connection, to see what has been suspended in it. */
static int process_connection(conn_rec* c) {
  if (held_max == 0 || c->master != NULL || c->cs == NULL) return DECLINED;
  struct connection* const connection = find_connection(c);
  if (connection->inside) return DECLINED;
  int status = OK;
  if (connection->held != NULL) {
    take_up(connection);
  } else {
    connection->inside = true;
    status = ap_run_process_connection(c);
    connection->inside = false;
  }
  if (connection->held != NULL) {
    put_set(connection->held);
    c->cs->state = CONN_STATE_ASYNC_WAITIO;
    c->cs->sense = CONN_SENSE_WANT_READ;
  }
  return status != DECLINED ? status : DONE;
}

/* The MPM closes a connection that waits. */
static int close_connection(conn_rec* c) {
  struct connection* const connection = ap_get_module_config(c->conn_config, &dthrottle_module);
  if (connection == NULL || connection->held == NULL) return OK;
  struct dthrottle_hold* const hold = connection->held;
  put_client(hold);
  connection->held = NULL;
  go_on(hold, false);
  return OK;
}

/* The handler that runs before all others. */
static int suspend(request_rec* r) {
  struct dthrottle_hold* const hold = ap_get_module_config(r->request_config, &dthrottle_module);
  if (hold == NULL || hold->set < 0 || dthrottle_now_ns() >= hold->turn_ns) return DECLINED;
  hold->handler = r->handler;
  find_connection(r->connection)->held = hold;
  return SUSPENDED;
}

/* ---- A hold ---- */

static void link_hold(struct dthrottle_hold* hold) {
  apr_thread_mutex_lock(set_mutex);
  hold->next = set_holds;
  hold->link = &set_holds;
  if (hold->next != NULL) hold->next->link = &hold->next;
  set_holds = hold;
  apr_thread_mutex_unlock(set_mutex);
}

static void unlink_hold(struct dthrottle_hold* hold) {
  if (hold->link == NULL) return;
  apr_thread_mutex_lock(set_mutex);
  *hold->link = hold->next;
  if (hold->next != NULL) hold->next->link = hold->link;
  hold->link = NULL;
  apr_thread_mutex_unlock(set_mutex);
}

static apr_status_t clean_up(void* baton) {
  struct dthrottle_hold* const hold = baton;
  struct connection* const connection = find_connection(hold->r->connection);
  unlink_hold(hold);
  if (connection->held == hold) { /* the process ends */
    connection->held = NULL;
    put_client(hold);
    give_up(hold);
  }
  if (hold->set >= 0) close(hold->set);
  if (hold->timer >= 0) close(hold->timer);
  ap_set_module_config(hold->r->request_config, &dthrottle_module, NULL);
  apr_atomic_dec32(&held);
  return APR_SUCCESS;
}

bool dthrottle_can_hold(request_rec* r) {
  conn_rec* const c = r->connection;
  /* Only so does the core process the request in a way that it may be suspended: not within an internal redirect. */
  const bool async =
      held_max > 0 && c->master == NULL && c->cs != NULL && !c->clogging_input_filters && r->prev == NULL;
  return async && find_connection(c)->inside && ap_auth_type(r) == NULL;
}

struct dthrottle_hold* dthrottle_begin_hold(request_rec* r) {
  if (apr_atomic_inc32(&held) >= held_max) {
    apr_atomic_dec32(&held);
    return NULL;
  }
  struct dthrottle_hold* const hold = apr_pcalloc(r->pool, sizeof *hold);
  hold->r = r;
  hold->timer = hold->set = hold->client = -1;
  apr_pool_cleanup_register(r->pool, hold, clean_up, apr_pool_cleanup_null);
  return hold;
}

void dthrottle_end_hold(struct dthrottle_hold* hold) { apr_pool_cleanup_run(hold->r->pool, hold, clean_up); }

bool dthrottle_set_hold(struct dthrottle_hold* hold, apr_interval_time_t us, void (*left)(void* baton), void* baton) {
  struct epoll_event turn = {.events = EPOLLIN}, client = {.events = EPOLLRDHUP};
  int fd = -1;
  apr_os_sock_get(&fd, ap_get_conn_socket(hold->r->connection));
  hold->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  hold->set = epoll_create1(EPOLL_CLOEXEC);
  if (hold->timer < 0 || hold->set < 0 || epoll_ctl(hold->set, EPOLL_CTL_ADD, hold->timer, &turn) != 0 ||
      epoll_ctl(hold->set, EPOLL_CTL_ADD, fd, &client) != 0) {
    return false;
  }
  hold->turn_ns = dthrottle_now_ns() + us * DTHROTTLE_NS_PER_US;
  hold->left = left;
  hold->baton = baton;
  ap_set_module_config(hold->r->request_config, &dthrottle_module, hold);
  link_hold(hold);
  return true;
}

/* ---- The process ---- */

/* The MPM counts held connections among those that it accepts up to threads * (1 + AsyncRequestWorkerFactor), of which
 * others shall have half. The factor is a setting that it tells nobody. */
static int read_worker_factor(apr_pool_t* pool, apr_pool_t* log_pool, apr_pool_t* temp_pool, server_rec* server) {
  (void)pool, (void)log_pool, (void)temp_pool, (void)server;
  worker_factor = 2;
  for (const ap_directive_t* line = ap_conftree; line != NULL; line = line->next) {
    if (strcasecmp(line->directive, "AsyncRequestWorkerFactor") == 0) worker_factor = atof(line->args);
  }
  return OK;
}

/* The process ends. The MPM ends neither the requests that are held nor their connections before. */
static apr_status_t give_all_up(void* baton) {
  (void)baton;
  for (; set_holds != NULL; set_holds = set_holds->next) {
    give_up(set_holds);
    set_holds->link = NULL;
  }
  return APR_SUCCESS;
}

void dthrottle_begin_holding(apr_pool_t* pool, int threads) {
  int waits = 0;
  apr_thread_mutex_create(&set_mutex, APR_THREAD_MUTEX_DEFAULT, pool);
  apr_pool_cleanup_register(pool, NULL, give_all_up, apr_pool_cleanup_null);
  held_max = 0;
  if (ap_mpm_query(AP_MPMQ_CAN_WAITIO, &waits) == APR_SUCCESS && waits) {
    held_max = (apr_uint32_t)(threads * (1 + worker_factor) / 2);
  }
}

void dthrottle_register_holding(void) {
  ap_hook_post_config(read_worker_factor, NULL, NULL, APR_HOOK_MIDDLE);
  ap_hook_process_connection(process_connection, NULL, NULL, APR_HOOK_REALLY_FIRST);
  ap_hook_pre_close_connection(close_connection, NULL, NULL, APR_HOOK_REALLY_FIRST);
  ap_hook_handler(suspend, NULL, NULL, APR_HOOK_REALLY_FIRST);
}
