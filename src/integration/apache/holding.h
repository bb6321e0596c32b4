/* Holds requests without a thread, where the MPM waits for connections on behalf of modules: event, since httpd 2.4.63.
 *
 * A handler may suspend its request, but httpd 2.4 has nothing that takes a suspended connection up again. It does wait
 * until the socket of a connection may be read, and then has a thread process it (CONN_STATE_ASYNC_WAITIO). So while a
 * request is held, its connection's apr_socket_t stands for another descriptor: an epoll set that may be read at the
 * request's turn, and when its client hangs up. The thread that comes then puts the own descriptor back and runs the
 * handlers. All else stays httpd's: keep-alive, pipelined requests, bodies, writing what is left, restarts.
 */
#ifndef DTHROTTLE_APACHE_HOLDING_H
#define DTHROTTLE_APACHE_HOLDING_H

#include <apr_time.h>
#include <httpd.h>
#include <stdbool.h>

enum { DTHROTTLE_NS_PER_US = 1000 };

/* A request that is held, or may be. It lives as long as the request. */
struct dthrottle_hold;

/* For the process that reads settings, and for a child process that begins. When `pool` ends, all that has been set is
 * given up; what `left` needs for that must be there still. */
void dthrottle_register_holding(void);
void dthrottle_begin_holding(apr_pool_t* pool, int threads);

/* Whether this request can be held so. Else only its thread can: another MPM, a stream of HTTP/2, an internal redirect, or
 * a request for which Apache itself asks for a password, as it does that before the handler. */
bool dthrottle_can_hold(request_rec* r);

/* Takes one of the places of this process for a request that can be held; NULL: none is left. */
struct dthrottle_hold* dthrottle_begin_hold(request_rec* r);

/* Its place is another's. What has been set is forgotten. */
void dthrottle_end_hold(struct dthrottle_hold* hold);

/* The request waits for `us` from now on before its handler runs. If its client hangs up meanwhile, `left` is called with
 * `baton`, and the request ends with 408. False, and nothing is set: there are no descriptors. */
bool dthrottle_set_hold(struct dthrottle_hold* hold, apr_interval_time_t us, void (*left)(void* baton), void* baton);

#endif
