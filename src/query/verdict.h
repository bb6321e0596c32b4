// The answer to one query, and how it is written.
#pragma once

#include <cstdint>
#include <span>

namespace dthrottle {

enum class Verdict : std::uint8_t {
  kServe,
  kThrottle,    // the limit says no
  kShed,        // the host runs hot; of the tag nothing was taken
};

inline constexpr std::size_t kAnswerBytes = 3;

// Writes the answers to `verdicts`, in order, to `out`. REQUIRES: out.size() >= kAnswerBytes * verdicts.size().
inline void WriteAnswers(std::span<const Verdict> verdicts, std::span<char> out) {
  char* p = out.data();
  for (const Verdict v : verdicts) {
    const bool serve = v == Verdict::kServe;
    *p++ = serve ? 'O' : 'N';
    *p++ = serve ? 'K' : 'O';
    *p++ = '\n';
  }
}

}    // namespace dthrottle
