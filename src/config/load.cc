#include "config/load.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include "config/keys.h"
#include "config/values.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

// More of them help nobody, and a generated file can have a million.
constexpr std::size_t kProblemsMax = 100;

Value FromToml(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  const auto* array = node.as_array();
  if (array == nullptr || !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_string(); })) {
    return {};
  }
  std::vector<std::string> list;
  for (const auto& element : *array) list.push_back(element.as_string()->get());
  return list;
}

// A value that no key can have still has to be shown.
std::string QuoteNode(const toml::node& node) {
  const Value value = FromToml(node);
  if (!std::holds_alternative<std::monostate>(value)) return Quote(value);
  return node.is_table() ? "a table" : node.is_array() ? "a list of mixed values" : "a date or time";
}

template <class T>
std::string KeyNames(const std::vector<Key<T>>& keys) {
  std::string names;
  for (const auto& key : keys) names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
  return names;
}

class Loader {
 public:
  Loader(std::string_view file, std::string_view runtime_dir) : file_(file) {
    loaded_.settings = DefaultSettings(runtime_dir);
  }

  LoadedSettings Load(std::string_view text) {
    if (Readable(text)) Parse(text);
    auto& problems = loaded_.problems;
    std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    if (dropped_ > 0) Report(Problem::Severity::kError, {}, fmt::format("and {} more problems", dropped_), true);
    return std::move(loaded_);
  }

 private:
  bool Readable(std::string_view text) {
    if (text.size() > kSettingsBytesMax) {
      Error({}, fmt::format("{} bytes; must be at most {}", text.size(), kSettingsBytesMax));
      return false;
    }
    toml::source_position at{1, 1};
    for (std::size_t start = 0; start <= text.size(); ++at.line) {
      const std::size_t end = std::min(text.find('\n', start), text.size());
      if (end - start > kSettingsLineBytesMax) {
        Error(at, fmt::format("a line of {} bytes; must be at most {}", end - start, kSettingsLineBytesMax));
        return false;
      }
      start = end + 1;
    }
    return true;
  }

  void Parse(std::string_view text) {
    toml::table root;
    try {
      root = toml::parse(text, std::string(file_));
    } catch (const toml::parse_error& e) {
      Error(e.source().begin, fmt::format("not TOML: {}", e.description()));
      return;
    }
    root_ = &root;
    for (const auto& [name, node] : root) Top(name.str(), node);
    NameRules();
    CheckTogether();
  }

  void Top(std::string_view name, const toml::node& node) {
    if (name == "rule") {
      List(name, node, RuleKeys(), loaded_.settings.rules, rule_places_, Rulebook::kRulesMax);
      for (std::size_t i = 0; i < rule_places_.size(); ++i) {
        has_match_.push_back(node.as_array()->get(i)->as_table()->contains("match"));
      }
      return;
    }
    if (name == "override") {
      return List(name, node, OverrideKeys(), loaded_.settings.overrides, override_places_, Rulebook::kOverridesMax);
    }
    std::string names;
    for (const Section& section : Sections()) {
      if (section.name == name) {
        if (const auto* table = node.as_table()) {
          Keys(name, *table, section.keys, loaded_.settings);
        } else {
          Error(node.source().begin, fmt::format("{} = {}: must be a table, [{}]", name, QuoteNode(node), name));
        }
        return;
      }
      names += fmt::format("[{}], ", section.name);
    }
    Error(node.source().begin, fmt::format("unknown key {}; must be one of {}[[rule]], [[override]]", name, names));
  }

  template <class T>
  void Keys(std::string_view section, const toml::table& table, const std::vector<Key<T>>& keys, T& target) {
    for (const auto& [toml_key, node] : table) {
      const std::string_view name = toml_key.str();
      const auto key = std::find_if(keys.begin(), keys.end(), [name](const auto& k) { return k.name == name; });
      if (key == keys.end()) {
        Error(toml_key.source().begin,
              fmt::format("unknown key {}.{}; must be one of {}", section, name, KeyNames(keys)));
      } else if (!key->set(target, FromToml(node))) {
        Error(node.source().begin, fmt::format("{}.{} = {}: must be {}", section, name, QuoteNode(node), key->allowed));
        wrong_.emplace(section);
      }
    }
  }

  template <class T>
  void List(std::string_view name, const toml::node& node, const std::vector<Key<T>>& keys, std::vector<T>& list,
            std::vector<toml::source_position>& places, std::size_t count_max) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_table(); })) {
      Error(node.source().begin, fmt::format("{} = {}: must be a list of tables, [[{}]]", name, QuoteNode(node), name));
      return;
    }
    if (array->size() > count_max) {
      Error(node.source().begin, fmt::format("{} [[{}]]; must be at most {}", array->size(), name, count_max));
      return;
    }
    list.reserve(array->size());
    for (const toml::node& element : *array) {
      const toml::table& table = *element.as_table();
      T item{};
      Keys(name, table, keys, item);
      for (const auto& key : keys) {
        if (key.default_text.empty() && !table.contains(key.name)) {
          Error(table.source().begin, fmt::format("{} without {}; must be {}", name, key.name, key.allowed));
        }
      }
      list.push_back(std::move(item));
      places.push_back(table.source().begin);
    }
  }

  void NameRules() {
    auto& rules = loaded_.settings.rules;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (rules[i].name.empty()) rules[i].name = fmt::format("rule-{}", i + 1);
    }
  }

  // What no key can know by itself.
  void CheckTogether() {
    const Settings& s = loaded_.settings;
    if (s.query.unix_path.empty() && !s.query.tcp.enabled()) {
      Error({}, "query.unix and query.tcp are both \"\": must be one at least, or nobody can ask");
    }
    if (!s.query.unix_path.empty() && s.query.unix_path == s.admin.unix_path) {
      Error({}, fmt::format("query.unix and admin.unix are both \"{}\": must differ", s.query.unix_path));
    }
    if (s.query.tcp.enabled() && s.query.tcp.port != 0 && s.query.tcp == s.admin.tcp) {
      Error({}, fmt::format("query.tcp and admin.tcp are both \"{}\": must differ", FormatEndpoint(s.query.tcp)));
    }
    if (s.query.tcp.enabled() && !IsLoopback(s.query.tcp)) {
      Warn({}, fmt::format("query.tcp = \"{}\" is not loopback: whoever reaches it may spend tokens",
                           FormatEndpoint(s.query.tcp)));
    }
    for (const auto& [name, path, tcp] :
         {std::tuple("query", s.query.unix_path, s.query.tcp), std::tuple("admin", s.admin.unix_path, s.admin.tcp)}) {
      if (!s.resp.unix_path.empty() && s.resp.unix_path == path) {
        Error({}, fmt::format("{}.unix and resp.unix are both \"{}\": must differ", name, path));
      }
      if (s.resp.tcp.enabled() && s.resp.tcp.port != 0 && s.resp.tcp == tcp) {
        Error({}, fmt::format("{}.tcp and resp.tcp are both \"{}\": must differ", name, FormatEndpoint(tcp)));
      }
    }
    CheckPeers();
    CheckRules();
    CheckOverrides();
    CheckShed();
  }

  void CheckPeers() {
    const auto& peers = loaded_.settings.peers;
    if (!peers.enabled()) return;
    if (!peers.bind.enabled())
      Error({}, "peers.bind is \"\": must be an address, since peers.connect names other hosts");
    if (peers.key_file.empty() != peers.authorized_keys.empty()) {
      Error({}, "one of peers.key_file and peers.authorized_keys is \"\": must be both or neither");
    }
    if (!peers.key_file.empty()) return;
    const auto complain = [&](std::string_view key, const std::string& address) {
      Error({},
            fmt::format("peers.{} = \"{}\" is not loopback: must have peers.key_file and peers.authorized_keys with "
                        "it, or anybody could speak for a peer",
                        key, address));
    };
    if (peers.bind.enabled() && !IsLoopback(peers.bind)) complain("bind", FormatBind(peers.bind));
    for (const std::string& entry : peers.connect) {
      if (!ParsePeerEntry(entry)->is_loopback()) complain("connect", entry);
    }
  }

  void CheckShed() {
    using Kind = ShedBound::Kind;
    const auto& shed = loaded_.settings.shed;
    if (wrong_.contains("shed")) return;    // what stands there instead is not what was meant
    const auto fits = [&](const ShedBound& bound) {
      switch (shed.signal) {
        case ShedSignal::kPressure:
          return bound.kind == Kind::kPercent;
        case ShedSignal::kReported:
          return bound.kind == Kind::kNumber;
        default:
          return bound.kind != Kind::kNumber;
      }
    };
    const std::string_view wanted = shed.signal == ShedSignal::kPressure ? "a percentage such as \"20%\""
                                    : shed.signal == ShedSignal::kReported
                                        ? "a number such as 250"
                                        : "a size such as \"2.8GiB\" or a percentage such as \"90%\"";
    bool all_fit = true;
    for (const auto& [name, bound] : {std::pair("low", shed.low), std::pair("high", shed.high)}) {
      if (fits(bound)) continue;
      all_fit = false;
      Error(PlaceOf("shed", name), fmt::format("shed.{} = {}: must be {} with shed.signal = \"{}\"", name,
                                               Shown("shed", name), wanted, Name(shed.signal)));
    }
    if (shed.expiry < 2 * shed.interval) {
      Error(PlaceOf("shed", "expiry"),
            fmt::format("shed.expiry = \"{}\": must be at least twice shed.interval = \"{}\"",
                        FormatDuration(shed.expiry), FormatDuration(shed.interval)));
    }
    if (!all_fit) return;
    if (shed.low.kind != shed.high.kind) {
      Error(PlaceOf("shed", "low"),
            fmt::format("shed.low = {}: must be of the same kind as shed.high = {}: two sizes or two "
                        "percentages",
                        Shown("shed", "low"), Shown("shed", "high")));
    } else if (shed.low.value > shed.high.value) {
      Error(PlaceOf("shed", "low"),
            fmt::format("shed.low = {}: must be at most shed.high = {}", Shown("shed", "low"), Shown("shed", "high")));
    } else if (shed.signal != ShedSignal::kReported && shed.high.kind != Kind::kUnset && shed.high.value == 0) {
      Error(PlaceOf("shed", "high"),
            fmt::format("shed.high = {}: must be more than 0, which is always reached", Shown("shed", "high")));
    }
    const auto& rules = loaded_.settings.rules;
    const bool used = std::any_of(rules.begin(), rules.end(), [](const Rule& rule) { return rule.shed; });
    if (root_->contains("shed") && shed.high.kind != Kind::kUnset && !used) {
      Warn(PlaceOf("shed", "high"), "[shed] has bounds but no rule has shed = true: nothing is shed");
    }
  }

  toml::source_position PlaceOf(std::string_view section, std::string_view key) const {
    const auto node = (*root_)[section][key];
    return node ? node.node()->source().begin : toml::source_position{};
  }

  // The value of a key as the file has it.
  std::string Shown(std::string_view section, std::string_view key) const {
    const auto node = (*root_)[section][key];
    return node ? QuoteNode(*node.node()) : "\"\"";
  }

  void CheckRules() {
    const Settings& s = loaded_.settings;
    std::unordered_map<std::string_view, std::size_t> by_name;
    std::optional<std::size_t> default_rule;
    for (std::size_t i = 0; i < s.rules.size(); ++i) {
      const Rule& rule = s.rules[i];
      const auto [other, is_new] = by_name.emplace(rule.name, i);
      if (!is_new) {
        Error(rule_places_[i], fmt::format("rule.name = \"{}\": must be unique, and line {} has it", rule.name,
                                           rule_places_[other->second].line));
      }
      if (!has_match_[i]) {    // a match that is wrong is still one
        if (default_rule.has_value()) {
          Error(rule_places_[i],
                fmt::format("rule \"{}\" without match; must be one rule at most, and that of line {} is", rule.name,
                            rule_places_[*default_rule].line));
        }
        default_rule = default_rule.value_or(i);
      }
      CheckRefill("rule", rule, rule_places_[i]);
      const double between_reports = rule.rate * Seconds(s.peers.period);
      if (rule.share != Share::kLocal && rule.mode != Mode::kOff && rule.burst < between_reports) {
        Warn(rule_places_[i],
             fmt::format(
                 "rule \"{}\": burst = {} is less than rate x peers.period = {}: several hosts can serve more than "
                 "a burst between two reports; raise burst, shorten the period, or share = \"local\"",
                 rule.name, FormatNumber(rule.burst), FormatNumber(between_reports)));
      }
    }
  }

  void CheckOverrides() {
    const Settings& s = loaded_.settings;
    std::unordered_map<std::string_view, std::size_t> by_tag;
    by_tag.reserve(s.overrides.size());
    for (std::size_t i = 0; i < s.overrides.size(); ++i) {
      const Override& o = s.overrides[i];
      const auto [other, is_new] = by_tag.emplace(o.tag, i);
      if (!is_new) {
        Error(override_places_[i], fmt::format("override.tag = {}: must be unique, and line {} has it", Quote(o.tag),
                                               override_places_[other->second].line));
      }
      if (o.tag.size() > s.query.max_tag_bytes) {
        Error(override_places_[i], fmt::format("override.tag = {}: must be at most query.max_tag_bytes = {} bytes",
                                               Quote(o.tag), s.query.max_tag_bytes));
      }
      CheckRefill("override", o, override_places_[i]);
    }
  }

  template <class T>
  void CheckRefill(std::string_view what, const T& limit, toml::source_position place) {
    if (!(limit.burst >= kBurstMin && limit.rate >= kRateMin)) return;    // said already
    if (limit.burst / limit.rate <= kRefillSecondsMax) return;
    Error(place, fmt::format("{}: burst / rate = {} / {}: must be at most {:.0f} seconds, a leap year", what,
                             FormatNumber(limit.burst), FormatNumber(limit.rate), kRefillSecondsMax));
  }

  void Error(toml::source_position at, std::string message) {
    Report(Problem::Severity::kError, at, std::move(message));
  }
  void Warn(toml::source_position at, std::string message) {
    Report(Problem::Severity::kWarning, at, std::move(message));
  }
  void Report(Problem::Severity severity, toml::source_position at, std::string message, bool always = false) {
    if (loaded_.problems.size() >= kProblemsMax && !always) {
      dropped_ += severity == Problem::Severity::kError;
      return;
    }
    loaded_.problems.push_back({severity, std::string(file_), at.line, at.column, std::move(message)});
  }

  std::string_view file_;
  const toml::table* root_ = nullptr;           // while parsing
  std::set<std::string, std::less<>> wrong_;    // sections with a value that is not allowed
  LoadedSettings loaded_;
  std::size_t dropped_ = 0;
  std::vector<toml::source_position> rule_places_, override_places_;
  std::vector<bool> has_match_;    // of each rule
};

}    // namespace

bool LoadedSettings::ok() const {
  return std::none_of(problems.begin(), problems.end(),
                      [](const Problem& p) { return p.severity == Problem::Severity::kError; });
}

std::string Format(const Problem& p) {
  const std::string place = p.line == 0 ? p.file : fmt::format("{}:{}:{}", p.file, p.line, p.column);
  return fmt::format("{}: {}: {}", place, p.severity == Problem::Severity::kError ? "error" : "warning", p.message);
}

LoadedSettings ParseSettings(std::string_view text, std::string_view file, std::string_view runtime_dir) {
  return Loader(file, runtime_dir).Load(text);
}

}    // namespace dthrottle
