// libcurl's functions, found when they are first wanted. The library brings some 30 others along, which would cost every
// start of the daemon 7 ms, and so every upgrade, while few hosts elect a master.
#pragma once

#define CURL_DISABLE_TYPECHECK    // macros in the way of the names
#include <curl/curl.h>

#include "base/result.h"

namespace dthrottle {

struct LibCurl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_assign) multi_assign;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_socket_action) multi_socket_action;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_cleanup) multi_cleanup;
};

// Loads the library on the first call, for good. On any thread; later calls are quick.
Result<const LibCurl*> LoadLibCurl();

}    // namespace dthrottle
