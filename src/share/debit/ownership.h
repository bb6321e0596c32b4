// Which hosts own the tags, where a few do, and what this host does for those that are its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bus/owners/owners.h"
#include "share/owners/owning.h"
#include "share/owners/silent_owners.h"
#include "share/said_tag.h"
#include "share/ways.h"

namespace dthrottle {

class Ownership {
 public:
  // Both must outlive it. Until Change everybody hears everything.
  Ownership(Ways& ways, ToPeersRing& to_peers) : ways_(ways), to_peers_(to_peers) {}

  void Call(std::string_view name) { name_ = name; }    // this host

  // These are the owners from now on; null: everybody hears everything.
  void Change(std::shared_ptr<const Owners> owners) {
    before_ = std::exchange(owners_, std::move(owners));
    if (owners_ == nullptr || !owners_->Find(name_)) {
      owning_.reset();
    } else if (owning_ == nullptr) {
      owning_ = std::make_unique<Owning>(ways_, to_peers_);
    } else {
      owning_->KeepOwned(owners_, name_);
    }
    heard_.Change(owners_, owners_ != nullptr ? owners_->Find(name_) : std::nullopt);
  }

  // An owner, of the list, says something in that life.
  void Heard(std::size_t owner, std::uint64_t life, Duration period, Instant now) {
    if (heard_.Heard(owner, life, now)) JudgeSilent(period, now);
  }
  // At the end of each period of reports: which owners are silent.
  void JudgeSilent(Duration period, Instant now) {
    std::shared_ptr<const SilentOwners> silent = heard_.Silent(period, now);
    LimiterCore& core = ways_.core();
    const auto& known = core.silent_owners;
    if (silent == nullptr ? known == nullptr : known != nullptr && *known == *silent) return;
    core.table->Exclusively([&] { core.silent_owners = std::move(silent); });
  }

  // Null: this host owns nothing.
  Owning* owning() const { return owning_.get(); }
  // Hosts that own the tags, if this is one of them; otherwise 0.
  std::size_t parts() const { return owning_ != nullptr ? owners_->names().size() : 0; }
  bool some_own() const { return owners_ != nullptr; }    // hosts do not hear everything
  bool others_only() const { return owners_ != nullptr && owning_ == nullptr; }

  // This host owns the tag.
  bool Owns(const Tag& tag) const { return owning_ != nullptr && IsOurs(*owners_, tag); }

  // By the list before the last Change this host owned the tag, and now another one does.
  bool IsGiven(const Tag& tag) const { return IsOurs(*before_, tag) && !IsOurs(*owners_, tag); }

 private:
  bool IsOurs(const Owners& owners, const Tag& tag) const { return owners.name(owners.Of(tag)) == name_; }

  Ways& ways_;
  ToPeersRing& to_peers_;
  std::string name_;
  std::shared_ptr<const Owners> owners_, before_;
  std::unique_ptr<Owning> owning_;
  OwnersHeard heard_;
};

// Whether a few hosts own the tags.
inline bool SomeOwn(const LimiterCore& core) {
  return core.ownership != nullptr && core.ownership->some_own();
}

// Whether this host owns the tag.
inline bool OwnsHere(const LimiterCore& core, const Tag& tag) {
  return core.ownership != nullptr && core.ownership->Owns(tag);
}

// The limit of a tag that this host owns and others know, with its shard locked.
inline std::optional<LimitIndex> LimitOfOwned(const LimiterCore& core, Table::Shard& shard, const Tag& tag,
                                              Instant now) {
  if (!OwnsHere(core, tag)) return std::nullopt;
  const Slot* const slot = shard.Find(tag, now);
  if (slot == nullptr && tag.is_digest) return std::nullopt;    // nobody knows its rule
  const auto index = LimitOfSaid(*core.rules, slot, tag);
  return index && core.limit(*index).shared ? index : std::nullopt;
}

}    // namespace dthrottle
