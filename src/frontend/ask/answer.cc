#include "frontend/ask/answer.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <optional>

#include "query/words.h"

namespace dthrottle {

// A wait has a fraction where whole milliseconds would make slots uneven.
bool AskAnswer::AppendGranted() {
  const Duration wait = asking_.wait(question_);
  out_ += wait == Duration::zero() ? "OK" : "WAIT ";
  if (wait == Duration::zero()) return false;
  const auto us = std::chrono::ceil<std::chrono::microseconds>(wait).count();
  AppendNumber(out_, us / 1000);
  if (us % 1000 != 0) fmt::format_to(std::back_inserter(out_), ".{:03}", us % 1000);
  return true;
}

void AskAnswer::AppendServed(AskTell tell) {
  for (std::size_t i = 0; i < asking_.tags(question_); ++i) AppendLeft(asking_.tag(question_, i));
  if (tell == AskTell::kAll) return AppendAll();
  const auto nearest = tell == AskTell::kLimit ? asking_.nearest(question_) : std::nullopt;
  if (!nearest.has_value()) return;
  const Asking::Tag tag = asking_.tag(question_, *nearest);
  AppendWord(tag.rule);
  AppendWord(tag.written);
  AppendLimit(tag);
}

void AskAnswer::AppendRefused(AskTell tell) {
  const Asking::Refusal refusal = *asking_.refusal(question_);
  const Asking::Tag tag = asking_.tag(question_, refusal.tag);
  out_ += "NO";
  AppendWord(refusal.why);
  refusal.wait.has_value() ? AppendMs(*refusal.wait) : AppendWord("-");
  AppendLeft(tag);
  AppendWord(tag.rule);
  AppendWord(tag.written);
  if (tell == AskTell::kLimit) AppendLimit(tag);
  if (tell == AskTell::kAll) AppendAll();
}

void AskAnswer::AppendWord(std::string_view word) {
  out_ += ' ';
  out_ += word;
}

void AskAnswer::AppendMs(Duration duration) {
  out_ += ' ';
  AppendNumber(out_, std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

void AskAnswer::AppendLeft(const Asking::Tag& tag) {
  if (!tag.left.has_value()) return AppendWord("-");
  out_ += ' ';
  AppendNumber(out_, *tag.left);
}

void AskAnswer::AppendLimit(const Asking::Tag& tag) {
  const Shape& shape = tag.standing.shape;
  if (!tag.standing.limited()) return AppendWord("- - -");
  out_ += ' ';
  AppendNumber(out_, static_cast<std::int64_t>(shape.burst()));
  AppendMs(ToDuration(shape.depth));
  AppendMs(tag.UntilNext(now_));
}

void AskAnswer::AppendAll() {
  for (std::size_t i = 0; i < asking_.tags(question_); ++i) {
    const Asking::Tag tag = asking_.tag(question_, i);
    AppendWord(tag.left.has_value() ? tag.rule : "-");
    AppendLeft(tag);
    AppendLimit(tag);
  }
}

}    // namespace dthrottle
