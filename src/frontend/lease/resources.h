// What a lease server leases out: the [[resource]] of the settings file or, with lease.etcd_resources, those of a key of
// etcd, the same for every server of the fleet (Doorman "Root server configuration").
//
// The file's own are in force until etcd has been read, and where it has no such key. What cannot be read changes
// nothing. When no member of etcd has answered for lease.etcd_patience nobody knows whether capacities still are what
// they were: then a resource gives each client no more than its safe capacity.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "io/etcd_value.h"
#include "io/log.h"
#include "lease/resource.h"

namespace dthrottle {

class LeaseResources {
 public:
  // `on_change` is called when there are others than before. What is referred to must outlive this object.
  LeaseResources(uv_loop_t* loop, const Settings& settings, Log& log, std::function<void()> on_change);

  void Start();
  // To be called every second or so.
  void Follow(BootInstant now);
  lease::Templates Now() const;

  // Whether etcd is to say what there is, and has not yet: until then the file's stand in.
  bool awaited() const { return etcd_ != nullptr && !read_once_; }
  // Where they are from: "settings", "etcd", or "safe": etcd is silent.
  std::string_view from() const { return lost_ ? "safe" : read_ ? "etcd" : "settings"; }
  // Why etcd cannot be read, or what it has; empty: nothing is wrong.
  std::string trouble() const;
  void Close();

 private:
  void OnValue(const std::optional<std::string>& text);

  const Settings& settings_;
  Log& log_;
  const std::function<void()> on_change_;
  std::unique_ptr<EtcdValue> etcd_;                             // null: there are but the file's
  std::optional<std::vector<lease::ResourceTemplate>> read_;    // from etcd
  std::string wrong_;                                           // with what stands there
  bool read_once_ = false;    // something good, or that there is no such key
  bool lost_ = false;
};

}    // namespace dthrottle
