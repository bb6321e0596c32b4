// The listening sockets of all front ends: opened, passed by the service manager or handed over by the program before,
// and how many connections each may have.
#pragma once

#include <uv.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/ceilings.h"
#include "frontend/frontend.h"
#include "io/listener.h"
#include "io/service.h"

namespace dthrottle {

struct Endpoint;
struct Endpoints;
struct Settings;

class Sockets final : public Part {
 public:
  using FrontEnds = std::vector<std::unique_ptr<FrontEnd>>;

  // All must outlive it. `handed` has the listening sockets that the program before has left.
  Sockets(uv_loop_t* loop, const FrontEnds& front_ends, const Settings& settings, Log& log, Handover& handed);

  // Each may be called once, in this order, and throws StartFailure. Sockets that the service manager opened take the
  // place of those in the settings, kind by kind.
  void TakePassed(const Service& service);
  void CloseMoved();    // handed sockets without a place in the settings, before anything opens at their addresses
  void OpenTcp();    // those for which a start as root is needed
  void Listen();

  // Divides descriptors among the sockets, by the settings in force. REQUIRES: at its first call no connection is open
  // but those that were handed over.
  void DividePlaces();

  // Front ends that listen, in their order, each behind the one that it rests on.
  std::vector<FrontEnd*> Listening() const;

  // Counts a connection that was handed over, which no bound turns away.
  void KeepPlace(const HandedConnection& connection);

  // Where the socket of this key is bound; empty: there is none.
  std::string AddressOf(std::string_view key) const;

  // "Answering on unix:/run/dthrottle/query.sock": for people.
  std::string Status() const;

  std::vector<HandedListener> Handed() const;

  // Accepts every connection that waits: it may have asked already.
  void AcceptAll();

  // Stops listening and removes the files.
  void Close() override;

  void Reload(std::vector<std::string>&) override { DividePlaces(); }
  void Count(ProcessCounts& counts) const override;

 private:
  struct Place {
    std::string key, address;    // as in HandedListener
    FrontEnd* front;
    std::unique_ptr<Listener> listener;
  };

  FrontEnd& FrontOf(std::string_view name) const;
  bool HasPlace(const HandedListener& listener) const;
  void ListenUnix(FrontEnd& front, const Endpoints& at);
  void ListenTcp(FrontEnd& front, const Endpoint& endpoint);
  void ListenOn(int fd, FrontEnd& front, const std::string& key, const std::string& address);
  int TakeHanded(const std::string& key, const std::string& address);
  PlaceBounds BoundsOf(const Place& listening) const;
  void OnConnection(FrontEnd& front, int fd);
  bool OnCrowd(FrontEnd& front, const std::string& place, int fd, Places::Answer answer);

  uv_loop_t* loop_;
  const FrontEnds& front_ends_;
  const Settings& settings_;
  Log& log_;
  Handover& handed_;
  std::vector<Place> listening_;
  Ceilings ceilings_;
  std::uint64_t descriptors_at_start_;
  std::vector<std::string> files_;    // that we made and remove
  std::uint64_t accept_failures_ = 0, crowded_ = 0;
};

}    // namespace dthrottle
