#include "carrier/nats/nkey.h"

#include <sodium.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace dthrottle {

namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
constexpr std::size_t kSeedBytes = 2 + crypto_sign_SEEDBYTES + 2;    // what it is, the seed, the checksum
// The kind is in the upper five bits: a digit. A seed has two, its own and that of its public key.
constexpr std::uint8_t kSeed = 18 << 3, kUser = 20 << 3;

// CRC-16/XMODEM.
std::uint16_t Checksum(const std::uint8_t* bytes, std::size_t size) {
  std::uint16_t crc = 0;
  for (std::size_t i = 0; i < size; ++i) {
    crc = static_cast<std::uint16_t>(crc ^ (bytes[i] << 8));
    for (int bit = 0; bit < 8; ++bit) crc = static_cast<std::uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
  }
  return crc;
}

std::optional<std::vector<std::uint8_t>> Decode(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t buffer = 0;
  int bits = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    buffer = (buffer << 5) | static_cast<std::uint32_t>(digit);
    if ((bits += 5) < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<std::uint8_t>(buffer >> bits));
    buffer &= (1u << bits) - 1;
  }
  return bytes;
}

std::string Encode(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  std::uint32_t buffer = 0;
  int bits = 0;
  for (const std::uint8_t byte : bytes) {
    buffer = (buffer << 8) | byte;
    for (bits += 8; bits >= 5; buffer &= (1u << bits) - 1) text += kDigits[buffer >> (bits -= 5)];
  }
  if (bits > 0) text += kDigits[(buffer << (5 - bits)) & 31];
  return text;
}

}    // namespace

Result<std::string> NkeyOf(std::string_view seed) {
  const auto bytes = Decode(seed);
  if (!bytes || bytes->size() != kSeedBytes) return Fail("is not the seed of an nkey, 58 characters of A to Z and 2 to 7");
  const std::uint8_t* const at = bytes->data();
  const std::uint16_t crc = Checksum(at, kSeedBytes - 2);
  if (at[kSeedBytes - 2] != (crc & 0xff) || at[kSeedBytes - 1] != crc >> 8) return Fail("its checksum is wrong");
  const auto kind = static_cast<std::uint8_t>((at[0] & 7) << 5 | at[1] >> 3);
  if ((at[0] & 0xf8) != kSeed || kind != kUser) return Fail("is not the seed of a user, which begins with SU");
  std::array<std::uint8_t, crypto_sign_PUBLICKEYBYTES> key;
  std::array<std::uint8_t, crypto_sign_SECRETKEYBYTES> secret;
  crypto_sign_seed_keypair(key.data(), secret.data(), at + 2);
  sodium_memzero(secret.data(), secret.size());
  std::vector<std::uint8_t> named = {kUser};
  named.insert(named.end(), key.begin(), key.end());
  const std::uint16_t check = Checksum(named.data(), named.size());
  named.push_back(static_cast<std::uint8_t>(check & 0xff));
  named.push_back(static_cast<std::uint8_t>(check >> 8));
  return Encode(named);
}

}    // namespace dthrottle
