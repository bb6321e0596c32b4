#include "config/load.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <unordered_map>

#include "config/keys.h"
#include "config/values.h"
#include "lease/address.h"
#include "rule/pace.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

// More of them help nobody, and a generated file can have a million.
constexpr std::size_t kProblemsMax = 100;

constexpr std::size_t kResourcesMax = 10'000;    // templates; each that does not match costs a new resource a glob

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
  Loader(std::string_view file, std::string_view runtime_dir, std::span<const FurtherTable> further)
      : file_(file), further_(further) {
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
    if (name == "resource") {
      return List(name, node, ResourceKeys(), loaded_.settings.resources, resource_places_, kResourcesMax);
    }
    for (const FurtherTable& table : further_) {
      if (table.name == name) return Further(table, node);
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
    std::string lists;
    for (const FurtherTable& table : further_) {
      (table.count_max == 0 ? names : lists) +=
          table.count_max == 0 ? fmt::format("[{}], ", table.name) : fmt::format(", [[{}]]", table.name);
    }
    Error(node.source().begin,
          fmt::format("unknown key {}; must be one of {}[[rule]], [[override]], [[resource]]{}", name, names, lists));
  }

  void Further(const FurtherTable& table, const toml::node& node) {
    const auto read = [&](const toml::table& entry) {
      FurtherTable::Nothing nothing;
      const auto keys = table.open(entry.source().begin.line);
      Keys(table.name, entry, keys, nothing);
      CheckGiven(table.name, entry, keys);
    };
    if (table.count_max > 0) {
      if (!IsListOfTables(table.name, node, table.count_max)) return;
      for (const toml::node& element : *node.as_array()) read(*element.as_table());
    } else if (node.is_table()) {
      read(*node.as_table());
    } else {
      Error(node.source().begin, fmt::format("{0} = {1}: must be a table, [{0}]", table.name, QuoteNode(node)));
    }
  }

  bool IsListOfTables(std::string_view name, const toml::node& node, std::size_t count_max) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !std::all_of(array->begin(), array->end(), [](const auto& n) { return n.is_table(); })) {
      Error(node.source().begin, fmt::format("{} = {}: must be a list of tables, [[{}]]", name, QuoteNode(node), name));
      return false;
    }
    if (array->size() > count_max) {
      Error(node.source().begin, fmt::format("{} [[{}]]; must be at most {}", array->size(), name, count_max));
      return false;
    }
    return true;
  }

  template <class T>
  void CheckGiven(std::string_view name, const toml::table& table, const std::vector<Key<T>>& keys) {
    for (const auto& key : keys) {
      if (key.default_text.empty() && !table.contains(key.name)) {
        Error(table.source().begin, fmt::format("{} without {}; must be {}", name, key.name, key.allowed));
      }
    }
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
    if (!IsListOfTables(name, node, count_max)) return;
    const toml::array& array = *node.as_array();
    list.reserve(array.size());
    for (const toml::node& element : array) {
      const toml::table& table = *element.as_table();
      T item{};
      Keys(name, table, keys, item);
      CheckGiven(name, table, keys);
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
    if (s.query.tcp.enabled() && !IsLoopback(s.query.tcp)) {
      Warn({}, fmt::format("query.tcp = \"{}\" is not loopback: whoever reaches it may spend tokens",
                           FormatEndpoint(s.query.tcp)));
    }
    for (const auto& [name, path, tcp] :
         {std::tuple("query", s.query.unix_path, s.query.tcp), std::tuple("admin", s.admin.unix_path, Endpoint())}) {
      if (!s.resp.unix_path.empty() && s.resp.unix_path == path) {
        Error({}, fmt::format("{}.unix and resp.unix are both \"{}\": must differ", name, path));
      }
      if (s.resp.tcp.enabled() && s.resp.tcp.port != 0 && s.resp.tcp == tcp) {
        Error({}, fmt::format("{}.tcp and resp.tcp are both \"{}\": must differ", name, FormatEndpoint(tcp)));
      }
    }
    CheckPeers();
    CheckLease();
    CheckRules();
    CheckShares();
    CheckOverrides();
    CheckShed();
    CheckCapacity();
    CheckResources();
  }

  void CheckResources() {
    const Settings& s = loaded_.settings;
    if (wrong_.contains("lease") || wrong_.contains("resource")) return;
    std::unordered_map<std::string_view, std::size_t> by_glob;
    for (std::size_t i = 0; i < s.resources.size(); ++i) {
      const lease::ResourceTemplate& r = s.resources[i];
      const auto place = resource_places_[i];
      const auto [other, is_new] = by_glob.emplace(r.identifier_glob, i);
      if (!is_new) {
        Error(place, fmt::format("resource.identifier_glob = {}: must be unique, and line {} has it",
                                 Quote(r.identifier_glob), resource_places_[other->second].line));
      }
      if (r.refresh_interval >= r.lease_length) {
        Error(place, fmt::format("resource {}: refresh_interval = \"{}\": must be shorter than lease_length = \"{}\"",
                                 Quote(r.identifier_glob), FormatDuration(r.refresh_interval),
                                 FormatDuration(r.lease_length)));
      }
      // Doorman's own five seconds against a refresh interval of four drop every second refresh.
      const Duration shortest = lease::RefreshInterval(r.refresh_interval, s.lease.level);
      if (s.lease.min_request_interval * 2 > shortest) {
        Error(place,
              fmt::format("resource {}: refresh_interval = \"{}\" is \"{}\" on lease.level = {}: must be at least "
                          "twice lease.min_request_interval = \"{}\", or refreshes would be turned away",
                          Quote(r.identifier_glob), FormatDuration(r.refresh_interval), FormatDuration(shortest),
                          s.lease.level, FormatDuration(s.lease.min_request_interval)));
      }
      if (r.source == lease::Source::kCapacity) CheckParts(r, place);
      if (r.learning() < r.lease_length) {
        Warn(place,
             fmt::format("resource {}: learning_mode_duration = \"{}\" is shorter than lease_length = \"{}\": "
                         "after a change of masters more can be leased out than there is",
                         Quote(r.identifier_glob), FormatDuration(r.learning()), FormatDuration(r.lease_length)));
      }
    }
  }

  // Who gets its capacity by consensus.
  void CheckParts(const lease::ResourceTemplate& r, toml::source_position place) {
    const Settings& s = loaded_.settings;
    const auto wrong = [&](std::string_view what) {
      Error(place, fmt::format("resource {}: source = \"capacity\": {}", Quote(r.identifier_glob), what));
    };
    if (s.lease.elector != LeaseElector::kNone) {
      wrong(fmt::format("lease.elector = \"{}\": must be \"none\", since every host leases out its own part",
                        Name(s.lease.elector)));
    }
    if (!s.lease.parent.empty()) wrong("lease.parent: must be [], since capacity would come from both");
    if (r.algorithm == lease::Algorithm::kNone || r.algorithm == lease::Algorithm::kStatic) {
      wrong(fmt::format("algorithm = \"{}\": must be one that keeps to the capacity", lease::Name(r.algorithm)));
    }
    const bool divided =
        std::any_of(s.rules.begin(), s.rules.end(), [](const Rule& rule) { return rule.share == Share::kCapacity; });
    if (!divided && !wrong_.contains("rule")) {
      wrong("needs a [[rule]] with share = \"capacity\" for the tag of that name, whose parts hosts agree on");
    }
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

  void CheckCapacity() {
    const Settings& s = loaded_.settings;
    const auto& capacity = s.capacity;
    const auto divided = [](const Rule& rule) { return rule.share == Share::kCapacity && rule.mode != Mode::kOff; };
    const bool used = std::any_of(s.rules.begin(), s.rules.end(), divided);
    if (capacity.lease < 4 * capacity.interval) {
      Error(PlaceOf("capacity", "lease"),
            fmt::format("capacity.lease = \"{}\": must be at least four times capacity.interval = \"{}\"",
                        FormatDuration(capacity.lease), FormatDuration(capacity.interval)));
    }
    const std::set<std::string_view> members(capacity.members.begin(), capacity.members.end());
    if (members.size() != capacity.members.size()) {
      Error(PlaceOf("capacity", "members"), "capacity.members: must name each host once");
    }
    if (!members.empty() && !s.peers.name.empty() && members.count(s.peers.name) == 0) {
      Error(PlaceOf("capacity", "members"),
            fmt::format("capacity.members: must have this host in it, peers.name = \"{}\"", s.peers.name));
    }
    for (const std::string& text : capacity.links) {
      const CapacityLink link = ParseCapacityLink(text).value();
      for (const std::string& end : {link.a, link.b}) {
        if (members.empty() || members.count(end) != 0) continue;
        Error(PlaceOf("capacity", "links"),
              fmt::format("capacity.links: \"{}\": must be hosts of capacity.members, and \"{}\" is none", text, end));
      }
    }
    if (capacity.graph == CapacityGraph::kList && capacity.links.empty()) {
      Error(PlaceOf("capacity", "graph"), "capacity.graph = \"list\": must have capacity.links with it");
    }
    if (capacity.graph == CapacityGraph::kFile && capacity.graph_file.empty()) {
      Error(PlaceOf("capacity", "graph"), "capacity.graph = \"file\": must have capacity.graph_file with it");
    }
    if (!used) return;
    if (!s.peers.enabled()) {
      if (!further_.empty()) return;    // a simulated fleet has hosts without naming them
      Warn({}, "a rule has share = \"capacity\" but peers.connect names no other host: this one has all of it");
      return;
    }
    if (members.empty() && s.peers.authorized_keys.empty()) {
      Error(PlaceOf("capacity", "members"),
            "capacity.members is []: must name all hosts where there are no keys, since a rule has share = "
            "\"capacity\"");
    }
    if (s.table.file.empty() && capacity.state_file.empty()) {
      Error(PlaceOf("capacity", "state_file"),
            "capacity.state_file and table.file are both \"\": must be one at least, since a rule has share = "
            "\"capacity\"");
    }
    const double hosts = members.empty() ? Hosts() : static_cast<double>(members.size());
    for (std::size_t i = 0; i < s.rules.size(); ++i) {
      const Rule& rule = s.rules[i];
      if (!divided(rule)) continue;
      if (rule.burst >= hosts) {
        WarnCapacity(rule, hosts, rule_places_[i]);
        continue;
      }
      Warn(rule_places_[i],
           fmt::format(
               "rule \"{}\": burst = {} among {} hosts is less than a token for each: as none holds less than one, "
               "{} can be served at once; raise burst, or share = \"debit\"",
               rule.name, FormatNumber(rule.burst), hosts, hosts));
    }
  }

  void CheckGrpc() {
    const auto& s = loaded_.settings;
    const Endpoint& grpc = s.lease.grpc;
    if (!grpc.enabled()) return;
    const auto place = PlaceOf("lease", "grpc");
    if constexpr (DTHROTTLE_GRPC == 0) {
      Error(place, fmt::format("lease.grpc = \"{}\": must be \"\", since this dthrottled was built without gRPC",
                               FormatEndpoint(grpc)));
    }
    for (const auto& [name, tcp] : {std::pair("query", s.query.tcp), std::pair("resp", s.resp.tcp), std::pair("lease", s.lease.tcp)}) {
      if (grpc.port != 0 && grpc == tcp) {
        Error(place, fmt::format("{}.tcp and lease.grpc are both \"{}\": must differ", name, FormatEndpoint(grpc)));
      }
    }
    if (!IsLoopback(grpc)) {
      Warn(place, fmt::format("lease.grpc = \"{}\" is not loopback: whoever reaches it may take leases",
                              FormatEndpoint(grpc)));
    }
    const bool anywhere = grpc.host == "0.0.0.0" || grpc.host == "::";
    if (s.lease.elector != LeaseElector::kNone && anywhere && lease::GrpcAddress(s.lease.address).empty()) {
      Error(place, fmt::format("lease.address is \"{}\": must have grpc:HOST:PORT where others reach this host, since "
                               "lease.grpc = \"{}\" is every address",
                               s.lease.address, FormatEndpoint(grpc)));
    }
  }

  void CheckLease() {
    const auto& s = loaded_.settings;
    const auto& lease = s.lease;
    if (!lease.enabled()) return;
    for (const auto& [name, path, tcp] :
         {std::tuple("query", s.query.unix_path, s.query.tcp), std::tuple("admin", s.admin.unix_path, Endpoint()),
          std::tuple("resp", s.resp.unix_path, s.resp.tcp)}) {
      if (!lease.unix_path.empty() && lease.unix_path == path) {
        Error(PlaceOf("lease", "unix"), fmt::format("{}.unix and lease.unix are both \"{}\": must differ", name, path));
      }
      if (lease.tcp.enabled() && lease.tcp.port != 0 && lease.tcp == tcp) {
        Error(PlaceOf("lease", "tcp"),
              fmt::format("{}.tcp and lease.tcp are both \"{}\": must differ", name, FormatEndpoint(tcp)));
      }
    }
    if (lease.tcp.enabled() && !IsLoopback(lease.tcp)) {
      Warn(PlaceOf("lease", "tcp"), fmt::format("lease.tcp = \"{}\" is not loopback: whoever reaches it may take "
                                                "leases",
                                                FormatEndpoint(lease.tcp)));
    }
    CheckGrpc();
    if (!lease.parent.empty() && lease.level == 0) {
      Error(PlaceOf("lease", "parent"),
            "lease.level = 0: must be at least 1 with lease.parent, one more than its level");
    }
    for (const std::string& parent : lease.parent) {
      if (parent == "unix:" + lease.unix_path ||
          (lease.tcp.enabled() && parent == "tcp:" + FormatEndpoint(lease.tcp))) {
        Error(PlaceOf("lease", "parent"), fmt::format("lease.parent has {}: must be another host's", Quote(parent)));
      }
    }
    const bool anywhere = lease.tcp.host == "0.0.0.0" || lease.tcp.host == "::";
    if (lease.elector != LeaseElector::kNone && anywhere && lease.address.empty()) {
      Error(PlaceOf("lease", "tcp"), fmt::format("lease.address is \"\": must be where others reach this host, since "
                                                 "lease.tcp = \"{}\" is every address",
                                                 FormatEndpoint(lease.tcp)));
    }
    if (lease.elector == LeaseElector::kStatic && lease.master.empty()) {
      Error(PlaceOf("lease", "elector"), "lease.master is \"\": must be an address with lease.elector = \"static\"");
    }
    if (lease.elector != LeaseElector::kEtcd) return;
    if (lease.etcd.empty() && !wrong_.contains("lease")) {
      Error(PlaceOf("lease", "elector"), "lease.etcd is []: must have an address with lease.elector = \"etcd\"");
    }
    if (lease.etcd_ttl % std::chrono::seconds(1) != Duration::zero()) {
      Error(PlaceOf("lease", "etcd_ttl"),
            fmt::format("lease.etcd_ttl = \"{}\": must be whole seconds", FormatDuration(lease.etcd_ttl)));
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
      if (rule.share == Share::kDebit && rule.mode != Mode::kOff && rule.burst < between_reports) {
        Warn(rule_places_[i],
             fmt::format(
                 "rule \"{}\": burst = {} is less than rate x peers.period = {}: several hosts can serve more than "
                 "a burst between two reports; raise burst, shorten the period, or share = \"local\"",
                 rule.name, FormatNumber(rule.burst), FormatNumber(between_reports)));
      }
    }
  }

  // Hosts that share limits, as far as the addresses tell: this one may be among them or not.
  double Hosts() const {
    const auto& peers = loaded_.settings.peers;
    const bool listed =
        std::find(peers.connect.begin(), peers.connect.end(), FormatBind(peers.bind)) != peers.connect.end();
    return static_cast<double>(peers.connect.size() + (listed ? 0 : 1));
  }

  // A share that does not fit the numbers of its rule; of capacity, CheckCapacity does it. The bounds are those of
  // limiter/certificate.h, the minute is what a tolerance is for.
  void CheckShares() {
    const Settings& s = loaded_.settings;
    if (!s.peers.enabled() || wrong_.contains("rule") || wrong_.contains("peers")) return;
    for (std::size_t i = 0; i < s.rules.size(); ++i) {
      const Rule& rule = s.rules[i];
      if (rule.mode == Mode::kOff) continue;
      if (rule.share == Share::kLocal) WarnLocal(rule, rule_places_[i]);
      if (rule.share == Share::kDebit) WarnDebit(rule, rule_places_[i]);
      if (rule.share == Share::kForecast) WarnForecast(rule, rule_places_[i]);
    }
  }

  static double InAMinute(const Rule& rule) { return rule.burst + 60 * rule.rate; }
  double DebitExcess(const Rule& rule) const {
    return (Hosts() - 1) * (rule.burst + rule.rate * Seconds(loaded_.settings.peers.period));
  }
  double ForecastExcess(const Rule& rule) const {
    return (Hosts() - 1) * rule.max_unheard.value_or(UnheardMaxOf(rule.burst, std::sqrt(Hosts())));
  }

  void WarnLocal(const Rule& rule, toml::source_position place) {
    Warn(place,
         fmt::format("rule \"{}\": share = \"local\" with {} hosts: each has burst = {} and rate = {} to itself, "
                     "together {} and {}; if they are for all hosts, share = \"debit\" or \"forecast\" fits",
                     rule.name, Hosts(), FormatNumber(rule.burst), FormatNumber(rule.rate),
                     FormatNumber(Hosts() * rule.burst), FormatNumber(Hosts() * rule.rate)));
  }

  void WarnTolerance(const Rule& rule, double excess, toml::source_position place) {
    const double percent = 100 * excess / InAMinute(rule);
    if (rule.tolerance == 0 || percent <= rule.tolerance) return;
    Warn(place, fmt::format("rule \"{}\": tolerance = {} but {} hosts may serve {:.0f} beyond the {:.0f} of a minute, "
                            "{:.0f} %: fewer hosts, a smaller burst{} or share = \"capacity\" fits",
                            rule.name, FormatNumber(rule.tolerance), Hosts(), excess, InAMinute(rule), percent,
                            rule.share == Share::kForecast ? ", a smaller max_unheard" : ", share = \"forecast\""));
  }

  // It does until hosts have heard of each other what each could alone, and then the client waits as long.
  void WarnDebit(const Rule& rule, toml::source_position place) {
    const double excess = DebitExcess(rule);
    WarnTolerance(rule, excess, place);
    if (excess <= InAMinute(rule)) return;
    const std::string_view fits = 2 * ForecastExcess(rule) < excess ? "share = \"forecast\""
                                  : rule.burst >= Hosts() && rule.rate >= Hosts()
                                      ? "share = \"capacity\""
                                      : "a shorter period or a smaller burst";
    Warn(place,
         fmt::format("rule \"{}\": share = \"debit\" with {} hosts: they may serve {:.0f} beyond the limit, {} x "
                     "(burst + rate x peers.period), before all know, where it allows {:.0f} in a minute; {} fits",
                     rule.name, Hosts(), excess, Hosts() - 1, InAMinute(rule), fits));
  }

  void WarnForecast(const Rule& rule, toml::source_position place) {
    constexpr Duration kPeriodMax = std::chrono::seconds(10);
    const Duration period = loaded_.settings.peers.period;
    WarnTolerance(rule, ForecastExcess(rule), place);
    if (period > kPeriodMax) {
      Warn(place, fmt::format("rule \"{}\": share = \"forecast\" with peers.period = \"{}\": the demand of a host that "
                              "is gone is believed for {}; a period of 1s to 10s fits",
                              rule.name, FormatDuration(period), FormatDuration(kBelievedPeriods * period)));
    }
    const double fits = BurstOfUnheardMin(std::sqrt(Hosts()));
    const Tokens each = std::min(UnheardMaxOf(rule.burst, std::sqrt(Hosts())), rule.burst);
    if (rule.burst < fits && Hosts() * each > 2 * rule.burst && !rule.max_unheard.has_value()) {
      Warn(place,
           fmt::format("rule \"{}\": share = \"forecast\" with burst = {} and {} hosts: each serves {} before the "
                       "others know, {} at once; a burst of {:.0f} fits, or max_unheard = 1",
                       rule.name, FormatNumber(rule.burst), Hosts(), FormatNumber(each), FormatNumber(Hosts() * each),
                       std::ceil(fits)));
    }
  }

  // Below a few tokens a second for each host, shares refuse much that the limit has room for.
  void WarnCapacity(const Rule& rule, double hosts, toml::source_position place) {
    if (rule.rate >= hosts) return;
    Warn(place,
         fmt::format("rule \"{}\": share = \"capacity\" with rate = {} and {} hosts: each begins with {:.3g} tokens "
                     "a second, less than one, and refuses what others have room for; share = \"forecast\" fits",
                     rule.name, FormatNumber(rule.rate), hosts, rule.rate / hosts));
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
  std::span<const FurtherTable> further_;
  const toml::table* root_ = nullptr;           // while parsing
  std::set<std::string, std::less<>> wrong_;    // sections with a value that is not allowed
  LoadedSettings loaded_;
  std::size_t dropped_ = 0;
  std::vector<toml::source_position> rule_places_, override_places_, resource_places_;
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

LoadedSettings ParseSettings(std::string_view text, std::string_view file, std::string_view runtime_dir,
                             std::span<const FurtherTable> further) {
  return Loader(file, runtime_dir, further).Load(text);
}

}    // namespace dthrottle
