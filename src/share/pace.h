// The law of share = "forecast" as plain formulas: what a limit, the number of hosts and the period of reports make of
// every host. share/forecast/forecast.h keeps the state they are applied to; `--check` asks the same formulas what a
// rule can do.
//
// All hosts foretell each other with these formulas, so hosts of one fleet have to run the same ones.
#pragma once

#include "base/tokens.h"

namespace dthrottle {

// A limit that is forecast, and the fleet. Times in seconds.
struct Pace {
  double rate;    // tokens/s
  Tokens burst;
  Tokens unheard_max;    // U: most that a host serves that its peers can neither have foretold nor heard of
  double root_hosts;     // square root of the number of hosts, this one included
  double period;         // between reports; in the long run a tag takes one entry a period

  double hosts() const { return root_hosts * root_hosts; }
  // What one host may cost the others at all times, tokens/s: its part of the rate.
  double part() const { return rate / hosts(); }

  // The time constant of the mean by which demand is measured.
  double demand_memory() const;
  // The time in which the level is brought back to its target.
  double relax() const;
  // The most that a host may keep of what it earned and did not use. `plenty`: everybody earns all of its demand.
  Tokens CreditMax(bool plenty) const;
  // The level that leaves room for what no host has heard of yet, while hosts report every `delta` tokens.
  Tokens Target(Tokens delta) const;
  // The most that a host keeps to itself before it reports.
  Tokens ThresholdMax() const;
  // What a host may keep to itself, so that all hosts together keep nearly the whole level, and no more.
  Tokens Kept(Tokens level) const;
  // The most that a host keeps to itself of a tag that is far from its limit, because its owner (share/owners) says
  // that `level` is left; 0: it is not far.
  Tokens FarKept(Tokens level) const;
  // An owner pushes no smaller change of such a level.
  Tokens FarNews() const;
  // Whether the bucket lacks no more than that, and no more than flows in during a period.
  bool NearlyFull(Tokens level) const;
  // About how many entries a second a host sends of a tag that is asked for at its rate.
  double EntriesAtRate() const;
};

// The least that a host keeps to itself before it reports.
inline constexpr Tokens kThresholdMin = 1;

// Periods for which an announced demand counts without being announced again.
inline constexpr int kBelievedPeriods = 3;

// U where a rule does not set it, and the burst from which on it grows with the burst.
Tokens UnheardMaxOf(Tokens burst, double root_hosts);
Tokens BurstOfUnheardMin(double root_hosts);
// The least burst, where hosts serve `part` tokens a second each, that takes no more than so many entries a second.
Tokens BurstOfEntries(double part, double entries);

// What the hosts announced, and how well this one knows the level.
struct Outlook {
  double demand;      // of all hosts, tokens/s
  Tokens foretold;    // served by peers as foretold, and not reported yet
  Tokens delta;       // what a host keeps to itself before it reports
  Tokens cost = 1;    // of a query
};

// Tokens by which the level is more probably higher than believed: what a refusal has to overcome. Below the rate a
// level is far more often high than low, so an estimate that says "empty" is mostly wrong; at twice the rate this is 0.
Tokens Margin(const Pace& pace, const Outlook& outlook);

// p: the part of every host's demand that is served, if all together get what flows in and what brings `level` to
// `target`. At most 1.
double ShareOf(const Pace& pace, double demand, Tokens level, Tokens target);

// Hosts serve p of their demand while the level is below that. Above it they serve all of it, because there is time for
// everybody to hear.
Tokens RationedBelow(const Pace& pace, double demand, Tokens target);

// The integral of p over the next `dt` seconds if nobody says anything new, from the share at its beginning.
double Earned(const Pace& pace, double demand, Tokens level, Tokens target, double dt);

}    // namespace dthrottle
