#include "share/accuracy/accuracy.h"

namespace dthrottle {

namespace {

void CertifyTag(LimiterCore& core, Certificate& certificate, std::size_t place, std::uint64_t hash, Instant now) {
  Table::Shard shard(*core.table, hash);
  const TagLook before = certificate.tag(place).look;
  const Slot* const slot = shard.Find(certificate.tag(place).kept.tag(), now);
  if (slot == nullptr) {    // as good as full
    certificate.Look(place, {before.counter, before.burst, before.burst, before.rate}, now);
    return;
  }
  const Limit& limit = core.limit(slot->limit);
  if (!limit.shared) return certificate.Forget(place);
  certificate.Look(place, TagLookOf(core, limit, slot->bucket.Level(limit.shape, now)), now);
}

}    // namespace

TagLook TagLookOf(const LimiterCore& core, const Limit& limit, Tokens level) {
  return {core.tally.counter(limit.rule), level, limit.shape.burst(), limit.shape.rate()};
}

void Certify(LimiterCore& core, Certificate& certificate, const std::function<std::uint64_t(std::size_t)>& heard_of,
             Instant now) {
  if (core.window == 0 || !certificate.Due(now)) return;
  certificate.Begin(now);
  for (std::size_t place = 0; place < certificate.places(); ++place) {
    if (const std::uint64_t hash = certificate.HashAt(place); hash != 0) {
      CertifyTag(core, certificate, place, hash, now);
    }
  }
  const auto& rules = core.rules->rules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!core.limit(static_cast<LimitIndex>(i)).shared) continue;
    const std::size_t counter = core.tally.counter(i);
    certificate.Close(i, counter, heard_of(counter), rules[i].tolerance);
  }
}

}    // namespace dthrottle
