#include "feature/sites/feature.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "admin/admin.h"
#include "admin/commands/commands.h"
#include "admin/escape.h"
#include "base/state.h"
#include "bus/peer.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/fresh.h"
#include "io/peer_settings.h"
#include "limiter/limiter.h"
#include "share/sites/site_presence.h"

namespace dthrottle {

namespace {

constexpr Duration kWatchEvery = std::chrono::milliseconds(250);
constexpr Duration kFarewell = std::chrono::milliseconds(500);
constexpr Duration kRetryAfter = std::chrono::seconds(5);

KeySettings KeysOf(const Settings& settings) {
  return {"sites", settings.sites.key_file, settings.sites.authorized_keys};
}

// How long that has not been; none: it is.
std::optional<Duration> Since(Instant heard, Instant now) {
  const Duration since = now - heard;
  return since > 2 * kWatchEvery ? std::optional(since) : std::nullopt;
}

// Sites have a file of their own, so that the number of the start among peers says what it said.
std::string StemOf(const Settings& settings) {
  return settings.table.file.empty() ? "" : settings.table.file + ".sites";
}

}    // namespace

SitesFeature::Session::Session(std::unique_ptr<PeerThread> started, Ways& ways, const SiteSharing::Options& options,
                               Prng& prng)
    : thread(std::move(started)), sharing(ways, thread->to_peers(), thread->from_peers(), options, prng, Now()) {}

std::string SitesFeature::Session::Sums() const {
  return WriteState(SiteSharing::kKeptVersion, sharing.Keep());
}

// ---- Start ----

bool SitesFeature::wanted() const {
  return host_.admin.settings().sites.enabled();
}

void SitesFeature::Start() {
  const HandedSection left = host_.handed.Take(kSection);
  if (!wanted()) return;
  if (!left.bytes.empty() && !ReadState(left.bytes, kKeptVersion, kept_)) {
    host_.log.Warning("sites: reports begin anew: what was kept is of another version");
    kept_ = {};
  }
  heard_.assign(host_.admin.settings().sites.others.size(), {Now(), Now()});
  slices_.emplace(host_.loop, Slices::Work{[this](Instant end) { return Turn(end); },
                                           [this] { return std::min(session_->sharing.next(), watch_at_); }});
  retry_.emplace(host_.loop, [this] { Return(); });
  const bool took_over = host_.handed.held_at != Instant();
  if (took_over) return host_.tasks.Post([this] { Return(); });
  if (auto opened = Open(); !opened) throw StartFailure{EX_UNAVAILABLE, opened.error().message};
}

// For a daemon that answers already: it does not end because of this.
void SitesFeature::Return() {
  if (!wanted() || closed_ || !away_) return;
  const auto opened = Open();
  if (opened) return;
  host_.log.Error("{}; trying again", opened.error().message);
  retry_->StartOnce(kRetryAfter);
}

Result<PeerThread::Options> SitesFeature::MakeOptions() const {
  const Settings& settings = host_.admin.settings();
  const std::string stem = StemOf(settings);
  if (auto usable = CheckIncarnation(stem); !usable) return Fail(usable.error().message);
  PeerThread::Options options = CommonOptions(settings, FreshNumber());
  if (auto taken = TakeKeys(KeysOf(settings), options, host_.log); !taken) return Fail(taken.error().message);
  options.bind = settings.sites.bind;
  options.connect = settings.sites.connect;
  Exchange::Options& exchange = options.exchange;
  exchange.incarnation = NextIncarnation(stem, std::chrono::microseconds(1), std::uint64_t{1} << 62);
  exchange.period = settings.sites.period;
  exchange.account = host_.admin.limiter().ways().Get<Debits>().account_to_sites();
  exchange.identities_proven = options.keys.has_value();
  exchange.fresh_table = !host_.admin.limiter().discarded().empty();
  exchange.site = settings.sites.name;
  exchange.other_sites = settings.sites.others;
  exchange.life = kept_.exchange;
  return options;
}

// Opens the port and begins to report, or goes on where it has left. The reason if it cannot, with nothing begun.
Result<void> SitesFeature::Open() {
  const Settings& settings = host_.admin.settings();
  auto options = MakeOptions();
  if (!options) return Fail(options.error().message);
  options->tenants = host_.tenants_of_sites();
  options->wake = [this] { slices_->Wake(); };
  options->log = [this](LogLevel level, std::string text) {
    host_.tasks.Post([this, level, text = std::move(text)] { host_.log.Say(level, "sites: " + text); });
  };
  auto thread = std::make_unique<PeerThread>(std::move(*options));
  if (auto started = thread->Start(); !started) return Fail("sites: " + started.error().message);
  Prng prng = FreshPrng();
  const bool resumed = thread->resumed();
  const SiteSharing::Options sharing{settings.sites.name, settings.sites.period, settings.sites.others.size(),
                                     settings.sites.part > 0 ? settings.sites.part : 1};
  if (session_ != nullptr) kept_.sharing = session_->Sums();
  session_.reset();    // there is one at a time
  session_ = std::make_unique<Session>(std::move(thread), host_.admin.limiter().ways(), sharing, prng);
  SiteSharing::Kept kept;
  if (ReadState(kept_.sharing, SiteSharing::kKeptVersion, kept)) session_->sharing.Resume(kept, Now());
  kept_ = {};
  away_ = false;
  host_.log.Notice("telling other sites as site \"{}\" on {}, {}{}", settings.sites.name,
                   FormatBind(settings.sites.bind),
                   settings.sites.key_file.empty() ? "on this host only: no keys" : "with keys",
                   resumed ? ", where it left off" : "");
  slices_->Start();
  return {};
}

// ---- Work ----

bool SitesFeature::Turn(Instant end) {
  if (away_) return false;
  const bool was_full = session_->thread->from_peers().full();
  bool more = true;
  Instant now = Now();
  for (; more && now < end; now = Now()) more = session_->sharing.Work(now);
  if (now >= watch_at_) Watch(now);
  if (was_full || !session_->thread->to_peers().empty()) session_->thread->Notify();
  return more;
}

void SitesFeature::Watch(Instant now) {
  watch_at_ = now + kWatchEvery;
  const Duration missed_after = Peer::kSilentPeriods * host_.admin.settings().sites.period;
  const std::vector<SitePresence> sites = PresenceOf(session_->thread->Peers(), heard_.size());
  std::vector<PeerAge> ages;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].some) heard_[i].some = now;
    if (!sites[i].some) session_->sharing.Miss(static_cast<std::uint32_t>(i));
    if (sites[i].whole) heard_[i].whole = now;
    ages.push_back(sites[i].age);    // the owner of a tag may be the latest of them
    if (!sites[i].whole) ages.back().heard_ago = now - heard_[i].whole + missed_after;
  }
  session_->sharing.SetHeard(std::move(ages), std::ranges::all_of(sites, &SitePresence::whole));
}

void SitesFeature::Reload(std::vector<std::string>& problems) {
  const Settings& settings = host_.admin.settings();
  if (session_ == nullptr || away_) return;
  session_->thread->SetConnect(settings.sites.connect);
  session_->thread->SetCeilings(CeilingsOf(settings));
  ReloadKeys(KeysOf(settings), *session_->thread, problems);
}

// ---- The end ----

// Ends the thread, with all that it has heard handed over; what is not told yet is kept.
void SitesFeature::End() {
  Session& session = *session_;
  session.thread->Stop();
  for (const Instant end = Now() + kFarewell; Now() < end;) {
    const bool more = session.sharing.Work(Now());
    if (session.thread->Drain() && !more && session.thread->from_peers().empty()) break;
  }
  kept_.exchange = session.thread->ExchangeLife();
}

void SitesFeature::Leave(std::function<void()> done) {
  if (!std::exchange(away_, true)) {
    slices_->Stop();
    End();
  }
  done();
}

void SitesFeature::Keep(std::vector<HandedSection>& sections) const {
  if (session_ == nullptr && kept_.exchange.empty()) return;
  const Kept kept{kept_.exchange, session_ != nullptr ? session_->Sums() : kept_.sharing};
  sections.push_back({kSection, -1, WriteState(kKeptVersion, kept)});
}

void SitesFeature::Close() {
  if (!slices_ || std::exchange(closed_, true)) return;
  if (!std::exchange(away_, true)) {
    SiteSharing& sharing = session_->sharing;
    sharing.ReportNow(Now());
    for (const Instant end = Now() + kFarewell; Now() < end && sharing.reporting(Now());) {
      sharing.Work(Now());
      session_->thread->Notify();
    }
    End();
  }
  slices_->Close();
  retry_.reset();
}

// ---- For people ----

Extension::Command SitesFeature::command() const {
  return {"sites", "", "the other sites, and the hosts there that this one talks to"};
}

void SitesFeature::Run(std::string_view argument, std::function<void(Json)> reply, Instant now) {
  if (!argument.empty()) return reply({{"error", "sites takes no argument"}});
  const auto& sites = host_.admin.settings().sites;
  Json rows = Json::array();
  if (session_ == nullptr) return reply(rows);
  using commands::Escaped, commands::Rounded;
  for (const PeerStatus& p : session_->thread->Peers()) {
    const bool known = p.number && *p.number < sites.others.size();
    const bool heard = p.last_heard >= Duration::zero();
    rows.push_back({{"site", known ? Json(sites.others[*p.number]) : Json()},
                    {"address", EscapeTag(p.address)},
                    {"name", Escaped(p.name)},
                    {"state", Name(p.state)},
                    {"heard_s_ago", heard ? Json(Rounded(Seconds(p.last_heard))) : Json()},
                    {"age_s", heard ? Json(Rounded(Seconds(p.age))) : Json()},
                    {"hosts", known && heard ? Json(session_->sharing.hosts_of(*p.number)) : Json()},
                    {"reports", p.reports},
                    {"missed", p.missed},
                    {"lost", p.lost},
                    {"version", Escaped(p.version)},
                    {"note", Escaped(p.reason)}});
  }
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const auto gone = Since(heard_[i].some, now), partly = Since(heard_[i].whole, now);
    if (!partly) continue;
    rows.push_back({{"site", sites.others[i]},
                    {"state", gone ? "not heard" : "partly heard"},
                    {"note", fmt::format("{}for {:.0f} s; limits go on as their cut_off says",
                                         gone ? "" : "not by all of its owners ", Seconds(gone.value_or(*partly)))}});
  }
  reply(std::move(rows));
}

void SitesFeature::Why(std::string_view, LimitIndex index, const std::function<void(std::string)>& say) const {
  if (session_ == nullptr) return;
  const auto& sites = host_.admin.settings().sites;
  const Limit& limit = host_.admin.limiter().rules().limit(index);
  if (!limit.shared) return;
  const Instant now = Now();
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const auto gone = Since(heard_[i].some, now), partly = Since(heard_[i].whole, now);
    if (!partly) continue;
    const std::string& name = sites.others[i];
    const std::string who = gone ? "Site " + name + " has not" : "Not all owners of site " + name + " have";
    const std::string with = limit.keeps_part ? fmt::format("{:g} of the limit", sites.part) : "the whole limit";
    say(fmt::format("{} been heard for {:.0f} s: this site goes on with {}.", who, Seconds(gone.value_or(*partly)),
                    with));
  }
}

void SitesFeature::Count(ProcessCounts& counts) const {
  if (session_ == nullptr) return;
  SitesCounts& sites = counts.sites;
  sites.sharing = session_->sharing.counts();
  const ExchangeCounts exchange = session_->thread->Counts();
  sites.others = heard_.size();
  const Instant now = Now();
  for (const Heard& at : heard_) {
    const bool heard = !Since(at.some, now);
    sites.heard += heard;
    sites.partly += heard && Since(at.whole, now);
  }
  sites.lost = exchange.lost, sites.lost_hits = exchange.lost_hits;
  sites.sent_bytes = exchange.published_bytes, sites.received_bytes = exchange.received_bytes;
  sites.missed = exchange.missed, sites.repaired = exchange.repaired;
}

}    // namespace dthrottle
