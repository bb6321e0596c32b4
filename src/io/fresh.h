// Chance and keys from the system's source of randomness.
#pragma once

#include <cstdint>
#include <span>

#include "base/prng.h"
#include "bucket/table.h"
#include "io/files.h"

namespace dthrottle {

inline std::uint64_t FreshNumber() {
  std::uint64_t number = 0;
  FillRandom(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

inline Prng FreshPrng() {
  return Prng(FreshNumber());
}

inline TableKeys FreshTableKeys() {
  TableKeys keys;
  FillRandom(std::as_writable_bytes(std::span(keys.tag_hash)));
  FillRandom(keys.digest);
  return keys;
}

}    // namespace dthrottle
