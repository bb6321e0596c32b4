#include "limiter/asking.h"

#include <fmt/format.h>

#include "base/number.h"
#include "limiter/inspect.h"
#include "rule/rulebook.h"

namespace dthrottle {

std::optional<Cost> ReadCost(std::string_view text) {
  Cost cost = 0;
  return ParseNumber(text, cost) ? std::optional(cost) : std::nullopt;
}

Asking::Asking(Limiter& limiter, LaneUse lane, Prng prng, std::size_t tag_bytes_max)
    : limiter_(limiter), lane_(lane), prng_(prng), named_tags_(tag_bytes_max) {}

void Asking::Begin(Verb verb, Duration patience) {
  questions_.Begin(verb, patience);
  named_ = 0;
}

Result<void> Asking::Name(std::string_view tag, Cost cost, std::string_view written) {
  if (named_ == Questions::kTagsMax) return Fail(fmt::format("a question has at most {} tags", Questions::kTagsMax));
  ++named_;
  if (questions_.Name(named_tags_.Read(tag, cost, limiter_.keys().digest))) written_.push_back(written);
  return {};
}

void Asking::Drop() {
  questions_.Drop();
  written_.resize(questions_.queries().size());
}

void Asking::Answer(Instant now) {
  now_ = now;
  outcomes_.assign(questions_.size(), Outcome());
  standings_.assign(questions_.queries().size(), Standing());
  limiter_.Ask(questions_, outcomes_, standings_, lane_, prng_, now);
}

void Asking::Clear() {
  questions_.Clear();
  written_.clear();
  named_tags_.Clear();
}

Asking::Tag Asking::tag(std::size_t question, std::size_t place) const {
  const std::size_t i = questions_[question].first + place;
  const Standing& standing = standings_[i];
  Tag tag{written_[i], "-", std::nullopt, standing};
  const auto& rules = limiter_.rules().rules();
  const std::size_t rule = standing.limit.has_value() ? limiter_.rules().limit(*standing.limit).rule : rules.size();
  if (rule < rules.size()) tag.rule = rules[rule].name;
  if (standing.limited()) tag.left = standing.bucket.WholeTokens(standing.shape, now_);
  return tag;
}

std::optional<Asking::Refusal> Asking::refusal(std::size_t question) const {
  const Outcome& outcome = outcomes_[question];
  if (outcome.verdict == Verdict::kServe) return std::nullopt;
  if (outcome.verdict == Verdict::kShed) return Refusal{"shed", std::nullopt, outcome.tag};
  if (outcome.busy) return Refusal{"busy", std::nullopt, outcome.tag};
  if (outcome.wait == Outcome::kNever) return Refusal{"never", std::nullopt, outcome.tag};
  return Refusal{"limit", outcome.wait, outcome.tag};
}

std::optional<std::size_t> Asking::nearest(std::size_t question) const {
  std::optional<std::size_t> nearest;
  std::int64_t least = 0;
  for (std::size_t i = 0; i < tags(question); ++i) {
    const auto left = tag(question, i).left;
    if (!left.has_value() || (nearest.has_value() && *left >= least)) continue;
    nearest = i;
    least = *left;
  }
  return nearest;
}

std::vector<Payment> Asking::payments(std::size_t question) const {
  std::vector<Payment> payments = PaymentsOf(limiter_, queries(question), now_);
  for (std::size_t i = 0; i < payments.size(); ++i) {
    const Standing& standing = standings_[questions_[question].first + i];
    payments[i].unpaid = !standing.paid;
    payments[i].with_unpaid = standing.with_unpaid;
  }
  return payments;
}

Duration Asking::Tag::UntilNext(Instant now) const {
  const auto next = static_cast<Cost>(*left + 1);
  return next > standing.shape.burst() ? standing.UntilFull(now) : standing.Until(next, now);
}

std::int64_t Asking::Refusal::WaitMs(std::int64_t unknown) const {
  return wait.has_value() ? std::chrono::ceil<std::chrono::milliseconds>(*wait).count() : unknown;
}

}    // namespace dthrottle
