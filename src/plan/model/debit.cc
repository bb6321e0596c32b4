// DThrottle README: buckets that debit what their peers report, and how far hosts can exceed a limit together.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bucket/bucket.h"
#include "io/number_option.h"
#include "plan/model/model.h"
#include "share/accuracy/certificate.h"

namespace dthrottle::plan {
namespace {

constexpr double kSecondsMax = 1e6;

struct DebitOptions {
  std::uint32_t hosts = 2;
  double burst = 10, rate = 1, delay = 0, until = 0;
  Values reports;                       // seconds
  std::vector<std::string> requests;    // SECONDS:HOST:COUNT
};

struct Requests {
  double at = 0;    // seconds
  std::uint32_t host = 0, count = 0;
};

Instant At(double seconds) {
  return FromNanoseconds(std::llround(seconds * 1e9));
}

Result<std::vector<Requests>> Parse(const DebitOptions& options) {
  std::vector<Requests> all;
  for (const std::string& text : options.requests) {
    Values parts;
    for (const std::string& part : Split(text, ':')) {
      const auto number = Numbers(part, "--requests " + text);
      if (!number) return tl::unexpected(number.error());
      parts.push_back(number->front());
    }
    const auto whole = [](double x) { return x == std::trunc(x); };
    if (parts.size() != 3 || !whole(parts[1]) || !whole(parts[2]) || !(parts[0] >= 0 && parts[0] <= kSecondsMax) ||
        !(parts[1] >= 0 && parts[1] < options.hosts) || !(parts[2] >= 0 && parts[2] <= 1e6)) {
      return Fail(
          fmt::format("--requests {}: SECONDS:HOST:COUNT is wanted, whole numbers of a host from 0 to {} and of requests", text, options.hosts - 1));
    }
    all.push_back({parts[0], static_cast<std::uint32_t>(parts[1]), static_cast<std::uint32_t>(parts[2])});
  }
  return all;
}

struct Host {
  Bucket bucket;
  Waste waste;
  std::uint64_t unreported = 0;
};

// A host's hits since its last report debit every other host's bucket.
void Debit(std::vector<Host>& hosts, const Shape& shape, const std::vector<std::uint64_t>& hits, Instant now) {
  for (std::size_t from = 0; from < hosts.size(); ++from) {
    for (std::size_t to = 0; to < hosts.size(); ++to) {
      if (from == to || hits[from] == 0) continue;
      hosts[to].bucket.Debit(shape, hits[from], now, Ticks{1} << 61, now, hosts[to].waste, 0);
    }
  }
}

Result<Table> Debits(const DebitOptions& options) {
  const auto requests = Parse(options);
  if (!requests) return tl::unexpected(requests.error());
  enum class What { kCut, kDebit, kRequests };    // in this order at one instant
  std::vector<std::tuple<Instant, What, std::size_t>> events;
  for (std::size_t i = 0; i < requests->size(); ++i) events.emplace_back(At((*requests)[i].at), What::kRequests, i);
  for (std::size_t i = 0; i < options.reports.size(); ++i) {
    events.emplace_back(At(options.reports[i]), What::kCut, i);
    events.emplace_back(At(options.reports[i]) + At(options.delay).time_since_epoch(), What::kDebit, i);
  }
  std::ranges::sort(events);
  const Shape shape = Shape::From(options.burst, options.rate);
  std::vector<Host> hosts(options.hosts);
  std::map<std::size_t, std::vector<std::uint64_t>> reports;
  Table table;
  table.columns = {"seconds", "host", "served", "throttled"};
  for (const auto& [now, what, index] : events) {
    if (now > At(options.until)) break;
    if (what == What::kCut) {
      for (Host& host : hosts) reports[index].push_back(std::exchange(host.unreported, 0));
    } else if (what == What::kDebit) {
      Debit(hosts, shape, reports[index], now);
    } else {
      const Requests& asked = (*requests)[index];
      Host& host = hosts[asked.host];
      std::uint32_t served = 0;
      for (std::uint32_t i = 0; i < asked.count; ++i) served += host.bucket.Take(shape, 1, now) ? 1 : 0;
      host.unreported += served;
      table.rows.push_back({asked.at, {1.0 * asked.host, 1.0 * served, 1.0 * (asked.count - served)}});
    }
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    table.facts.emplace_back(fmt::format("level:{}", i), hosts[i].bucket.Level(shape, At(options.until)));
  }
  return table;
}

struct ExcessOptions {
  double hosts = 2, burst = 10, rate = 1, period = 5, delay = 0, loss = 0;
};

// When all hosts are asked for all that there is from full buckets on: the others' hits are heard a period and a delay
// later at the latest, and debits of a period are paid by refill. A host that serves x hears of (1 - loss) (n - 1) x,
// and both together are the rate. The daemon's bound is of any stretch of time, in which wasted refill pays too.
Table Excess(const ExcessOptions& o) {
  const double others = o.hosts - 1;
  Table table;
  const auto duration = [](double seconds) { return Duration(std::llround(seconds * 1e9)); };
  const BoundTerms terms{o.burst, o.rate, std::nullopt, duration(o.period)};
  const std::vector<PeerAge> peers(static_cast<std::size_t>(others), PeerAge{Duration(0), duration(o.delay)});
  table.facts = {{"max_excess", others * (o.burst + o.rate * (o.period + o.delay))},
                 {"daemon_bound", ExcessBound(terms, peers)},
                 {"refuses_s", others * (o.burst + o.rate * o.period) / o.rate},
                 {"long_run_error", o.hosts / (1 + (1 - o.loss) * others) - 1}};
  return table;
}

}    // namespace

void AddDebitModels(CLI::App& model, const Answer& answer) {
  CLI::App* debits = model.add_subcommand("debits", "DThrottle: buckets that debit what their peers report");
  const auto options = std::make_shared<DebitOptions>();
  const auto rate = NumberFrom(1e-6, 1e9);
  const auto seconds = NumberFrom(0, kSecondsMax);
  debits->add_option("--hosts", options->hosts, "Hosts, 0 and on")->check(CLI::Range(1, 1000))->capture_default_str();
  debits->add_option("--burst", options->burst, "Tokens")->check(NumberFrom(1, 1e9))->capture_default_str();
  debits->add_option("--rate", options->rate, "Tokens a second")->check(rate)->capture_default_str();
  debits->add_option("--reports", options->reports, "When all report, seconds")->delimiter(',')->check(seconds);
  debits->add_option("--delay", options->delay, "Until peers debit a report, seconds")->check(seconds);
  debits->add_option("--requests", options->requests, "SECONDS:HOST:COUNT, one after another")->delimiter(',');
  debits->add_option("--until", options->until, "When levels are read, and all ends, seconds")
      ->check(seconds)
      ->required();
  debits->callback([=] { answer(Debits(*options)); });

  CLI::App* excess = model.add_subcommand("excess", "DThrottle: how far hosts can exceed a limit together");
  const auto asked = std::make_shared<ExcessOptions>();
  excess->add_option("--hosts", asked->hosts, "Hosts")->check(NumberFrom(1, 1e6))->capture_default_str();
  excess->add_option("--burst", asked->burst, "Tokens")->check(NumberFrom(0, 1e9))->capture_default_str();
  excess->add_option("--rate", asked->rate, "Tokens a second")->check(rate)->capture_default_str();
  excess->add_option("--period", asked->period, "Between reports, seconds")->check(seconds)->capture_default_str();
  excess->add_option("--delay", asked->delay, "Until peers debit a report, seconds")->check(seconds);
  excess->add_option("--loss", asked->loss, "Part of reports that is lost")->check(NumberFrom(0, 1));
  excess->callback([=] { answer(Excess(*asked)); });
}

}    // namespace dthrottle::plan
