// Serves leases by gRPC, protocol/doorman.proto. gRPC's threads read and write; every call is handed to the loop, where
// the one lease server answers. Connections are accepted by us, so that they are bounded, counted and handed over as
// all others.
//
// Nothing of gRPC is seen here. All of it is in a module, which grpc_module.cc loads; a build without links
// grpc_absent.cc in its place.
#pragma once

#include <uv.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "base/time.h"
#include "lease/server.h"

namespace dthrottle {

class GrpcLeases {
 public:
  // Brings the library into memory, which takes some 15 ms of CPU; Make is quick afterwards. On any thread.
  static Result<void> Load();

  struct Options {
    std::size_t calls_max = 1000;       // that wait for an answer; one more is refused
    std::size_t resources_max = 500;    // of one call
    Duration idle_timeout{};            // of connections without calls; zero: none
  };

  struct Counts {
    std::uint64_t accepted = 0;    // connections
    std::uint64_t calls = 0;
    std::uint64_t refused = 0;    // of them, because of calls_max
    std::uint64_t invalid = 0;    // of them, because of what they ask
  };

  // Fails where this build has no gRPC, or its module cannot be loaded. `before_answers` is called with the instant at
  // which the calls of a turn are answered. The server must outlive it.
  static Result<std::unique_ptr<GrpcLeases>> Make(uv_loop_t* loop, lease::LeaseServer& server, const Options& options,
                                                  std::function<void(BootInstant)> before_answers);
  virtual ~GrpcLeases() = default;

  // Serves a connected socket, which becomes this object's.
  virtual void Take(int fd) = 0;
  virtual std::size_t connections() const = 0;
  virtual Counts counts() const = 0;

  // Answers what has been asked, ends all connections, and calls `done`.
  virtual void Drain(std::function<void()> done) = 0;

  // Closes what it has on the loop, which must run once more.
  virtual void Close() = 0;
};

// What the module has under this name. Null: `version` is not its own, and nothing in it may be called.
inline constexpr const char* kGrpcLeasesMaker = "dthrottle_make_grpc_leases";
using GrpcLeasesMaker = GrpcLeases*(const char* version, uv_loop_t* loop, lease::LeaseServer& server,
                                    const GrpcLeases::Options& options,
                                    std::function<void(BootInstant)> before_answers);

}    // namespace dthrottle
