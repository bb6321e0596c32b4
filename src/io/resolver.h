// Where the peers are: turns the entries of `peers.connect` into numeric addresses, again and again, because names
// move. ZeroMQ must never see a name: it would look it up in its only I/O thread and stop everything meanwhile.
//
// Owns no thread: its owner polls its descriptors and calls Process() and Tick(). A lookup that fails changes nothing
// but the state shown; an address is given up when three answers in a row are without it, because many name servers
// answer with a part of what they know.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "base/time.h"
#include "config/values.h"

namespace dthrottle {

class Resolver {
 public:
  struct Options {
    Duration every = std::chrono::seconds(30);    // between lookups of one name, give or take a tenth
    std::string servers;                          // "127.0.0.1:5353"; empty: the system's
  };

  // One address to connect to.
  struct Address {
    Endpoint endpoint;
    std::string key_name;
    std::string entry;    // as configured
  };

  // An entry that last failed; what was known of it before still holds.
  struct Failure {
    std::string entry;
    std::string reason;
    bool nothing_known;    // there is no address from before either
  };

  struct Counts {
    std::uint64_t lookups = 0;    // finished, failed ones included
    std::uint64_t failed = 0;
  };

  Resolver(Options options, Prng prng);
  ~Resolver();

  // Replaces the list. What is known about entries that stay is kept.
  void SetEntries(const std::vector<std::string>& entries, Instant now);

  // Descriptors to poll, with the events of interest; they change with every call of a function that is not const.
  std::vector<pollfd> Descriptors() const;
  void Process(std::span<const pollfd> ready, Instant now);

  // Starts what is due. Returns when it wants to be called next.
  Instant Tick(Instant now);

  // Whether Addresses() or Failures() may have changed since this was last asked.
  bool TakeChanged();

  std::vector<Address> Addresses() const;    // each endpoint once
  std::vector<Failure> Failures() const;
  Counts counts() const;

 private:
  struct Entry;
  struct State;
  struct Lookup;

  std::unique_ptr<State> state_;
};

}    // namespace dthrottle
