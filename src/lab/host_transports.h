// The transports of one virtual host: what its exchanges send goes out into the world, and what they save stays.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "bus/exchange.h"
#include "capacity/capacity_exchange.h"
#include "lab/events.h"

namespace dthrottle::lab {

// What a host does to the world.
class Surroundings {
 public:
  // To `parcel.to`, or to everybody else if it is published.
  virtual void Send(const Parcel& parcel) = 0;
  // Hits are on their way into a report.
  virtual void Reported(std::uint32_t host, const Entries& entries) = 0;
  // Hits of peers are about to be debited.
  virtual void Debited(std::uint32_t host, const Entries& entries) = 0;
  // The date, since 1970 UTC.
  virtual Duration Date() const = 0;

 protected:
  ~Surroundings() = default;
};

class HostTransports final : public Transport, public CapacityTransport {
 public:
  // `codec` decodes each frame that is published, once for all hosts that hear it. The surroundings must outlive it.
  HostTransports(std::uint32_t host, std::shared_ptr<Codec> codec, Surroundings& surroundings)
      : host_(host), codec_(std::move(codec)), surroundings_(surroundings) {}

  // The route by which that host is answered. Routes are in the order of the hosts. Hosts that start at one moment call
  // in that order, so each subscribes behind all before it.
  static Route RouteTo(std::uint32_t host);

  bool Publish(const Route& route, const Frame& frame) override;
  void Ask(LinkId link, const Frame& frame) override;
  void Answer(const Route& route, const Frame& frame) override;
  void Send(std::string_view peer, std::string_view frame) override;
  void Save(std::string_view state) override { saved_ = state; }

  // What the exchange of capacity has saved, on disk.
  const std::string& saved() const { return saved_; }
  void LoseSaved() { saved_.clear(); }

 private:
  const std::uint32_t host_;
  const std::shared_ptr<Codec> codec_;
  Surroundings& surroundings_;
  std::string saved_;
  Frame published_;                           // the latest
  std::shared_ptr<const Decoded> decoded_;    // of it
};

// What hosts call each other.
std::string HostName(std::uint32_t number);
std::uint32_t HostNumber(std::string_view name);

}    // namespace dthrottle::lab
