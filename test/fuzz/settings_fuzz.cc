// A settings file: never a crash, and what is accepted is written back as a file that is accepted and means the same.
#include <cstdint>
#include <cstdlib>

#include "config/keys.h"
#include "config/load.h"
#include "rule/rulebook.h"

using namespace dthrottle;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const LoadedSettings loaded = ParseSettings({reinterpret_cast<const char*>(data), size}, "fuzz");
  for (const Problem& problem : loaded.problems) {
    if (Format(problem).empty()) std::abort();
  }
  if (!loaded.ok()) return 0;
  const Settings& s = loaded.settings;
  const std::string text = RenderSettings(s, s.rules, s.overrides);
  if (s.overrides.size() <= kOverridesRendered) {
    const LoadedSettings again = ParseSettings(text, "again");
    if (!again.ok()) std::abort();
    if (RenderSettings(again.settings, again.settings.rules, again.settings.overrides) != text) std::abort();
  }
  const Rulebook rules(s.rules, s.overrides);    // whatever was accepted can be put in force
  if (rules.limits() != s.rules.size() + s.overrides.size()) std::abort();
  return 0;
}
