// dthrottle-load: asks a rate limiting service as fast as it answers, and says what a decision costs the
// service.
//
// The figure to trust is cpu_ns_per_decision: the CPU time of the server process over the measured interval,
// divided by the decisions in it. It holds on a busy machine, where decisions per second do not. Latency here
// is that of a service under full load, and a closed loop asks less while the service is stalled; it is not
// what a lightly loaded application would see.
#include <getopt.h>

#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#include "load_generator.h"
#include "load_latency.h"
#include "load_protocol.h"
#include "load_target.h"

namespace dthrottle::bench {
namespace {

constexpr std::string_view kUsage = R"(usage: dthrottle-load --target unix:PATH|tcp:HOST:PORT [options]
  --protocol NAME    line (default), question, question-5, redis-incr, redis-bucket, redis-buckets, memcached
  --connections N    (64)
  --depth N          requests written at once on each connection (1)
  --tags N           distinct tags of 15 bytes (1000000)
  --preload          ask once for every tag first
  --warmup SECONDS   asked like the rest, not measured (0.5)
  --seconds SECONDS  measured (3)
  --server-pid PID   process whose CPU time is measured
Prints one line of JSON. Exit status: 1 when a reply was wrong or missing, 2 when the run was impossible.)";

struct Options {
  std::string target;
  std::string protocol = "line";
  std::size_t connections = 64;
  std::size_t depth = 1;
  std::uint64_t tags = 1'000'000;
  bool preload = false;
  double warmup_s = 0.5;
  double seconds = 3;
  pid_t server_pid = 0;    // 0: no CPU time of a server is measured
};

template <class Number>
Number Parse(std::string_view option, std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most)) {
    Die(fmt::format("--{} must be from {} to {}, not '{}'", option, least, most, text));
  }
  return value;
}

Options ParseOptions(int argc, char** argv) {
  static constexpr option kOptions[] = {
      {"target", required_argument, nullptr, 0},      {"protocol", required_argument, nullptr, 0},
      {"connections", required_argument, nullptr, 0}, {"depth", required_argument, nullptr, 0},
      {"tags", required_argument, nullptr, 0},        {"preload", no_argument, nullptr, 0},
      {"warmup", required_argument, nullptr, 0},      {"seconds", required_argument, nullptr, 0},
      {"server-pid", required_argument, nullptr, 0},  {}};
  Options o;
  int index = 0;
  for (int found; (found = getopt_long(argc, argv, "", kOptions, &index)) != -1;) {
    if (found != 0) Die(kUsage);
    const std::string_view name = kOptions[index].name;
    const std::string_view text = optarg == nullptr ? "" : optarg;
    if (name == "target") o.target = text;
    if (name == "protocol") o.protocol = text;
    if (name == "connections") o.connections = Parse<std::size_t>(name, text, 1, 10'000);
    if (name == "depth") o.depth = Parse<std::size_t>(name, text, 1, 10'000);
    if (name == "tags") o.tags = Parse<std::uint64_t>(name, text, 1, 20'000'000);
    if (name == "preload") o.preload = true;
    if (name == "warmup") o.warmup_s = Parse<double>(name, text, 0, 3600);
    if (name == "seconds") o.seconds = Parse<double>(name, text, 0.01, 3600);
    if (name == "server-pid") o.server_pid = Parse<pid_t>(name, text, 1, std::numeric_limits<pid_t>::max());
  }
  if (optind != argc || o.target.empty()) Die(kUsage);
  return o;
}

// Has Redis compile the script, and returns the name by which it can be called.
std::string LoadScript(const std::string& target, std::string_view script) {
  const int fd = Connect(target);
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const std::string command = LoadScriptCommand(script);
  std::array<char, 47> reply{};    // "$40\r\n", the name, "\r\n"
  const bool sent = send(fd, command.data(), command.size(), MSG_NOSIGNAL) == std::ssize(command);
  const bool answered = sent && recv(fd, reply.data(), reply.size(), MSG_WAITALL) == std::ssize(reply);
  close(fd);
  const std::string_view text(reply.data(), reply.size());
  if (!answered || !text.starts_with("$40\r\n")) Die("the service did not take the script");
  return std::string(text.substr(5, 40));
}

// Everything that is measured as a difference between two instants.
struct Snapshot {
  Snapshot(const Generator& generator, clockid_t server_clock)
      : at_ns(NowNs()),
        server_cpu_ns(ReadClockNs(server_clock)),
        generator_cpu_ns(ReadClockNs(CLOCK_PROCESS_CPUTIME_ID)),
        counts(generator.counts()) {}

  std::uint64_t at_ns;
  std::uint64_t server_cpu_ns;
  std::uint64_t generator_cpu_ns;
  Counts counts;
};

void Print(const Options& o, const Snapshot& begin, const Snapshot& end, const LatencyHistogram& latency,
           std::uint64_t errors) {
  const std::uint64_t decisions = end.counts.decisions() - begin.counts.decisions();
  const auto wall_ns = static_cast<double>(end.at_ns - begin.at_ns);
  const auto server_ns = static_cast<double>(end.server_cpu_ns - begin.server_cpu_ns);
  const auto generator_ns = static_cast<double>(end.generator_cpu_ns - begin.generator_cpu_ns);
  const bool known = o.server_pid != 0 && decisions > 0;
  const auto per_decision = known ? fmt::format("{:.1f}", server_ns / static_cast<double>(decisions)) : "null";
  const auto server_cores = known ? fmt::format("{:.3f}", server_ns / wall_ns) : "null";

  fmt::print(R"({{"protocol":"{}","connections":{},"depth":{},"tags":{},)", o.protocol, o.connections, o.depth, o.tags);
  fmt::print(R"("decisions":{},"decisions_per_s":{:.0f},)", decisions, static_cast<double>(decisions) * 1e9 / wall_ns);
  fmt::print(R"("allowed":{},"denied":{},"created":{},"errors":{},)", end.counts.allowed - begin.counts.allowed,
             end.counts.denied - begin.counts.denied, end.counts.created - begin.counts.created, errors);
  fmt::print(R"("cpu_ns_per_decision":{},)", per_decision);
  fmt::print(R"("p50_us":{:.1f},"p99_us":{:.1f},"p999_us":{:.1f},"max_us":{:.1f},)", latency.QuantileUs(0.5),
             latency.QuantileUs(0.99), latency.QuantileUs(0.999), latency.MaxUs());
  fmt::print("\"server_cores_used\":{},\"generator_cores_used\":{:.3f}}}\n", server_cores, generator_ns / wall_ns);
}

int Main(int argc, char** argv) {
  const Options o = ParseOptions(argc, argv);
  // Should anything block beyond the limits of its own, such as connecting to a full backlog, the run still
  // ends.
  alarm(static_cast<unsigned>(o.warmup_s + o.seconds) + 180);

  const std::string_view script = ScriptOf(o.protocol);
  const auto protocol = MakeProtocol(o.protocol, script.empty() ? "" : LoadScript(o.target, script));
  if (!protocol) Die(fmt::format("--protocol cannot be '{}'", o.protocol));
  const clockid_t server_clock = o.server_pid == 0 ? CLOCK_MONOTONIC : CpuClockOf(o.server_pid);
  Generator generator(*protocol, o.tags);
  generator.Open(o.target, o.connections);
  if (o.preload) generator.Preload();
  generator.Shuffle();

  generator.Start(kUnlimited, o.depth);
  generator.RunUntil(NowNs() + ToNs(o.warmup_s));
  generator.TakeLatency();
  const Snapshot begin(generator, server_clock);
  generator.RunUntil(begin.at_ns + ToNs(o.seconds));
  const Snapshot end(generator, server_clock);
  const LatencyHistogram latency = generator.TakeLatency();
  generator.Finish();

  const std::uint64_t errors = generator.counts().errors;
  Print(o, begin, end, latency, errors);
  return errors == 0 && end.counts.decisions() > begin.counts.decisions() ? 0 : 1;
}

}    // namespace
}    // namespace dthrottle::bench

int main(int argc, char** argv) {
  return dthrottle::bench::Main(argc, argv);
}
