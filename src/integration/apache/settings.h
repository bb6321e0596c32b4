/* The directives of the module for Apache, and what they say: of a directory or a location, and of daemons. */
#ifndef DTHROTTLE_APACHE_SETTINGS_H
#define DTHROTTLE_APACHE_SETTINGS_H

#include <ap_expr.h>
#include <http_config.h>
#include <httpd.h>
#include <stdbool.h>

#include "client/dthrottle.h"
#include "gate.h"

enum { DTHROTTLE_UNSET = -1 };

/* A daemon. The settings make it, a child opens it. */
struct daemon {
  const char* address;
  bool asks_questions;          /* by the ask protocol */
  dthrottle* handle;            /* NULL before the child begins */
  volatile apr_uint32_t logged; /* the second of the last line about a failure */
  struct dthrottle_counts* counts;
};

/* A tag as the settings have it. */
struct tag_conf {
  const ap_expr_info_t* text; /* NULL: the client's address */
  apr_uint32_t cost;
  bool names_user; /* it is known when the password has been checked */
};

/* What holds in a directory or a location; DTHROTTLE_UNSET or NULL: nothing has been said. */
struct dir_conf {
  int enable, shadow, fail_closed, status, timeout_ms;
  int delay_ms; /* a request is rather held so long than refused */
  int fields; /* enum dthrottle_fields */
  apr_array_header_t* tags;
  struct daemon *server, *ask;
};

extern const command_rec dthrottle_commands[];

void* dthrottle_create_dir_conf(apr_pool_t* pool, char* dir);
void* dthrottle_merge_dir_conf(apr_pool_t* pool, void* base_conf, void* new_conf);

void dthrottle_register_settings(void);

/* The daemons that the settings name, of struct daemon*, by address: all locations that name one share it. Each reading
 * makes them anew. */
const apr_array_header_t* dthrottle_daemons(void);

/* The daemon that the settings name, by either protocol; the query protocol asks for one tag and one token. */
struct daemon* dthrottle_daemon_of(const struct dir_conf* conf);

#endif
