// The section [envoy] of the settings.
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section EnvoySection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "envoy",
      "Envoy's services for rate limits and quotas, over gRPC; see dthrottle-protocol(7). Quotas are leases, of what "
      "[[resource]] says. Nobody listens unless there is an address.",
      {
          Address<S>("tcp", "\"\"", false, MEMBER(S, envoy.tcp),
                     "The TCP address for Envoy. The program dthrottle-grpc speaks gRPC there. Encrypted with "
                     "a certificate in [tls]; otherwise there is no password and nothing is. Port 0 takes any free port "
                     "and logs it."),
          Reloads(Integer<S>("max_connections", "1024", 1, 1'000'000, MEMBER(S, envoy.max_connections),
                             "The most connections at once. One more is closed at once, and counted. Each worker thread "
                             "of an Envoy has one.")),
          Reloads(Integer<S>("max_calls", "1000", 1, 100'000, MEMBER(S, envoy.max_calls),
                             "The most calls that wait at once. One more fails, which Envoy takes as its "
                             "*failure_mode_deny* says, and is counted.")),
          DurationKey<S>("idle_timeout", "\"0s\"", 0s, 24h * 365, MEMBER(S, envoy.idle_timeout),
                         "A connection without calls is closed after so long, for which each call costs a tenth more; "
                         "with \"0s\" none is. One whose other end is gone without a word ends in either case."),
          Reloads(Choice<S, HttpHeaders>(
              "headers", "\"draft-10\"", MEMBER(S, envoy.headers),
              "How responses to the clients of Envoy state the limit: \"draft-10\", in RateLimit-Policy and RateLimit; "
              "\"draft-03\", in X-RateLimit-Limit, -Remaining and -Reset; \"both\"; or \"off\". A refusal has "
              "Retry-After too, unless they are off.")),
      }};
}

}    // namespace dthrottle
