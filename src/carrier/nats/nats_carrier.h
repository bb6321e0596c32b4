// Frames between hosts over servers of NATS, where owners have the tags (protocol/nats.md). A link leads to an owner, and
// a route back is a host's name: both are subjects. What comes is said by the host that its subject names, which the
// server's permissions bind to who may publish it.
//
// The daemon knows nothing of libnats: a module has it (client.h), which is loaded when the peer thread starts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carrier/nats/client.h"
#include "config/settings.h"
#include "io/carrier.h"

namespace dthrottle {

class NatsCarrier final : public Carrier {
 public:
  // Whether the module is there, and can be loaded.
  static Result<void> Check(const Settings& settings);
  static MakeCarrier For(const Settings& settings);

  struct Options {
    std::string prefix;    // of subjects
    NatsOptions client;    // but for what Open reads and finds out
    std::string credentials_file;    // empty: none
  };
  // REQUIRES: the exchange has owners.
  NatsCarrier(Options options, const Host& host);

  Result<void> Open() override;
  void Close() override { client_.reset(); }
  Instant Tick(Instant now) override;
  void Wait(Instant until, int wake_fd) override;
  void Read(Instant now) override;
  void Watch(std::vector<PeerStatus>& peers, const ExchangeCounts& counts, Instant now) override;
  void SetConnect(const std::vector<std::string>& connect, Instant now) override;
  void OnKeys(bool, Instant) override {}    // it has none

  // Transport
  void Ask(LinkId link, const Frame& frame) override;
  void Answer(const Route& route, const Frame& frame) override;
  bool Publish(const Route& route, const Frame& frame) override;

 private:
  void Reconcile(Instant now);
  void Hear(std::string_view verb);
  void Send(const std::string& subject, const Frame& frame);
  void OnMessage(const NatsClient::Message& message);
  void Tell(const NatsStatus& status, Instant now);
  // Why frames may not pass the server that is connected; empty: all do.
  std::string Narrow(const NatsStatus& status) const;

  Options options_;
  const Host host_;
  const std::string token_;    // this host's, in subjects
  std::unique_ptr<NatsClient> client_;
  std::vector<std::string> named_;           // owners by the settings
  std::shared_ptr<const Owners> owners_;     // in force when links were looked at last
  std::map<LinkId, std::string> subjects_;                // of owners
  std::map<std::string, LinkId, std::less<>> links_;     // by their names
  LinkId last_link_ = 0;
  bool keeps_ = false;     // links to hosts that own nothing any more
  bool asked_ = false;     // hears what is asked of owners
  std::uint64_t refused_ = 0;                            // frames that the client did not take
  NatsStatus told_;                                      // what the log knows
  Instant troubled_{};                                   // when the latest error came
  Instant said_{};                                       // when the log was told of one
};

}    // namespace dthrottle
