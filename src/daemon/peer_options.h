// What the thread between hosts needs to know, from the settings, the rules, the keys and the list of owners.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "io/etcd_owners.h"
#include "io/log.h"
#include "io/part.h"
#include "io/peer_thread.h"
#include "limiter/limiter.h"

namespace dthrottle {

// Whom this host calls: addresses, or over NATS names. `list`: that of etcd; null: the settings have it.
std::vector<std::string> Called(const Settings& settings, const OwnerAddresses* list);

// The life begins anew, with a number of its own. The caller adds what it goes on with, and log, wake and tenants.
// Fails with a sentence for people, which names the setting.
tl::expected<PeerThread::Options, StartFailure> MakePeerOptions(const Settings& settings, Limiter& limiter, Log& log,
                                                                const OwnerAddresses* list, std::uint64_t seed);

}    // namespace dthrottle
