// What queries have taken for a while: holds, until what they were taken for has been done and its cost is known, and
// places, for as long as work is in flight.
//
// A hold outlives its host's process, as its record is beside the table; it is settled once the host answers again. A
// place is gone with the process, and so is the work.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lab/ledger.h"
#include "lab/workload.h"

namespace dthrottle {
class Limiter;
}

namespace dthrottle::lab {

class Fleet;

struct StayCounts {
  std::uint64_t holds = 0;     // taken
  std::uint64_t settled = 0;   // of them: committed or released
  std::uint64_t lost = 0;      // ended by their time, used or not, or with a table
  std::uint64_t held = 0, returned = 0, exceeded = 0;    // tokens; those that came back, and those beyond what was held
  std::uint64_t places = 0;    // taken
  std::uint64_t taken_back = 0;    // because a host's part of them became smaller
};

class Stays {
 public:
  // Both must outlive it.
  Stays(Fleet& fleet, Ledger& ledger, std::size_t hosts) : fleet_(fleet), ledger_(ledger), hosts_(hosts) {}

  // What a question has got now.
  struct Taken {
    std::uint32_t host;
    std::vector<TagNumber> tags;
    Cost cost;
    Stay stay;
    bool served = false, ideal = false;    // by the fleet, by one bucket for all
    Duration wait{};                       // before it goes on
    WorldTime since{};                     // of Begin
  };
  void Begin(Taken taken);

  // A host's process is gone; it has begun again, on its table or without.
  void Killed(std::uint32_t host);
  void Started(std::uint32_t host, bool keep_table);

  const StayCounts& counts() const { return counts_; }

 private:
  struct OfHost {
    std::uint32_t tables = 0;                    // that it has had
    std::map<std::uint64_t, Taken> places;    // that are taken, in their order
  };

  void EndIdeal(const Taken& taken);
  void EndHold(const Taken& taken, std::uint32_t table);
  void EndPlace(std::uint32_t host, std::uint64_t number);
  void Give(std::uint32_t host, const Taken& taken);
  void GiveAll(Limiter& limiter, const Taken& taken) const;
  void TakeBack(std::uint32_t host, std::uint64_t hash, std::uint32_t places);
  // Calls use(tag) for each tag of it, and for each that is charged with one.
  template <class Use>
  void ForEachPaying(const Taken& taken, Use&& use) const {
    for (const TagNumber tag : taken.tags) ledger_.ForEachPaying(tag, use);
  }

  Fleet& fleet_;
  Ledger& ledger_;
  std::vector<OfHost> hosts_;
  StayCounts counts_;
  std::uint64_t next_ = 0;    // number of a place
};

}    // namespace dthrottle::lab
