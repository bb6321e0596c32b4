// What finding the longest of a million networks costs (rule/network_map.h), and what loading them does.
//
// Networks are drawn as routing tables have them: most of IPv4 are /24 and shorter ones contain some of them, most of
// IPv6 are /48 in allocations of /32. Addresses are in a network nine times of ten. Each look-up is of another address,
// in random order, and none waits for the one before: so a query thread asks.
#include <cstdio>
#include <vector>

#include "base/prng.h"
#include "rule/network_map.h"
#include "test/bench/measure.h"

namespace dthrottle {
namespace {

constexpr std::size_t kNetworks = 1'000'000, kAddresses = std::size_t{1} << 21;
constexpr int kRounds = 9;

IpAddress V4(std::uint64_t bits) {
  return {false, bits << 32, 0};
}

// What a table of this family has.
Network Draw(bool is_v6, const std::vector<std::uint64_t>& allocations, Prng& prng) {
  if (is_v6) {
    const IpAddress address{true, allocations[prng.Below(allocations.size())] << 32 | prng.Next() >> 32, 0};
    const unsigned bits = prng.Below(10) < 7 ? 48 : 32 + static_cast<unsigned>(prng.Below(33));
    return {address.Prefix(bits), bits};
  }
  const unsigned bits = prng.Below(10) < 6 ? 24 : prng.Below(4) == 0 ? 32 : 12 + static_cast<unsigned>(prng.Below(12));
  return {V4(prng.Next() >> 32).Prefix(bits), bits};
}

IpAddress Within(const Network& network, Prng& prng) {
  IpAddress address = network.address;
  const unsigned high_bits = network.bits < 64 ? network.bits : 64;
  if (high_bits < 64) address.high |= prng.Next() >> high_bits;
  if (!address.is_v6) address.high &= 0xffffffff00000000;
  if (address.is_v6 && network.bits <= 64) address.low = prng.Next();
  return address;
}

void Measure(bool is_v6) {
  Prng prng(1);
  std::vector<std::uint64_t> allocations;
  for (int i = 0; i < 40'000; ++i) allocations.push_back(0x20000000 | prng.Next() >> 36);
  std::vector<MappedNetwork> networks;
  for (std::size_t i = 0; i < kNetworks; ++i) {
    networks.push_back({Draw(is_v6, allocations, prng), static_cast<std::uint16_t>(prng.Below(1000))});
  }
  std::vector<IpAddress> addresses;
  for (std::size_t i = 0; i < kAddresses; ++i) {
    const Network whole{{is_v6, is_v6 ? std::uint64_t{0x20} << 56 : 0, 0}, is_v6 ? 3u : 0u};
    addresses.push_back(Within(prng.Below(10) == 0 ? whole : networks[prng.Below(kNetworks)].network, prng));
  }
  const double before = CpuSeconds();
  const NetworkMap map(networks);
  const double load_s = CpuSeconds() - before;
  std::vector<double> ns;
  std::uint64_t found = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double began = CpuSeconds();
    for (const IpAddress& address : addresses) found += map.Find(address) != NetworkMap::kNone;
    ns.push_back((CpuSeconds() - began) * 1e9 / kAddresses);
  }
  std::printf("%s: %.1f ns a look-up (%.1f to %.1f), of which %.0f %% find one; made in %.2f s\n", is_v6 ? "IPv6" : "IPv4",
              Median(ns), *std::min_element(ns.begin(), ns.end()), *std::max_element(ns.begin(), ns.end()),
              100.0 * static_cast<double>(found) / (double{kRounds} * kAddresses), load_s);
}

}    // namespace
}    // namespace dthrottle

int main() {
  std::printf("A million networks, 2^21 addresses, median of 9 rounds, processor time of one thread.\n");
  dthrottle::Measure(false);
  dthrottle::Measure(true);
}
