#include "tls/context.h"

#include <openssl/err.h>

#include <cstring>

namespace dthrottle {

namespace {

auto FailOf(const std::string& file) {
  const unsigned long error = ERR_peek_error();
  const char* reason = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
  std::string said = file + ": " + (reason == nullptr ? "not a PEM file that can be used" : reason);
  ERR_clear_error();
  return Fail(std::move(said));
}

}    // namespace

Result<TlsContext> MakeTlsContext(const TlsFiles& files) {
  ERR_clear_error();
  TlsContext tls(SSL_CTX_new(TLS_server_method()));
  if (tls == nullptr) return FailOf("TLS");
  SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(tls.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(tls.get(), SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);    // a line ends by its LF
  SSL_CTX_set_default_passwd_cb(tls.get(), [](char*, int, int, void*) { return 0; });    // nobody is there to be asked
  if (SSL_CTX_use_certificate_chain_file(tls.get(), files.certificate.c_str()) != 1) return FailOf(files.certificate);
  if (SSL_CTX_use_PrivateKey_file(tls.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) return FailOf(files.key);
  if (files.client_ca.empty()) return tls;
  if (SSL_CTX_load_verify_file(tls.get(), files.client_ca.c_str()) != 1) return FailOf(files.client_ca);
  SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Sessions that are taken up again belong to one set of files.
  SSL_CTX_set_session_id_context(tls.get(), reinterpret_cast<const unsigned char*>("dthrottle"), 9);
  return tls;
}

}    // namespace dthrottle
