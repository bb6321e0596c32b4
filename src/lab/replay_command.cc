#include "lab/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "admin/escape.h"
#include "config/values.h"
#include "io/csv.h"
#include "io/files.h"
#include "io/progress.h"
#include "lab/dividing_hosts.h"
#include "lab/log_file.h"
#include "lab/owning_hosts.h"
#include "lab/replay.h"

namespace dthrottle::lab {
namespace {

using Spread = ReplayOptions::Spread;

constexpr std::uint64_t kLinesBetweenLooks = 4096;    // at how far it is, and whether it is to end
constexpr std::size_t kCsvBytes = std::size_t{1} << 20;    // written at once
constexpr std::uint32_t kReplayHostsMax = 256;
constexpr std::int64_t kLateMax = 60;    // seconds; no request is expected to be under way for longer

const std::map<std::string, Spread> kSpreads = {
    {"random", Spread::kRandom}, {"sticky", Spread::kSticky}, {"round-robin", Spread::kRoundRobin}};

struct ReplayCommandOptions {
  std::vector<std::string> logs;
  std::vector<std::string> tags = {"ip:%h"}, costs;
  std::string rules, wait, csv;
  ReplayOptions replay;
  std::size_t top = 10;
};

// The seconds of the log, written as they come: a log may have more than fit in memory.
class SecondsFile {
 public:
  int Open(const std::string& path) {
    path_ = path;
    if (path.empty()) return EX_OK;
    if (path != "-") {
      file_.open(path, std::ios::binary | std::ios::trunc);
      if (!file_) return Complain(EX_CANTCREAT, fmt::format("{}: cannot be written", path));
    }
    csv_.Row("time", "unix_time", "asked", "refused", "one_bucket_refused");
    return EX_OK;
  }

  void Add(const ReplaySecond& s) {
    if (path_.empty()) return;
    csv_.Row(FormatTime(s.time_s), s.time_s, s.asked, s.refused, s.ideal_refused);
    if (csv_.text().size() >= kCsvBytes) Write();
  }

  int Close() {
    if (path_.empty()) return EX_OK;
    Write();
    if (path_ != "-") file_.close();
    const bool fine = path_ == "-" ? std::fflush(stdout) == 0 : !file_.fail();
    return fine ? EX_OK : Complain(EX_CANTCREAT, fmt::format("{}: cannot be written", path_));
  }

 private:
  void Write() {
    if (path_ == "-") {
      fmt::print("{}", csv_.text());
    } else {
      file_ << csv_.text();
    }
    csv_.Clear();
  }

  std::string path_;
  std::ofstream file_;
  Csv csv_;
};

// EX_OK, or a word about what is no template.
int ReadTemplates(const char* option, const std::vector<std::string>& texts, std::vector<TagTemplate>& templates) {
  for (const std::string& text : texts) {
    const auto read = TagTemplate::Parse(text);
    if (!read) return Complain(EX_USAGE, fmt::format("{}: {}", option, read.error().message));
    templates.push_back(*read);
  }
  return EX_OK;
}

int ReadQuestion(const ReplayCommandOptions& options, QuestionTemplate& question) {
  if (const int status = ReadTemplates("--tag", options.tags, question.tags); status != EX_OK) return status;
  if (const int status = ReadTemplates("--cost", options.costs, question.costs); status != EX_OK) return status;
  if (question.tags.size() > Questions::kTagsMax) {
    return Complain(EX_USAGE, fmt::format("--tag: must be given at most {} times", Questions::kTagsMax));
  }
  if (question.costs.size() > 1 && question.costs.size() != question.tags.size()) {
    return Complain(EX_USAGE, "--cost: must be given once, or as often as --tag");
  }
  if (options.wait.empty()) return EX_OK;
  const auto wait = ParseDuration(options.wait);
  if (!wait || *wait < Duration(0)) {
    return Complain(EX_USAGE, fmt::format("--wait: {}: must be a duration such as 500ms", options.wait));
  }
  question.patience = *wait;
  return EX_OK;
}

int ReadRules(const ReplayCommandOptions& options, Settings& settings) {
  const auto text = ReadFile(options.rules, kSettingsBytesMax);
  if (!text) return Complain(EX_NOINPUT, text.error().message);
  LoadedSettings loaded = ParseForRehearsal(*text, options.rules, ReadNamedFile);
  Complain(loaded.problems);
  if (!loaded.ok()) return EX_CONFIG;
  settings = std::move(loaded.settings);
  return EX_OK;
}

// EX_OK; EX_NOINPUT if the log cannot be opened; EX_DATAERR if it cannot be read to its end. Neither ends the replay.
int ReadLog(const std::string& path, Replay& replay, Progress& progress) {
  Result<LogFile> log = LogFile::Open(path);
  if (!log) return Complain(EX_NOINPUT, log.error().message);
  replay.Begin(InputName(path));
  while (const auto line = log->Next()) {
    replay.Take(line->text, line->over_long);
    const std::uint64_t lines = replay.counts().lines;
    if (lines % kLinesBetweenLooks != 0) continue;
    const double part = log->Progress();
    const std::string what = fmt::format("{}: {} lines", EscapeTag(path), lines);
    if (!progress.At(what, part < 0 ? std::nullopt : std::optional(part))) return EX_OK;
  }
  if (log->error().empty()) return EX_OK;
  return Complain(EX_DATAERR, fmt::format("{}: {}; what was read of it counts", path, log->error()));
}

std::string Percent(std::uint64_t part, std::uint64_t all) {
  return fmt::format("{:.2f} %", all == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(all));
}

std::string Names(std::vector<std::string> logs) {
  for (std::string& log : logs) log = InputName(log);
  return fmt::format("{}", fmt::join(logs, ", "));
}

std::string WaitsOf(const Waits& waits) {
  if (waits.count() == 0) return "0";
  const auto ms = [](Duration wait) { return 1000 * Seconds(wait); };
  return fmt::format("{} (median {:.1f} ms, p99 {:.1f} ms, longest {:.1f} ms)", waits.count(), ms(waits.Quantile(0.5)),
                     ms(waits.Quantile(0.99)), ms(waits.longest()));
}

void PrintWaits(const Replay& replay) {
  if (replay.waits().count() + replay.ideal_waits().count() == 0) return;
  fmt::print("waited    {}\n", WaitsOf(replay.waits()));
  fmt::print("          with one bucket for all {}\n", WaitsOf(replay.ideal_waits()));
}

void PrintRequests(const Requests::Counts& fleet, const Requests::Counts& ideal) {
  if (fleet.refunded > 0) fmt::print("refunded  {} tokens\n", fleet.refunded);
  if (fleet.holds + ideal.holds > 0) {
    fmt::print("holds     {}: {} committed, {} released, {} expired; {} tokens came back, {} were used beyond them\n",
               fleet.holds, fleet.committed, fleet.released, fleet.expired, fleet.returned, fleet.exceeded);
  }
  if (fleet.places + ideal.places > 0) {
    fmt::print("places    {}: at most {} at once, of {}; with one bucket for all {}\n", fleet.places, fleet.places_max,
               fleet.places_tag.empty() ? "-" : EscapeTag(fleet.places_tag).substr(0, 60), ideal.places_max);
  }
  if (fleet.taken_back > 0) {
    fmt::print("          {} were taken back, because a host's part became smaller\n", fleet.taken_back);
  }
  if (fleet.crowded > 0) {
    fmt::print("          {} questions found no room for what they took, so it stays taken\n", fleet.crowded);
  }
}

void PrintSummary(const ReplayCommandOptions& options, const Replay& replay) {
  const Replay::Counts& c = replay.counts();
  fmt::print("log       {}: {} lines", Names(options.logs), c.lines);
  if (c.asked > 0) fmt::print(", {} to {}", FormatTime(c.first_s), FormatTime(c.last_s));
  fmt::print("\n");
  if (c.unreadable > 0) fmt::print("          {} unreadable, which count for nothing\n", c.unreadable);
  for (const Replay::Unreadable& line : replay.unreadable()) {
    fmt::print("          {}:{}: {}: {}\n", EscapeTag(line.log), line.line, line.reason, EscapeTag(line.text));
  }
  if (c.late > 0) {
    fmt::print("          {} earlier than a line before, by up to {} s{}\n", c.late, c.late_s_max,
               c.late_s_max > kLateMax ? ": these logs are not in order of time, so the figures are void" : "");
  }
  const auto spread =
      std::find_if(kSpreads.begin(), kSpreads.end(), [&](const auto& s) { return s.second == options.replay.spread; });
  const std::uint32_t owners = std::min(OwnersIn(options.replay.settings), options.replay.hosts);
  fmt::print("fleet     {} hosts{}, requests spread {}, period {}, tag {}\n", options.replay.hosts,
             owners > 0 ? fmt::format(", {} of which own all tags", owners) : "", spread->first,
             FormatDuration(options.replay.settings.peers.period), fmt::join(options.tags, ", "));
  fmt::print("asked     {}\n", c.asked);
  if (c.peeked > 0) fmt::print("          {} peeked, which counts for nothing\n", c.peeked);
  fmt::print("refused   {} ({}); one bucket for all refuses {} ({})\n", c.refused, Percent(c.refused, c.asked),
             c.ideal_refused, Percent(c.ideal_refused, c.asked));
  if (c.busy > 0) fmt::print("          {} found no place\n", c.busy);
  if (c.never > 0) fmt::print("          {} cost more than a bucket or a quota holds\n", c.never);
  PrintWaits(replay);
  PrintRequests(replay.requests(), replay.ideal_requests());
  if (c.evicted > 0) fmt::print("          {} buckets were forgotten for want of room: see table.memory\n", c.evicted);
}

void PrintRules(const Replay& replay) {
  fmt::print("\n{:<24} {:>10} {:>10} {:>10}  {:<20}  {}\n", "rule", "asked", "refused", "one bucket", "first refused",
             "last refused");
  for (const Replay::RuleCounts& rule : replay.rules()) {
    if (rule.asked == 0 && rule.name.starts_with('(')) continue;
    fmt::print("{:<24} {:>10} {:>10} {:>10}  {:<20}  {}\n", rule.name, rule.asked, rule.refused, rule.ideal_refused,
               rule.refused == 0 ? "-" : FormatTime(rule.first_s), rule.refused == 0 ? "-" : FormatTime(rule.last_s));
  }
}

void PrintTags(const Replay& replay, std::size_t count) {
  const std::vector<RefusedTags::Named> tags = replay.refused().Most(count);
  if (tags.empty()) return;
  std::size_t width = 18;
  for (const auto& tag : tags) width = std::max(width, std::min<std::size_t>(EscapeTag(tag.tag).size(), 60));
  fmt::print("\n{:<{}} {:>10}  {:<20}  {:<20}  rule\n", "most refused", width, "refused", "first", "last");
  for (const RefusedTags::Named& tag : tags) {
    fmt::print("{:<{}} {:>10}  {:<20}  {:<20}  {}{}\n", EscapeTag(tag.tag).substr(0, 60), width, tag.refused,
               FormatTime(tag.first_s), FormatTime(tag.last_s), replay.rules()[tag.rule].name,
               tag.override_ ? ", override" : "");
  }
  const std::size_t more = replay.refused().size() - tags.size();
  if (more > 0) fmt::print("and {} more tags\n", more);
  const std::uint64_t untold = replay.refused().untold();
  if (untold > 0) fmt::print("and {} refusals of tags beyond these\n", untold);
}

int RunReplay(ReplayCommandOptions options) {
  if (const int status = ReadQuestion(options, options.replay.question); status != EX_OK) return status;
  const Settings& settings = options.replay.settings;
  if (const int status = ReadRules(options, options.replay.settings); status != EX_OK) return status;
  const bool divides =
      std::ranges::any_of(settings.rules, [](const Rule& rule) { return rule.share == Share::kCapacity; });
  if (const auto fits = CheckCapacity(settings, options.replay.hosts); divides && !fits) {
    return Complain(EX_CONFIG, options.rules + ": " + fits.error().message);
  }
  for (const std::string& warning : PartWarnings(settings, options.replay.hosts)) {
    Complain({{Problem::Severity::kWarning, options.rules, 0, 0, warning}});
  }
  if (const std::string note = CapacityNote(settings); !note.empty()) Complain(EX_OK, options.rules + ": " + note);
  SecondsFile seconds;
  if (const int status = seconds.Open(options.csv); status != EX_OK) return status;
  Replay replay(options.replay);
  replay.OnSecond([&seconds](const ReplaySecond& second) { seconds.Add(second); });
  int status = EX_OK;
  std::optional<Progress> progress("dthrottle-sim");
  for (const std::string& path : options.logs) {
    status = std::max(status, ReadLog(path, replay, *progress));
    if (Progress::stopped()) break;
  }
  const bool interrupted = Progress::stopped();
  progress.reset();
  if (status == EX_NOINPUT && replay.counts().lines == 0) return status;
  replay.Finish();
  if (const int closed = seconds.Close(); closed != EX_OK) return closed;
  const Replay::Counts& counts = replay.counts();
  if (options.csv != "-") {
    PrintSummary(options, replay);
    PrintRules(replay);
    PrintTags(replay, options.top);
    if (std::fflush(stdout) != 0) return Complain(EX_IOERR, "the output could not be written");
  }
  if (counts.lines > 0 && counts.unreadable == counts.lines) {
    const Replay::Unreadable& first = replay.unreadable().front();
    return Complain(EX_DATAERR, fmt::format("no line is in the common or the combined format, or a question; {}:{}: {}",
                                            EscapeTag(first.log), first.line, first.reason));
  }
  return UnlessInterrupted(status, interrupted);
}

}    // namespace

void AddReplayCommand(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("replay", "Ask a fleet what a log has, and say who is refused");
  const auto options = std::make_shared<ReplayCommandOptions>();
  command->add_option("LOG", options->logs, "Logs of requests or questions in order, also gzipped; or \"-\"")
      ->required();
  command->add_option("--rules", options->rules, "The settings whose rules apply, dthrottled.toml")->required();
  command->add_option("--hosts", options->replay.hosts, "How many hosts share the requests")
      ->check(CLI::Range(std::uint32_t{1}, kReplayHostsMax))
      ->capture_default_str();
  command->add_option("--tag", options->tags, "What a line asks for, with fields such as %h %u %m %U; may be repeated")
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--cost", options->costs, "What a tag costs, a number or a field such as %b; once or for each")
      ->allow_extra_args(false);
  command->add_option("--wait", options->wait, "How long it waits rather than being refused, where rules have a delay");
  command->add_option("--spread", options->replay.spread, "To which host a request goes: random, sticky, round-robin")
      ->transform(CLI::Transformer(kSpreads));
  command->add_option("--seed", options->replay.seed, "What chance is made of")->capture_default_str();
  command->add_option("--top", options->top, "How many of the most refused tags to print")->capture_default_str();
  command->add_option("--csv", options->csv, "Write every second that has requests to this file");
  command->callback([options, &status] { status = RunReplay(*options); });
}

}    // namespace dthrottle::lab
