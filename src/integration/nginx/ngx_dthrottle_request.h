/* A request that is asked for: the phase, the header fields and the variables. */
#ifndef NGX_DTHROTTLE_REQUEST_H
#define NGX_DTHROTTLE_REQUEST_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_dthrottle_daemon.h"

#define DTHROTTLE_TAG_BYTES_MAX 4096 /* longer tags are cut, so they fit, and are throttled together */

/* A tag as the settings have it. */
typedef struct {
  ngx_http_complex_value_t text;
  uint32_t cost;
} dthrottle_tag_conf_t;

typedef struct {
  ngx_flag_t enable;
  ngx_flag_t shadow;
  ngx_flag_t fail_closed; /* what gets no answer is refused */
  ngx_array_t* tags; /* of dthrottle_tag_conf_t */
  ngx_uint_t status;
  ngx_uint_t fields; /* enum dthrottle_fields */
  ngx_msec_t timeout;
  ngx_msec_t delay; /* a request is rather held so long than refused; 0: it is not */
  ngx_uint_t log_level;
  dthrottle_daemon_t* server; /* that the settings name, for the query protocol; NULL: none */
  dthrottle_daemon_t* ask;    /* the same for the ask protocol, which goes before */
  dthrottle_daemon_t* daemon; /* that is asked, where `enable` is on */
} dthrottle_loc_conf_t;

extern ngx_module_t ngx_http_dthrottle_module;

/* A tag is one line without blanks, whatever clients put into it. */
void ngx_dthrottle_clean_tag(ngx_str_t* tag);

/* The handler of the preaccess phase. */
ngx_int_t ngx_dthrottle_handle(ngx_http_request_t* r);

/* A daemon's answer lets its request go on: dthrottle_daemon_t::answered. */
void ngx_dthrottle_go_on(struct dthrottle_pending* question);

ngx_int_t ngx_dthrottle_add_variables(ngx_conf_t* cf);

#endif
