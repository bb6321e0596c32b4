// The section [sites] of the settings.
#include <set>

#include "base/host_name.h"
#include "config/findings.h"
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

namespace {

constexpr std::size_t kSitesMax = 15;    // beside this one
constexpr std::string_view kWhich[] = {"name", "others"};
constexpr double kPartMin = 0.001;
constexpr int kPeriodsMax = 3;    // late hits are paid by refill that was wasted in so many (share/forecast)

}    // namespace

Section SitesSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "sites",
      "Several sites with one limit. In each a few hosts own the tags (peers.spread = \"owners\"), and these tell the "
      "owners of other sites what all hosts of their site have served. Only hosts that own tags need this section.",
      {
          Text<S>("name", "\"\"", "a name of up to 64 letters, digits and \"_-.\", or \"\" if there is one site",
                  MEMBER(S, sites.name), "What this host's site is called, the same on all of its hosts.",
                  [](const std::string& text) { return text.empty() || IsHostName(text); }),
          TextList<S>("others", "a list of up to 15 names, each once", MEMBER(S, sites.others),
                      "What the other sites are called.", IsHostName),
          Parsed<S, Endpoint>("bind", "\"tcp://127.0.0.1:7315\"",
                              "a numeric address such as \"tcp://127.0.0.1:7315\", or \"\" for none",
                              MEMBER(S, sites.bind),
                              "Where this host listens for owners of other sites, if there are any. Anything but "
                              "loopback needs keys.",
                              ParseBind, FormatBind),
          ReloadsUnless(kWhich, TextList<S>(
              "connect", "a list of addresses as in *peers.connect*", MEMBER(S, sites.connect),
              "Where the owners of all other sites listen. All of them hear all, and each takes what is of its tags. "
              "It waits for the next start where *name* or *others* changes.",
              [](const std::string& text) { return ParsePeerEntry(text).has_value(); })),
          DurationKey<S>("period", "\"5s\"", 100ms, 10min, MEMBER(S, sites.period),
                         "The time between two reports to other sites, from one *peers.period* to three. Tags that "
                         "are watched are told early where it matters."),
          Text<S>("key_file", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, sites.key_file),
                  "The key pair of this host for other sites, as *peers.key_file*; it may be the same.", IsPath),
          Text<S>("authorized_keys", "\"\"", "an absolute path, or \"\" for none", MEMBER(S, sites.authorized_keys),
                  "The directory with the public keys of all owners of other sites, NAME.pub.", IsPath),
          Number<S>("part", "0.0", 0, 1, MEMBER(S, sites.part),
                    "This site's part of a limit whose rule has cut_off = \"part\", while another site is not heard. "
                    "The parts of all sites make 1 together.",
                    "a number"),
      }};
}

std::string ComplaintAboutSitePeriod(const Settings& s) {
  if (s.sites.period >= s.peers.period && s.sites.period <= kPeriodsMax * s.peers.period) return "";
  return fmt::format("sites.period = \"{}\" with peers.period = \"{}\": must be from one to {} of it",
                     FormatDuration(s.sites.period), FormatDuration(s.peers.period), kPeriodsMax);
}

void CheckSites(Findings& f) {
  const Settings& s = f.settings();
  const auto& sites = s.sites;
  for (std::size_t i = 0; i < s.rules.size(); ++i) {
    if (s.rules[i].cut_off != CutOff::kPart) continue;
    if (!sites.enabled() && !f.fleet()) {
      f.Warn(f.rules[i],
             fmt::format("rule \"{}\": cut_off = \"part\" without sites.name: there is one site", s.rules[i].name));
    } else if (sites.part < kPartMin) {
      f.Error(f.rules[i], fmt::format("rule \"{}\": cut_off = \"part\" with sites.part = {:g}: must be from {:g} to 1",
                                      s.rules[i].name, sites.part, kPartMin));
    }
  }
  if (!sites.enabled()) {
    if (!sites.others.empty()) f.Error("", "sites.others with sites.name = \"\": must be the name of this site");
    return;
  }
  const std::set<std::string_view> names(sites.others.begin(), sites.others.end());
  if (names.empty() || names.size() != sites.others.size() || names.size() > kSitesMax || names.contains(sites.name)) {
    f.Error("", fmt::format("sites.others has {} names, {} of them different: must be 1 to {}, each once, without "
                            "sites.name",
                            sites.others.size(), names.size(), kSitesMax));
  }
  if (s.peers.spread != PeerSpread::kOwners) {
    f.Error("",
            "sites.name with peers.spread = \"all\": must be \"owners\", because owners say what their site serves");
  }
  if (const std::string complaint = ComplaintAboutSitePeriod(s); !complaint.empty()) f.Error("", complaint);
  if (!sites.bind.enabled())
    f.Error("", "sites.bind is \"\": must be an address, since sites.name says there are others");
  CheckHostKeys(f, {"sites", "site", sites.bind, sites.connect, sites.key_file, sites.authorized_keys});
}

}    // namespace dthrottle
