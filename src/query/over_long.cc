#include "query/over_long.h"

#include <sodium/version.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace dthrottle {

std::array<char, kDigestBytes> DigestOf(std::string_view tag, const DigestKey& key) {
  std::array<char, kDigestBytes> digest;
  DT_CHECK(crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), digest.size(),
                              reinterpret_cast<const unsigned char*>(tag.data()), tag.size(),
                              reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 0);
  return digest;
}

OverLongReader::OverLongReader(const DigestKey& key) {
  static_assert(kDigestBytes == crypto_generichash_BYTES_MIN);
  DT_CHECK(crypto_generichash_init(&state_, reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                                   kDigestBytes) == 0);
}

void OverLongReader::Read(std::string_view bytes) {
  if (bytes.empty()) return;
  if (holds_cr_) Absorb("\r");
  holds_cr_ = bytes.back() == '\r';
  if (holds_cr_) bytes.remove_suffix(1);
  Absorb(bytes);
}

void OverLongReader::Absorb(std::string_view bytes) {
  crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  size_ += bytes.size();
  head_ += bytes.substr(0, kTagBytesMax - head_.size());
  if (bytes.size() >= kTagBytesMax) {
    tail_ = bytes.substr(bytes.size() - kTagBytesMax);
  } else {
    tail_ += bytes;
    if (tail_.size() > kTagBytesMax) tail_.erase(0, tail_.size() - kTagBytesMax);
  }
}

OverLongTag OverLongReader::Finish() {
  OverLongTag result{{}, size_, head_, tail_};
  crypto_generichash_final(&state_, reinterpret_cast<unsigned char*>(result.digest.data()), kDigestBytes);
  return result;
}

// What comes before the two ends of the tag, whose sizes follow from its own.
struct OverLongSaved {
  std::array<char, 16> library;
  crypto_generichash_state state;
  std::uint64_t size;
  std::uint64_t holds_cr;
};

static std::array<char, 16> LibraryVersion() {
  std::array<char, 16> version{};
  const std::string_view text = sodium_version_string();
  std::copy_n(text.begin(), std::min(text.size(), version.size()), version.begin());
  return version;
}

std::string OverLongReader::Save() const {
  OverLongSaved saved;
  std::memset(&saved, 0, sizeof saved);
  saved.library = LibraryVersion();
  saved.state = state_;
  saved.size = size_;
  saved.holds_cr = holds_cr_ ? 1 : 0;
  return std::string(reinterpret_cast<const char*>(&saved), sizeof saved) + head_ + tail_;
}

std::unique_ptr<OverLongReader> OverLongReader::Load(std::string_view bytes) {
  OverLongSaved saved;
  if (bytes.size() < sizeof saved) return nullptr;
  std::memcpy(&saved, bytes.data(), sizeof saved);
  bytes.remove_prefix(sizeof saved);
  const std::size_t end = std::min<std::uint64_t>(saved.size, kTagBytesMax);
  if (saved.library != LibraryVersion() || saved.holds_cr > 1 || bytes.size() != 2 * end) return nullptr;
  std::unique_ptr<OverLongReader> reader(new OverLongReader);
  reader->state_ = saved.state;
  reader->size_ = saved.size;
  reader->head_ = bytes.substr(0, end);
  reader->tail_ = bytes.substr(end);
  reader->holds_cr_ = saved.holds_cr == 1;
  return reader;
}

}    // namespace dthrottle
