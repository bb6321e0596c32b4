/* Counts of each daemon in memory that all processes share and that a restart within the server keeps, and what shows
 * them: a page for Prometheus (SetHandler dthrottle-metrics) and a section of mod_status.
 */
#ifndef DTHROTTLE_APACHE_BOARD_H
#define DTHROTTLE_APACHE_BOARD_H

#include <httpd.h>

#include "gate.h"

void dthrottle_register_board(void);

/* The board of this server process, which outlives its settings and on which they name no daemon yet; NULL: there is no
 * memory. For the process that reads settings. */
struct dthrottle_board* dthrottle_open_board(apr_pool_t* process_pool);

#endif
