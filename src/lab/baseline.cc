#include "lab/baseline.h"

#include <algorithm>

#include "lab/sampling.h"
#include "share/capacity/part_table.h"

namespace dthrottle::lab {
namespace {

constexpr double kNewest = 0.5;    // the weight of the last period

double At(const Demands& demands, std::size_t tag) {
  return tag < demands.size() ? demands[tag] : 0;
}

}    // namespace

double Baseline::All(std::uint32_t host, TagNumber tag) const {
  double all = 0;
  for (const Demands& demands : heard_[host]) all += At(demands, tag);
  return all;
}

bool Baseline::Serves(std::uint32_t host, TagNumber tag, const Shape& shape, Cost cost, WorldTime now) {
  Demands& asked = asked_[host];
  if (asked.size() <= tag) asked.resize(tag + 1);
  asked[tag] += static_cast<double>(cost);
  const double all = All(host, tag);
  if (kind_ == BaselineKind::kGrd) return !(all > shape.rate()) || Uniform(prng_) < shape.rate() / all;
  if (buckets_.size() <= tag) buckets_.resize(tag + 1, std::vector<Bucket>(hosts_));
  const double part = all > 0 ? At(heard_[host][host], tag) / all : 1 / static_cast<double>(hosts_);
  const Shape own = PartOf(shape, part);
  const Instant at(now.time_since_epoch());
  Bucket& bucket = buckets_[tag][host] = buckets_[tag][host].WithoutDebt(own, at);
  return bucket.Take(own, cost, at);
}

std::shared_ptr<const Demands> Baseline::Tell(std::uint32_t host) {
  Demands& known = heard_[host][host];
  Demands& asked = asked_[host];
  known.resize(std::max(known.size(), asked.size()));
  for (std::size_t tag = 0; tag < known.size(); ++tag) {
    known[tag] += kNewest * (At(asked, tag) / Seconds(period_) - known[tag]);
  }
  std::ranges::fill(asked, 0);
  return std::make_shared<const Demands>(known);
}

}    // namespace dthrottle::lab
