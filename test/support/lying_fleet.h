// Hosts that share hits over a network that loses, doubles and delays, of which the last one or two lie: on their own
// links and connections they say what the input says, in their own names and in others'. Once the trouble is over every
// hit of the honest hosts has been debited at each of the others exactly once, and nothing a liar says has been debited
// as another host's word, or answered as its question.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "test/support/exchange_fleet.h"
#include "test/support/input.h"

namespace dthrottle::testing {

class LyingFleet : public ExchangeFleet {
 public:
  LyingFleet(std::size_t hosts_of_all, std::size_t liars, std::uint64_t seed) : ExchangeFleet(seed), liars_(liars) {
    step = 20ms;
    for (std::size_t i = 0; i < hosts_of_all; ++i) {
      ExchangeHost& host = Add(std::string(1, static_cast<char>('a' + i)));
      host.options.identities_proven = true;
      host.skew = 1s * static_cast<int>(100 * i);
    }
    Mesh();
    Run(3s);
  }

  // Does what the input says, until it is over.
  void Play(Input& input) {
    while (!input.over()) {
      switch (const std::uint8_t what = input.Byte(); what % 6) {
        case 0: {
          const std::size_t host = input.Byte() % honest();
          Hit(host, static_cast<std::uint8_t>(1 + input.Byte() % 100));
          break;
        }
        case 1:
          Run(20ms * (1 + input.Byte()));
          break;
        case 2:
          lanes.loss = input.Byte() % 50 / 100.0;
          lanes.duplication = input.Byte() % 50 / 100.0;
          lanes.jitter = 1ms * (input.Byte() * 4);
          break;
        default:
          Lie(input, honest() + what / 6 % liars_);
      }
    }
  }

  // Ends the trouble, and says whether every hit of the honest has come everywhere once, none comes again, and each
  // came from its own host.
  bool EachHitOnce() {
    for (std::size_t host = 0; host < honest(); ++host) Hit(host, 1);
    lanes.loss = lanes.duplication = 0;
    lanes.jitter = 1ms;
    for (int seconds = 0; seconds < 30 && !AllHeard(); ++seconds) Run(1s);
    Run(4s);    // longer than anybody waits before asking again
    return AllHeard() && EachFromItsHost() && !answered_another_;
  }

 private:
  bool AllHeard() const {
    for (std::size_t host = 0; host < honest(); ++host) {
      for (const auto& [tag, hit] : truth_) {
        const auto heard = hosts[host]->debits.find(tag);
        if (hit.host != host && (heard == hosts[host]->debits.end() || heard->second != hit.hits)) return false;
      }
    }
    return true;
  }

  // Ceilings, and what comes back of hits, go by the number that the limiter is told.
  bool EachFromItsHost() const {
    for (std::size_t host = 0; host < honest(); ++host) {
      std::map<std::uint32_t, std::string> names;
      for (const PeerStatus& peer : hosts[host]->exchange->Peers(now + hosts[host]->skew)) {
        if (peer.number) names[*peer.number] = peer.name;
      }
      for (const FromPeers& item : hosts[host]->received) {
        if (item.kind == FromPeers::Kind::kDebits && !IsOf(names[item.peer], item.entries)) return false;
      }
    }
    return true;
  }

  bool IsOf(const std::string& name, const Entries& entries) const {
    const auto liar = [this](const std::string& its) { return its[0] - 'a' >= static_cast<int>(honest()); };
    return !name.empty() && std::ranges::all_of(entries.list(), [&](const Entry& e) {
      const auto truth = truth_.find(entries.tag(e).bytes);
      return truth == truth_.end() ? liar(name) : hosts[truth->second.host]->name == name;
    });
  }

  struct Truth {
    std::size_t host;
    std::uint64_t hits;
  };

  std::size_t honest() const { return hosts.size() - liars_; }

  void Hit(std::size_t host, std::uint8_t hits) {
    const std::string tag = hosts[host]->name + std::to_string(truth_.size());
    hosts[host]->Hit(tag, hits);
    truth_[tag] = {host, hits};
  }

  // Whatever the codec can write, to one of the honest.
  void Lie(Input& input, std::size_t liar) {
    const std::size_t to = input.Byte() % honest();
    const bool answer = input.Byte() % 2 == 0;
    std::string frame, sender;
    if (input.Byte() % 8 == 0) {
      frame = input.Rest(input.Byte());
    } else {
      Message m;
      m.kind = static_cast<MessageKind>(1 + input.Byte() % 9);
      m.sender = hosts[input.Byte() % hosts.size()]->name;
      m.incarnation = input.Number();
      m.sequence = input.Number();
      m.ring_low = input.Number();
      m.from = FromNanoseconds(static_cast<std::int64_t>(input.Number()));
      m.to = FromNanoseconds(static_cast<std::int64_t>(input.Number()));
      m.period = Duration(static_cast<std::int64_t>(input.Number()));
      m.snapshot = input.Number();
      m.ranges.push_back({input.Number(), input.Number()});
      m.positions.push_back({hosts[input.Byte() % hosts.size()]->name, input.Number(), input.Number()});
      m.entries.Add({"lie", false}, 1 + input.Number() % kHitsMax, 0);
      frame = Encode(m);
      sender = m.sender;
    }
    Exchange& exchange = *hosts[to]->exchange;
    const Instant then = now + hosts[to]->skew;
    if (answer) return exchange.OnAnswer(static_cast<LinkId>(liar), frame, then);
    const auto dropped = [&exchange] { return exchange.Counts().strangers + exchange.Counts().junk; };
    const std::uint64_t before = dropped();
    exchange.OnRequest(std::to_string(liar) + " " + std::to_string(to), hosts[liar]->name, frame, then);
    answered_another_ |= !sender.empty() && sender != hosts[liar]->name && dropped() == before;
  }

  std::size_t liars_;
  bool answered_another_ = false;
  std::map<std::string, Truth, std::less<>> truth_;    // by tag
};

}    // namespace dthrottle::testing
