// Leases in C++ over dthrottle_lease.h: RAII, and the two kinds of resources as two types. Header only.
//
//   dthrottle::Leases leases("tcp:10.0.0.1:7315,tcp:10.0.0.2:7315");
//   dthrottle::RateResource calls(leases, "backend-calls");
//   while (work()) { calls.Wait(); call(); }
//
//   dthrottle::GaugeResource transactions(leases, "transactions");
//   { const dthrottle::UnderGauge place(transactions); ... }
//
// Constructors throw std::system_error with the C function's errno. Resources end before their Leases.
#pragma once

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <system_error>

#include "dthrottle_lease.h"

namespace dthrottle {

using LeaseMode = ::dthrottle_lease_mode;

class Leases {
 public:
  explicit Leases(const std::string& addresses = DTHROTTLE_DEFAULT_LEASE_ADDRESS,
                  const dthrottle_leases_options& options = {})
      : handle_(dthrottle_leases_open(addresses.c_str(), &options), dthrottle_leases_close) {
    if (handle_ == nullptr) throw std::system_error(errno, std::generic_category(), addresses);
  }

  dthrottle_leases* get() const { return handle_.get(); }

 private:
  std::unique_ptr<dthrottle_leases, void (*)(dthrottle_leases*)> handle_;
};

// What both kinds have.
class Resource {
 public:
  // Asks for so much from now on; 0: by estimate.
  void SetWants(double wants) { dthrottle_resource_set_wants(handle_.get(), wants); }

  dthrottle_lease_status Status() const {
    dthrottle_lease_status status;
    dthrottle_resource_status(handle_.get(), &status);
    return status;
  }

 protected:
  Resource(dthrottle_resource* handle, const std::string& name) : handle_(handle, dthrottle_resource_close) {
    if (handle_ == nullptr) throw std::system_error(errno, std::generic_category(), name);
  }

  bool Take(int deadline_ms) { return dthrottle_resource_take(handle_.get(), deadline_ms) != 0; }
  void GiveBack() { dthrottle_resource_release(handle_.get()); }

  static int Milliseconds(std::chrono::milliseconds d) { return d.count() < 0 ? 0 : static_cast<int>(d.count()); }

 private:
  std::unique_ptr<dthrottle_resource, void (*)(dthrottle_resource*)> handle_;
};

// So many a second.
class RateResource : public Resource {
 public:
  RateResource(Leases& leases, const std::string& name, const dthrottle_resource_options& options = {})
      : Resource(dthrottle_rate_open(leases.get(), name.c_str(), &options), name) {}

  void Wait() { Take(-1); }
  bool Try() { return Take(0); }
  bool WaitFor(std::chrono::milliseconds deadline) { return Take(Milliseconds(deadline)); }
};

// So many at a time.
class GaugeResource : public Resource {
 public:
  GaugeResource(Leases& leases, const std::string& name, const dthrottle_resource_options& options = {})
      : Resource(dthrottle_gauge_open(leases.get(), name.c_str(), &options), name) {}

  void Mark() { Take(-1); }
  bool TryMark() { return Take(0); }
  bool MarkFor(std::chrono::milliseconds deadline) { return Take(Milliseconds(deadline)); }
  void Release() { GiveBack(); }
};

// Holds a place from here to the end of the block.
class UnderGauge {
 public:
  explicit UnderGauge(GaugeResource& gauge) : gauge_(gauge) { gauge_.Mark(); }
  ~UnderGauge() { gauge_.Release(); }
  UnderGauge(const UnderGauge&) = delete;
  UnderGauge& operator=(const UnderGauge&) = delete;

 private:
  GaugeResource& gauge_;
};

}    // namespace dthrottle
