#include "frontend/ask/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

#include "base/append.h"

namespace dthrottle {

namespace {

// Tokens, or places where there is a number of them too and fewer are free.
std::optional<std::int64_t> LeftOf(const Asking::Tag& tag) {
  const auto& free = tag.standing.free;
  return free.has_value() ? std::min(tag.left.value_or(INT64_MAX), std::int64_t{*free}) : tag.left;
}

}    // namespace

// A wait has a fraction where whole milliseconds would make slots uneven.
bool AskAnswer::AppendGranted() {
  const Duration wait = asking_.wait(question_);
  out_ += wait == Duration::zero() ? "OK" : "WAIT ";
  if (wait == Duration::zero()) return false;
  const auto us = std::chrono::ceil<std::chrono::microseconds>(wait).count();
  Append(out_, us / 1000);
  if (us % 1000 != 0) fmt::format_to(std::back_inserter(out_), ".{:03}", us % 1000);
  return true;
}

void AskAnswer::AppendServed(AskTell tell) {
  std::optional<std::size_t> nearest;
  std::int64_t least = INT64_MAX;
  for (std::size_t i = 0; i < asking_.tags(question_); ++i) {
    const Asking::Tag tag = asking_.tag(question_, i);
    AppendLeft(tag);
    const std::int64_t left = LeftOf(tag).value_or(INT64_MAX);
    if (left < least) nearest = i, least = left;
  }
  if (tell == AskTell::kAll) return AppendAll();
  if (tell == AskTell::kNothing || !nearest.has_value()) return;
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
  Append(out_, " ", word);
}

void AskAnswer::AppendMs(Duration duration) {
  Append(out_, " ", std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

void AskAnswer::AppendLeft(const Asking::Tag& tag) {
  const auto left = LeftOf(tag);
  left.has_value() ? Append(out_, " ", *left) : AppendWord("-");
}

void AskAnswer::AppendLimit(const Asking::Tag& tag) {
  const Shape& shape = tag.standing.shape;
  if (!tag.standing.limited()) return AppendWord("- - -");
  Append(out_, " ", static_cast<std::int64_t>(shape.burst()));
  AppendMs(ToDuration(shape.depth));
  AppendMs(tag.UntilNext(now_));
}

void AskAnswer::AppendAll() {
  for (std::size_t i = 0; i < asking_.tags(question_); ++i) {
    const Asking::Tag tag = asking_.tag(question_, i);
    AppendWord(LeftOf(tag).has_value() ? tag.rule : "-");
    AppendLeft(tag);
    AppendLimit(tag);
  }
}

}    // namespace dthrottle
