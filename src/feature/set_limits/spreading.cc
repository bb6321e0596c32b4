#include "feature/set_limits/spreading.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>

namespace dthrottle {

// Where what is said about a frame goes.
struct Spreading::Back {
  LinkId link;
  const Route& route;
  Transport& wire;

  void Say(const LimitMessage& message) const {
    const Frame frame = std::make_shared<const std::string>(EncodeLimits(message));
    route.empty() ? wire.Ask(link, frame) : wire.Answer(route, frame);
  }
};

bool Spreading::SetKeys(OperatorKeys keys, Duration wall) {
  if (keys == keys_) return false;
  keys_ = std::move(keys);
  return set_.Keep(keys_, wall);
}

SetLimits::Outcome Spreading::Set(SignedLimit limit, Duration wall) {
  const SetLimits::Outcome outcome = set_.Put(limit, wall);
  if (outcome != SetLimits::Outcome::kTaken) return outcome;
  for (Due& due : due_) {    // who comes compares
    if (!limit.local() && due.compared) due.untold.push_back(SetLimits::NameOf(limit.limit));
  }
  news_.push_back(std::move(limit));
  return outcome;
}

// ---- From a peer ----

bool Spreading::OnFrame(const Tenant::Said& said, Transport& wire, Duration wall, Instant now) {
  LimitMessage message;
  if (!DecodeLimits(said.frame, message)) return ++counts_.junk, true;
  const std::uint64_t excess = counts_.excess;
  const Back back{said.link, said.route, wire};
  Ear& ear = EarFor(said.from);
  if (message.kind == LimitMessageKind::kLimits) {
    TakeLines(message.lines, ear, wall, now);
  } else if (message.kind == LimitMessageKind::kHave || set_.digest() != SetLimits::Digest{message.count, message.sum}) {
    if (!ear.answers.Take(now)) {
      ++counts_.excess;
    } else if (message.kind == LimitMessageKind::kHave) {
      AnswerHave(message, back);
    } else {
      back.Say(Have(false));
    }
  }
  return counts_.excess == excess;
}

// Names are those of links and of keys, so there are no more of them but by many reloads.
Spreading::Ear& Spreading::EarFor(std::string_view sender) {
  const auto known = ears_.find(sender);
  if (known != ears_.end()) return known->second;
  if (ears_.size() == kSendersMax) ears_.clear();
  return ears_.emplace(sender, Ear()).first->second;
}

void Spreading::TakeLines(const std::vector<std::string>& lines, Ear& ear, Duration wall, Instant now) {
  for (const std::string& line : lines) {
    if (!TakeLine(line, ear, wall, now)) return;    // what else it says is not believed either
  }
}

// False: nobody who passes on what operators have signed says that. The signature comes last, because it costs most, but
// reading rules costs as much.
bool Spreading::TakeLine(std::string_view line, Ear& ear, Duration wall, Instant now) {
  const std::string_view key = KeyOf(line);
  if (key.empty()) return ++counts_.junk, false;
  if (!keys_.contains(key)) return ++counts_.strange, true;
  if (line.size() > kLimitLineBytesMax && !ear.checks.Take(now)) return ++counts_.excess, false;
  auto limit = ParseSigned(line);
  if (!limit) return ++counts_.junk, false;
  if (set_.Judge(*limit, wall) != SetLimits::Outcome::kTaken) return true;
  if (SetLimits::IsAhead(limit->limit, wall)) return ++counts_.ahead, true;
  if (!ear.checks.Take(now)) return ++counts_.excess, false;
  if (!IsGenuine(*limit)) return ++counts_.forged, false;
  const SetLimits::Outcome outcome = Set(std::move(*limit), wall);
  counts_.taken += outcome == SetLimits::Outcome::kTaken;
  counts_.crowded += outcome == SetLimits::Outcome::kCrowded;
  return true;
}

void Spreading::AnswerHave(const LimitMessage& message, const Back& back) {
  const std::unordered_set<std::uint64_t> there(message.hashes.begin(), message.hashes.end());
  std::vector<const SignedLimit*> missing;
  std::size_t both = 0;
  for (const auto& [name, limit] : set_.entries()) {
    if (limit.local()) continue;
    const bool known = there.contains(HashOf(limit));
    both += known;
    if (!known) missing.push_back(&limit);
  }
  SendLimits(missing, [&](const LimitMessage& limits) { back.Say(limits); });
  if (!message.answer && both < there.size()) back.Say(Have(true));
}

LimitMessage Spreading::Have(bool answer) const {
  LimitMessage message{.kind = LimitMessageKind::kHave, .answer = answer};
  for (const auto& [name, limit] : set_.entries()) {
    if (!limit.local()) message.hashes.push_back(HashOf(limit));
  }
  return message;
}

template <class Send>
void Spreading::SendLimits(const std::vector<const SignedLimit*>& limits, Send&& send) {
  LimitMessage message{.kind = LimitMessageKind::kLimits};
  std::size_t bytes = 0;
  const auto end_frame = [&] {
    if (message.lines.empty()) return;
    counts_.sent += message.lines.size();
    send(message);
    message.lines.clear(), bytes = 0;
  };
  for (const SignedLimit* const limit : limits) {
    std::string line = limit->Line();
    if (message.lines.size() == kLimitsPerFrame || bytes + line.size() > kLimitLinesBytesMax) end_frame();
    bytes += line.size();
    message.lines.push_back(std::move(line));
  }
  end_frame();
}

// ---- To peers ----

Instant Spreading::Tick(Crowd crowd, std::span<const LinkId> peers, Transport& wire, Instant now) {
  Due& due = due_[crowd];
  if (peers.empty()) {
    due.compared = false;
    due.untold.clear();
    return now + kCompareEvery;
  }
  if (!due.untold.empty()) {
    std::vector<LinkId> told(peers.begin(), peers.end());
    for (std::size_t i = 0; i < std::min(kTold, told.size()); ++i) {
      std::swap(told[i], told[i + prng_.Below(told.size() - i)]);
    }
    told.resize(std::min(kTold, told.size()));
    std::vector<const SignedLimit*> limits;
    for (const SetLimits::Name& name : std::exchange(due.untold, {})) {
      if (const SignedLimit* const limit = set_.Find(name)) limits.push_back(limit);
    }
    SendLimits(limits, [&](const LimitMessage& message) {
      const Frame frame = std::make_shared<const std::string>(EncodeLimits(message));
      for (const LinkId peer : told) wire.Ask(peer, frame);
    });
  }
  if (!due.compared || now >= due.compare_at) {
    due.compared = true;
    // Somewhat apart, so that hosts that began together do not compare together.
    due.compare_at = now + kCompareEvery * 3 / 4 + kCompareEvery * static_cast<std::int64_t>(prng_.Below(500)) / 1000;
    const SetLimits::Digest digest = set_.digest();
    const LimitMessage message{.kind = LimitMessageKind::kDigest, .count = digest.count, .sum = digest.sum};
    wire.Ask(peers[prng_.Below(peers.size())], std::make_shared<const std::string>(EncodeLimits(message)));
  }
  return due.compare_at;
}

}    // namespace dthrottle
