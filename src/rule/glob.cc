#include "rule/glob.h"

#include <algorithm>

namespace dthrottle {

Result<Glob> Glob::Compile(std::string_view pattern) {
  Glob glob;
  glob.pieces_.emplace_back();
  bool literal = true;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(pattern[at]); };
    literal = literal && pattern[i] != '*' && pattern[i] != '?' && pattern[i] != '[';
    if (pattern[i] == '*') {
      if (glob.pieces_.size() == 1 || !glob.pieces_.back().empty()) glob.pieces_.emplace_back();
      continue;
    }
    Byte accepts;
    if (pattern[i] == '?') {
      accepts.set();
    } else if (pattern[i] == '[') {
      const bool negated = i + 1 < pattern.size() && pattern[i + 1] == '!';
      std::size_t at = i + 1 + (negated ? 1 : 0);
      const std::size_t first = at;
      for (; at < pattern.size() && (pattern[at] != ']' || at == first); ++at) {
        unsigned low = byte(at), high = low;
        if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
          high = byte(at + 2);
          at += 2;
        }
        if (high < low) return Fail("a range in [...] runs backwards");
        for (unsigned b = low; b <= high; ++b) accepts.set(b);
      }
      if (at >= pattern.size()) return Fail("'[' without its ']'");
      if (negated) accepts.flip();
      i = at;
    } else {
      if (pattern[i] == '\\' && ++i == pattern.size()) return Fail("a '\\' at the end takes nothing");
      accepts.set(byte(i));
      if (literal) glob.head_ += pattern[i];
    }
    glob.pieces_.back().push_back(accepts);
  }
  return glob;
}

bool Glob::PieceAt(const Piece& piece, std::string_view tag, std::size_t at) {
  for (std::size_t i = 0; i < piece.size(); ++i) {
    if (!piece[i][static_cast<unsigned char>(tag[at + i])]) return false;
  }
  return true;
}

// Between the anchored ends, the leftmost place for each piece is never worse than a later one.
bool Glob::Matches(std::string_view tag) const {
  const Piece& first = pieces_.front();
  const Piece& last = pieces_.back();
  if (pieces_.size() == 1) return tag.size() == first.size() && PieceAt(first, tag, 0);
  if (tag.size() < first.size() + last.size()) return false;
  const std::size_t end = tag.size() - last.size();
  if (!PieceAt(first, tag, 0) || !PieceAt(last, tag, end)) return false;
  std::size_t at = first.size();
  for (std::size_t i = 1; i + 1 < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    while (at + piece.size() <= end && !PieceAt(piece, tag, at)) ++at;
    if (at + piece.size() > end) return false;
    at += piece.size();
  }
  return true;
}

bool Glob::MatchesEnds(std::string_view head, std::string_view tail) const {
  const Piece& first = pieces_.front();
  const Piece& last = pieces_.back();
  if (pieces_.size() == 1 || first.size() > head.size() || last.size() > tail.size()) return false;
  return PieceAt(first, head, 0) && PieceAt(last, tail, tail.size() - last.size());
}

std::string Glob::Example() const {
  constexpr std::string_view kLiked = "abcdefghijklmnopqrstuvwxyz0123456789";
  const auto byte_of = [&](const Byte& place) {
    const auto liked = std::ranges::find_if(kLiked, [&](char c) { return place[static_cast<unsigned char>(c)]; });
    if (liked != kLiked.end()) return *liked;
    std::size_t byte = 0;
    while (byte + 1 < place.size() && !place[byte]) ++byte;
    return static_cast<char>(byte);
  };
  std::string tag;
  for (const Piece& piece : pieces_) {
    if (&piece != pieces_.data()) tag += 'x';    // for the star
    for (const Byte& place : piece) tag += byte_of(place);
  }
  return tag;
}

bool Glob::MayBegin(unsigned char byte) const {
  const Piece& first = pieces_.front();
  return first.empty() ? pieces_.size() > 1 : first.front()[byte];
}

bool Glob::MayEnd(unsigned char byte) const {
  const Piece& last = pieces_.back();
  return last.empty() ? pieces_.size() > 1 : last.back()[byte];
}

}    // namespace dthrottle
