#include "io/libcurl.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace dthrottle {

namespace {

constexpr const char* kFile = "libcurl.so.4";

// OpenSSL cleans up at exit unless its first user says otherwise, and a module that uses it too may have threads that
// go on until then (carrier/nats/module.cc). So it stays until the process is gone.
void KeepOpenSsl(void* library) {
  constexpr std::uint64_t kNoAtExit = 0x00080000;    // OPENSSL_INIT_NO_ATEXIT
  using Init = int (*)(std::uint64_t, const void*);
  const auto init = reinterpret_cast<Init>(::dlsym(library, "OPENSSL_init_crypto"));
  if (init != nullptr) init(kNoAtExit, nullptr);    // a libcurl with another library has none
}

Result<LibCurl> OpenLibCurl() {
  void* const library = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(::dlerror());
  KeepOpenSsl(library);
  LibCurl curl{};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    // POSIX has it that a pointer to a function comes back as one to data.
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(curl.global_init, "curl_global_init");
  find(curl.slist_append, "curl_slist_append");
  find(curl.slist_free_all, "curl_slist_free_all");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.multi_init, "curl_multi_init");
  find(curl.multi_setopt, "curl_multi_setopt");
  find(curl.multi_assign, "curl_multi_assign");
  find(curl.multi_add_handle, "curl_multi_add_handle");
  find(curl.multi_remove_handle, "curl_multi_remove_handle");
  find(curl.multi_socket_action, "curl_multi_socket_action");
  find(curl.multi_info_read, "curl_multi_info_read");
  find(curl.multi_cleanup, "curl_multi_cleanup");
  if (!missing.empty()) return Fail(std::string(kFile) + " has no " + missing);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return Fail(std::string(kFile) + " does not start");
  return curl;
}

}    // namespace

Result<const LibCurl*> LoadLibCurl() {
  static const Result<LibCurl> loaded = OpenLibCurl();
  if (!loaded) return tl::unexpected(loaded.error());
  return &*loaded;
}

}    // namespace dthrottle
