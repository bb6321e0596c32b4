#include "feature/candidate/feature.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "admin/admin.h"
#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "base/state.h"
#include "base/words.h"
#include "config/keys.h"
#include "config/load.h"
#include "io/clock.h"
#include "io/thread_pool.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

using commands::ErrorAnswer;

constexpr std::size_t kTagsShown = 10;
constexpr const char* kLabel = "candidate";    // of its rules, whose lines are not those of its file
constexpr std::uint32_t kHereVersion = 1;    // of what is left to the next program

// "10%" as 0.1; 0: it is none.
double ReadShare(std::string_view text) {
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  const bool read = error == std::errc() && std::string_view(end, text.data() + text.size()) == "%";
  return read && percent >= 0.1 && percent <= 100 ? percent / 100 : 0;
}

Extension::Json Row(Extension::Json row, const Differences& its) {
  row["queries"] = its.queries;
  row["refused"] = its.refused;
  row["candidate_refused"] = its.candidate_refused;
  row["newly_refused"] = its.newly_refused;
  row["newly_served"] = its.newly_served;
  return row;
}

}    // namespace

// ---- A part of the daemon ----

// What an orderly end has left is passed over: a start takes the rules of its settings.
void CandidateFeature::Prepare() {
  const HandedSection left = host_.handed.Take(kSection);
  if (host_.handed.held_at == Instant() || left.bytes.empty()) return;
  Here here;
  if (!ReadState(left.bytes, kHereVersion, here)) {
    return host_.log.Warning("candidate: the rules that were in force on this host alone cannot be taken over");
  }
  here_ = std::make_shared<Here>(std::move(here));
}

void CandidateFeature::Keep(std::vector<HandedSection>& sections) const {
  if (here_ != nullptr) sections.push_back({kSection, -1, WriteState(kHereVersion, *here_)});
}

void CandidateFeature::Start() {
  copies_.emplace(host_.loop, [this] { return comparison_->CopySome(Now()); }, [this] { OnCopied(); });
  follows_.emplace(host_.loop, [this] { comparison_->FollowPeers(); });
}

void CandidateFeature::Close() {
  EndComparison();
  copies_.reset();
  follows_.reset();
}

Amendment CandidateFeature::Amends() {
  if (here_ == nullptr) return {};
  const auto change = [here = here_, &log = host_.log](const Settings& settings, std::vector<Rule>& rules,
                                                       std::vector<Override>& overrides, Duration& since) {
    LoadedSettings loaded = ParseRules(here->rules, kLabel, settings, ReadNamedFile);
    if (!loaded.ok()) return log.Warning("candidate: its rules are not in force here any more: {}", loaded.Errors());
    rules = std::move(loaded.settings.rules);
    overrides = std::move(loaded.settings.overrides);
    since = here->since;
  };
  return {change, {}};
}

bool CandidateFeature::HoldsHere() const {
  return here_ != nullptr && here_->since == host_.rules_since();
}

void CandidateFeature::Reload(std::vector<std::string>& problems) {
  if (!HoldsHere()) return;
  problems.push_back(fmt::format(
      "{}: warning: the rules in force are those of this file, by candidate promote --here: candidate stop ends it",
      here_->file));
}

void CandidateFeature::Count(ProcessCounts& counts) const {
  counts.candidate.here = HoldsHere();
  if (comparison_ == nullptr) return;
  counts.candidate.comparing = true;
  Differences all;
  for (const Differences& its : comparison_->ByRule()) all += its;
  counts.candidate.queries = all.queries;
  counts.candidate.newly_refused = all.newly_refused;
  counts.candidate.newly_served = all.newly_served;
}

// ---- A candidate ----

// What the thread pool reads.
struct CandidateFeature::Loading {
  Limiter& live;
  std::string path;
  double share;
  std::size_t hosts;
  std::function<void(Json)> reply;
  std::string complaint{};    // empty: none
  std::shared_ptr<const Rulebook> rules{};
  std::shared_ptr<Comparison> comparison{};
  std::size_t escaped_bytes = 0;    // of the rules

  void Read() {
    auto text = ReadRegularFile(path, kSettingsBytesMax);
    if (!text) return void(complaint = text.error().message);
    LoadedSettings loaded = ParseSettings(*text, path, "/run/dthrottle", {}, ReadNamedFile);
    if (!loaded.ok()) return void(complaint = loaded.Errors());
    rules = std::make_shared<Rulebook>(std::move(loaded.settings.rules), std::move(loaded.settings.overrides));
    escaped_bytes = EscapeTag(RenderRules(rules->rules(), rules->overrides())).size();
    auto memory = MappedRegion::Open("", Comparison::BytesFor(live.table().region_bytes(), share), Table::IsTable);
    if (!memory) return void(complaint = "memory for the comparison: " + memory.error().message);
    comparison = std::make_shared<Comparison>(std::move(*memory), live, AsCompared(*rules, hosts), share, Now, Now());
  }
};

void CandidateFeature::Load(std::string_view share, std::string path, std::function<void(Json)> reply) {
  const double of = ReadShare(share);
  if (of == 0) return reply(ErrorAnswer("--of must be a share of all tags from 0.1% to 100%, such as 10%"));
  if (!path.starts_with('/')) return reply(ErrorAnswer("candidate start SHARE FILE, with the whole path of the file"));
  if (std::exchange(loading_, true)) return reply(ErrorAnswer("another file is being read"));
  Loading loading{.live = host_.admin.limiter(),
                  .path = std::move(path),
                  .share = of,
                  .hosts = host_.admin.limiter().ways().core().peers + 1,
                  .reply = std::move(reply)};
  InThreadPool(host_.loop, std::move(loading), [](Loading& its) { its.Read(); },
               [this](Loading& its) { OnLoaded(its); });
}

void CandidateFeature::OnLoaded(Loading& loaded) {
  loading_ = false;
  if (!copies_) return loaded.reply(ErrorAnswer("the daemon is stopping"));
  if (!loaded.complaint.empty()) return loaded.reply(ErrorAnswer(loaded.complaint));
  EndComparison();
  file_ = loaded.path, share_ = loaded.share, rules_ = loaded.rules, comparison_ = loaded.comparison;
  escaped_bytes_ = loaded.escaped_bytes;
  copying_ = true;
  began_ = Now();
  comparison_->FollowPeers();
  copies_->StartAtOnce();
  loaded.reply(Show(Now()));
}

void CandidateFeature::OnCopied() {
  copying_ = false;
  began_ = Now();
  host_.admin.limiter().Observe(comparison_, comparison_->sample());
  follows_->StartNowAndEvery(std::chrono::seconds(1));
}

// Its memory goes back in the thread pool, because that takes milliseconds.
void CandidateFeature::EndComparison() {
  if (comparison_ == nullptr) return;
  host_.admin.limiter().Observe(nullptr, {});
  copies_->Stop();
  follows_->Stop();
  using Freed = std::shared_ptr<Comparison>;
  InThreadPool(host_.loop, std::exchange(comparison_, nullptr), [](Freed& its) { its.reset(); }, [](Freed&) {});
}

void CandidateFeature::Stop(const std::function<void(Json)>& reply) {
  EndComparison();
  if (std::exchange(here_, nullptr) == nullptr) return reply(Show(Now()));
  host_.amend([this, reply] { reply(Show(Now())); });
}

// What the thread pool reads, because the rules have to go with the settings of this host, and not with those of their
// file alone.
struct CandidateFeature::Checking {
  std::shared_ptr<const Rulebook> rules;
  Settings settings;
  std::function<void(Json)> reply;
  Here here;
  std::string complaint;    // empty: none

  void Read() {
    here.rules = RenderRules(rules->rules(), rules->overrides());
    complaint = ParseRules(here.rules, kLabel, settings, ReadNamedFile).Errors();
  }
};

void CandidateFeature::PutInForceHere(std::function<void(Json)> reply) {
  if (comparison_ == nullptr) return reply(ErrorAnswer("there is no candidate"));
  InThreadPool(host_.loop, Checking{rules_, host_.admin.settings(), std::move(reply), {file_, {}, {}}, {}},
               [](Checking& its) { its.Read(); }, [this](Checking& its) { OnChecked(its); });
}

void CandidateFeature::OnChecked(Checking& checking) {
  if (!copies_) return checking.reply(ErrorAnswer("the daemon is stopping"));
  if (!checking.complaint.empty()) return checking.reply(ErrorAnswer(checking.complaint));
  if (comparison_ == nullptr || rules_ != checking.rules) {
    return checking.reply(ErrorAnswer("there is no such candidate any more"));
  }
  checking.here.since = WallClock();    // limits that were set before were not compared with it
  here_ = std::make_shared<Here>(std::move(checking.here));
  EndComparison();
  host_.amend([this, reply = std::move(checking.reply)] { reply(Show(Now())); });
}

// ---- The command ----

Extension::Command CandidateFeature::command() const {
  return {"candidate", "VERB ...", "rules that are tried beside those in force: start, stop, rules or here; alone, "
                                   "what they would have done"};
}

bool CandidateFeature::Changes(std::string_view argument) const {
  return !argument.empty() && argument != "rules";
}

void CandidateFeature::Run(std::string_view argument, std::function<void(Json)> reply, Instant now) {
  if (argument.empty()) return reply(Show(now));
  const std::string_view verb = NextField(argument);
  if (verb == "stop" && argument.empty()) return Stop(reply);
  if (verb == "rules" && argument.empty()) return reply(ShowRules());
  if (verb == "here" && argument.empty()) return PutInForceHere(reply);
  if (verb != "start") {
    return reply(ErrorAnswer("candidate start, candidate stop, candidate rules or candidate here"));
  }
  const std::string_view share = NextField(argument);
  const auto path = UnescapeTag(argument);
  if (!path) return reply(ErrorAnswer("FILE: " + path.error().message));
  Load(share, *path, std::move(reply));
}

Extension::Json CandidateFeature::Show(Instant now) const {
  if (comparison_ != nullptr) return ShowComparison(now);
  if (here_ == nullptr) return {{"state", "none"}};
  const Duration since = host_.rules_since();
  const char* const state = since == here_->since ? "in force here"
                            : since > here_->since ? "behind rules of all hosts"
                                                   : "cannot be used here";
  return {{"state", state}, {"file", EscapeTag(here_->file)}};
}

Extension::Json CandidateFeature::ShowComparison(Instant now) const {
  const std::vector<Differences> by_rule = comparison_->ByRule();
  Differences all;
  for (const Differences& its : by_rule) all += its;
  const double ns = comparison_->NanosecondsEach(), seconds = std::max(Seconds(now - began_), 1e-3);
  Json answer = {{"state", copying_ ? "copying" : "comparing"}, {"file", EscapeTag(file_)}};
  answer["of"] = fmt::format("{:g}%", share_ * 100);
  answer["for_s"] = copying_ ? 0 : commands::Hundredths(seconds);
  answer = Row(std::move(answer), all);
  answer["ns_each"] = commands::Hundredths(ns);
  answer["cpu_percent"] = commands::Hundredths(static_cast<double>(all.queries) * ns / seconds / 1e7);
  Json rules = Json::array(), tags = Json::array();
  for (std::size_t i = 0; i < by_rule.size(); ++i) {
    if (i == rules_->rules().size() && by_rule[i].queries == 0) continue;
    rules.push_back(Row({{"rule", i < rules_->rules().size() ? EscapeTag(rules_->rules()[i].name) : "-"}}, by_rule[i]));
  }
  for (const Comparison::OfTag& its : comparison_->TopTags(kTagsShown)) {
    Json row = Row(Json::object(), its.seen);
    row["tag"] = commands::ShowTag({its.tag, its.is_digest});
    tags.push_back(std::move(row));
  }
  answer["rules"] = std::move(rules);
  answer["tags"] = std::move(tags);
  answer["notes"] = NotCompared(*rules_, share_, comparison_->any_refunds());
  if (escaped_bytes_ > kRulesEscapedBytesMax) {
    answer["notes"].push_back(fmt::format("These rules are {} bytes too long for promote without --here.",
                                          escaped_bytes_ - kRulesEscapedBytesMax));
  }
  return answer;
}

// The rules of the candidate, as limit rules takes them.
Extension::Json CandidateFeature::ShowRules() const {
  if (comparison_ == nullptr) return ErrorAnswer("there is no candidate");
  return {{"rules", Json::array({EscapeTag(RenderRules(rules_->rules(), rules_->overrides()))})}};
}

}    // namespace dthrottle
