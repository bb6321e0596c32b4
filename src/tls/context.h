// What TLS begins with: a certificate, its key, and who may have signed those of clients (section [tls] of the settings).
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace dthrottle {

struct TlsFiles {
  std::string certificate, key;    // paths of PEM files
  std::string client_ca;           // authorities of which one signed a client's certificate; empty: clients need none
};

struct FreeTlsContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTlsContext>;

// A server's, of TLS 1.2 or later, or which file is why there is none.
Result<TlsContext> MakeTlsContext(const TlsFiles& files);

}    // namespace dthrottle
