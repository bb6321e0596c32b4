/* A daemon as an nginx worker sees it: an asker (client/asker.h) with its connections, its timer and its log on nginx's
 * event loop. The asker knows what waits, what fails and when to try again. All questions of one turn of the loop go
 * out in one write, on a few connections.
 */
#ifndef NGX_DTHROTTLE_DAEMON_H
#define NGX_DTHROTTLE_DAEMON_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "client/asker.h"
#include "client/pages.h"
#include "gate.h"

#define DTHROTTLE_NS_PER_US 1000
#define DTHROTTLE_NS_PER_MS 1000000
#define DTHROTTLE_NS_PER_S 1000000000

typedef struct dthrottle_daemon_s dthrottle_daemon_t;

/* A connection of an asker's line. */
typedef struct {
  dthrottle_daemon_t* daemon;
  struct dthrottle_line* line;
  ngx_connection_t* peer; /* NULL: not connected */
  ngx_event_t flush;
} dthrottle_connection_t;

/* The settings make it; each worker has a copy of its own once it is forked. */
struct dthrottle_daemon_s {
  ngx_str_t name;
  struct sockaddr* sockaddr;
  socklen_t socklen;
  ngx_uint_t connection_count;
  ngx_flag_t asks_questions; /* by the ask protocol; a question of the asker is a line of it */
  struct dthrottle_counts* counts; /* all workers' */
  /* Called for each question that waited, when its outcome is there. The question may be gone when it returns. */
  void (*answered)(struct dthrottle_pending* question);
  dthrottle_connection_t* connections;
  struct dthrottle_asker asker;
  struct dthrottle_pages pages; /* what a worker refuses without asking */
  ngx_event_t timer; /* for the earliest deadline */
  int64_t timer_due;
};

int64_t ngx_dthrottle_now_ns(void);

/* Allocates the rest of a daemon that has an address, a protocol, a number of connections and what to call. */
ngx_int_t ngx_dthrottle_daemon_init(ngx_conf_t* cf, dthrottle_daemon_t* daemon);

/* Asks. With DTHROTTLE_ASKED the question waits, unless `question->back` says that its outcome is there already. */
enum dthrottle_asked ngx_dthrottle_daemon_ask(dthrottle_daemon_t* daemon, struct dthrottle_pending* question,
                                              ngx_msec_t timeout);

/* Sends a line of the ask protocol whose answer nobody waits for, if that can be done now. */
void ngx_dthrottle_daemon_tell(dthrottle_daemon_t* daemon, const char* line, size_t bytes);

/* A question that waits does not want its outcome any more. */
void ngx_dthrottle_daemon_forget(dthrottle_daemon_t* daemon, struct dthrottle_pending* question);

/* Ends all connections. */
void ngx_dthrottle_daemon_close(dthrottle_daemon_t* daemon);

#endif
