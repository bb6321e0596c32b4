// Every setting, declared once: this table drives the parser, the checks, the error messages, `config` on the admin
// socket, conf/dthrottled.toml and the manual page.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/settings.h"

namespace dthrottle {

// A value as it stands in the file. monostate: of a kind that no setting has.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>>;

// The value in TOML, cut to a length fit for a message.
std::string Quote(const Value& value);

// One key of a table of type T.
template <class T>
struct Key {
  std::string_view name;
  std::string_view default_text;                // as in TOML; empty: the key has to be given
  std::string allowed;                          // continues the sentence "must be ..."
  std::string_view meaning;                     // sentences for the manual; *word* is a placeholder
  std::function<bool(T&, const Value&)> set;    // false: not allowed; T is then unchanged
  std::function<Value(const T&)> get;
  bool reloads = false;    // of a section: a reload changes it; lists of tables are read anew as a whole
  // Keys of its section that only a start changes, and without which a new value means something else: while one of
  // them waits for a start, so does this one.
  std::span<const std::string_view> reloads_unless{};
};

// The text of a file that settings name, at most kSettingsBytesMax bytes; or why it cannot be had.
using FileReader = std::function<Result<std::string>(const std::string& path)>;

struct Section {
  std::string_view name;
  std::string_view meaning;
  std::vector<Key<Settings>> keys;
};

const std::vector<Section>& Sections();
const std::vector<Key<Rule>>& RuleKeys();
const std::vector<Key<Override>>& OverrideKeys();
const std::vector<Key<lease::ResourceTemplate>>& ResourceKeys();

inline constexpr std::string_view kRuleMeaning =
    "One limit. Rules are tried in the order of the file and the first whose *match* fits the tag applies; the rule "
    "without *match*, of which there may be one, applies to tags that no other rule fits, wherever it stands. A tag "
    "that no rule fits is served.";
inline constexpr std::string_view kOverrideMeaning =
    "Another burst and rate for one exact tag, found before any rule is tried. Sharing, mode and counters are those of "
    "the rule that the tag matches. There may be a million of them; they cost a query nothing.";

inline constexpr std::string_view kResourceMeaning =
    "Capacity to lease out: how much there is of a resource, and how it is divided among those who ask for leases. A "
    "resource has the first of these with exactly its name, or else the first whose glob matches it; without any there "
    "are no leases on it. A reload reaches a client when it refreshes its lease.";

// Settings with every default in place and no rules. Paths under /run move to $XDG_RUNTIME_DIR where `runtime_dir`
// says so.
Settings DefaultSettings(std::string_view runtime_dir = "/run/dthrottle");

// Gives `loaded` the values of `running` for keys that only a start can change, and for those that go with them, and names
// those that differed.
std::vector<std::string> KeepStartKeys(const Settings& running, Settings& loaded);

// The settings in force, as a TOML file that would produce them. It has the first kOverridesRendered
// overrides,
// without those of tags that no file can have.
inline constexpr std::size_t kOverridesRendered = 100;
std::string RenderSettings(const Settings& settings, std::span<const Rule> rules, std::span<const Override> overrides);
// Whether a settings file can have an override of the tag. Operators may set limits of others.
bool IsTagOfFile(std::string_view tag);

// Rules and all overrides as TOML that ParseRules reads, without keys that have their default.
std::string RenderRules(std::span<const Rule> rules, std::span<const Override> overrides);

// What such a text may take when it is escaped as a tag is, to be set for all hosts in one line (protocol/limit.md).
inline constexpr std::size_t kRulesEscapedBytesMax = 59'800;

// conf/dthrottled.toml: every key with its meaning and default.
std::string RenderExample();

// The part of dthrottled.toml(5) that describes the keys, in mdoc.
std::string RenderManual();

}    // namespace dthrottle
