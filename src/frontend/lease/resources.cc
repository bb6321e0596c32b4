#include "frontend/lease/resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "config/load.h"

namespace dthrottle {

LeaseResources::LeaseResources(uv_loop_t* loop, const Settings& settings, Log& log, std::function<void()> on_change)
    : settings_(settings), log_(log), on_change_(std::move(on_change)) {
  const auto& s = settings.lease;
  if (s.etcd_resources.empty()) return;
  etcd_ = std::make_unique<EtcdValue>(loop, EtcdCluster::Of(s), s.etcd_resources,
                                      [this](const auto& text) { OnValue(text); });
}

void LeaseResources::Start() {
  if (etcd_ != nullptr) etcd_->Start();
}

lease::Templates LeaseResources::Now() const {
  std::vector<lease::ResourceTemplate> list = read_.value_or(settings_.resources);
  if (lost_) std::ranges::transform(list, list.begin(), lease::SafeOf);
  auto made = lease::Templates::Make(std::move(list), settings_.lease.unknown);
  DT_CHECK(made.has_value());    // the loader has tried the globs
  return std::move(*made);
}

void LeaseResources::OnValue(const std::optional<std::string>& text) {
  const std::string& key = settings_.lease.etcd_resources;
  wrong_.clear();
  if (!text) {
    log_.Warning("leases: etcd has no key {}: the resources of the settings file are in force", key);
    wrong_ = "there is no key " + key;
    read_once_ = true;
    read_.reset();
    return on_change_();
  }
  LoadedSettings loaded = ParseResources(*text, "etcd:" + key, settings_);
  for (const Problem& problem : loaded.problems) log_.Warning("leases: {}", Format(problem));
  if (!loaded.ok()) {
    log_.Warning("leases: what etcd has changes nothing");
    wrong_ = Format(loaded.problems.front());
    return;
  }
  log_.Notice("leases: etcd has {} resources", loaded.settings.resources.size());
  read_once_ = true;
  read_ = std::move(loaded.settings.resources);
  on_change_();
}

void LeaseResources::Follow(BootInstant now) {
  if (etcd_ == nullptr || !etcd_->heard()) return;
  const bool lost = now - *etcd_->heard() > settings_.lease.etcd_patience;
  if (std::exchange(lost_, lost) == lost) return;
  if (lost) {
    log_.Warning("leases: {}: clients get their safe capacities", etcd_->trouble());
  } else {
    log_.Notice("leases: etcd answers again");
  }
  on_change_();
}

std::string LeaseResources::trouble() const {
  return etcd_ == nullptr || etcd_->trouble().empty() ? wrong_ : etcd_->trouble();
}

void LeaseResources::Close() {
  if (etcd_ != nullptr) etcd_->Close();
}

}    // namespace dthrottle
