// The list of ways of sharing. A limit belongs to the first way that has it, and to this host alone if none has.
// Deleting a folder and the lines that name it here removes a way.
#pragma once

#include "share/share.h"

#include "share/capacity/division.h"
#include "share/debit/debits.h"
#include "share/forecast/forecasting.h"
#include "share/inspection.h"
#include "share/quota/quota_sharing.h"

namespace dthrottle {

using WaysInOrder = WayList<    //
    Forecasting,                // share/forecast/, before debit, because it has some of its limits where it watches
    Debits,                     // share/debit/
    QuotaSharing,               // share/quota/: counts of quotas, no way of deciding
    Division>;                  // share/capacity/

class Ways final : public WaysInOrder {
 public:
  explicit Ways(LimiterCore& core) : WaysInOrder(core, *this) {}

  ShareStatus Status() const {
    ShareStatus status;
    Each([&](const auto& way) { way.AddStatus(status); });
    return status;
  }
};

}    // namespace dthrottle
