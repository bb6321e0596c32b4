// Several sites with one limit, as a part of the daemon (protocol/sites.md): the thread between sites, the limiter's
// half (share/sites), and the command `sites`.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "feature/feature.h"
#include "io/peer_thread.h"
#include "io/slices.h"
#include "io/timer.h"
#include "share/sites/site_sharing.h"

namespace dthrottle {

class SitesFeature final : public Feature {
 public:
  static constexpr const char* kSection = "sites";

  explicit SitesFeature(const FeatureHost& host) : host_(host) {}

  void Start() override;

  Command command() const override;
  bool Changes(std::string_view) const override { return false; }
  void Run(std::string_view argument, std::function<void(Json)> reply, Instant now) override;
  void Why(std::string_view tag, LimitIndex limit, const std::function<void(std::string)>& say) const override;

  void Reload(std::vector<std::string>& problems) override;
  void Count(ProcessCounts& counts) const override;
  void Keep(std::vector<HandedSection>& sections) const override;
  void Leave(std::function<void()> done) override;
  void Return() override;
  void Close() override;

 private:
  // What the next program or start goes on with.
  struct Kept {
    std::string exchange, sharing;

    static void Fields(auto& state, auto& self) { state(self.exchange, self.sharing); }
  };
  static constexpr std::uint32_t kKeptVersion = 1;

  // One stay among other sites. The sums of its half are added to until it ends.
  struct Session {
    Session(std::unique_ptr<PeerThread> started, Ways& ways, const SiteSharing::Options& options, Prng& prng);

    std::string Sums() const;    // for Kept::sharing

    std::unique_ptr<PeerThread> thread;
    SiteSharing sharing;
  };

  // When one host of a site was up, and when all of its owners were.
  struct Heard {
    Instant some, whole;
  };

  bool wanted() const;
  Result<PeerThread::Options> MakeOptions() const;
  Result<void> Open();
  bool Turn(Instant end);
  void Watch(Instant now);
  void End();

  const FeatureHost host_;
  std::optional<Slices> slices_;    // from Start on, where there are other sites
  std::optional<Timer> retry_;      // as well: the port could not be opened
  std::unique_ptr<Session> session_;
  Kept kept_;
  std::vector<Heard> heard_;    // by sites.others
  Instant watch_at_{};
  bool away_ = true, closed_ = false;
};

}    // namespace dthrottle
