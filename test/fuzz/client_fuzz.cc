// What a server may answer to libdthrottle, in bytes of its choice: verdicts are what their bytes say, wherever they
// are cut, and a lease that is taken is within every bound.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client/answers.h"

namespace {

void Check(bool good) {
  if (!good) std::abort();
}

// Lines that the reader has accepted are exactly "OK" and "NO", and it stops at the first byte of anything else.
void ReadVerdicts(std::string_view bytes) {
  dthrottle_verdict_reader reader{};
  std::string heard;
  std::size_t taken = 0;
  for (const char byte : bytes) {
    const dthrottle_read read = dthrottle_read_verdict(&reader, byte);
    if (read == DTHROTTLE_READ_BAD) break;
    ++taken;
    if (read == DTHROTTLE_READ_OK) heard += "OK\n";
    if (read == DTHROTTLE_READ_NO) heard += "NO\n";
  }
  const std::string_view rest = bytes.substr(heard.size(), taken - heard.size());
  Check(bytes.substr(0, heard.size()) == heard && rest.size() < 3);
  Check(std::string_view("OK\n").starts_with(rest) || std::string_view("NO\n").starts_with(rest));
  Check(taken == bytes.size() || reader.begun[rest.size()] == bytes[taken]);
}

void ReadLease(std::string_view bytes) {
  dthrottle_lease_line lease{};
  if (!dthrottle_read_lease(std::string(bytes).c_str(), &lease)) return;
  Check(lease.capacity >= 0 && lease.capacity <= DTHROTTLE_AMOUNT_MAX && lease.safe <= DTHROTTLE_AMOUNT_MAX);
  Check(std::isfinite(lease.safe) && lease.refresh_s > 0 && lease.refresh_s <= DTHROTTLE_LEASE_S_MAX);
  Check(lease.expiry_s >= 0 && lease.expiry_s <= DTHROTTLE_LEASE_S_MAX);
  Check(lease.token <= static_cast<std::uint64_t>(INT64_MAX));
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadVerdicts(bytes);
  ReadLease(bytes);
  return 0;
}
