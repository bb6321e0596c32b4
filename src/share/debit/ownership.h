// Which hosts own the tags, where a few do, and what this host does for those that are its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "bus/owners/owners.h"
#include "share/owners/owning.h"
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
      owning_->KeepOwned(*owners_, name_);
    }
  }

  // Null: this host owns nothing.
  Owning* owning() const { return owning_.get(); }
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
};

// Whether this host owns the tag.
inline bool OwnsHere(const LimiterCore& core, const Tag& tag) {
  return core.ownership != nullptr && core.ownership->Owns(tag);
}

}    // namespace dthrottle
