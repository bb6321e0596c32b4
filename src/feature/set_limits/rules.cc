// Rules that an operator sets, which take the place of those of the settings.
#include <fmt/format.h>

#include <utility>

#include "admin/admin.h"
#include "admin/commands/commands.h"
#include "config/load.h"
#include "feature/set_limits/feature.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/thread_pool.h"

namespace dthrottle {

namespace {

using commands::ErrorAnswer;

// Reads rules under these settings into `loaded`. Returns what is wrong with them, a line each; empty: nothing is.
std::string Read(const std::string& text, const Settings& settings, LoadedSettings& loaded) {
  loaded = ParseRules(text, "rules", settings, ReadNamedFile);
  return loaded.Errors();
}

}    // namespace

// On the thread that makes amendments. What cannot be used here leaves the rules of the settings in force; returns why.
std::string SetLimitsFeature::TakeRules(const SetLimit& set, const Settings& settings, std::vector<Rule>& rules,
                                        std::vector<Override>& overrides) {
  LoadedSettings loaded;
  if (const std::string complaint = Read(set.name, settings, loaded); !complaint.empty()) {
    return "rules that are set for all hosts cannot be used here: " + complaint;
  }
  rules = std::move(loaded.settings.rules);
  overrides = std::move(loaded.settings.overrides);
  return "";
}

const SignedLimit* SetLimitsFeature::FindRulesInForce() const {
  const SignedLimit* const found = set_.Find({LimitOf::kRules, ""});
  return found != nullptr && found->limit.stamp == host_.rules_since() ? found : nullptr;
}

std::optional<SignedLimit> SetLimitsFeature::RulesInForce() const {
  const std::lock_guard lock(mutex_);
  const SignedLimit* const found = FindRulesInForce();
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

bool SetLimitsFeature::IsBehindRules(const SetLimit& limit) const {
  return limit.stamp < host_.rules_since();
}

std::string SetLimitsFeature::WhyUnusable() const {
  const SignedLimit* const found = set_.Find({LimitOf::kRules, ""});
  const bool judged = found != nullptr && found->limit.stamp == verdict_.stamp && IsInForce(found->limit, WallClock());
  return judged ? verdict_.unusable : "";
}

std::string SetLimitsFeature::Unusable() const {
  const std::lock_guard lock(mutex_);
  return WhyUnusable();
}

// ---- Rules that are set here ----

// What the thread pool reads, which may take files of networks.
struct SetLimitsFeature::Checking {
  SignedLimit limit;
  Settings settings;
  std::function<void(Json)> reply;
  std::string complaint;
};

// Rules that this host cannot use are told to nobody.
void SetLimitsFeature::CheckAndSet(SignedLimit limit, std::function<void(Json)> reply) {
  const auto read = [](Checking& its) {
    LoadedSettings loaded;
    its.complaint = Read(its.limit.limit.name, its.settings, loaded);
  };
  const auto done = [this](Checking& its) {
    if (!timer_) return its.reply(ErrorAnswer("the daemon is stopping"));
    if (!its.complaint.empty()) return its.reply(ErrorAnswer(its.complaint));
    Set(std::move(its.limit), std::move(its.reply));
  };
  InThreadPool(host_.loop, Checking{std::move(limit), host_.admin.settings(), std::move(reply), ""}, read, done);
}

void SetLimitsFeature::Set(SignedLimit limit, std::function<void(Json)> reply) {
  if (const auto accepted = Accept(limit); !accepted) return reply(ErrorAnswer(accepted.error().message));
  {
    const std::lock_guard lock(mutex_);
    spreading_.TakeNews();
  }
  PutInForce([this, limit = std::move(limit), reply = std::move(reply)](const std::string&) { reply(Describe(limit)); });
}

}    // namespace dthrottle
