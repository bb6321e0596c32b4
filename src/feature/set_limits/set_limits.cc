#include "feature/set_limits/set_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/siphash.h"
#include "base/words.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

// From when on a host may forget it; max: never.
Duration ForgottenAt(const SetLimit& limit) {
  if (limit.clears) return limit.stamp + SetLimits::kRemembered;
  return limit.until == Duration() ? Duration::max() : std::max(limit.until, limit.stamp) + SetLimits::kRemembered;
}

bool Allows(const OperatorKeys& keys, const SignedLimit& limit) {
  return limit.local() ? keys.empty() : keys.contains(limit.key);
}

// The first line, which the text loses.
std::string_view TakeLine(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}    // namespace

std::uint64_t HashOf(const SignedLimit& limit) {
  return SipHash<1, 3>({1, 2}, limit.key + ' ' + TextOf(limit.limit));
}

// ---- One limit ----

SetLimits::Outcome SetLimits::Judge(const SignedLimit& limit, Duration wall) const {
  if (const SignedLimit* const known = Find(NameOf(limit.limit))) {
    if (known->limit == limit.limit && known->key == limit.key) return Outcome::kKnown;
    if (!IsNewer(limit, *known)) return Outcome::kOlder;
  }
  return ForgottenAt(limit.limit) <= wall ? Outcome::kOver : Outcome::kTaken;
}

SetLimits::Outcome SetLimits::Put(SignedLimit limit, Duration wall) {
  if (const Outcome outcome = Judge(limit, wall); outcome != Outcome::kTaken) return outcome;
  const Name name = NameOf(limit.limit);
  const auto known = entries_.find(name);
  if (known != entries_.end()) {
    Drop(known);
  } else if (entries_.size() >= kMost && !MakeRoom(wall)) {
    return Outcome::kCrowded;
  }
  if (const auto other = aside_.find(name); other != aside_.end() && IsNewer(limit, other->second.limit)) {
    aside_.erase(other);
  }
  Count(limit, true);
  entries_.emplace(name, std::move(limit));
  return Outcome::kTaken;
}

const SignedLimit* SetLimits::Find(const Name& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() ? &found->second : nullptr;
}

void SetLimits::Count(const SignedLimit& limit, bool comes) {
  if (limit.local()) return;
  const std::uint64_t hash = HashOf(limit);
  comes ? ++digest_.count : --digest_.count;
  digest_.sum += comes ? hash : -hash;
}

void SetLimits::Drop(Entries::iterator at) {
  Count(at->second, false);
  entries_.erase(at);
}

// Forgets the one that has ended first, before its time.
bool SetLimits::MakeRoom(Duration wall) {
  auto first = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (IsInForce(at->second.limit, wall)) continue;
    if (first == entries_.end() || ForgottenAt(at->second.limit) < ForgottenAt(first->second.limit)) first = at;
  }
  if (first == entries_.end()) return false;
  Drop(first);
  return true;
}

void SetLimits::Forget(Duration wall) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (ForgottenAt(at->second.limit) <= wall) Drop(at);
    at = next;
  }
  std::erase_if(aside_, [&](const auto& entry) {
    return std::min(entry.second.since + kRemembered, ForgottenAt(entry.second.limit.limit)) <= wall;
  });
}

void SetLimits::SetAside(SignedLimit limit, Duration since) {
  const Name name = NameOf(limit.limit);
  if (const SignedLimit* const known = Find(name); known != nullptr && !IsNewer(limit, *known)) return;
  const auto other = aside_.find(name);
  if (other != aside_.end() ? !IsNewer(limit, other->second.limit) : aside_.size() >= kMost) return;
  aside_[name] = {std::move(limit), since};
}

bool SetLimits::Keep(const OperatorKeys& keys, Duration wall) {
  Forget(wall);
  bool changed = false;
  std::vector<SignedLimit> back;
  std::erase_if(aside_, [&](const auto& entry) {
    const bool allowed = Allows(keys, entry.second.limit);
    if (allowed) back.push_back(entry.second.limit);
    return allowed;
  });
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (!Allows(keys, at->second)) {
      SignedLimit limit = at->second;
      Drop(at);
      SetAside(std::move(limit), std::max(wall, written_));
      changed = true;
    }
    at = next;
  }
  for (SignedLimit& limit : back) changed |= Put(std::move(limit), wall) == Outcome::kTaken;
  return changed;
}

// ---- All of them ----

std::vector<SetLimit> SetLimits::InForce(Duration wall) const {
  std::vector<SetLimit> all;
  for (const auto& [name, limit] : entries_) {
    if (IsInForce(limit.limit, wall)) all.push_back(limit.limit);
  }
  return all;
}

Duration SetLimits::NextEnd(Duration wall) const {
  Duration next = Duration::max();
  for (const auto& [name, limit] : entries_) {
    if (IsInForce(limit.limit, wall) && limit.limit.until != Duration()) next = std::min(next, limit.limit.until);
  }
  return next;
}

Duration SetLimits::StampFor(LimitOf of, std::string_view name, Duration wall) const {
  Duration stamp = std::chrono::floor<std::chrono::microseconds>(wall);
  for (const auto& [known, its] : entries_) {
    const bool is_same = known.first == of && known.second == name;
    const bool is_replaced = is_same || of == LimitOf::kRules || known.first == LimitOf::kRules;
    if (is_replaced) stamp = std::max(stamp, its.limit.stamp + std::chrono::microseconds(1));
  }
  return stamp;
}

std::string SetLimits::File(Duration wall) const {
  const Duration written = std::max(wall, written_);
  std::string text =
      fmt::format("{}{}\n", kFileBegin, std::chrono::duration_cast<std::chrono::microseconds>(written).count());
  for (const auto& [name, limit] : entries_) text += limit.Line() + '\n';
  for (const auto& [name, its] : aside_) {
    const auto since = std::chrono::duration_cast<std::chrono::microseconds>(its.since).count();
    text += fmt::format("{}{} {}\n", kAsideBegin, since, its.limit.Line());
  }
  return text;
}

Duration SetLimits::WrittenAt(std::string_view head) {
  head.remove_prefix(std::min(kFileBegin.size(), head.size()));
  std::int64_t written_us = 0;
  std::from_chars(head.data(), head.data() + head.size(), written_us);
  if (written_us < 0 || written_us > kDateMicrosecondsMax) return {};
  return std::chrono::microseconds(written_us);
}

SetLimits::Stamps SetLimits::StampsIn(std::string_view text) {
  Stamps stamps;
  while (!text.empty()) {
    const auto limit = ParseSigned(TakeLine(text));
    if (limit) stamps.insert_or_assign(NameOf(limit->limit), limit->limit.stamp);
  }
  return stamps;
}

std::vector<std::string> SetLimits::TakeFile(std::string_view text, const OperatorKeys& keys, Duration wall) {
  written_ = WrittenAt(TakeLine(text));
  const bool was_away = wall - written_ > kRemembered;
  bool is_left_to_peers = false;
  std::vector<std::string> left_out;
  for (std::size_t number = 2; !text.empty(); ++number) {
    std::string_view line = TakeLine(text);
    Duration since = std::max(wall, written_);
    const bool is_aside = line.starts_with(kAsideBegin);
    if (is_aside) {
      line.remove_prefix(kAsideBegin.size());
      if (!ReadDate(NextField(line), since)) line = {};
    }
    auto limit = ParseSigned(line);
    if (!limit) {
      left_out.push_back(fmt::format("line {}: {}", number, limit.error().message));
    } else if (was_away && !limit->local()) {
      is_left_to_peers = true;
    } else if (!limit->local() && !IsGenuine(*limit)) {
      left_out.push_back(fmt::format("line {}: the signature is not that of the key", number));
    } else if (is_aside || !Allows(keys, *limit)) {
      SetAside(std::move(*limit), since);
    } else if (Put(std::move(*limit), wall) == Outcome::kCrowded) {
      left_out.push_back(fmt::format("line {}: there are {} limits already", number, kMost));
    }
  }
  if (is_left_to_peers) {
    left_out.emplace_back("this host was away for so long that limits that operators have signed may have been cleared "
                          "meanwhile: peers have to tell them");
  }
  Keep(keys, wall);
  return left_out;
}

void Amend(const std::vector<SetLimit>& set, Duration since, std::size_t tag_bytes_max, std::vector<Rule>& rules,
           std::vector<Override>& overrides) {
  std::unordered_map<std::string_view, const SetLimit*> of_rules, of_tags;
  for (const SetLimit& limit : set) {
    if (limit.stamp < since) continue;
    if (limit.of == LimitOf::kRule) of_rules.emplace(limit.name, &limit);
    if (limit.of == LimitOf::kTag) of_tags.emplace(limit.name, &limit);
  }
  for (Rule& rule : rules) {
    const auto found = of_rules.find(rule.name);
    if (found != of_rules.end()) rule.burst = found->second->burst, rule.rate = found->second->rate;
  }
  for (Override& given : overrides) {
    const auto found = of_tags.find(given.tag);
    if (found == of_tags.end()) continue;
    given.burst = found->second->burst, given.rate = found->second->rate;
    of_tags.erase(found);
  }
  for (const SetLimit& limit : set) {    // in their order, so that the same limits make the same rulebook
    if (limit.of != LimitOf::kTag || !of_tags.contains(limit.name) || limit.name.size() > tag_bytes_max) continue;
    if (overrides.size() < Rulebook::kOverridesMax) overrides.push_back({limit.name, limit.burst, limit.rate, {}});
  }
}

}    // namespace dthrottle
