#include "lab/measure.h"

#include <algorithm>

namespace dthrottle::lab {
namespace {

constexpr MeasureKind kKinds[] = {
    {"asked", "tokens", &Measures::asked, 0, "asked for"},
    {"served", "tokens", &Measures::served, 0, "served by the fleet"},
    {"ideal", "tokens", &Measures::ideal, 0, "served by one bucket for all"},
    {"over", "%", &Measures::over, 2, "served beyond it, second by second"},
    {"under", "%", &Measures::under, 2, "refused that it serves, second by second"},
    {"excess", "tokens", &Measures::excess, 1, "above burst + rate x time, in the worst window"},
    {"waited", "%", &Measures::waited, 2, "of what was served, before it went on", &Measures::waited},
    {"wait_mean", "s", &Measures::wait_mean, 4, "how long, on average", &Measures::waited},
    {"wait_max", "s", &Measures::wait_max, 4, "how long at most", &Measures::waited},
    {"holds", "", &Measures::holds, 0, "taken", &Measures::holds},
    {"lost", "", &Measures::lost, 0, "holds that nobody settled", &Measures::holds},
    {"returned", "%", &Measures::returned, 2, "of what was held, because it was not used", &Measures::holds},
    {"overused", "%", &Measures::overused, 2, "used beyond burst + rate x time, of the worst tag", &Measures::holds},
    {"places", "", &Measures::places, 0, "taken at once, of the tag with most", &Measures::places},
    {"places_over", "", &Measures::places_over, 0, "of them, beyond in_flight", &Measures::places},
    {"quota", "%", &Measures::quota, 2, "served of it in a period, of the tag with most", &Measures::quota},
    {"quota_over", "tokens", &Measures::quota_over, 0, "beyond it, in the worst period of a tag", &Measures::quota},
    {"by_workers", "%", &Measures::by_workers, 1, "of queries, decided by workers themselves", &Measures::by_workers},
    {"fairness", "", &Measures::fairness, 4, "of hosts, by the part that each serves (Jain; 1 is even)"},
    {"silence", "s", &Measures::silence, 2, "the longest that a tag got nothing but refusals"},
    {"ideal_silence", "s", &Measures::ideal_silence, 2, "the same with one bucket for all"},
    {"frames", "/s", &Measures::frames, 2, "frames that a host sends, one for each that hears it"},
    {"entries", "/s", &Measures::entries, 3, "tags in reports that a host makes"},
    {"bytes", "/s", &Measures::bytes, 0, "bytes that a host sends"},
};

// `since` is the first refusal after the last query that was served.
void Hear(bool served, WorldTime at, std::optional<WorldTime>& since, Duration& longest) {
  if (served) {
    since.reset();
  } else {
    since = since.value_or(at);
    longest = std::max(longest, at - *since);
  }
}

// Jain's index: (sum x)^2 / (n sum x^2).
double Jain(const std::vector<double>& parts) {
  double sum = 0, squares = 0;
  for (const double part : parts) sum += part, squares += part * part;
  return squares == 0 ? 1 : sum * sum / (static_cast<double>(parts.size()) * squares);
}

}    // namespace

std::span<const MeasureKind> MeasureKinds() {
  return kKinds;
}

Meter::Meter(const Fleet& fleet, WorldTime begin) : fleet_(fleet), begin_(begin), hosts_(fleet.size()) {}

Second& Meter::At(std::size_t second) {
  if (seconds_.size() <= second) seconds_.resize(second + 1);
  return seconds_[second];
}

void Meter::Close(TagState& tag) {
  Second& second = At(tag.second);
  second.over += tag.served > tag.ideal ? tag.served - tag.ideal : 0;
  second.under += tag.ideal > tag.served ? tag.ideal - tag.served : 0;
  tag.served = tag.ideal = 0;
}

// What counts against burst + rate x time.
void Meter::Spend(TagState& tag, const Decision& d) const {
  const Account& account = fleet_.ledger().account(d.tag);
  if (account.exempt) return;
  const double refilled = account.shape.rate() * Seconds(d.at - tag.last);
  const std::uint64_t used = d.held || !d.served ? 0 : d.cost;    // what comes back may be taken again: see overused
  tag.excess = std::max(tag.excess - refilled, 0.0) + static_cast<double>(used);
  tag.excess_max = std::max(tag.excess_max, tag.excess);
  tag.wait_max = std::max(tag.wait_max, d.wait);
  tag.last = d.at;
}

void Meter::Note(const Decision& d) {
  if (tags_.size() <= d.tag) tags_.resize(d.tag + 1);
  TagState& tag = tags_[d.tag];
  Spend(tag, d);
  if (d.charged) return;    // the question counts under the tags that it names
  const auto now = static_cast<std::size_t>((d.at - begin_) / std::chrono::seconds(1));
  if (tag.second != now) {
    Close(tag);
    tag.second = now;
  }
  const std::uint64_t served = d.served ? d.cost : 0, ideal = d.ideal_served ? d.cost : 0;
  tag.served += served;
  tag.ideal += ideal;
  Second& second = At(now);
  second.asked += d.cost;
  second.served += served;
  second.ideal += ideal;
  hosts_[d.host].asked += d.cost;
  hosts_[d.host].served += served;
  if (d.wait > Duration(0)) {
    waited_ += d.cost;
    token_seconds_ += d.cost * Seconds(d.wait);
  }
  Hear(d.served, d.at, tag.refused_since, silence_);
  Hear(d.ideal_served, d.at, tag.ideal_refused_since, ideal_silence_);
}

void Meter::NoteAccounts(Measures& m) const {
  const StayCounts& stays = fleet_.stays();
  m.holds = static_cast<double>(stays.holds), m.lost = static_cast<double>(stays.lost);
  if (stays.held > 0) m.returned = 100 * static_cast<double>(stays.returned) / static_cast<double>(stays.held);
  for (const Account& account : fleet_.ledger().accounts()) {
    m.overused = std::max(m.overused, 100 * account.overused);
    if (account.in_flight != 0) {
      const auto taken = static_cast<double>(account.places_max);
      m.places = std::max(m.places, taken);
      m.places_over = std::max(m.places_over, taken - static_cast<double>(account.in_flight));
    }
    if (account.quota == 0) continue;
    const auto spent = static_cast<double>(account.spent_max), quota = static_cast<double>(account.quota);
    m.quota = std::max(m.quota, 100 * spent / quota);
    m.quota_over = std::max(m.quota_over, spent - quota);
  }
}

Measures Meter::Finish(Duration lasted, const FleetCounts& sent) {
  Measures m;
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    Close(tags_[i]);
    const Shape& shape = fleet_.ledger().account(static_cast<TagNumber>(i)).shape;
    const double wait_max = Seconds(tags_[i].wait_max);    // what waits goes on later than it is served
    m.excess = std::max(m.excess, tags_[i].excess_max - shape.burst() - shape.rate() * wait_max);
    m.wait_max = std::max(m.wait_max, wait_max);
  }
  NoteAccounts(m);
  seconds_.resize(static_cast<std::size_t>((lasted + std::chrono::seconds(1) - Duration(1)) / std::chrono::seconds(1)));
  double over = 0, under = 0;
  for (const Second& second : seconds_) {
    m.asked += static_cast<double>(second.asked);
    m.served += static_cast<double>(second.served);
    m.ideal += static_cast<double>(second.ideal);
    over += static_cast<double>(second.over);
    under += static_cast<double>(second.under);
  }
  if (waited_ > 0) m.waited = 100 * waited_ / m.served, m.wait_mean = token_seconds_ / waited_;
  if (m.ideal > 0) m.over = 100 * over / m.ideal, m.under = 100 * under / m.ideal;
  std::vector<double> parts;
  for (const HostState& host : hosts_) {
    if (host.asked > 0) parts.push_back(static_cast<double>(host.served) / static_cast<double>(host.asked));
  }
  m.fairness = Jain(parts);
  m.silence = Seconds(silence_);
  m.ideal_silence = Seconds(ideal_silence_);
  if (lasted == Duration::zero()) return m;
  const double host_seconds = static_cast<double>(hosts_.size()) * Seconds(lasted);
  m.by_workers = sent.queries > 0 ? 100 * static_cast<double>(sent.by_workers) / static_cast<double>(sent.queries) : 0;
  m.frames = static_cast<double>(sent.network.sent) / host_seconds;
  m.entries = static_cast<double>(sent.entries) / host_seconds;
  m.bytes = static_cast<double>(sent.network.bytes) / host_seconds;
  return m;
}

}    // namespace dthrottle::lab
