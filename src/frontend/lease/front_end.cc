#include "frontend/lease/front_end.h"

#include "admin/admin.h"
#include "io/fresh.h"
#include "lease/address.h"

namespace dthrottle {

FrontEnd::Room LeaseFrontEnd::room() const {
  return {{host_.admin.settings().lease.max_connections, 2}};
}

void LeaseFrontEnd::Start() {
  leasing_.emplace(host_.loop, host_.admin.settings(), host_.log, FreshPrng().Next());
  leasing_->Resume(host_.handed.Take("leases").bytes);
  leasing_->TakeParts(host_.part_for_leases);
  leasing_->Campaign(Address());
  host_.leases = [this](std::string_view resource) { return leasing_->Status(resource); };
}

// Where other hosts find this one if it is master: where it listens, unless the settings say something else.
std::string LeaseFrontEnd::Address() const {
  const std::string& said = host_.admin.settings().lease.address;
  std::string line(lease::LineAddress(said)), grpc(lease::GrpcAddress(said));
  const auto tcp = [this](std::string_view listener) {
    std::string address = host_.address_of(listener);
    return address.erase(0, std::string_view("tcp:").size());
  };
  if (line.empty()) line = host_.address_of("lease.tcp");
  if (line.empty()) line = lease::TlsAddress(tcp("tls.tcp"));
  if (line.empty()) line = host_.address_of("lease.unix");
  if (grpc.empty()) grpc = tcp("grpc.tcp");
  return lease::JoinAddresses(line, grpc);
}

void LeaseFrontEnd::Count(ProcessCounts& counts) const {
  const LeaseSocket& lines = leasing_->lines();
  counts.lease = leasing_->Counts();
  CountSockets(lines.counts().accepted.Read(), counts.lease);
  counts.idle_closed += lines.counts().idle_closed.Read();
  counts.stalled += lines.counts().stalled.Read();
  counts.spoke_http += lines.spoke_http();
}

void LeaseFrontEnd::Keep(std::vector<HandedSection>& sections) const {
  sections.push_back({"leases", -1, leasing_->Keep()});
}

// A mastership that was elected is given away: another host may grant meanwhile.
void LeaseFrontEnd::Leave(std::function<void()> done) {
  leasing_->elected() ? leasing_->Resign(std::move(done)) : done();
}

void LeaseFrontEnd::Return() {
  if (leasing_->elected()) leasing_->Campaign(Address());
}

}    // namespace dthrottle
