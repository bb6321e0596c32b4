// What the requests of a log have for a while in one fleet: holds, and places of rules with `in_flight`. The log says
// when they end; those of a workload (stays.h) end by chance. A hold that the log does not settle ends with its time,
// to the second. A place that it does not give back stays taken. What a request has spent it may give back in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hold/kept_ends.h"
#include "lab/fleet.h"
#include "lab/question_log.h"

namespace dthrottle::lab {

class Requests {
 public:
  static constexpr std::size_t kTagsMax = 400'000;    // of holds and places, at once
  static constexpr std::size_t kPaidMax = 400'000;    // requests that have spent something, the latest

  // The fleet must outlive it.
  explicit Requests(Fleet& fleet) : fleet_(fleet) {}

  // Call once, when hosts have started: they can take back places from now on.
  void Begin();

  // Runs the fleet until then. Places that were taken for some time end with it.
  void Run(WorldTime until);
  // So much of the log's time is none of the fleet's. Such places end by the log's.
  void PassOver(Duration time);

  // The host where the request has something; none: it has nothing.
  std::optional<std::uint32_t> HostOf(std::string_view request) const;
  // The question has been refused.
  void Refused(const LoggedQuestion& question);
  // That host has served the question, whose tags are `queries` and stand there now.
  void Took(const LoggedQuestion& question, std::span<const Query> queries, std::span<const Standing> standings,
            std::uint32_t host, std::int64_t time_s);
  // The request settles its hold or gives back its places, if it has any. A commit with neither one number nor as many
  // as the hold has tags changes nothing, as in the daemon.
  void Return(const LoggedQuestion& question);
  // The request gives back what these tags have cost, if its latest `take` was served.
  void Refund(const LoggedQuestion& question, std::span<const Query> queries);
  // When the first hold ends that is not settled before.
  std::int64_t next_end_s() const { return ends_.empty() ? INT64_MAX : ends_.begin()->first; }
  // Holds end whose time is over then.
  void Expire(std::int64_t time_s);

  struct Counts {
    std::uint64_t holds = 0;    // taken
    std::uint64_t committed = 0, released = 0, expired = 0;
    std::uint64_t returned = 0, exceeded = 0;    // tokens: that came back, and beyond what was held
    std::uint64_t refunded = 0;                  // tokens
    std::uint64_t places = 0;                    // taken
    std::uint64_t taken_back = 0;                // of them, because a host's part of them became smaller
    std::uint32_t places_max = 0;                // at once on all hosts, of the tag with most,
    std::string places_tag{};                    // which is this one
    std::uint64_t crowded = 0;    // questions that there was no room for: what they took stays taken
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Tag {
    std::string bytes;
    bool is_digest = false;
    Cost cost = 0;
    KeptEnds ends{};    // of what is held

    Query query() const { return {{bytes, is_digest}, cost}; }
  };
  struct Request {
    std::uint32_t host = 0;
    std::int64_t until_s = 0;         // of the hold
    WorldTime since{};                // of it
    std::vector<Tag> held, places;
  };
  using All = std::map<std::string, Request, std::less<>>;

  void Spent(const LoggedQuestion& question, std::uint32_t host);
  void Hold(All::value_type& its, std::span<const Query> queries, std::int64_t until_s);
  void Enter(Request& request, const LoggedQuestion& question, std::span<const Query> queries,
             std::span<const Standing> standings);
  void Settle(All::value_type& its, std::span<const LoggedQuestion::Tag> actual);
  void Give(const Request& request, const Tag& place);
  void TakeBack(std::uint32_t host, std::uint64_t hash, std::uint32_t places);
  void EraseIfEmpty(All::iterator it);

  Fleet& fleet_;
  All all_;
  std::set<std::pair<std::int64_t, std::string>> ends_;    // of holds, by their requests
  std::set<std::pair<WorldTime, std::string>> leaving_;         // requests that end by themselves
  // By request, the host that served its latest `take`; none: it was refused.
  std::map<std::string, std::optional<std::uint32_t>, std::less<>> paid_;
  std::deque<std::string> paid_order_;                          // its keys, the oldest first
  std::uint64_t entered_ = 0;                                   // such requests
  std::map<std::string, std::uint32_t, std::less<>> places_;    // taken now, by the bytes of the tag
  std::size_t tags_ = 0;                                        // of all_
  Counts counts_;
};

}    // namespace dthrottle::lab
