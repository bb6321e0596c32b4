// Answers to questions, as protocol/ask.md writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "limiter/asking.h"

namespace dthrottle {

// What an answer says beside what is left: how one tag is limited, or each.
enum class AskTell : std::uint8_t { kNothing, kLimit, kAll };

// Writes answers to questions that are decided. No answer has its LF.
class AskAnswer {
 public:
  // `out` is appended to; it and `asking` must outlive this object. `now` is when they were decided.
  AskAnswer(const Asking& asking, std::size_t question, Instant now, std::string& out)
      : asking_(asking), question_(question), now_(now), out_(out) {}

  // Its first words, if it was served. True: it is to wait before it goes on.
  bool AppendGranted();
  // The rest of an answer that begins so.
  void AppendServed(AskTell tell);
  // All of it, if it was refused.
  void AppendRefused(AskTell tell);

 private:
  void AppendWord(std::string_view word);
  void AppendMs(Duration duration);
  void AppendLeft(const Asking::Tag& tag);
  void AppendLimit(const Asking::Tag& tag);
  void AppendAll();

  const Asking& asking_;
  const std::size_t question_;
  const Instant now_;
  std::string& out_;
};

}    // namespace dthrottle
