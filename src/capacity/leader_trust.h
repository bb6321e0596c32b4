// How long hosts were in trouble while they left it to one witness to begin a generation. A witness that lies could
// keep them at their reserves for ever, so it is passed over in the end, and the next one leads.
//
// Rounds in trouble count in full and are forgiven slowly, so that trouble with short breaks adds up as well. A witness
// that is trusted again and leads into trouble again is passed over for twice as long. Each host judges for itself: a
// witness that is passed over without guilt, because of the network, costs nothing but the lead.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace dthrottle {

class LeaderTrust {
 public:
  static constexpr int kPatience = 4;    // times the patience: trouble until a witness is passed over

  bool PassedOver(BootInstant now) const { return now < passed_until_; }

  // For trouble that lasted so long while this witness led. True if it is passed over from now on.
  bool Blame(Duration time, Duration patience, BootInstant now) {
    blame_ += time;
    if (blame_ < kPatience * patience) return false;
    blame_ = Duration();
    passed_ = std::clamp(2 * passed_, kPassedMin * patience, kPassedMax * patience);
    passed_until_ = now + passed_;
    return true;
  }

  // For a time without trouble.
  void Forgive(Duration time) {
    blame_ = std::max(blame_ - time / kForgiving, Duration());
    passed_ = std::max(passed_ - time / kForgiving, Duration());
  }

  void TrustAgain() { passed_until_ = BootInstant::min(); }

 private:
  static constexpr int kForgiving = 16;                      // rounds without trouble make up for one in trouble
  static constexpr int kPassedMin = 8, kPassedMax = 1024;    // times the patience

  Duration blame_{}, passed_{};    // passed_: for how long it was passed over last
  BootInstant passed_until_ = BootInstant::min();
};

}    // namespace dthrottle
