// Two to five hosts that divide one tag over a network that loses, doubles and delays, and the last of them lies.
// Besides what its own exchange says, it says what the input says, in its own name or in another's: frames of every
// kind, witness and coordinator included. Honest hosts are paused now and then, longer than their leases.
//
// Failure() names the first promise of protocol/capacity.md "What a lying member can do" that did not hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "capacity/capacity_message.h"
#include "capacity/topology.h"
#include "test/support/input.h"

namespace dthrottle::testing {

class LyingParts {
 public:
  static constexpr CapacityKey kTag{1, 1};
  static constexpr std::uint64_t kNextGeneration = std::uint64_t{1} << 32;

  // Whether the liar is the first witness, or the last.
  enum class Liar { kFirst, kLast };
  // What becomes of a frame that the liar sends, to a host: false if it is not sent.
  using Change = std::function<bool(CapacityMessage&, std::size_t)>;

  LyingParts(std::size_t hosts_of_all, std::uint64_t seed, Liar liar = Liar::kLast, Change change = {})
      : prng_(seed), wires_(hosts_of_all), change_(std::move(change)) {
    using namespace std::chrono_literals;
    for (std::size_t i = 0; i < hosts_of_all; ++i) names_.push_back(std::string(1, static_cast<char>('b' + i)));
    if (liar == Liar::kFirst) names_.back() = "a";
    CapacitySettings& settings = settings_;
    settings.members = names_;
    std::ranges::sort(settings.members);
    settings.graph = CompleteTopology(static_cast<std::uint32_t>(hosts_of_all));
    settings.tags_max = 100;
    settings.lease = 5s;
    digest_ = DigestOf(settings);
    for (std::size_t i = 0; i < hosts_of_all; ++i) {
      wires_[i].fleet = this;
      wires_[i].from = i;
      hosts_.push_back(std::make_unique<CapacityExchange>(CapacityExchange::Options{.name = names_[i]}, settings,
                                                          wires_[i], Prng(seed + i), now_));
      Demand(i, 1.0 / static_cast<double>(hosts_of_all));
    }
    for (int turns = 0; turns < 60 && (liar == Liar::kFirst || !Shared()); ++turns) Run(1);
    for (const auto& host : hosts_) begun_.push_back(host->Counts(now_).epoch);
    generation_ = hosts_[0]->Counts(now_).generation;
    Expect(generation_ != 0 || change_, "the fleet begins");
  }

  const std::string& Failure() const { return failure_; }

  // Does what the input says, until it is over. Without `lies` nobody lies.
  void Play(Input& input, bool lies = true) {
    while (!input.over() && failure_.empty()) {
      switch (input.Byte() % 6) {
        case 0: {
          const std::size_t host = input.Byte() % hosts_.size();
          Demand(host, static_cast<double>(input.Byte()) / 64);
          break;
        }
        case 1: {
          const std::uint8_t turns = input.Byte();
          if (turns >= kPauses) away_ = turns / 32 % honest();
          Run(1 + turns % 32);
          away_.reset();
          break;
        }
        case 2:
          lost_ = input.Byte() % 50;
          doubled_ = input.Byte() % 50;
          late_ = input.Byte() % 50;
          break;
        default:
          if (lies) Lie(input);
      }
    }
  }

  // What the liar says of itself and of the receiver in each frame, truly.
  CapacityMessage Frame(CapacityKind kind, std::size_t to) const {
    CapacityMessage m;
    m.kind = kind;
    m.host = names_.back();
    m.generation = hosts_[to]->Counts(now_).generation;
    m.epoch = hosts_.back()->Counts(now_).epoch;
    m.to_epoch = hosts_[to]->Counts(now_).epoch;
    m.digest = digest_;
    return m;
  }

  void Tell(const CapacityMessage& m, std::size_t to) {
    lied_ = true;
    const bool own_name = m.host == names_.back();
    gifts_claimed_ |= own_name && m.kind == CapacityKind::kGifts;
    if (own_name && m.kind == CapacityKind::kGrant) granted_ |= 1u << to;
    witness_lied_ |= own_name && (m.kind == CapacityKind::kGrant || m.kind == CapacityKind::kFenced);
    std::string frame;
    EncodeCapacity(m, frame);
    const CapacityCounts before = Counts(to);
    hosts_[to]->OnMessage(names_.back(), frame, now_);
    Expect(!before.leased || Counts(to).epoch == before.epoch, "a host with a lease is not taken for dead");
    Check();
  }

  void Ask(std::size_t host, double part) { Demand(host, part); }
  // What the liar says that it has of a tag when members ask; none: the truth.
  void ClaimToHave(std::optional<Parts> parts) { claimed_ = parts; }

  const CapacitySettings& settings() const { return settings_; }
  CapacityCounts Counts(std::size_t host) const { return hosts_[host]->Counts(now_); }
  void ChangeFrames(Change change) { change_ = std::move(change); }
  // Honest hosts that have no more than their reserves.
  std::size_t AtReserve() const {
    std::size_t hosts = 0;
    for (std::size_t host = 0; host < honest(); ++host) hosts += PartsOf(host) <= hosts_[host]->standing().reserve;
    return hosts;
  }

  std::size_t honest() const { return hosts_.size() - 1; }
  const std::string& name(std::size_t host) const { return names_[host]; }
  Parts PartsOf(std::size_t host) const {
    const CapacityStanding standing = hosts_[host]->standing();
    if (now_ >= standing.valid_until) return standing.reserve;
    const auto tag = hosts_[host]->Inspect(kTag);
    return tag ? tag->parts : standing.other;
  }

  void Demand(std::size_t host, double part) {
    const TagDemand demand{kTag, 1, part};
    hosts_[host]->SetDemand({&demand, 1});
  }

  // Turns of half an interval.
  void Run(int turns) {
    for (; turns > 0 && failure_.empty(); --turns) {
      now_ += std::chrono::milliseconds(500);
      paused_ |= away_.has_value();
      for (std::size_t host = 0; host < hosts_.size(); ++host) {
        if (host != away_) hosts_[host]->Tick(now_);
      }
      for (int hops = 0; hops < 4; ++hops) {
        for (Flight& f : std::exchange(flights_, {})) {
          if (f.to == away_) continue;
          if (f.at > now_) {
            flights_.push_back(std::move(f));
          } else {
            hosts_[f.to]->OnMessage(names_[f.from], f.frame, now_);
          }
        }
      }
      std::vector<TagShare> shares;
      for (const auto& host : hosts_) {
        while (host->TakeShares(shares)) continue;
      }
      Check();
    }
  }

  // Ends the trouble: what is under way arrives, and the honest hosts share again.
  void Settle() {
    lost_ = doubled_ = late_ = 0;
    claimed_.reset();
    Run(30);    // three leases; what is under way has arrived
    for (int i = 0; i < 120 && !Shared(); ++i) Run(10);
    Expect(Shared(), "honest hosts share again when the lies are over");
    for (std::size_t a = 0; a < honest(); ++a) {
      for (std::size_t b = 0; b < honest(); ++b) {
        if (a == b || !Same(a) || !Same(b)) continue;
        const CapacityEdge edge = Edge(a, b);
        Expect(edge.given - edge.under_way <= Edge(b, a).received, "what arrived has been received");
      }
    }
    for (int i = 0; i < 8 && HonestParts() > kWhole + kWhole / 4; ++i) Run(10);
    Expect(HonestParts() <= kWhole + kWhole / 4, "nobody uses what was never given for long");
    if (lied_ || change_) return;
    for (int i = 0; i < 60 && PartsOfAll() < kWhole - kWhole / 64; ++i) Run(10);
    Expect(PartsOfAll() >= kWhole - kWhole / 64, "no part is lost for long where nobody lies");
  }

 private:
  // Values of a byte from which on it has another meaning, and only its lower bits the usual one.
  static constexpr std::uint8_t kPauses = 160, kInAnothersName = 224;

  std::size_t IndexOf(std::string_view name) const {
    return static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
  }

  struct Flight {
    BootInstant at;
    std::size_t from, to;
    std::string frame;
  };
  struct Wire final : CapacityTransport {
    void Send(std::string_view peer, std::string_view frame) override {
      LyingParts& f = *fleet;
      if (f.Happens(f.lost_)) return;
      const std::size_t to = f.IndexOf(peer);
      if ((f.claimed_ || f.change_) && from == f.names_.size() - 1) {
        CapacityMessage m;
        if (DecodeCapacity(frame, m) != CapacityFault::kNone || (f.change_ && !f.change_(m, to))) return;
        if (f.claimed_ && m.kind == CapacityKind::kShare) {
          for (CapacityItem& item : m.items) item.given = *f.claimed_;
        }
        EncodeCapacity(m, lie);
        frame = lie;
      }
      for (int copies = f.Happens(f.doubled_) ? 2 : 1; copies > 0; --copies) {
        const Duration delay(f.Happens(f.late_) ? std::chrono::seconds(f.prng_.Below(10)) : std::chrono::seconds(0));
        f.flights_.push_back({f.now_ + delay, from, to, std::string(frame)});
      }
    }
    void Save(std::string_view) override {}
    LyingParts* fleet = nullptr;
    std::size_t from = 0;
    std::string lie;
  };

  bool Happens(unsigned percent) { return prng_.Below(100) < percent; }
  void Expect(bool holds, const char* promise) {
    if (!holds && failure_.empty()) failure_ = promise;
  }

  // Whatever the codec can write, near enough to the truth to be looked at.
  void Lie(Input& input) {
    const std::size_t to = input.Byte() % honest();
    CapacityMessage m = Frame(static_cast<CapacityKind>(1 + input.Byte() % 14), to);
    const std::uint8_t shape = input.Byte();
    if (shape >= kInAnothersName) {
      const std::size_t other = (to + 1) % honest();
      m.host = names_[other];
      m.epoch = hosts_[other]->Counts(now_).epoch;
    } else if (shape % 4 == 0) {
      m.generation = shape % 8 == 0 ? input.Number() : m.generation + kNextGeneration;
    }
    m.epoch += input.Byte() % 4 == 0 ? input.Number() : 0;
    m.sequence = input.Number();
    m.answered = input.Byte();
    m.sent = input.Byte() % 2 == 0 ? now_.time_since_epoch().count() : static_cast<std::int64_t>(input.Number());
    m.binding = input.Number();
    m.bound = input.Number();
    if (input.Byte() % 4 == 0) m.digest = input.Number();
    const std::size_t about = input.Byte() % hosts_.size();
    m.member = names_[about];
    m.life = input.Byte() % 2 == 0 ? hosts_[about]->Counts(now_).epoch : input.Number();
    m.last = input.Byte() % 2 == 0;
    for (std::uint8_t i = input.Byte() % 4; i > 0; --i) m.members.Add(input.Byte() % hosts_.size());
    if (m.kind == CapacityKind::kCommit || m.kind == CapacityKind::kPromise) {
      m.base = input.Number(), m.reserve = input.Number(), m.aside = input.Number(), m.former = input.Number();
    }
    if (m.kind == CapacityKind::kLog) m.degree = honest();
    if (m.kind == CapacityKind::kSettle) m.degree = 1;
    if (m.kind == CapacityKind::kLog) m.lives.assign(m.degree, input.Number());
    if (HasRow(m.kind)) AddRow(m, m.to_epoch, input);
    if (m.kind == CapacityKind::kShare && m.host == names_.back()) claimed_ = m.items.front().given;
    Tell(m, to);
  }

  static bool HasRow(CapacityKind kind) {
    using enum CapacityKind;
    return kind == kLog || kind == kGifts || kind == kSettle || kind == kAsk || kind == kShare;
  }

  void AddRow(CapacityMessage& m, std::uint64_t receiver, Input& input) {
    CapacityItem item{.key = input.Byte() % 4 == 0 ? CapacityKey{2, 2} : kTag};
    item.base = static_cast<std::int64_t>(input.Number());
    item.given = input.Number();
    item.indicator = static_cast<double>(input.Byte()) - 128;
    item.neighbour = receiver;
    m.items.push_back(item);
    for (std::size_t i = 0; i < m.degree; ++i) {
      const Parts given = input.Number();
      m.edges.push_back({given, input.Number()});
    }
    // What its own ledger is said to have given away or to hold is its word, and may be believed.
    gifts_claimed_ |= m.host == names_.back() && m.kind != CapacityKind::kAsk && m.kind != CapacityKind::kShare;
  }

  bool Shared() const {
    const std::uint64_t generation = hosts_[0]->Counts(now_).generation;
    for (std::size_t a = 0; a < honest(); ++a) {
      const CapacityCounts counts = hosts_[a]->Counts(now_);
      if (counts.generation != generation || !counts.leased) return false;
    }
    return true;
  }

  // The host is in the life and the generation that it began with, so its edges count from the beginning. Without a
  // lease it may have been taken for dead, and the others may count for a life of it that it has not begun yet; and with
  // one that the liar granted it may go on then.
  bool Same(std::size_t host) const {
    const CapacityCounts counts = hosts_[host]->Counts(now_);
    return host < begun_.size() && counts.leased && (granted_ >> host & 1) == 0 && !(paused_ && witness_lied_) &&
           counts.epoch == begun_[host] && counts.generation == generation_;
  }

  CapacityEdge Edge(std::size_t from, std::size_t to) const {
    if (const auto tag = hosts_[from]->Inspect(kTag)) {
      for (const CapacityEdge& edge : tag->edges) {
        if (edge.neighbour == names_[to]) return edge;
      }
    }
    return {};
  }

  Parts HonestParts() const {
    Parts sum = 0;
    for (std::size_t a = 0; a < honest(); ++a) sum += PartsOf(a);
    return sum;
  }

  // With gifts on their way.
  Parts PartsOfAll() const {
    Parts sum = 0;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      sum += PartsOf(host);
      const auto tag = hosts_[host]->Inspect(kTag);
      if (!tag) continue;
      for (const CapacityEdge& edge : tag->edges) sum += edge.under_way;
    }
    return sum;
  }

  void Check() {
    Parts sum = 0;
    for (std::size_t a = 0; a < honest(); ++a) {
      const Parts parts = PartsOf(a);
      Expect(parts <= kWhole, "a host never uses more than the whole");
      sum += parts;
      for (std::size_t b = 0; b < honest(); ++b) {
        if (a == b || !Same(a) || !Same(b)) continue;
        Expect(Edge(b, a).received <= Edge(a, b).given, "nothing is received that an honest host did not give");
      }
    }
    // A witness that lies while a host is paused may leave two owners of one ledger.
    Expect(gifts_claimed_ || (paused_ && witness_lied_) || sum <= kWhole, "honest parts sum to the whole at most");
  }

  Prng prng_;
  CapacitySettings settings_;
  std::vector<Wire> wires_;
  Change change_;    // of the liar's frames
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<CapacityExchange>> hosts_;
  std::vector<Flight> flights_;
  std::vector<std::uint64_t> begun_;    // epochs
  std::uint64_t digest_ = 0, generation_ = 0;
  unsigned lost_ = 0, doubled_ = 0, late_ = 0;    // percent
  std::optional<std::size_t> away_;    // an honest host that is paused
  bool lied_ = false, gifts_claimed_ = false, paused_ = false, witness_lied_ = false;
  std::uint32_t granted_ = 0;    // a bit for each host that the liar, as a witness, said was alive
  std::optional<Parts> claimed_;
  std::string failure_;
  BootInstant now_ = BootInstant(std::chrono::seconds(1));
};

}    // namespace dthrottle::testing
