// Doorman: how a capacity is divided, what a server grants one after another, and when leases end.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/number_option.h"
#include "lease/server.h"
#include "lease/share.h"
#include "plan/model/model.h"

namespace dthrottle::plan {
namespace {

using std::chrono::seconds;

constexpr std::pair<const char*, lease::Algorithm> kAlgorithms[] = {
    {"none", lease::Algorithm::kNone},
    {"static", lease::Algorithm::kStatic},
    {"proportional_share", lease::Algorithm::kProportionalShare},
    {"proportional_scaling", lease::Algorithm::kProportionalScaling},
    {"fair_share", lease::Algorithm::kFairShare},
    {"priority_band", lease::Algorithm::kPriorityBand}};

// "NAME:WANTS[:CLIENTS[:PRIORITY]]"
struct Wish {
  std::string name;
  double wants = 0, clients = 1, priority = 0;
};

Result<std::vector<Wish>> Parse(const std::vector<std::string>& texts) {
  std::vector<Wish> wishes;
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = Split(text, ':');
    const auto wants = Numbers(parts.size() > 1 ? parts[1] : "", text);
    const auto clients = Numbers(parts.size() > 2 ? parts[2] : "1", text);
    const auto priority = Numbers(parts.size() > 3 ? parts[3] : "0", text);
    if (parts.size() > 4 || !priority || std::abs(priority->front()) > 1e9 ||
        priority->front() != std::trunc(priority->front()) || !wants || !clients || wants->front() < 0 ||
        wants->front() > lease::kCapacityMax || clients->front() < 1 || clients->front() > 1e6) {
      return Fail(fmt::format("{}: NAME:WANTS, NAME:WANTS:CLIENTS or NAME:WANTS:CLIENTS:PRIORITY is wanted, the priority a whole number",
                              text));
    }
    wishes.push_back({parts[0], wants->front(), clients->front(), priority->front()});
  }
  return wishes;
}

Result<Table> Divided(double capacity, const std::vector<std::string>& clients) {
  const auto wishes = Parse(clients);
  if (!wishes) return tl::unexpected(wishes.error());
  std::vector<lease::Demand> demands;
  Table table;
  table.columns = {"client", "wants", "clients", "priority"};
  for (const Wish& wish : *wishes) {
    demands.push_back({wish.wants, wish.clients, static_cast<std::int64_t>(wish.priority)});
    table.rows.push_back({wish.name, {wish.wants, wish.clients, wish.priority}});
  }
  for (const auto& [name, algorithm] : kAlgorithms) {
    table.columns.emplace_back(name);
    const Values shares = lease::Divide(algorithm, capacity, demands);
    for (std::size_t i = 0; i < shares.size(); ++i) table.rows[i].values.push_back(shares[i]);
  }
  return table;
}

struct GrantOptions {
  double capacity = 0;
  lease::Algorithm algorithm = lease::Algorithm::kFairShare;
  std::vector<std::string> requests;
};

// A server out of learning mode; a request every two seconds, so that no lease ends within thirty.
Result<Table> Grants(const GrantOptions& options) {
  const auto wishes = Parse(options.requests);
  if (!wishes) return tl::unexpected(wishes.error());
  const lease::ResourceTemplate how{
      .identifier_glob = "*", .capacity = options.capacity, .algorithm = options.algorithm};
  lease::LeaseServer server({}, *lease::Templates::Make({how}));
  server.BecomeMaster({});
  BootInstant now(seconds(100));
  Table table;
  table.columns = {"client", "wants", "gets"};
  for (const Wish& wish : *wishes) {
    const lease::ResourceRequest asked{
        .resource = "r", .priority = static_cast<std::int64_t>(wish.priority), .wants = wish.wants};
    now += seconds(2);
    const auto grants = server.GetCapacity(wish.name, {&asked, 1}, now);
    if (!grants || !grants->front().leased()) return Fail(fmt::format("{}:{}: no lease", wish.name, wish.wants));
    table.rows.push_back({wish.name, {wish.wants, grants->front().lease.capacity}});
  }
  table.facts = {{"has", server.Resources(now).front().has}};
  return table;
}

struct TermOptions {
  std::uint32_t now = 0, length = 60, refresh = 16;
  double decay = 0.5;
  std::optional<std::uint32_t> parent;
};

Result<Table> Terms(const TermOptions& options) {
  const lease::ResourceTemplate how{.identifier_glob = "*",
                                    .lease_length = seconds(options.length),
                                    .refresh_interval = seconds(options.refresh),
                                    .decay_factor = options.decay};
  std::optional<BootInstant> parent;
  if (options.parent) parent = BootInstant(seconds(*options.parent));
  if (options.parent && *options.parent <= options.now) return Fail("--parent-expiry must be after --now");
  Table table;
  table.columns = {"level", "expiry", "refresh_interval"};
  for (std::uint32_t level = 0; level <= lease::kLevelMax; ++level) {
    const lease::Lease made = lease::MakeLease(how, level, 1, parent, BootInstant(seconds(options.now)));
    table.rows.push_back(
        {static_cast<double>(level), {Seconds(made.expiry.time_since_epoch()), Seconds(made.refresh_interval)}});
  }
  return table;
}

}    // namespace

void AddLeaseModels(CLI::App& model, const Answer& answer) {
  struct Division {
    double capacity = 0;
    std::vector<std::string> clients;
  };
  const auto capacity = NumberFrom(0, lease::kCapacityMax);
  CLI::App* leases = model.add_subcommand("leases", "Doorman: a capacity among its clients, by each algorithm");
  const auto division = std::make_shared<Division>();
  leases->add_option("--capacity,-C", division->capacity, "Of the resource")->check(capacity)->required();
  leases->add_option("--clients", division->clients, "NAME:WANTS, or NAME:WANTS:CLIENTS:PRIORITY")
      ->delimiter(',')
      ->required();
  leases->callback([=] { answer(Divided(division->capacity, division->clients)); });

  CLI::App* grants = model.add_subcommand("grants", "Doorman: what a server grants to one request after another");
  const auto options = std::make_shared<GrantOptions>();
  grants->add_option("--capacity,-C", options->capacity, "Of the resource")->check(capacity)->required();
  std::map<std::string, lease::Algorithm> names(std::begin(kAlgorithms), std::end(kAlgorithms));
  grants->add_option("--algorithm", options->algorithm, "Default: fair_share")->transform(CLI::Transformer(names));
  grants->add_option("--requests", options->requests, "NAME:WANTS of clients, one after another")
      ->delimiter(',')
      ->required();
  grants->callback([=] { answer(Grants(*options)); });

  CLI::App* terms =
      model.add_subcommand("terms", "Doorman: when a lease ends and is refreshed, at each level of servers");
  const auto asked = std::make_shared<TermOptions>();
  const auto whole = CLI::Range(std::uint32_t{0}, std::uint32_t{1'000'000'000});
  terms->add_option("--now", asked->now, "Seconds")->check(whole)->capture_default_str();
  terms->add_option("--lease-length", asked->length, "Seconds")->check(whole)->capture_default_str();
  terms->add_option("--refresh-interval", asked->refresh, "Seconds, at the root")->check(whole)->capture_default_str();
  terms->add_option("--decay", asked->decay, "Of the refresh interval, with each level")
      ->check(NumberFrom(0.01, 1))
      ->capture_default_str();
  terms->add_option("--parent-expiry", asked->parent, "When the server's own lease ends, seconds")->check(whole);
  terms->callback([=] { answer(Terms(*asked)); });
}

}    // namespace dthrottle::plan
