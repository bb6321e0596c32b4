// The list of owners in etcd, without sockets: what to ask the v3 JSON gateway, and what its answers mean
// (protocol/owners.md, "The list in etcd").
//
//   KEY         the list in force: its number, the owners with their addresses, and the owners before them
//   KEY/NAME    a host that is to own tags, with its address, under a lease that it keeps alive (EtcdElection)
//
// One read returns all of them as of one instant. The list is written only where it is still the one that was read, so
// there is one list after the other, each with a number of its own, whichever host writes it and however long that
// takes. An owner writes the next one when all owners are done with the change before (bus/owners/changing.h); where no
// owner is left, any host that is to own tags.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "bus/owners/owners.h"
#include "io/etcd_election.h"

namespace dthrottle {

// A list of owners, and where they are.
struct OwnerAddresses {
  std::shared_ptr<const Owners> owners;
  std::map<std::string, std::string> at;    // by name: "tcp://10.0.0.1:7314"; empty: nobody knows

  // The list in JSON, at most kTextMax bytes.
  std::string Text() const;
  static constexpr std::size_t kTextMax = 48 * 1024;
  static Result<OwnerAddresses> Parse(std::string_view text);

  // The addresses that are known, in the form of peers.connect.
  std::vector<std::string> Connect() const;

  friend bool operator==(const OwnerAddresses& a, const OwnerAddresses& b) {
    return a.owners->epoch() == b.owners->epoch() && a.at == b.at;
  }
};

class EtcdOwners {
 public:
  // The number 1 is for lists of settings, of which no host can say which is right. The first list of etcd has the
  // next.
  static constexpr std::uint64_t kFirst = Owners::kFirst + 1;
  // How long the host that writes the first list waits for others to be there.
  static constexpr Duration kGather = std::chrono::seconds(3);

  // What a host sees of its fleet.
  struct View {
    std::shared_ptr<const Owners> in_force;    // null: no list yet
    std::shared_ptr<const Owners> proposed;    // all owners are ready for it; null: for none
    std::vector<std::string> up;               // owners in force that it hears
  };

  // What to do after a read.
  struct Step {
    std::optional<EtcdRequest> write;    // a list; the writer reads again behind it
    std::vector<std::string> want;       // other owners than those in force; empty: these
  };

  EtcdOwners(std::string key, std::string name) : key_(std::move(key)), name_(std::move(name)) {}

  // The key that stands for this host while it is to own tags.
  std::string own_key() const { return key_ + '/' + name_; }

  EtcdRequest Read() const;
  // False: the answer is no good, and another endpoint may do better.
  bool OnRead(int status, std::string_view body, BootInstant now);
  void OnFailure(std::string why) { trouble_ = std::move(why); }
  // Says what the answer to a write of Next means. Empty: it is written, or another host was first.
  static std::string WhyNotWritten(int status, std::string_view body);

  // Says what is to be done after the last read. `candidate`: this host is to own tags. REQUIRES: OnRead was true.
  Step Next(const View& view, bool candidate, BootInstant now) const;

  // The list that etcd has; none: it has none, or nobody knows. One that was known stays where what stands there cannot
  // be read.
  const std::optional<OwnerAddresses>& list() const { return list_; }
  // Why the last read was no good, or what is wrong with what stands there; empty: nothing is.
  const std::string& trouble() const { return trouble_; }

 private:
  bool gone(const View& view) const;
  std::vector<std::string> Wanted(const View& view, bool candidate) const;
  std::optional<EtcdRequest> Write(std::shared_ptr<const Owners> owners) const;

  const std::string key_, name_;
  std::optional<OwnerAddresses> list_;
  std::int64_t revision_ = 0;                     // of what stands at the key; 0: nothing does
  std::map<std::string, std::string> present_;    // hosts that are to own tags, with their addresses
  std::optional<BootInstant> present_since_;      // this host is among them
  std::string trouble_;
};

}    // namespace dthrottle
