#include "ngx_dthrottle_board.h"

#define DTHROTTLE_ZONE_PAGES 8

/* What the settings in force name keeps its place, since these may not come into force. */
static ngx_int_t dthrottle_init_zone(ngx_shm_zone_t* zone, void* old) {
  ngx_slab_pool_t* pool = (ngx_slab_pool_t*)zone->shm.addr;
  ngx_array_t* daemons = zone->data;
  dthrottle_daemon_t** all = daemons->elts;
  ngx_uint_t i, shared = 0;
  if (old == NULL && !zone->shm.exists) pool->data = ngx_slab_calloc(pool, sizeof(struct dthrottle_board));
  if (pool->data == NULL) return NGX_ERROR;
  dthrottle_board_read(pool->data);
  for (i = 0; i < daemons->nelts; i++) {
    dthrottle_board_find(pool->data, (const char*)all[i]->name.data, all[i]->name.len);
  }
  for (i = 0; i < daemons->nelts; i++) {
    all[i]->counts = dthrottle_board_make(pool->data, (const char*)all[i]->name.data, all[i]->name.len);
    shared += dthrottle_board_shares(pool->data, all[i]->counts);
  }
  if (shared > 0) {
    ngx_log_error(NGX_LOG_WARN, zone->shm.log, 0,
                  "dthrottle: more than %d daemons: %ui of them are counted together, as \"others\"",
                  DTHROTTLE_BOARD_MAX, shared);
  }
  return NGX_OK;
}

void ngx_dthrottle_board_name(const ngx_shm_zone_t* zone) {
  const ngx_slab_pool_t* pool = (const ngx_slab_pool_t*)zone->shm.addr;
  const ngx_array_t* daemons = zone->data;
  dthrottle_daemon_t* const* all = daemons->elts;
  ngx_uint_t i;
  dthrottle_board_begin(pool->data);
  for (i = 0; i < daemons->nelts; i++) dthrottle_board_name(pool->data, all[i]->counts);
}

ngx_shm_zone_t* ngx_dthrottle_board_add(ngx_conf_t* cf, ngx_module_t* module, ngx_array_t* daemons) {
  static ngx_str_t name = ngx_string("dthrottle");
  ngx_shm_zone_t* zone = ngx_shared_memory_add(cf, &name, DTHROTTLE_ZONE_PAGES * ngx_pagesize, module);
  if (zone == NULL) return NULL;
  zone->init = dthrottle_init_zone;
  zone->data = daemons;
  return zone;
}

ngx_int_t ngx_dthrottle_board_send(ngx_http_request_t* r, const ngx_shm_zone_t* zone) {
  static ngx_str_t type = ngx_string("text/plain; version=0.0.4; charset=utf-8");
  const ngx_slab_pool_t* pool = (const ngx_slab_pool_t*)zone->shm.addr;
  ngx_http_complex_value_t page;
  ngx_memzero(&page, sizeof(page));
  page.value.data = ngx_palloc(r->pool, DTHROTTLE_PAGE_BYTES);
  if (page.value.data == NULL) return NGX_HTTP_INTERNAL_SERVER_ERROR;
  page.value.len = dthrottle_write_page("nginx", pool->data, (char*)page.value.data);
  return ngx_http_send_response(r, NGX_HTTP_OK, &type, &page);
}
