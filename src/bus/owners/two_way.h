// One connection for both directions. An ordinary host connects to the owners of its fleet, and they do not connect to
// it: so an owner needs no list of hosts, and a host joins without a change anywhere else. What the owner says to the
// host, unasked, goes back on the connection that the host opened, as an answer does.
//
// The exchange knows links, by which it asks, and routes, by which it answers. Here a caller's route also serves as a
// link of the owner, and a link of the caller also as a route. Transports let a peer choose its own route, so a link's
// is longer than any of theirs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "bus/exchange.h"

namespace dthrottle {

class TwoWay final : public Transport {
 public:
  static constexpr std::size_t kCallersMax = 4096;

  explicit TwoWay(Transport& wire) : wire_(wire) {}

  // The route that leads where the link does.
  static Route RouteOf(LinkId link) {
    Route route(kLinkRouteBytes, '\0');
    std::memcpy(route.data(), &link, sizeof link);
    return route;
  }

  static bool IsCaller(LinkId link) { return link >= kFirst; }

  // The link that leads back to a caller, whose latest route this is; 0: there are too many callers. `fresh`: nothing
  // has been said by that route.
  LinkId Caller(const std::string& name, const Route& route, std::uint64_t life, bool& fresh, Instant now) {
    const auto known = links_.find(name);
    if (known == links_.end() && callers_.size() >= kCallersMax) return 0;
    const LinkId link = known != links_.end() ? known->second : (links_[name] = next_++);
    CallerNow& caller = callers_[link];
    fresh = caller.route != route;
    caller.name = name, caller.route = route, caller.called = now;
    if (caller.life != life) {
      caller.lives[caller.next_life++ % caller.lives.size()] = caller.life;
      caller.life = life;
    }
    return link;
  }
  // Whether a later life of the caller has called since: then two hosts call by one name, for a host that was started
  // anew never speaks in a life before.
  bool IsNamesake(std::string_view name, std::uint64_t life) const {
    const auto known = links_.find(name);
    if (known == links_.end()) return false;
    const auto caller = callers_.find(known->second);
    return caller != callers_.end() && caller->second.life != life &&
           std::ranges::find(caller->second.lives, life) != caller->second.lives.end();
  }
  // The link of a caller that calls by that route; 0: it does not.
  LinkId Find(std::string_view name, const Route& route) const {
    const auto known = links_.find(name);
    if (known == links_.end()) return 0;
    const auto caller = callers_.find(known->second);
    return caller != callers_.end() && caller->second.route == route ? known->second : 0;
  }
  // A caller that has not called since `then`, which is forgotten; 0: there is none.
  LinkId TakeGone(Instant then) {
    for (const auto& [link, caller] : callers_) {
      if (caller.called >= then) continue;
      const LinkId gone = link;
      links_.erase(caller.name);
      callers_.erase(gone);
      return gone;
    }
    return 0;
  }
  std::size_t callers() const { return callers_.size(); }
  // Forgets that caller; returns its link, 0 if there is none.
  LinkId Forget(std::string_view name) {
    const auto known = links_.find(name);
    if (known == links_.end()) return 0;
    const LinkId link = known->second;
    callers_.erase(link);
    links_.erase(known);
    return link;
  }

  void Ask(LinkId link, const Frame& frame) override {
    if (!IsCaller(link)) return wire_.Ask(link, frame);
    if (const auto caller = callers_.find(link); caller != callers_.end()) wire_.Answer(caller->second.route, frame);
  }
  void Answer(const Route& route, const Frame& frame) override {
    const auto link = LinkOf(route);
    link ? Ask(*link, frame) : wire_.Answer(route, frame);
  }
  bool Publish(const Route& route, const Frame& frame) override {
    const auto link = LinkOf(route);
    if (!link) return wire_.Publish(route, frame);
    Ask(*link, frame);
    return true;
  }

 private:
  struct CallerNow {
    std::string name;
    Route route;
    Instant called{};    // its latest hello
    std::uint64_t life = 0;
    std::array<std::uint64_t, 4> lives{};    // before, the latest of them
    std::size_t next_life = 0;
  };

  static constexpr std::size_t kLinkRouteBytes = 256;
  static constexpr LinkId kFirst = 1u << 31;    // no link of the settings has such a number

  // None: the route is the transport's.
  static std::optional<LinkId> LinkOf(const Route& route) {
    if (route.size() != kLinkRouteBytes) return std::nullopt;
    LinkId link = 0;
    std::memcpy(&link, route.data(), sizeof link);
    return link;
  }

  Transport& wire_;
  std::map<std::string, LinkId, std::less<>> links_;    // of callers, by their names
  std::map<LinkId, CallerNow> callers_;
  LinkId next_ = kFirst;
};

}    // namespace dthrottle
