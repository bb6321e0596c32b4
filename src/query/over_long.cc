#include "query/over_long.h"

#include "base/check.h"

namespace dthrottle {

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

}    // namespace dthrottle
