#include "bus/owners/levels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace dthrottle {

void Levels::FromLimiter(ToPeers& item) {
  const bool near = item.kind == ToPeers::Kind::kNear;
  const bool to_one = !near || item.to_one;
  const Peer* const peer = to_one ? members_.Numbered(item.peer) : nullptr;
  if (to_one && peer == nullptr) return;    // it has gone
  Message& m = core_.Begin(near ? MessageKind::kNear : MessageKind::kLevels, item.to);
  m.sequence = item.counted;
  m.period = core_.options.period;
  m.entries = std::move(item.entries);
  std::uint64_t hosts = 1 + item.hosts;
  for (const auto& [id, link] : members_.links()) hosts += link->peer != nullptr;
  m.hosts = hosts;
  m.owners = core_.epoch();
  const Frame frame = core_.Encoded();
  const auto send = [&](const Link& link) {
    core_.transport.Ask(link.status.link, frame);
    ++core_.counts.levels_sent;
    core_.counts.levels_bytes += frame->size();
  };
  if (to_one) return send(*peer->link);
  for (const auto& [id, link] : members_.links()) {
    if (link->peer != nullptr) send(*link);
  }
}

// How many hosts there are, now that an owner says so: the median of what owners say, the lesser one of two. So no
// owner alone decides about the tags of others, unless it is the only one that speaks. One in a new life has not seen
// all hosts yet, so what it said before stays for a while.
std::uint64_t Levels::Hosts(std::size_t owner, Instant now) {
  const Message& in = core_.in;
  const Duration period = core_.options.period;
  if (std::exchange(said_epoch_, core_.epoch()) != core_.epoch()) said_.assign(core_.owners->size(), {});
  Said& its = said_[owner];
  if (its.life != in.incarnation) its.began = its.life != 0 ? now : Instant();
  its.life = in.incarnation, its.at = now;
  core_.counts.implausible += in.hosts > kHostsMax;
  if (its.hosts == 0 || now >= its.began + 4 * period) its.hosts = std::min(in.hosts, kHostsMax);
  std::vector<std::uint64_t> heard;
  for (const Said& said : said_) {
    if (said.hosts != 0 && now - said.at <= 3 * period) heard.push_back(said.hosts);
  }
  if (heard.empty()) return 0;
  const auto median = heard.begin() + static_cast<std::ptrdiff_t>((heard.size() - 1) / 2);
  std::ranges::nth_element(heard, median);
  return *median;
}

// An owner is believed about its own tags only. One that has just begun another life knows its hosts before they know
// that: what it announces then counts as said when it comes.
void Levels::OnLevels(Peer& owner, std::size_t bytes, Instant now) {
  Message& in = core_.in;
  const auto* const owners = core_.owners.get();
  if (owners != nullptr && in.owners != owners->epoch()) return;    // by a list that is over here, or not known yet
  const auto which = owners != nullptr ? owners->Find(owner.name) : std::nullopt;
  const bool known = owner.welcome_incarnation == in.incarnation || owner.incarnation == in.incarnation;
  const bool next = in.kind == MessageKind::kNear && in.incarnation > owner.welcome_incarnation;
  const auto owns = [&](const Entry& e) { return owners->Of(in.entries.tag(e)) == *which; };
  if (!which || !(known || next) || !std::ranges::all_of(in.entries.list(), owns)) {
    ++core_.counts.implausible;
    return;
  }
  Instant to = now;
  if (known) {
    if (!owner.clock.Add(in.to, now)) ++core_.counts.implausible;
    to = owner.clock.ToOurs(in.to, now);
    owner.alive = std::max(owner.alive, now);
    if (in.period > Duration()) owner.SetPeriod(in.period);
    owner.link->last_report = now;
    owner.link->status.age = now - to;
  }
  ++owner.link->status.reports, ++core_.counts.levels_heard;
  core_.counts.received_bytes += bytes;
  owner.link->status.entries += in.entries.size();
  FromPeers item{FromPeers::Kind::kNear, to, to, 0, {}, owner.number};
  item.owner = static_cast<std::uint32_t>(*which);
  item.life = in.incarnation;
  item.period = owner.period;
  if (in.kind == MessageKind::kNear) {
    if (in.entries.empty()) return;
    item.entries = std::move(in.entries);
    return core_.to_limiter.Push(std::move(item));
  }
  Stream* const stream = streams_.Open(owner.name);
  if (stream == nullptr) return;    // what it has counted is of the stream before
  const auto until = stream->publishing->Counted(in.sequence);
  stream->counted_by = in.incarnation;
  if (!until) {
    ++core_.counts.implausible;
    return;
  }
  item.kind = FromPeers::Kind::kLevels;
  item.from = *until;
  item.entries = std::move(in.entries);
  item.hosts = Hosts(*which, now);
  core_.to_limiter.Push(std::move(item));
}

}    // namespace dthrottle
