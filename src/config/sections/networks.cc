// The networks that rules are for: match_cidrs.
#include <fmt/format.h>

#include "base/words.h"
#include "config/findings.h"
#include "config/sections.h"
#include "config/values.h"
#include "rule/network_map.h"

namespace dthrottle {

namespace {

// Fails with the line that is wrong.
Result<std::vector<Network>> ParseNetworks(std::string_view text) {
  std::vector<Network> networks;
  for (std::size_t number = 1, begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view all = text.substr(begin, end - begin), line = Trimmed(all.substr(0, all.find('#')), " \t\r");
    begin = end + 1;
    if (line.empty()) continue;
    const auto network = ParseNetwork(line);
    if (!network.has_value()) {
      return Fail(fmt::format("line {}: {}: must be a network such as 192.0.2.0/24 or 2001:db8::/32", number,
                              Quote(Value(std::string(line)))));
    }
    networks.push_back(*network);
  }
  return networks;
}

Result<std::vector<Network>> ReadNetworks(const std::string& file, const FileReader& read) {
  if (!read) return Fail("no file can be read here; list the networks");
  const auto text = read(file);
  if (!text) return Fail(text.error().message);
  return ParseNetworks(*text);
}

}    // namespace

void TakeNetworks(std::vector<Rule>& rules, const FileReader& read, Findings& findings) {
  std::size_t networks = 0;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    Rule& rule = rules[i];
    if (!rule.networks.has_value()) continue;
    if (!rule.match.has_value()) rule.match = "*";
    RuleNetworks& its = *rule.networks;
    if (its.list == nullptr) {
      auto list = ReadNetworks(its.file, read);
      if (!list) {
        findings.Error(findings.rules[i], fmt::format("rule \"{}\": match_cidrs = {}: {}", rule.name,
                                                      Quote(Value(its.file)), list.error().message));
        list.emplace();
      }
      its.list = std::make_shared<const std::vector<Network>>(*std::move(list));
    }
    networks += its.list->size();
  }
  if (networks > NetworkMap::kNetworksMax) {
    findings.Error(Findings::Place(), fmt::format("{} networks of rules; must be at most {}", networks,
                                                  NetworkMap::kNetworksMax));
  }
}

}    // namespace dthrottle
