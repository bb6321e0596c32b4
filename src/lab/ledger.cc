#include "lab/ledger.h"

#include <algorithm>

#include "base/check.h"
#include "config/calendar.h"

namespace dthrottle::lab {
namespace {

Ticks ToTicks(WorldTime t) {
  return t.time_since_epoch().count() * kTicksPerNanosecond;
}

}    // namespace

Tokens Account::Level(WorldTime now) const {
  return static_cast<double>(shape.depth - std::max<Ticks>(full_at_ - ToTicks(now), 0)) /
         static_cast<double>(shape.interval);
}

Duration Account::Busy(WorldTime now) const {
  return std::min(now, WorldTime(ToDuration(full_at_))) - full_until_;
}

std::int64_t Account::Missing(std::uint32_t host) const {
  return static_cast<std::int64_t>(served - gone - served_on[host] - debited_on[host]);
}

TagNumber Ledger::Open(std::string_view tag) {
  if (const auto it = numbers_.find(tag); it != numbers_.end()) return it->second;
  const auto index = rules_->Find(tag);
  DT_CHECK(index.has_value());
  const Limit& limit = rules_->limit(*index);
  const auto number = static_cast<TagNumber>(accounts_.size());
  Account& account = accounts_.emplace_back();
  account.tag = tag;
  account.shape = limit.shape;
  account.exempt = limit.mode == Mode::kOff;
  account.shared = !account.exempt && limit.rule < rules_->rules().size() &&
                   rules_->rules()[limit.rule].share != Share::kLocal;
  account.in_flight = limit.in_flight;
  account.quota = limit.quota;
  account.calendar_ = limit.calendar;
  account.served_on.resize(hosts_);
  account.reported_by.resize(hosts_);
  account.debited_on.resize(hosts_);
  account.full_at_ = ToTicks(WorldTime{}) - account.shape.depth;
  numbers_.emplace(account.tag, number);
  rules_->ForEachDerived(*index, {account.tag}, [&](std::string_view derived) {
    if (rules_->Find(derived)) account.charged.push_back(Open(derived));
  });
  return number;
}

// The account as of now: a new period of its quota has begun, if the date says so.
Account& Ledger::At(TagNumber tag, WorldTime now) {
  Account& account = accounts_[tag];
  if (account.quota == 0) return account;
  const Duration date = wall_.Date(now);
  if (date < account.period_ends_) return account;
  const std::int64_t seconds = std::chrono::floor<std::chrono::seconds>(date).count();
  account.period_ends_ = std::chrono::seconds(PeriodsAt(rules_->calendars()[account.calendar_], seconds).next);
  account.spent_ = 0;
  return account;
}

void Account::Spend(std::uint64_t tokens) {
  spent_ += tokens;
  spent_max = std::max(spent_max, spent_);
}

void Ledger::Asked(TagNumber tag, Cost cost, bool ideally, WorldTime now) {
  Account& account = accounts_[tag];
  if (account.asked == 0) account.asked_since_ = now;
  account.asked += cost;
  if (ideally) account.ideal += cost;
}

void Ledger::Entered(TagNumber tag) {
  Account& account = accounts_[tag];
  account.places_max = std::max(account.places_max, ++account.places);
}

// Peers are told of tokens that were used beyond what was held as of hits.
void Ledger::Settled(TagNumber tag, std::uint32_t host, Cost cost, Cost used, WorldTime now) {
  Account& account = At(tag, now);
  account.Use(used, now);
  account.full_at_ += account.shape.interval * (Ticks{used} - Ticks{cost});
  if (used <= cost) {
    account.spent_ -= std::min<std::uint64_t>(cost - used, account.spent_);
    return;
  }
  account.Spend(used - cost);
  account.served += used - cost;
  account.served_on[host] += used - cost;
}

void Account::Use(std::uint64_t tokens, WorldTime now) {
  if (exempt) return;
  used_ += static_cast<double>(tokens);
  overused = std::max(overused, used_ / (shape.burst() + shape.rate() * Seconds(now - asked_since_)) - 1);
}

void Ledger::Served(TagNumber tag, std::uint32_t host, Cost cost, WorldTime now, bool held) {
  Account& account = At(tag, now);
  account.Spend(cost);
  if (!held) account.Use(cost, now);
  account.served += cost;
  account.served_on[host] += cost;
  if (account.full_at_ <= ToTicks(now)) {
    account.full_at_ = ToTicks(now);
    account.full_until_ = now;
  }
  account.full_at_ += account.shape.interval * Ticks{cost};
}

Account* Ledger::Find(std::string_view tag) {
  const auto it = numbers_.find(tag);
  if (it == numbers_.end()) {
    ++invented_;
    return nullptr;
  }
  return &accounts_[it->second];
}

void Ledger::Reported(std::uint32_t host, const Entries& entries) {
  if (accounts_.empty()) return;
  for (const Entry& entry : entries.list()) {
    if (Account* account = Find(entries.tag(entry).bytes)) account->reported_by[host] += entry.value;
  }
}

void Ledger::Debited(std::uint32_t host, const Entries& entries) {
  if (accounts_.empty()) return;
  for (const Entry& entry : entries.list()) {
    Account* account = Find(entries.tag(entry).bytes);
    if (account == nullptr) continue;
    account->debited_on[host] += entry.value;
    if (account->Missing(host) < 0) ++told_twice_;
  }
}

void Ledger::Wiped(std::uint32_t host) {
  for (Account& account : accounts_) {
    if (!account.shared) continue;
    const std::uint64_t gone = account.served_on[host] - account.reported_by[host];
    account.gone += gone;
    account.served_on[host] -= gone;
    account.full_at_ -= account.shape.interval * static_cast<Ticks>(gone);
  }
}

}    // namespace dthrottle::lab
