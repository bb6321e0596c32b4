#include "board.h"

#include <apr_optional_hooks.h>
#include <apr_shm.h>
#include <apr_strings.h>
#include <http_config.h>
#include <http_protocol.h>
#include <mod_status.h>
#include <stdbool.h>
#include <string.h>

static struct dthrottle_board* board;

/* SetHandler dthrottle-metrics */
static int send_metrics(request_rec* r) {
  if (r->handler == NULL || strcmp(r->handler, "dthrottle-metrics") != 0) return DECLINED;
  if (r->method_number != M_GET) return HTTP_METHOD_NOT_ALLOWED;
  char* const page = apr_palloc(r->pool, DTHROTTLE_PAGE_BYTES);
  const size_t bytes = dthrottle_write_page("apache", board, page);
  ap_set_content_type(r, "text/plain; version=0.0.4; charset=utf-8");
  ap_set_content_length(r, (apr_off_t)bytes);
  if (!r->header_only) ap_rwrite(page, (int)bytes, r);
  return OK;
}

/* A section of mod_status: a line for each daemon, or with ?auto a line for each count. */
static int add_status(request_rec* r, int flags) {
  const bool brief = (flags & AP_STATUS_SHORT) != 0;
  if (!brief) ap_rputs("<hr />\n<h1>dthrottle</h1>\n<dl>\n", r);
  for (size_t i = 0; i < board->count; i++) {
    const struct dthrottle_board_entry* const entry = &board->entries[i];
    const apr_uint64_t failed = __atomic_load_n(&entry->counts.last_failure, __ATOMIC_RELAXED);
    const char* const state = failed == 0 ? "up" : dthrottle_failure_name((enum dthrottle_failure)(failed - 1));
    const char* const name = ap_escape_html(r->pool, entry->name);
    const bool named = __atomic_load_n(&entry->named, __ATOMIC_RELAXED);
    if (!brief) {
      ap_rprintf(r, "<dt>%s%s%s</dt>\n<dd>", name, named ? ": " : "", named ? state : "");
    } else if (named) {
      ap_rprintf(r, "Dthrottle %s: %s\n", entry->name, state);
    }
    for (int fate = DTHROTTLE_FATE_SERVED; fate < DTHROTTLE_FATES; fate++) {
      const char* const fate_name = dthrottle_fate_name((enum dthrottle_fate)fate);
      const apr_uint64_t count = __atomic_load_n(&entry->counts.fates[fate], __ATOMIC_RELAXED);
      if (brief) {
        ap_rprintf(r, "Dthrottle %s %s: %" APR_UINT64_T_FMT "\n", entry->name, fate_name, count);
      } else {
        ap_rprintf(r, "%s %" APR_UINT64_T_FMT " ", fate_name, count);
      }
    }
    if (!brief) ap_rputs("</dd>\n", r);
  }
  if (!brief) ap_rputs("</dl>\n", r);
  return OK;
}

struct dthrottle_board* dthrottle_open_board(apr_pool_t* process_pool) {
  static const char key[] = "dthrottle-board";
  void* found = NULL;
  apr_shm_t* memory = NULL;
  apr_pool_userdata_get(&found, key, process_pool);
  board = found;
  if (board != NULL) {
    dthrottle_board_begin(board);
    return board;
  }
  if (apr_shm_create(&memory, sizeof *board, NULL, process_pool) != APR_SUCCESS) return NULL;
  board = memset(apr_shm_baseaddr_get(memory), 0, sizeof *board);
  apr_pool_userdata_set(board, key, apr_pool_cleanup_null, process_pool);
  return board;
}

void dthrottle_register_board(void) {
  ap_hook_handler(send_metrics, NULL, NULL, APR_HOOK_MIDDLE);
  APR_OPTIONAL_HOOK(ap, status_hook, add_status, NULL, NULL, APR_HOOK_MIDDLE);
}
