// Limits that operators set, as a part of the daemon: the command `limit` (command.cc), POST /limit (http.cc), the file
// that keeps them, rules in the place of those of the settings (rules.cc), and the way of all this to other hosts and
// sites, which the threads of these connections go.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bus/tenant.h"
#include "config/load.h"
#include "config/settings.h"
#include "feature/feature.h"
#include "feature/set_limits/spreading.h"
#include "io/kept_text.h"
#include "io/timer.h"

namespace dthrottle {

class SetLimitsFeature final : public Feature {
 public:
  static constexpr const char* kSection = "limits";    // of what a program leaves to the next: the file

  explicit SetLimitsFeature(const FeatureHost& host);

  // What a start would warn of in the files of [operator], a line each.
  static void Check(const Settings& settings, std::vector<std::string>& warnings);

  // Adds what would stop a start: the file of limits is somebody else's. `as_daemon`: this is the daemon's user, and the
  // file has to be usable; else the check may be made for another user, and passes over what it may not read.
  static void CheckFile(LoadedSettings& loaded, bool as_daemon);

  void Prepare() override;
  void Start() override;
  Amendment Amends() override;
  Tenant* tenant() override { return &to_peers_; }
  Tenant* tenant_of_sites() override { return &to_sites_; }

  Command command() const override;
  bool Changes(std::string_view argument) const override;
  std::string Audited(std::string_view argument) const override;
  void Run(std::string_view argument, std::function<void(Json)> reply, Instant now) override;
  void Why(std::string_view tag, LimitIndex limit, const std::function<void(std::string)>& say) const override;
  std::span<const std::string_view> parameters() const override;
  Answer Post(const Posted& posted) override;

  void Reload(std::vector<std::string>& problems) override;
  void Keep(std::vector<HandedSection>& sections) const override;
  void Count(ProcessCounts& counts) const override;
  void Close() override;

 private:
  struct Checking;
  // What came of rules that are set when rules were put in force.
  struct RulesVerdict {
    Duration stamp{};           // theirs
    std::string unusable{};     // why those of the settings hold all the same; empty: they do not
  };
  // Called by the thread of the connections with that crowd.
  class Teller final : public Tenant {
   public:
    Teller(SetLimitsFeature& feature, Spreading::Crowd crowd) : feature_(feature), crowd_(crowd) {}

    std::string_view stem() const override;
    bool OnFrame(const Said& said, Transport& wire, Instant now) override;
    Instant Tick(std::span<const LinkId> peers, Transport& wire, Instant now) override;

   private:
    SetLimitsFeature& feature_;
    const Spreading::Crowd crowd_;
  };

  static void Nobody(const std::string&) {}    // waits
  bool HasAny() const;    // limits, whether they hold or not
  SetAt NowFor(LimitOf of, std::string_view name) const;    // of a limit that is set here
  Result<void> Accept(SignedLimit limit);
  void Set(SignedLimit limit, std::function<void(Json)> reply);
  void CheckAndSet(SignedLimit limit, std::function<void(Json)> reply);
  static std::string TakeRules(const SetLimit& set, const Settings& settings, std::vector<Rule>& rules,
                               std::vector<Override>& overrides);
  bool IsBehindRules(const SetLimit& limit) const;    // newer rules hold here
  // REQUIRES of these two: mutex_ is held.
  const SignedLimit* FindRulesInForce() const;    // null: none are
  std::string WhyUnusable() const;                // empty: rules that are set are in force, or none are set

  std::optional<SignedLimit> RulesInForce() const;
  std::string Unusable() const;
  Result<SignedLimit> Authorized(const SetLimit& limit, bool with_own_key) const;
  Json Describe(const SignedLimit& limit) const;
  std::string NoteOn(const SetLimit& limit) const;        // empty: none
  std::string WhyNotKept(const SetLimit& limit) const;    // empty: the file has it, or nothing says otherwise
  Json List() const;
  std::string By(const SignedLimit& limit) const;
  bool TakeKeys(std::vector<std::string>& problems);
  void TakeLock();
  void TakeNewest();
  void TakeFile(std::string_view text, std::string_view from);
  SetLimits::Stamps AllStamps() const;
  std::string AsideComplaint() const;    // empty: nothing is set aside
  void OnNews();
  void PutInForce(KeptText::Done done = Nobody);
  void OnTimer();
  void SetTimer();
  void Write(KeptText::Done done = Nobody);
  void OnWritten(const std::string& trouble);

  const FeatureHost host_;
  mutable std::mutex mutex_;    // for the next four: four threads use them
  SetLimits set_;
  Spreading spreading_;
  RulesVerdict verdict_;
  std::shared_ptr<const std::vector<SetLimit>> in_force_;    // what the rules in force have been changed by
  Teller to_peers_{*this, Spreading::kPeers}, to_sites_{*this, Spreading::kSites};
  std::optional<OperatorSecret> own_key_;    // signs what HTTP brings
  std::string token_;                        // who shows it may set limits over HTTP; empty: nobody
  std::string path_;                         // of the file that keeps them; empty: none does
  std::optional<TextLock> lock_;             // none beside the table, whose own lock holds both
  std::optional<KeptText> file_;
  std::optional<Timer> timer_;               // none before Start, and after Close
  Duration ends_at_ = Duration::max();    // since 1970: the next of the limits that are in force
  Duration written_at_{};                 // since 1970: the file
  std::uint64_t unsaved_ = 0;
  std::string trouble_;                   // of the last writing; empty: none
  SetLimits::Stamps writing_, written_;    // of the limits that are being written, and that the file has
};

}    // namespace dthrottle
