#include "feature/set_limits/feature.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "admin/admin.h"
#include "config/values.h"
#include "feature/set_limits/operators.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/fresh.h"

namespace dthrottle {

namespace {

constexpr const char* kUnsigned = "operator.keys are set: sign it with one of them (dthrottlectl limit --key FILE)";
constexpr Duration kWriteEvery = std::chrono::hours(24);    // so that the file says when this host was there
constexpr Duration kLookEvery = std::chrono::seconds(10);    // at the wall clock, which may be set

std::string_view Complaint(SetLimits::Outcome outcome) {
  switch (outcome) {
    case SetLimits::Outcome::kTaken:
    case SetLimits::Outcome::kKnown:
      return "";
    case SetLimits::Outcome::kOlder:
      return "a newer limit is known here: see limit list, and the clock of the host where this one was signed";
    case SetLimits::Outcome::kOver:
      return "it has ended long ago";
    case SetLimits::Outcome::kCrowded:
      return "1000 limits are set already: clear one";
  }
  return "";
}

// The path of the file that keeps limits; empty: none does.
std::string PathOfFile(const Settings& settings) {
  const std::string &own = settings.operators.limits_file, &table = settings.table.file;
  return own.empty() && !table.empty() ? table + ".limits" : own;
}

// Whether a file that the settings name can be written. Without one it is beside the table.
FileResult<void> CheckFolder(const Settings& settings) {
  const std::string& path = settings.operators.limits_file;
  return path.empty() ? FileResult<void>() : CheckFolderOf(path);
}

std::string NotKept(const FileError& why) {
  return "operator.limits_file: " + why.message + ": limits that are set are not kept";
}

}    // namespace

SetLimitsFeature::SetLimitsFeature(const FeatureHost& host) : host_(host), spreading_(set_, {}, FreshPrng()) {}

// ---- Start and settings ----

void SetLimitsFeature::Check(const Settings& settings, std::vector<std::string>& warnings) {
  static_cast<void>(ReadOperators(settings, CheckedOwner(), warnings));
  const auto folder = CheckFolder(settings);    // of the daemon's user, perhaps
  if (!folder && folder.error().code == ENOENT) warnings.push_back(NotKept(folder.error()));
}

void SetLimitsFeature::CheckFile(LoadedSettings& loaded, bool as_daemon) {
  const std::string path = PathOfFile(loaded.settings);
  const auto usable = path.empty() ? FileResult<void>() : CheckStateFile(path, SetLimits::IsFile);
  if (usable) return;
  const int code = usable.error().code;
  if (!as_daemon && (code == EACCES || code == EPERM)) return;
  loaded.problems.push_back(loaded.ErrorAt("operator", "limits_file", usable.error().message));
}

void SetLimitsFeature::Prepare() {
  const Settings& settings = host_.admin.settings();
  std::vector<std::string> problems;
  TakeKeys(problems);
  for (const std::string& problem : problems) host_.log.Warning("{}", problem);
  path_ = PathOfFile(settings);
  if (!path_.empty()) {
    if (const auto usable = CheckStateFile(path_, SetLimits::IsFile); !usable) {
      throw StartFailure{ExitCode(usable.error().code), "operator.limits_file: " + usable.error().message};
    }
  }
  if (const auto folder = CheckFolder(settings); !folder) host_.log.Warning("{}", NotKept(folder.error()));
  if (!settings.operators.limits_file.empty()) TakeLock();
  TakeNewest();
}

// What the program before has left goes before the file, which it may have been unable to write. After a stop another
// program may have written the file since, and then the file goes first.
void SetLimitsFeature::TakeNewest() {
  const HandedSection left = host_.handed.Take(kSection);
  const auto file = ReadRegularFile(path_, SetLimits::kFileBytesMax);
  const std::string_view text = file ? std::string_view(*file) : std::string_view();
  const bool stopped = host_.handed.held_at == Instant();
  const bool is_old = stopped && SetLimits::WrittenAt(left.bytes) < SetLimits::WrittenAt(text);
  written_ = SetLimits::StampsIn(text);
  if (SetLimits::IsFile(left.bytes) && !is_old) {
    TakeFile(left.bytes, "limits of the program before");
  } else if (!text.empty()) {
    TakeFile(text, path_);
  }
}

// Where no lock can be had for another reason, the file cannot be written either, and that is told then.
void SetLimitsFeature::TakeLock() {
  auto lock = TextLock::Take(path_);
  if (lock) {
    lock_.emplace(std::move(*lock));
  } else if (lock.error().code == EWOULDBLOCK) {
    throw StartFailure{ExitCode(EWOULDBLOCK), "operator.limits_file: " + lock.error().message};
  }
}

void SetLimitsFeature::TakeFile(std::string_view text, std::string_view from) {
  for (const std::string& left_out : set_.TakeFile(text, spreading_.keys(), WallClock())) {
    host_.log.Warning("{}: {}", from, left_out);
  }
  if (const std::string aside = AsideComplaint(); !aside.empty()) host_.log.Warning("{}", aside);
  ends_at_ = set_.NextEnd(WallClock());
}

void SetLimitsFeature::Keep(std::vector<HandedSection>& sections) const {
  const std::lock_guard lock(mutex_);
  if (set_.entries().empty() && set_.aside() == 0) return;
  sections.push_back({kSection, -1, set_.File(WallClock())});
}

std::string SetLimitsFeature::AsideComplaint() const {
  const std::lock_guard lock(mutex_);
  const std::size_t n = set_.aside();
  if (n == 0) return "";
  return fmt::format("operator.keys: warning: limits that do not hold because none of these keys has signed them: {}; "
                     "they are kept for 30 days, and hold again when the keys are as they were", n);
}

// False: the limits that hold are as before.
bool SetLimitsFeature::TakeKeys(std::vector<std::string>& problems) {
  Operators operators = ReadOperators(host_.admin.settings(), SecretOwner::kThisUser, problems);
  own_key_ = std::move(operators.own_key);
  token_ = std::move(operators.token);
  const std::lock_guard lock(mutex_);
  return spreading_.SetKeys(std::move(operators.keys), WallClock());
}

void SetLimitsFeature::Start() {
  timer_.emplace(host_.loop, [this] { OnTimer(); });
  if (!path_.empty()) {
    const auto text = [this] {
      writing_ = AllStamps();
      const std::lock_guard lock(mutex_);
      return set_.File(WallClock());
    };
    file_.emplace(host_.loop, path_, text, [this](const std::string& trouble) { OnWritten(trouble); });
  }
  if (HasAny()) Write();
  SetTimer();
  if (const std::string why = Unusable(); !why.empty()) host_.log.Warning("{}", why);
}

void SetLimitsFeature::Reload(std::vector<std::string>& problems) {
  if (TakeKeys(problems)) PutInForce();
  if (std::string aside = AsideComplaint(); !aside.empty()) problems.push_back(std::move(aside));
  if (std::string why = Unusable(); !why.empty()) {
    problems.push_back(std::move(why));
  } else if (const auto rules = RulesInForce()) {
    problems.push_back(By(*rules) + " has set rules that hold in the place of those of the settings: limit rules "
                                    "--clear ends it");
  }
}

void SetLimitsFeature::Close() {
  timer_.reset();
}

Amendment SetLimitsFeature::Amends() {
  const std::lock_guard lock(mutex_);
  const auto set = std::make_shared<const std::vector<SetLimit>>(set_.InForce(WallClock()));
  auto verdict = std::make_shared<RulesVerdict>();
  const auto change = [set, verdict](const Settings& settings, std::vector<Rule>& rules,
                                     std::vector<Override>& overrides, Duration& since) {
    for (const SetLimit& its : *set) {
      if (its.of != LimitOf::kRules || its.stamp < since) continue;
      *verdict = {its.stamp, TakeRules(its, settings, rules, overrides)};
      if (verdict->unusable.empty()) since = its.stamp;
    }
    Amend(*set, since, settings.query.max_tag_bytes, rules, overrides);
  };
  const auto in_force = [this, set, verdict] {
    const std::lock_guard in_force_lock(mutex_);
    in_force_ = set;
    verdict_ = *verdict;
  };
  Amendment amendment{{}, in_force};
  if (!set->empty()) amendment.change = change;
  return amendment;
}

// ---- The threads' of the connections ----

std::string_view SetLimitsFeature::Teller::stem() const {
  return kLimitFramePrefix.substr(0, 3);
}

bool SetLimitsFeature::Teller::OnFrame(const Said& said, Transport& wire, Instant now) {
  const std::lock_guard lock(feature_.mutex_);
  Spreading& spreading = feature_.spreading_;
  const bool whole = spreading.OnFrame(said, wire, WallClock(), now);
  if (spreading.any_news()) feature_.host_.tasks.Post([&feature = feature_] { feature.OnNews(); });
  return whole;
}

Instant SetLimitsFeature::Teller::Tick(std::span<const LinkId> peers, Transport& wire, Instant now) {
  const std::lock_guard lock(feature_.mutex_);
  return feature_.spreading_.Tick(crowd_, peers, wire, now);
}

// ---- A limit that is set ----

// With keys an operator has to have signed it; without, the owner of the admin socket may set it, for this host.
Result<SignedLimit> SetLimitsFeature::Authorized(const SetLimit& limit, bool with_own_key) const {
  if (with_own_key && own_key_) {
    if (SetLimits::IsAhead(limit, WallClock())) return Fail(kReplacesAhead);
    return Sign(limit, *own_key_);
  }
  const std::lock_guard lock(mutex_);
  if (spreading_.keys().empty()) return SignedLimit{limit, {}, {}};
  return Fail(with_own_key ? "operator.keys are set, and operator.http_key_file has none of them to sign with"
                           : kUnsigned);
}

SetAt SetLimitsFeature::NowFor(LimitOf of, std::string_view name) const {
  const Duration wall = WallClock();
  const Duration on_top = host_.rules_since() + std::chrono::microseconds(1);    // of a candidate's rules, too
  const std::lock_guard lock(mutex_);
  return {std::max(set_.StampFor(of, name, wall), on_top), wall};
}

Result<void> SetLimitsFeature::Accept(SignedLimit limit) {
  const std::lock_guard lock(mutex_);
  if (limit.local() && !spreading_.keys().empty()) return Fail(kUnsigned);
  if (!limit.local() && !spreading_.keys().contains(limit.key)) return Fail("no operator has that key: operator.keys");
  if (!limit.local() && !IsGenuine(limit)) return Fail("the signature is not that of the key");
  const std::string_view complaint = Complaint(spreading_.Set(std::move(limit), WallClock()));
  if (!complaint.empty()) return Fail(std::string(complaint));
  return {};
}

// What other hosts have brought, or what has been set here.
void SetLimitsFeature::OnNews() {
  std::vector<SignedLimit> news;
  {
    const std::lock_guard lock(mutex_);
    news = spreading_.TakeNews();
  }
  if (news.empty() || !timer_) return;
  for (const SignedLimit& limit : news) {
    const std::string text = TextOf(limit.limit).substr(0, kLimitLineBytesMax);    // rules are longer
    host_.admin.Audit(fmt::format("limit: {} has set {}", By(limit), text));
  }
  PutInForce();
}

void SetLimitsFeature::PutInForce(KeptText::Done done) {
  {
    const std::lock_guard lock(mutex_);
    ends_at_ = set_.NextEnd(WallClock());    // before Amends looks at the clock, so that no end falls between
  }
  SetTimer();
  host_.amend([this, done = std::move(done)]() mutable {
    if (const std::string why = Unusable(); !why.empty()) host_.log.Warning("{}", why);
    Write(std::move(done));
  });
}

// Limits end by the wall clock. Where it has gone back, one that has ended may hold again.
void SetLimitsFeature::OnTimer() {
  const Duration wall = WallClock();
  bool as_in_force = true;
  {
    const std::lock_guard lock(mutex_);
    set_.Forget(wall);
    as_in_force = set_.InForce(wall) == *in_force_;
  }
  if (wall >= ends_at_ || !as_in_force) {
    PutInForce();
  } else {
    if (wall >= written_at_ + kWriteEvery && HasAny()) Write();
    SetTimer();
  }
}

void SetLimitsFeature::SetTimer() {
  constexpr Duration kLeast = std::chrono::milliseconds(1);
  if (timer_) timer_->StartOnce(std::clamp(ends_at_ - WallClock(), kLeast, kLookEvery));
}

void SetLimitsFeature::Write(KeptText::Done done) {
  if (!file_ || !timer_) return done({});
  file_->Write(std::move(done));
}

void SetLimitsFeature::OnWritten(const std::string& trouble) {
  const bool was_kept = std::exchange(trouble_, trouble).empty();
  const bool is_kept = trouble.empty();
  written_at_ = is_kept ? WallClock() : Duration();    // OnTimer tries again
  if (is_kept) {
    written_ = std::move(writing_);
    return;
  }
  ++unsaved_;
  if (was_kept) host_.log.Warning("limits that are set are not kept: {}", trouble);
}

SetLimits::Stamps SetLimitsFeature::AllStamps() const {
  const std::lock_guard lock(mutex_);
  SetLimits::Stamps stamps;
  for (const auto& [name, its] : set_.entries()) stamps.emplace(name, its.limit.stamp);
  return stamps;
}

std::string SetLimitsFeature::WhyNotKept(const SetLimit& limit) const {
  if (trouble_.empty()) return "";
  const auto kept = written_.find(SetLimits::NameOf(limit));
  const bool is_kept = kept != written_.end() && kept->second == limit.stamp;
  return is_kept ? "" : "not kept over a restart: " + trouble_;
}

bool SetLimitsFeature::HasAny() const {
  const std::lock_guard lock(mutex_);
  return !set_.entries().empty() || set_.aside() > 0;
}

void SetLimitsFeature::Count(ProcessCounts& counts) const {
  const std::lock_guard lock(mutex_);
  counts.set_limits = spreading_.counts();
  const auto holds = [wall = WallClock(), since = host_.rules_since()](const SetLimits::Entries::value_type& entry) {
    return IsInForce(entry.second.limit, wall) && entry.second.limit.stamp >= since;
  };
  counts.set_limits.in_force = static_cast<std::uint64_t>(std::ranges::count_if(set_.entries(), holds));
  counts.set_limits.known = set_.entries().size();
  counts.set_limits.unsaved = unsaved_;
  counts.set_limits.rules_unusable = !WhyUnusable().empty();
}

}    // namespace dthrottle
