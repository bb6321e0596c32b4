// A generation that a coordinator is trying to begin: which members have promised, and whether that is enough.
//
// A new generation must not begin while a member may still use its part of the old one. A member that has promised does
// not. A member that has not promised must hold no lease, and a majority of the witnesses says so: without it no member
// has a lease.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "capacity/capacity_message.h"
#include "capacity/capacity_settings.h"

namespace dthrottle {

struct Promised {
  std::uint64_t former = 0;
  std::vector<std::string> former_witnesses;    // if its settings are others
  MemberBits lapsed;                            // members without a lease of this witness
  bool others_lapsed = false;                   // and nobody else has one either
  Parts aside = 0;
};

struct Attempt {
  std::uint64_t generation = 0;
  BootInstant since{};
  std::map<std::string, Promised, std::less<>> promised;    // by host

  // Forgets promises whose former witnesses nobody else of three or more names and that those do not bear out: a lie as
  // a rule, and one member must not hold all others. The promise of `self` stays.
  void ForgetUnconfirmed(const std::vector<std::string>& members, std::string_view self);

  // Whether nobody of `members` can use the old generation, nor anybody who was a member in it. `witnesses` are those
  // of the generation to come. `lenient`: a majority of promises is enough.
  bool Suffices(const std::vector<std::string>& members, const std::vector<std::string>& witnesses, bool lenient) const;

 private:
  bool NobodyElse(const std::vector<std::string>& members, const std::vector<std::string>& panel, bool of_former,
                  bool lenient) const;
};

}    // namespace dthrottle
