// Patterns over tags: `*` any bytes, `?` one byte, `[a-z]` one of a set, `[!a-z]` one not of it, `\` takes the next
// byte as it is. Everything else stands for itself, byte by byte; a pattern covers the whole tag.
//
// Matching takes time proportional to pattern times tag at worst and, with the usual one or two stars, to the tag;
// it never recurses and never allocates.
#pragma once

#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle {

class Glob {
 public:
  // Fails on an unfinished set, an unfinished escape, an empty set or a range that runs backwards.
  static Result<Glob> Compile(std::string_view pattern);

  bool Matches(std::string_view tag) const;

  // The same as Matches for a tag of which only the two ends are known, with an unknown number of unknown bytes
  // between. What a pattern asks of the middle is assumed to hold. Exact for patterns of the forms a*, *b and a*b.
  bool MatchesEnds(std::string_view head, std::string_view tail) const;

  // The bytes that the pattern begins with and that stand for themselves, before its first `*`, `?` or `[`.
  const std::string& literal_head() const { return head_; }

  // A tag that matches, of letters and digits where the pattern leaves the choice.
  std::string Example() const;

  // False if no tag that begins (ends) with this byte can match.
  bool MayBegin(unsigned char byte) const;
  bool MayEnd(unsigned char byte) const;

 private:
  using Byte = std::bitset<256>;      // the bytes that one place of the pattern accepts
  using Piece = std::vector<Byte>;    // consecutive places

  static bool PieceAt(const Piece& piece, std::string_view tag, std::size_t at);

  // Pieces between stars. One piece: no star. The first is anchored at the start of the tag, the last at its end.
  std::vector<Piece> pieces_;
  std::string head_;
};

}    // namespace dthrottle
