#include "ctl/packet_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace dthrottle {

namespace {

constexpr std::string_view kSetOfV4 = "penalized4", kSetOfV6 = "penalized6";
constexpr double kSecondsMax = 7 * 24 * 3600;

std::string TextOf(const Network& network) {
  std::array<char, kNetworkTextMax> text;
  return std::string(WriteNetwork(network, text));
}

// The network of an element, and how many seconds it has left; it has none if it does not end.
std::optional<std::pair<Network, std::optional<double>>> ReadElement(const nlohmann::json& element) try {
  const bool ends = element.is_object() && element.contains("elem");
  const auto& value = ends ? element.at("elem").at("val") : element;
  const auto network =
      value.is_string() ? ParseNetwork(value.get<std::string>())
                        : ParseNetwork(fmt::format("{}/{}", value.at("prefix").at("addr").get<std::string>(),
                                                   value.at("prefix").at("len").get<unsigned>()));
  if (!network.has_value()) return std::nullopt;
  if (!ends || !element.at("elem").contains("expires")) return std::pair(*network, std::optional<double>());
  return std::pair(*network, std::optional(element.at("elem").at("expires").get<double>()));
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

bool Contains(const Network& wide, const Network& network) {
  return wide.address.is_v6 == network.address.is_v6 && network.address.Prefix(wide.bits) == wide.address;
}

}    // namespace

Result<void> PacketFilter::Take(std::string_view penalties, Instant now) {
  const auto rows = nlohmann::json::parse(penalties, nullptr, false);
  if (!rows.is_array()) return Fail("the daemon's answer is no list of penalties");
  std::vector<std::pair<Network, Instant>> networks;
  for (const auto& row : rows) {
    const auto tag = row.is_object() ? row.find("tag") : row.end();
    const auto left = row.is_object() ? row.find("left_s") : row.end();
    if (row.is_object() && row.contains("mode") && row.at("mode") == "shadow") continue;    // it refuses nothing
    if (tag == row.end() || !tag->is_string() || left == row.end() || !left->is_number()) continue;
    const Duration lasts = DurationOf(std::clamp(left->get<double>(), 0.0, kSecondsMax));
    const auto& text = tag->get_ref<const std::string&>();
    for (const std::string& prefix : prefixes_) {
      if (!text.starts_with(prefix)) continue;
      const auto network = ParseNetwork(std::string_view(text).substr(prefix.size()));
      if (network.has_value()) networks.push_back({*network, now + lasts});
    }
  }
  Want(std::move(networks));
  return {};
}

// Elements of a set do not overlap, so a network goes without those that lie in it.
void PacketFilter::Want(std::vector<std::pair<Network, Instant>> networks) {
  std::ranges::sort(networks);
  wanted_.clear();
  const Network* wide = nullptr;
  for (const auto& [network, until] : networks) {
    if ((wide != nullptr && Contains(*wide, network)) || wanted_.size() == kElementsMax) continue;
    wide = &network;
    wanted_[TextOf(network)] = until;
  }
}

std::string_view PacketFilter::SetOf(std::string_view network) const {
  return network.find(':') == std::string_view::npos ? kSetOfV4 : kSetOfV6;
}

std::string PacketFilter::Added(const Elements& elements, Instant now) const {
  std::string commands;
  for (const auto& [network, until] : elements) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(until - now).count();
    if (left <= 0) continue;
    commands += fmt::format("add element {} {} {{ {} timeout {}s }}\n", table_, SetOf(network), network, left);
  }
  return commands;
}

std::array<std::string, 2> PacketFilter::Listings() const {
  return {fmt::format("list set {} {}\n", table_, kSetOfV4), fmt::format("list set {} {}\n", table_, kSetOfV6)};
}

// nft leaves out part seconds. What has less than one left is still there.
bool PacketFilter::Found(std::string_view listed, Instant now) {
  Elements found;
  std::size_t sets = 0;
  for (std::size_t end; !listed.empty(); listed.remove_prefix(std::min(end + 1, listed.size()))) {
    end = std::min(listed.find('\n'), listed.size());
    const auto answer = nlohmann::json::parse(listed.substr(0, end), nullptr, false);
    if (!answer.is_object() || !answer.contains("nftables")) return false;
    for (const auto& item : answer.at("nftables")) {
      if (!item.is_object() || !item.contains("set") || !item.at("set").is_object()) continue;
      ++sets;
      for (const auto& element : item.at("set").value("elem", nlohmann::json::array())) {
        const auto read = ReadElement(element);
        if (!read.has_value()) return false;
        const auto& [network, left_s] = *read;
        const double seconds = std::clamp(left_s.value_or(2 * kSecondsMax), 1.0, 2 * kSecondsMax);
        found[TextOf(network)] = now + DurationOf(seconds);
      }
    }
  }
  if (sets != 2) return false;
  there_ = std::move(found);
  return true;
}

std::string PacketFilter::Changes(Instant now) {
  std::erase_if(there_, [&](const auto& element) { return element.second <= now; });    // by its timeout
  std::string commands;
  Elements added;
  for (const auto& [network, until] : there_) {
    const auto wanted = wanted_.find(network);
    const bool stays = wanted != wanted_.end() && wanted->second - until < kSlack && until - wanted->second < kSlack;
    if (!stays) commands += fmt::format("delete element {} {} {{ {} }}\n", table_, SetOf(network), network);
    if (!stays && wanted != wanted_.end()) added.insert(*wanted);
  }
  for (const auto& element : wanted_) {
    if (!there_.contains(element.first)) added.insert(element);
  }
  commands += Added(added, now);
  there_ = wanted_;
  return commands;
}

std::string PacketFilter::Everything(Instant now) {
  std::string commands = fmt::format("add table {}\n", table_);
  for (const auto& [set, type] : {std::pair(kSetOfV4, "ipv4_addr"), std::pair(kSetOfV6, "ipv6_addr")}) {
    commands += fmt::format("add set {0} {1} {{ type {2}; flags interval, timeout; }}\nflush set {0} {1}\n", table_, set, type);
  }
  there_ = wanted_;
  return commands + Added(wanted_, now);
}

}    // namespace dthrottle
