#include "lab/requests.h"

#include <algorithm>

#include "limiter/inspect.h"
#include "limiter/places.h"
#include "share/ways.h"

namespace dthrottle::lab {
namespace {

using Does = LoggedQuestion::Does;

constexpr LoggedQuestion::Tag kNothing{{}, 0};    // is what a hold has used that comes back

}    // namespace

void Requests::Begin() {
  for (std::uint32_t host = 0; host < fleet_.size(); ++host) {
    fleet_.host(host).limiter().ways().Get<Division>().OnOver(
        [this, host](const dthrottle::Tag&, std::uint64_t hash, std::uint32_t n) { TakeBack(host, hash, n); });
  }
}

std::optional<std::uint32_t> Requests::HostOf(std::string_view request) const {
  const auto it = all_.find(request);
  return it != all_.end() ? std::optional(it->second.host) : std::nullopt;
}

void Requests::Took(const LoggedQuestion& question, std::span<const Query> queries,
                    std::span<const Standing> standings, std::uint32_t host, std::int64_t time_s) {
  if (question.verb == Verb::kTake) return Spent(question, host);
  if (tags_ + queries.size() > kTagsMax) {
    ++counts_.crowded;
    return;
  }
  const bool leaves = question.verb == Verb::kEnter && question.ttl != Duration(0);
  // A name that no log can have, as it begins with a blank.
  const auto it = all_.try_emplace(leaves ? " " + std::to_string(++entered_) : std::string(question.request)).first;
  it->second.host = host;
  if (question.verb == Verb::kHold) {
    Hold(*it, queries, time_s + std::chrono::ceil<std::chrono::seconds>(question.ttl).count());
  } else {
    Enter(it->second, question, queries, standings);
    if (leaves && !it->second.places.empty()) leaving_.emplace(fleet_.now() + question.ttl, it->first);
  }
  EraseIfEmpty(it);
}

void Requests::EraseIfEmpty(All::iterator it) {
  if (it->second.held.empty() && it->second.places.empty()) all_.erase(it);
}

// ---- What comes back of what was spent ----

void Requests::Spent(const LoggedQuestion& question, std::uint32_t host) {
  if (question.request.empty()) return;
  const auto [it, fresh] = paid_.insert_or_assign(std::string(question.request), host);
  if (!fresh) return;
  paid_order_.push_back(it->first);
  if (paid_order_.size() <= kPaidMax) return;
  paid_.erase(paid_order_.front());
  paid_order_.pop_front();
}

void Requests::Refused(const LoggedQuestion& question) {
  if (question.verb != Verb::kTake || question.request.empty()) return;
  if (const auto it = paid_.find(question.request); it != paid_.end()) it->second.reset();
}

void Requests::Refund(const LoggedQuestion& question, std::span<const Query> queries) {
  const auto it = paid_.find(question.request);
  if (it == paid_.end() || !it->second) return;
  for (const Query& query : queries) {
    fleet_.host(*it->second).GivesBack(query, fleet_.now());
    counts_.refunded += query.cost;
  }
}

// ---- Holds ----

void Requests::Hold(All::value_type& its, std::span<const Query> queries, std::int64_t until_s) {
  auto& [name, request] = its;
  if (!request.held.empty()) {    // no line can settle that one any more
    ++counts_.expired;
    Settle(its, {&kNothing, 1});
  }
  ++counts_.holds;
  for (const Query& query : queries) {
    request.held.push_back({std::string(query.tag.bytes), query.tag.is_digest, query.cost, KeptEnds(query)});
  }
  tags_ += queries.size();
  request.until_s = until_s;
  request.since = fleet_.now();
  ends_.emplace(until_s, name);
}

void Requests::Settle(All::value_type& its, std::span<const LoggedQuestion::Tag> actual) {
  auto& [name, request] = its;
  for (std::size_t i = 0; i < request.held.size(); ++i) {
    Query held = request.held[i].query();
    const std::optional<OverLongTag> over_long = request.held[i].ends.Of(held.tag);
    if (over_long) held.over_long = &*over_long;
    const Cost used = actual[actual.size() == 1 ? 0 : i].cost;
    fleet_.host(request.host).Settles(held, request.since, used, fleet_.now());
    counts_.returned += held.cost - std::min(held.cost, used);
    counts_.exceeded += used - std::min(held.cost, used);
  }
  tags_ -= request.held.size();
  request.held.clear();
  ends_.erase({request.until_s, name});
}

void Requests::Expire(std::int64_t time_s) {
  while (next_end_s() <= time_s) {
    const auto it = all_.find(ends_.begin()->second);
    ++counts_.expired;
    Settle(*it, {&kNothing, 1});
    EraseIfEmpty(it);
  }
}

// ---- Places ----

void Requests::Enter(Request& request, const LoggedQuestion& question, std::span<const Query> queries,
                     std::span<const Standing> standings) {
  const auto take = [&](std::string bytes, bool is_digest, std::string_view name) {
    const Tag& place = request.places.emplace_back(Tag{std::move(bytes), is_digest});
    ++tags_, ++counts_.places;
    const std::uint32_t taken = ++places_[place.bytes];
    if (taken <= counts_.places_max) return;
    counts_.places_max = taken;
    counts_.places_tag = name;
  };
  SimHost& host = fleet_.host(request.host);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto& [bytes, is_digest] = queries[i].tag;
    if (standings[i].entered) take(std::string(bytes), is_digest, question.tags[i].name);
    for (const std::string& with : PlacesWith(host.limiter(), queries[i], host.clock().Local(fleet_.now()))) {
      take(with, false, with);
    }
  }
}

void Requests::Give(const Request& request, const Tag& place) {
  Limiter& limiter = fleet_.host(request.host).limiter();
  GivePlaces(limiter, limiter.table().Hash(place.query().tag), 1);
  --tags_;
  if (const auto it = places_.find(place.bytes); --it->second == 0) places_.erase(it);
}

void Requests::Run(WorldTime until) {
  while (!leaving_.empty() && leaving_.begin()->first <= until) {
    const auto [at, name] = *leaving_.begin();
    leaving_.erase(leaving_.begin());
    fleet_.Run(at);
    Return({.does = Does::kGive, .request = name});
  }
  fleet_.Run(until);
}

void Requests::PassOver(Duration time) {
  std::set<std::pair<WorldTime, std::string>> earlier;
  for (const auto& [at, name] : leaving_) earlier.emplace(std::max(at - time, fleet_.now()), name);
  leaving_ = std::move(earlier);
}

// Requests whose places are taken back lose them, as connections that are closed do.
void Requests::TakeBack(std::uint32_t host, std::uint64_t hash, std::uint32_t places) {
  const Table& table = fleet_.host(host).limiter().table();
  for (auto it = all_.begin(); it != all_.end() && places > 0;) {
    const auto next = std::next(it);
    Request& request = it->second;
    const auto named = [&](const Tag& place) { return table.Hash(place.query().tag) == hash; };
    const auto one = std::ranges::find_if(request.places, named);
    if (request.host == host && one != request.places.end()) {
      Give(request, *one);
      request.places.erase(one);
      --places, ++counts_.taken_back;
      EraseIfEmpty(it);
    }
    it = next;
  }
}

void Requests::Return(const LoggedQuestion& question) {
  const auto it = all_.find(question.request);
  if (it == all_.end()) return;
  Request& request = it->second;
  if (question.does == Does::kGive) {
    for (const Tag& place : request.places) Give(request, place);
    request.places.clear();
  } else if (const std::size_t held = request.held.size(); held > 0) {
    const std::size_t numbers = question.tags.size();
    const bool commits = question.does == Does::kCommit;
    if (commits && numbers != 1 && numbers != held) return;
    ++(commits ? counts_.committed : counts_.released);
    Settle(*it, commits ? question.tags : std::span(&kNothing, 1));
  }
  EraseIfEmpty(it);
}

}    // namespace dthrottle::lab
