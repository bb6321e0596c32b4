#include "bus/message.h"

namespace dthrottle {

void Message::Clear() {
  kind = {};
  sender.clear();
  incarnation = sequence = ring_low = snapshot = 0;
  from = to = {};
  period = {};
  hits = owners = stream = hosts = parts = 0;
  told = {};
  last = false;
  text.clear();
  site.clear();
  ranges.clear();
  names.list.clear();
  before.list.clear();
  positions.clear();
  entries.Clear();
}

}    // namespace dthrottle
