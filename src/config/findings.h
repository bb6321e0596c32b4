// The errors and warnings about a settings file. The reader of the file adds them, and so do the checks of each
// section, which look at values that are right by themselves and may not fit each other.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.h"

namespace dthrottle {

class Findings {
 public:
  using Place = LoadedSettings::Place;

  // A daemon reads its own file. A rehearsal takes the rules of that for hosts which it makes up. The file of a fleet has
  // tables of its own beside them.
  enum class Reader { kDaemon, kRehearsal, kFleet };

  Findings(LoadedSettings& loaded, Reader reader) : loaded_(loaded), reader_(reader) {}

  // Complaints at a place, at line 0 about the file as a whole; or at the value of a key, "section.key", if the file
  // gives it.
  void Error(Place at, std::string message) { Report(Problem::Severity::kError, at, std::move(message)); }
  void Error(std::string_view key, std::string message) { Error(PlaceOf(key), std::move(message)); }
  void Warn(Place at, std::string message) { Report(Problem::Severity::kWarning, at, std::move(message)); }
  void Warn(std::string_view key, std::string message) { Warn(PlaceOf(key), std::move(message)); }

  // Complains about a duration at the value of `key` that is no number of whole seconds.
  void WholeSeconds(std::string_view key, Duration value);

  // Keeps where the value of a key stands, and how it reads.
  void Gives(const std::string& key, Place at, std::string shown);
  // A section or list has a value that is not allowed.
  void HasWrong(std::string_view section) { wrong_.emplace(section); }

  const Settings& settings() const { return loaded_.settings; }
  bool wrong(std::string_view section) const { return wrong_.contains(section); }
  bool fleet() const { return reader_ == Reader::kFleet; }
  // There are hosts that the file need not name.
  bool simulated() const { return reader_ != Reader::kDaemon; }
  // No error so far.
  bool ok() const { return loaded_.ok(); }
  // The value of a key as the file has it.
  std::string Shown(std::string_view key) const;

  // Brings the problems into the order of the file, and says how many were too many.
  void Finish();

  std::vector<Place> rules, overrides, resources;    // where each stands
  std::vector<bool> has_match;                       // of each rule

 private:
  Place PlaceOf(std::string_view key) const;
  void Report(Problem::Severity severity, Place at, std::string message);

  LoadedSettings& loaded_;
  const Reader reader_;
  std::map<std::string, std::string, std::less<>> shown_;    // by key
  std::set<std::string, std::less<>> wrong_;
  std::size_t dropped_ = 0;    // errors
};

}    // namespace dthrottle
