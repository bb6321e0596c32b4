// Reads a tag that is longer than the limit without keeping it: a keyed digest of all its bytes, computed as they
// arrive, and its two ends. However long the tag, this is all the memory it gets, and it still has a bucket of its
// own: a limit can neither be exhausted nor evaded by padding.
#pragma once

#include <sodium/crypto_generichash.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/tag.h"

namespace dthrottle {

using DigestKey = std::array<std::byte, 32>;

// The digest of a tag that is there as a whole, as OverLongReader makes it.
std::array<char, kDigestBytes> DigestOf(std::string_view tag, const DigestKey& key);

class OverLongReader {
 public:
  explicit OverLongReader(const DigestKey& key);

  // The next bytes of the tag, without its LF. A CR at the very end is not part of it, wherever the bytes were cut.
  void Read(std::string_view bytes);

  // The first and the last bytes of what was read, at most kTagBytesMax of each, and a CR that may not be of the tag.
  // They overlap where the tag is short.
  std::string Ends() const { return head_ + tail_ + (holds_cr_ ? "\r" : ""); }

  // Ends the tag. The views of the result live as long as this object. Call once.
  OverLongTag Finish();

  // All that it knows, for another process to go on with. Load returns null if the bytes are not of Save under the same
  // version of the library that makes the digest. REQUIRES of Load: nobody has tampered with them, for the library's
  // part of them cannot be checked.
  std::string Save() const;
  static std::unique_ptr<OverLongReader> Load(std::string_view saved);

 private:
  OverLongReader() = default;
  void Absorb(std::string_view bytes);

  crypto_generichash_state state_;    // BLAKE2b
  std::size_t size_ = 0;
  std::string head_;
  std::string tail_;
  bool holds_cr_ = false;    // a CR that is part of the tag only if something follows
};

}    // namespace dthrottle
