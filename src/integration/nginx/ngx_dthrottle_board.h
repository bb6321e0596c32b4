/* Counts of each daemon in memory that all workers share and that a reload keeps, and the page that shows them. */
#ifndef NGX_DTHROTTLE_BOARD_H
#define NGX_DTHROTTLE_BOARD_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_dthrottle_daemon.h"

/* Sees to it that each of the daemons has its counts when workers start. `daemons` is of dthrottle_daemon_t* and lives
 * as long as the settings. NULL: there is no memory. */
ngx_shm_zone_t* ngx_dthrottle_board_add(ngx_conf_t* cf, ngx_module_t* module, ngx_array_t* daemons);

/* The daemons are those that the settings in force name. */
void ngx_dthrottle_board_name(const ngx_shm_zone_t* zone);

/* Answers a request with the page. */
ngx_int_t ngx_dthrottle_board_send(ngx_http_request_t* r, const ngx_shm_zone_t* zone);

#endif
