// Penalized addresses for the packet filter of the kernel: what the daemon lists becomes elements of two sets of nftables,
// each with a timeout, so that packets of these addresses need not reach a web server at all.
//
// Without sockets and clocks: the list as JSON goes in, commands for nft come out. Where somebody else may have changed
// the sets, what nft says of them goes in too.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "rule/address.h"

namespace dthrottle {

class PacketFilter {
 public:
  static constexpr Duration kSlack = std::chrono::seconds(2);    // of when an element ends
  static constexpr std::size_t kElementsMax = 65'536;            // more are left out

  // `table` as nft writes it, "inet dthrottle". Addresses are what stands in a tag behind one of `prefixes`; an empty one
  // is for tags that are addresses.
  PacketFilter(std::string table, std::vector<std::string> prefixes)
      : table_(std::move(table)), prefixes_(std::move(prefixes)) {}

  // The answer of the command `penalties`, as JSON.
  Result<void> Take(std::string_view penalties, Instant now);

  // Each lists a set. They are two, because nft does not find the first set if one run lists both.
  std::array<std::string, 2> Listings() const;
  // The answers of nft to these, as JSON, a line each: from now on Changes() starts with what they say is there. On
  // false it does not, because a set is not there or has an element of a kind that is never ours.
  bool Found(std::string_view listed, Instant now);

  // What makes of what was there before what the answer says; empty: nothing has changed.
  std::string Changes(Instant now);
  // The same whatever is there: table and sets are made if they are not there, and the sets begin anew.
  std::string Everything(Instant now);

  std::size_t elements() const { return wanted_.size(); }

 private:
  using Elements = std::map<std::string, Instant>;    // network -> when it ends

  void Want(std::vector<std::pair<Network, Instant>> networks);
  std::string Added(const Elements& elements, Instant now) const;
  std::string_view SetOf(std::string_view network) const;

  const std::string table_;
  const std::vector<std::string> prefixes_;
  Elements wanted_, there_;
};

}    // namespace dthrottle
