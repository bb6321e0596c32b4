// Safety rules that an exchange can leave out, so that simulations show what each is for (ExchangeState::LeaveOut).
#pragma once

namespace dthrottle {

struct CapacityAblation {
  bool lease = false;       // a share is used without one
  bool log = false;         // gifts are told to neighbours before the best friend knows of them
  bool promises = false;    // a generation begins when a majority has promised, though others still use the old one
  bool fences = false;      // a best friend inherits when it hears nothing, without asking witnesses
  bool patience = false;    // witnesses call a life over without waiting for its lease to end
  bool one_gift = false;    // more than one gift is under way on an edge
};

}    // namespace dthrottle
