// Loads dthrottle-grpc.so when gRPC is wanted: the library with all that it needs costs every start 15 ms of CPU and
// 6 MiB, which would be lost to who upgrades in place, and does not use it.
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "frontend/grpc_leases.h"

namespace dthrottle {

namespace {

constexpr const char* kFile = "dthrottle-grpc.so";

// Beside the program, as in a build directory, or where it is installed.
std::string ModulePath() {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  const auto beside = program.parent_path() / kFile;
  return !failed && std::filesystem::exists(beside, failed) ? beside.string()
                                                            : std::string(DTHROTTLE_MODULES) + "/" + kFile;
}

void* Open() {
  return ::dlopen(ModulePath().c_str(), RTLD_NOW | RTLD_LOCAL);    // for good
}

}    // namespace

Result<void> GrpcLeases::Load() {
  if (Open() == nullptr) return Fail(::dlerror());
  return {};
}

Result<std::unique_ptr<GrpcLeases>> GrpcLeases::Make(uv_loop_t* loop, lease::LeaseServer& server,
                                                     const Options& options,
                                                     std::function<void(BootInstant)> before_answers) {
  void* const module = Open();
  if (module == nullptr) return Fail(::dlerror());
  // POSIX has it that a pointer to a function comes back as one to data.
  const auto make = reinterpret_cast<GrpcLeasesMaker*>(::dlsym(module, kGrpcLeasesMaker));
  GrpcLeases* const made =
      make != nullptr ? make(DTHROTTLE_VERSION, loop, server, options, std::move(before_answers)) : nullptr;
  if (made == nullptr) return Fail(fmt::format("{} is of another version", ModulePath()));
  return std::unique_ptr<GrpcLeases>(made);
}

}    // namespace dthrottle
