// The list of owners where etcd has it (peers.etcd): reads it, enters this host if it is to own tags, and writes the
// next list where that falls to this host (io/etcd_owners.h). It runs on the main loop, and the exchange goes on by the
// last list while etcd does not answer.
//
// Owners read four times a second. Other hosts hear of a list from owners, and read only its addresses: when they hear
// of a list that they have not read, every 5 s while an owner is silent, and otherwise twice a minute.
#pragma once

#include <uv.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "config/settings.h"
#include "io/etcd_client.h"
#include "io/etcd_elector.h"
#include "io/etcd_owners.h"
#include "io/kept_text.h"
#include "io/log.h"
#include "io/timer.h"

namespace dthrottle {

class OwnerList {
 public:
  struct Fleet {
    std::function<EtcdOwners::View()> look;
    std::function<void(std::vector<std::string>)> propose;    // the owners are to be these
    std::function<void()> on_list;                            // list() is another one
  };

  // All must outlive it. `name`: of this host.
  OwnerList(uv_loop_t* loop, const Settings& settings, Log& log, std::string name, Prng prng, Fleet fleet);

  // Takes the list that an earlier life has kept beside the table, and begins to ask etcd. An error says that the file
  // there is somebody else's.
  Result<void> Start();
  // Enters this host, or takes it out.
  void Reload();

  // The list that etcd had when it last said; none: nobody knows yet.
  const std::optional<OwnerAddresses>& list() const { return list_; }

  bool registered() const;                                // this host is entered among those that are to own tags
  std::uint64_t failures() const { return failures_; }    // answers that were no good or did not come

  void Close();

 private:
  // An entry that has been given up.
  struct Left {
    std::unique_ptr<EtcdElector> entry;
    bool resigned = false, closed = false;
  };

  void OnTick();
  Duration Lasts(const EtcdOwners::View& view) const;
  void Ask(const EtcdRequest& request, std::function<void(const FetchedReply&)> on_reply);
  void OnRead(const FetchedReply& reply);
  void OnWritten(const FetchedReply& reply);
  void OnFailure();
  void OnEntry();
  void TakeList();
  void Sweep();
  void TellTrouble();

  uv_loop_t* const loop_;
  const Settings& settings_;
  Log& log_;
  const std::string name_;
  Prng prng_;
  const Fleet fleet_;
  EtcdOwners owners_;
  EtcdClient etcd_;
  Timer timer_;
  std::unique_ptr<EtcdElector> entry_;    // of this host; null: it is not to own tags
  std::list<Left> left_;
  std::optional<KeptText> file_;
  std::optional<OwnerAddresses> list_;
  std::optional<BootInstant> read_at_;
  int spread_ = 100;                       // of the time until the next read, in percent
  std::uint64_t seen_ = 0;                 // epoch in force
  bool asking_ = false, wants_ = false;    // other owners
  std::uint64_t failures_ = 0;
  std::string read_trouble_, write_trouble_;
  std::string told_;    // trouble
  bool told_of_list_ = false;
  BootInstant told_at_{};
};

}    // namespace dthrottle
