#include "carrier/list.h"

#include <fmt/format.h>

#include "carrier/nats/nats_carrier.h"

namespace dthrottle {

namespace {

struct Listed {
  PeerTransport transport;
  Result<void> (*check)(const Settings&);
  MakeCarrier (*make)(const Settings&);
};

constexpr Listed kWays[] = {
    {PeerTransport::kZeroMq, [](const Settings&) { return Result<void>(); }, [](const Settings&) { return MakeCarrier(); }},
    {PeerTransport::kNats, NatsCarrier::Check, NatsCarrier::For},
};

const Listed* ListedFor(const Settings& settings) {
  for (const Listed& way : kWays) {
    if (way.transport == settings.peers.transport) return &way;
  }
  return nullptr;
}

}    // namespace

Result<void> CheckCarrier(const Settings& settings) {
  if (!settings.peers.enabled()) return {};
  const Listed* const way = ListedFor(settings);
  if (way == nullptr) {
    return Fail(fmt::format("peers.transport = \"{}\": this program was built without it", Name(settings.peers.transport)));
  }
  return way->check(settings);
}

MakeCarrier CarrierOf(const Settings& settings) {
  const Listed* const way = ListedFor(settings);
  return way != nullptr ? way->make(settings) : MakeCarrier();
}

}    // namespace dthrottle
