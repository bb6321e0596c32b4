#include "sim/host.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace dthrottle::sim {

std::string HostName(std::uint32_t number) {
  return "host-" + std::to_string(number);
}

SimHost::Life::Life(SimHost& host, const HostOptions& options, Instant now)
    : from_limiter(options.hand_over_max),
      to_exchange(options.hand_over_max),
      from_exchange(options.hand_over_max),
      to_limiter(options.hand_over_max),
      limiter(host.region(), std::array<std::byte, 16>{}, TableKeys{{host.number_, 1}, {}}, options.rules, 1, now),
      fresh_table(!limiter.discarded().empty() || host.lives_ == 1),
      sharing(limiter, from_limiter, to_limiter, options.hosts - 1, options.period, host.prng_, now),
      exchange({.name = HostName(host.number_),
                .incarnation = host.lives_,
                .version = "simulated",
                .period = options.period,
                .ring_bytes = options.ring_bytes,
                .held_bytes = options.held_bytes,
                .identities_proven = true,
                .fresh_table = fresh_table},
               to_exchange, from_exchange, host, Prng(host.prng_.Next()), now) {
  sharing.HoldHits();
}

SimHost::SimHost(std::uint32_t number, const HostOptions& options, HostClock clock, Surroundings& surroundings,
                 Prng prng)
    : number_(number),
      options_(options),
      clock_(clock),
      surroundings_(surroundings),
      prng_(prng),
      memory_(options.table_bytes / sizeof(Line)) {}

SimHost::~SimHost() = default;

void SimHost::Start(bool keep_table, WorldTime now) {
  DT_CHECK(!running());
  if (!keep_table) std::fill(memory_.begin(), memory_.end(), Line{});
  ++lives_;
  const Instant local = clock_.Local(now);
  life_ = std::make_unique<Life>(*this, options_, local);
  for (std::uint32_t peer = 0; peer < options_.hosts; ++peer) {
    if (peer != number_) life_->exchange.AddLink(peer, HostName(peer), local);
  }
}

void SimHost::Kill() {
  DT_CHECK(running());
  life_.reset();
  inbox_.clear();
}

bool SimHost::Receive(Parcel parcel) {
  if (inbox_.size() >= options_.inbox_max) return false;
  inbox_.push_back(std::move(parcel));
  return true;
}

WorldTime SimHost::Work(WorldTime now) {
  DT_CHECK(answers());
  const Instant local = clock_.Local(now);
  Life& life = *life_;
  Instant wake;
  for (bool more = true; more;) {
    while (!inbox_.empty() && !life.exchange.backlogged()) {
      const Parcel parcel = std::move(inbox_.front());
      inbox_.pop_front();
      Take(parcel, local);
    }
    wake = life.exchange.Tick(local);
    more = HandOver();
    while (life.sharing.Work(local) || HandOver()) more = true;
    more = more || (!inbox_.empty() && !life.exchange.backlogged());
  }
  // A loop's timers are no finer than this, and it must not stand still.
  return std::max(clock_.When(std::min(wake, life.sharing.next())), now + std::chrono::microseconds(10));
}

// Between the limiter's rings and the exchange's, both ways. Returns whether anything moved.
bool SimHost::HandOver() {
  Life& life = *life_;
  bool moved = false;
  while (!life.from_exchange.empty() && !life.to_limiter.full()) {
    FromPeers debits;
    life.from_exchange.TryPop(debits);
    if (debits.kind == FromPeers::Kind::kDebits) surroundings_.Debited(number_, debits.entries);
    if (debits.kind == FromPeers::Kind::kBuckets) surroundings_.Merged(number_, debits.entries);
    life.to_limiter.TryPush(std::move(debits));
    moved = true;
  }
  while (!life.from_limiter.empty() && !life.to_exchange.full()) {
    ToPeers hits;
    life.from_limiter.TryPop(hits);
    if (hits.kind == ToPeers::Kind::kHits) surroundings_.Reported(number_, hits.entries);
    life.to_exchange.TryPush(std::move(hits));
    moved = true;
  }
  return moved;
}

void SimHost::Take(const Parcel& parcel, Instant now) {
  Exchange& exchange = life_->exchange;
  switch (parcel.channel) {
    case Channel::kPublished:
      return exchange.OnPublished(*parcel.frame, now);
    case Channel::kRequest:
      return exchange.OnRequest(std::to_string(parcel.from), HostName(parcel.from), *parcel.frame, now);
    case Channel::kAnswer:
      return exchange.OnAnswer(parcel.from, *parcel.frame, now);
  }
}

void SimHost::Publish(const Frame& frame) {
  surroundings_.Send({Channel::kPublished, number_, number_, 0, frame});
}

void SimHost::Ask(LinkId link, const Frame& frame) {
  surroundings_.Send({Channel::kRequest, number_, link, 0, frame});
}

void SimHost::Answer(const Route& route, const Frame& frame) {
  surroundings_.Send({Channel::kAnswer, number_, static_cast<std::uint32_t>(std::stoul(route)), 0, frame});
}

bool SimHost::Serves(std::string_view tag, Cost cost, WorldTime now) {
  DT_CHECK(answers());
  Query query;
  query.tag = {tag, false};
  query.cost = cost;
  Verdict verdict;
  life_->limiter.Answer({&query, 1}, {&verdict, 1}, 0, prng_, clock_.Local(now));
  return verdict == Verdict::kServe;
}

Inspection SimHost::Look(std::string_view tag, Instant now) {
  Query query;
  query.tag = {tag, false};
  return life_->limiter.Inspect(query, now);
}

Tokens SimHost::Level(std::string_view tag, WorldTime now) {
  const Instant local = clock_.Local(now);
  const Inspection seen = Look(tag, local);
  return seen.bucket.Level(life_->limiter.rules().limit(seen.limit.value()).shape, local);
}

WorldTime SimHost::ServesAt(std::string_view tag, WorldTime now) {
  const Instant local = clock_.Local(now);
  const Inspection seen = Look(tag, local);
  return clock_.When(seen.bucket.ServesAt(life_->limiter.rules().limit(seen.limit.value()).shape, 1, local));
}

}    // namespace dthrottle::sim
