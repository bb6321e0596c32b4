// The rules that the table is under, kept beside it where they are not those of the settings file alone.
//
// A bucket says what it holds only together with its limit. What changes the rules of the file may be gone at the next
// start: a limit that an operator set may end while nobody runs, or never reach its file, and a candidate holds until a
// restart. So before such rules are put in force their difference from those of the file is written here. A start that
// finds its table under them rewrites every bucket, as a reload does. For a while that is the difference of the rules in
// force as well, so that a kill at any time leaves those that the table is under.
//
// An upgrade puts the rules of the file in force first. Where only the next program can use them, all rules that the
// table is under are handed over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "io/files.h"
#include "rule/rulebook.h"

namespace dthrottle {

class KeptRules {
 public:
  static constexpr const char* kSection = "table rules";    // of what a program leaves to the next: the rules in force

  // Beside a table of this path; an empty one: nothing is kept.
  explicit KeptRules(const std::string& table);
  ~KeptRules();

  // What a start before has left. An error: something else is there (CheckStateFile).
  FileResult<void> Read();

  // All that Find needs for these rules, whatever the file says. Add takes it; text that is none changes nothing.
  static std::string Whole(const Rulebook& rules);
  void Add(std::string_view whole);

  // The rules of that fingerprint, by what was kept and what the file says now; null: they are not known.
  std::shared_ptr<const Rulebook> Find(std::uint64_t fingerprint, const Rulebook& of_file, const Settings& settings) const;

  // `next` is about to be put in force in the place of the rules of fingerprint `in_force`. Waits for the disk; one thread
  // at a time.
  FileResult<void> Keep(const Rulebook& next, const Rulebook& of_file, std::uint64_t in_force);

 private:
  struct Difference;

  const std::string path_;
  std::vector<Difference> kept_;
  bool written_ = true;
};

}    // namespace dthrottle
