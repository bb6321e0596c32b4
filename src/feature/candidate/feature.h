// The command `candidate`: tries the rules of a file beside those in force, says what they would have done, and puts
// them in force.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "feature/candidate/comparison.h"
#include "feature/feature.h"
#include "io/spare_work.h"
#include "io/timer.h"

namespace dthrottle {

class CandidateFeature final : public Feature {
 public:
  static constexpr const char* kSection = "candidate";    // of what a program leaves to the next: what is in force here

  explicit CandidateFeature(const FeatureHost& host) : host_(host) {}

  void Prepare() override;
  void Start() override;
  Amendment Amends() override;

  Command command() const override;
  bool Changes(std::string_view argument) const override;
  void Run(std::string_view argument, std::function<void(Json)> reply, Instant now) override;

  void Reload(std::vector<std::string>& problems) override;
  void Keep(std::vector<HandedSection>& sections) const override;
  void Count(ProcessCounts& counts) const override;
  void Close() override;

 private:
  struct Loading;
  struct Checking;

  // Rules that are in force on this host alone.
  struct Here {
    std::string file;     // that had them
    std::string rules;    // as TOML that ParseRules reads
    Duration since{};     // 1970

    static void Fields(auto& state, auto& self) { state(self.file, self.rules, self.since); }
  };

  void Load(std::string_view share, std::string path, std::function<void(Json)> reply);
  void OnLoaded(Loading& loaded);
  void OnCopied();
  void EndComparison();
  void Stop(const std::function<void(Json)>& reply);
  void PutInForceHere(std::function<void(Json)> reply);
  void OnChecked(Checking& checking);
  bool HoldsHere() const;
  Json Show(Instant now) const;
  Json ShowComparison(Instant now) const;
  Json ShowRules() const;

  const FeatureHost host_;
  // None before Start, and after Close.
  std::optional<SpareWork> copies_;    // buckets, before anything is compared
  std::optional<Timer> follows_;       // the number of peers
  bool loading_ = false;

  // The candidate; without a comparison there is none.
  std::string file_;
  double share_ = 0;
  std::shared_ptr<const Rulebook> rules_;    // as the file says
  std::size_t escaped_bytes_ = 0;            // of them, as limit rules takes them
  std::shared_ptr<Comparison> comparison_;
  bool copying_ = false;
  Instant began_{};         // comparing

  std::shared_ptr<const Here> here_;    // until somebody stops it, or this process ends; null: none
};

}    // namespace dthrottle
