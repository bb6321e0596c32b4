// The section [tls] of the settings.
#include <fmt/format.h>

#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"
#include "lease/address.h"

namespace dthrottle {

Section TlsSection() {
  using S = Settings;
  return {
      "tls",
      "Certificates for *lease.tls*, *lease.grpc* and *envoy.tcp*. With *certificate_file* and *key_file* every "
      "connection to them is encrypted by TLS 1.2 or later, and with *client_ca_file* a client needs a certificate too. "
      "The files are PEM. New files are in force for new connections within some seconds, once they can be used "
      "together. Until then, such as while the key of a new certificate is missing, the ones before stay in force, and "
      "the log says so.",
      {
          Text<S>("certificate_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, tls.certificate_file),
                  "The certificate of this host, followed by those of the authorities between it and the root that "
                  "clients know. Without it nothing is encrypted.",
                  IsPath),
          Text<S>("key_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, tls.key_file),
                  "Its private key, without a password. The user that the daemon runs as has to be able to read it.",
                  IsPath),
          Text<S>("client_ca_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, tls.client_ca_file),
                  "Certificates of the authorities of which one must have signed a client's certificate. Without it "
                  "clients need none.",
                  IsPath),
      }};
}

void CheckTlsFiles(Findings& f) {
  const auto& s = f.settings();
  if (s.tls.certificate_file.empty() != s.tls.key_file.empty()) {
    const bool no_key = s.tls.key_file.empty();
    f.Error(no_key ? "tls.certificate_file" : "tls.key_file",
            fmt::format("tls.{} is \"\": must be a path too", no_key ? "key_file" : "certificate_file"));
  }
  if (!s.tls.client_ca_file.empty() && !s.tls.enabled()) {
    f.Error("tls.client_ca_file", "tls.certificate_file is \"\": must be a path with tls.client_ca_file");
  }
  if (s.lease.tls.enabled() && !s.tls.enabled()) {
    f.Error("lease.tls", fmt::format("tls.certificate_file is \"\": must be a path with lease.tls = \"{}\"",
                                     FormatEndpoint(s.lease.tls)));
  }
  const Endpoint& grpc = s.lease.grpc;
  const bool anywhere = grpc.host == "0.0.0.0" || grpc.host == "::";
  if (s.lease.elector != LeaseElector::kNone && anywhere && lease::GrpcAddress(s.lease.address).empty()) {
    f.Error("lease.grpc", fmt::format("lease.address is \"{}\": must have grpc:HOST:PORT where others reach this host, "
                                      "since lease.grpc = \"{}\" is every address",
                                      s.lease.address, FormatEndpoint(grpc)));
  }
}

}    // namespace dthrottle
