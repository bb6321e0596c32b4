#include "capacity/exchange_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr unsigned kEpochBits = 16;    // of a life's number that count lives within one start

}    // namespace

CapacityCore::CapacityCore(const CapacityExchange::Options& options, CapacitySettings settings,
                           CapacityTransport& transport, BootInstant now)
    : members(options.name, std::move(settings), now),
      witness(Witness::Decode(options.saved).value_or(Witness::Saved()), now),
      transport_(transport) {
  DT_CHECK(options.incarnation < std::uint64_t{1} << (64 - kEpochBits));
  life.epoch = options.incarnation << kEpochBits;
  generation.reserve = std::min(witness.saved().reserve, ReserveParts(members.wanted()));
  UseSettings();
  UpdateStanding();
}

CapacityMessage& CapacityCore::Fresh(CapacityKind kind) {
  out_.Clear();
  out_.kind = kind;
  out_.host = members.self();
  out_.generation = generation.number;
  out_.epoch = life.epoch;
  return out_;
}

const std::string& CapacityCore::Encoded() {
  EncodeCapacity(out_, frame_);
  return frame_;
}

void CapacityCore::Send(std::string_view to, const std::string& bytes) {
  ++counts.sent;
  counts.sent_bytes += bytes.size();
  transport_.Send(to, bytes);
}

void CapacityCore::SendAll(const std::vector<std::string>& names) {
  const std::string& bytes = Encoded();
  for (const std::string& name : names) {
    if (!members.IsSelf(name)) Send(name, bytes);
  }
}

void CapacityCore::Acknowledge(const CapacityPeer& p, const CapacityMessage& m) {
  CapacityMessage& reply = Fresh(CapacityKind::kHave);
  reply.to_epoch = m.epoch;
  reply.answered = static_cast<std::uint64_t>(m.kind);
  reply.sequence = m.sequence;
  Send(p.name);
}

Parts CapacityCore::OwnShare() const {
  return generation.reserve + (generation.participants.Has(members.SelfNumber()) ? generation.base : 0);
}

void CapacityCore::UpdateStanding() {
  standing.reserve = generation.reserve;
  standing.other = generation.reserve + (generation.joined() ? SeatParts() : 0);
  const std::size_t here = generation.participants.Count();
  standing.hosts = here;
  standing.absent = generation.joined() ? members.active().members.size() - here : 0;
  standing.divided = here * generation.base;
  standing.aside = generation.aside;
  standing.kept_until = generation.kept_until;
  standing.rests_until = generation.rests_until;
  standing.valid_until = !generation.running() ? BootInstant::min()
                         : without.lease       ? BootInstant::max()
                                               : life.leased_until;
}

}    // namespace dthrottle
