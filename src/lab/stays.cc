#include "lab/stays.h"

#include <algorithm>
#include <utility>

#include "lab/fleet.h"
#include "limiter/places.h"
#include "share/ways.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr Duration kAgain = 1s;    // until who cannot settle now tries again

}    // namespace

void Stays::Begin(Taken taken) {
  taken.since = fleet_.now();
  const WorldTime ends = taken.since + taken.wait + taken.stay.lasts;
  if (taken.ideal) {
    fleet_.At(ends, [this, taken] { EndIdeal(taken); });
  }
  if (!taken.served) return;
  const std::uint32_t host = taken.host;
  if (taken.stay.takes == Workload::Takes::kHold) {
    ++counts_.holds;
    counts_.held += taken.cost * taken.tags.size();
    fleet_.At(ends, [this, taken = std::move(taken), table = hosts_[host].tables] { EndHold(taken, table); });
    return;
  }
  ++counts_.places;
  ForEachPaying(taken, [this](TagNumber tag) { ledger_.Entered(tag); });
  const std::uint64_t number = next_++;
  hosts_[host].places.emplace(number, std::move(taken));
  fleet_.At(ends, [this, host, number] { EndPlace(host, number); });
}

void Stays::EndIdeal(const Taken& taken) {
  SimHost& one = fleet_.one();
  if (taken.stay.takes == Workload::Takes::kPlace) return GiveAll(one.limiter(), taken);
  for (const TagNumber tag : taken.tags) {
    one.Settles({{ledger_.account(tag).tag, false}, taken.cost}, taken.since, taken.stay.used, fleet_.now());
  }
}

// ---- Holds ----

void Stays::EndHold(const Taken& taken, std::uint32_t table) {
  if (hosts_[taken.host].tables != table) {
    ++counts_.lost;
    return;
  }
  SimHost& host = fleet_.host(taken.host);
  if (!host.answers()) return fleet_.At(fleet_.now() + kAgain, [this, taken, table] { EndHold(taken, table); });
  const Stay& stay = taken.stay;
  ++(stay.lost ? counts_.lost : counts_.settled);
  for (const TagNumber tag : taken.tags) {
    host.Settles({{ledger_.account(tag).tag, false}, taken.cost}, taken.since, stay.used, fleet_.now());
    ledger_.ForEachPaying(tag, [&](TagNumber pays) {
      ledger_.Settled(pays, taken.host, taken.cost, stay.used, fleet_.now());
      ledger_.UsedLate(pays, stay.used_late, fleet_.now());
    });
    counts_.returned += taken.cost - std::min(taken.cost, stay.used);
    counts_.exceeded += stay.used - std::min(taken.cost, stay.used);
  }
}

// ---- Places ----

void Stays::EndPlace(std::uint32_t number_of_host, std::uint64_t number) {
  auto& places = hosts_[number_of_host].places;
  const auto it = places.find(number);
  if (it == places.end()) return;
  if (!fleet_.host(number_of_host).answers()) {
    return fleet_.At(fleet_.now() + kAgain, [this, number_of_host, number] { EndPlace(number_of_host, number); });
  }
  Give(number_of_host, it->second);
  places.erase(it);
}

void Stays::Give(std::uint32_t host, const Taken& taken) {
  GiveAll(fleet_.host(host).limiter(), taken);
  ForEachPaying(taken, [this](TagNumber tag) { ledger_.Left(tag); });
}

void Stays::GiveAll(Limiter& limiter, const Taken& taken) const {
  ForEachPaying(taken, [&](TagNumber tag) {
    GivePlaces(limiter, limiter.table().Hash({ledger_.account(tag).tag, false}), 1);
  });
}

void Stays::TakeBack(std::uint32_t host, std::uint64_t hash, std::uint32_t places) {
  const Table& table = fleet_.host(host).limiter().table();
  const auto names = [&](TagNumber tag) { return table.Hash({ledger_.account(tag).tag, false}) == hash; };
  auto& all = hosts_[host].places;
  for (auto it = all.begin(); it != all.end() && places > 0;) {
    bool named = false;
    ForEachPaying(it->second, [&](TagNumber tag) { named |= names(tag); });
    if (!named) {
      ++it;
      continue;
    }
    Give(host, it->second);
    it = all.erase(it);
    --places, ++counts_.taken_back;
  }
}

// ---- Processes ----

void Stays::Killed(std::uint32_t host) {
  for (const auto& [number, taken] : hosts_[host].places) {
    ForEachPaying(taken, [this](TagNumber tag) { ledger_.Left(tag); });
  }
  hosts_[host].places.clear();
}

void Stays::Started(std::uint32_t host, bool keep_table) {
  if (!keep_table) ++hosts_[host].tables;
  fleet_.host(host).limiter().ways().Get<Division>().OnOver(
      [this, host](const Tag&, std::uint64_t hash, std::uint32_t places) { TakeBack(host, hash, places); });
}

}    // namespace dthrottle::lab
