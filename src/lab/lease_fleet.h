// A tree of lease servers and their clients in one process: the scenarios of Doorman "Convergence and shortfall" over
// the shipped LeaseServer, on a virtual clock.
//
// What the document says of scenario one, five and seven is here as it stands: 500 to give out; one server and five
// clients that want 100 each; or a root, three regions, three data centres in each and five clients in each of those,
// which want 14 each at first. Scenarios two, three, four and six, which it leaves out, are those of the published
// program behind its figures: scenario one whose server has no master from 120 s on, for 20 s or for 70 s, which is
// longer than a lease; scenario one with a region between root and clients; scenario five in which two clients want
// 1000 each from 150 s on. What the document leaves open is an option with the reason for its default:
//
//   - Demand: "randomly fluctuate". Every `fluctuate_every` a client's wants move by up to `fluctuation` of what it
//   began
//     with, either way, and stay at 0 or more. At every 10 s and 10 % some 3,200 refreshes of servers an hour are
//     answered with less than they have leased out where shares are in proportion to wants, as in independent runs.
//   - Mishaps: "spiking clients (adds 100 to the requested capacity), failing servers et cetera". Every `mishap_every`
//     one is drawn: a client spikes, for `spike_lasts`; a node elects a new master, which has no state; or a node has
//     no master for up to `masterless_max`, a little more than a lease, so that some leases run out. Each client and
//     each node is as likely as another. The odds of 10 : 1 : 4 are those of the published program behind the
//     document's figures, which draws by the order of a dictionary (it means 1 : 5 : 9).
//   - Refreshes: 8 s at the root, halved with each level, leases of 60 s.
//
// Messages are delivered at once and answers are not lost: it is mishaps, not networks, that the document tries.
// A client whose lease has expired has nothing (the document's pessimistic mode).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "lease/server.h"

namespace dthrottle::lab {

struct LeaseMishaps {
  Duration every{};                                        // zero: none
  std::uint32_t spikes = 10, elections = 1, losses = 4;    // odds
  double spike = 100;
  Duration spike_lasts = std::chrono::minutes(5);
  Duration masterless_max = std::chrono::seconds(70);
};

// The root has no master for a while, or some clients want more from then on; zero: never.
struct LeaseMoments {
  Duration masterless_from{}, masterless_for{};
  Duration jump_at{};
  std::uint32_t jump_clients = 0;
  double jump_to = 0;
};

struct LeaseScenario {
  std::string name;
  std::vector<std::uint32_t> fan{};    // nodes below each node, from the root on; the last: clients of a leaf
  double wants = 14;
  double fluctuation = 0.1;
  Duration fluctuate_every = std::chrono::seconds(10);
  LeaseMishaps mishaps{};
  LeaseMoments moments{};
  lease::ResourceTemplate resource{};
  // Whether a new master tells its parent that it is learning. The document's do not: they ask for the few clients
  // they have heard of, the parent gives the rest to others, and more is out than there is.
  bool tells_learning = true;
  Duration lasts = std::chrono::hours(1);
  Duration sample = std::chrono::seconds(5);
};

// Their names, "one" to "seven".
std::span<const std::string_view> LeaseScenarios();

// REQUIRES: one of these names.
LeaseScenario DocumentedScenario(const std::string& name);

// Every `sample` of a run.
struct LeaseSample {
  double seconds = 0;
  double wants = 0;       // of all clients
  double has = 0;         // leased to clients and not expired
  double capacity = 0;    // of the root; 0 while it has no master
  double shortfall() const { return has > limit ? has - limit : 0; }
  double limit = 0;    // what the settings allow, master or not
};

// A line of what happened, for the picture's reader.
struct LeaseIncident {
  double seconds = 0;
  std::string what;
};

struct LeaseRun {
  std::vector<LeaseSample> samples;
  std::vector<LeaseIncident> incidents;
  double learned = 0;    // seconds until the root's first learning mode was over
  std::uint64_t refreshes = 0;
  std::uint64_t short_answers = 0;    // refreshes of servers answered with less than they had leased out

  // After learning: handed out / min(wanted, limit), or / limit, 0 to 1 and a little.
  double handed_out_of_wanted() const;
  double handed_out_of_limit() const;
  std::size_t samples_above() const;
  double peak() const;          // highest has / limit
  double mean_above() const;    // of has / limit over the samples above; 1: none
};

LeaseRun RunLeases(const LeaseScenario& scenario, std::uint64_t seed);

}    // namespace dthrottle::lab
