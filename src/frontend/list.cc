#include "frontend/list.h"

#include "frontend/admin/front_end.h"
#include "frontend/ask/front_end.h"
#include "frontend/envoy/front_end.h"
#include "frontend/grpc/front_end.h"
#include "frontend/http/front_end.h"
#include "frontend/lease/front_end.h"
#include "frontend/line/front_end.h"
#include "frontend/page/front_end.h"
#include "frontend/resp/front_end.h"
#include "frontend/spop/front_end.h"
#include "frontend/tls/front_end.h"

namespace dthrottle {

// Query lines come last: their threads cannot be taken back when another front end fails to start.
std::vector<std::unique_ptr<FrontEnd>> MakeFrontEnds(FrontEndHost& host) {
  std::vector<std::unique_ptr<FrontEnd>> all;
  all.push_back(std::make_unique<HttpFrontEnd>(host));
  all.push_back(std::make_unique<RespFrontEnd>(host));
  all.push_back(std::make_unique<AskFrontEnd>(host));
  all.push_back(std::make_unique<SpopFrontEnd>(host));
  PageFrontEnd::AddBoth(host, all);
  auto lease = std::make_unique<LeaseFrontEnd>(host);
  all.push_back(std::make_unique<GrpcFrontEnd>(host, *lease));
  all.push_back(std::make_unique<TlsFrontEnd>(host, *lease));
  all.push_back(std::make_unique<EnvoyFrontEnd>(host, *lease));
  all.push_back(std::move(lease));
  all.push_back(std::make_unique<AdminFrontEnd>(host));
  all.push_back(std::make_unique<LineFrontEnd>(host));
  return all;
}

Result<void> CheckFrontEnds(const Settings& settings) {
  if (auto good = GrpcFrontEnd::Check(settings); !good) return good;
  if (auto good = TlsFrontEnd::Check(settings); !good) return good;
  if (auto good = EnvoyFrontEnd::Check(settings); !good) return good;
  return {};
}

}    // namespace dthrottle
