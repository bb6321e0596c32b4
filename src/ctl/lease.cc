#include "ctl/lease.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <system_error>

#include "client/dthrottle_lease.hpp"
#include "feature/command_line.h"
#include "io/number_option.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLineBytesMax = std::size_t{1} << 20;
constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kNotFound = 127;    // what shells say of a command that there is not

constexpr std::size_t kClientBytesMax = 255;    // as libdthrottle takes it

constexpr int kLookEveryMs = 200;    // whether we were told to end, while nothing comes

volatile std::sig_atomic_t stopped_by = 0;
volatile std::sig_atomic_t command_pid = 0;    // is told what we are told

void OnSignal(int number) {
  stopped_by = number;
  if (command_pid != 0) ::kill(static_cast<pid_t>(command_pid), number);
}

struct Options {
  std::string resource;
  double wants = 0;
  std::string servers;
  std::string client;
  LeaseMode mode = DTHROTTLE_PESSIMISTIC;
  long long priority = 0;
  double timeout_s = 5;
  std::vector<std::string> command;
};

// A command that reads lines from a pipe.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    {
      // Until the child has become the command it must not take for itself, in our handler, what is meant for that.
      const SignalsBlocked blocked;
      pid_ = ::fork();
      if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
      command_pid = pid_;
      if (pid_ == 0) {
        for (const int number : kStops) ::signal(number, SIG_DFL);
      }
    }
    if (pid_ == 0) {
      std::vector<char*> words;
      for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      ::signal(SIGPIPE, SIG_DFL);
      ::dup2(ends[0], STDIN_FILENO);
      ::execvp(words[0], words.data());
      const std::string message = fmt::format("dthrottlectl: {}: {}\n", command[0], std::strerror(errno));
      [[maybe_unused]] const auto said = ::write(STDERR_FILENO, message.data(), message.size());
      ::_exit(kNotFound);
    }
    if (stopped_by != 0) ::kill(pid_, stopped_by);    // that was before there was anybody to tell
    ::close(ends[0]);
    fd_ = ends[1];
  }

  // False: it does not read any more.
  bool Write(std::string_view line) {
    while (!line.empty()) {
      const ssize_t n = ::write(fd_, line.data(), line.size());
      if (n < 0 && errno == EINTR && stopped_by == 0) continue;
      if (n < 0) return false;
      line.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  // Lets it come to its end, and returns what shells would say of that.
  int Wait() {
    ::close(fd_);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    command_pid = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
  int fd_;
};

// Lines of standard input, each with its LF, which the last one may lack.
class Lines {
 public:
  // False: there are no more. A line that is too long comes in pieces.
  bool Next(std::string& line) {
    for (;;) {
      const std::size_t lf = buffer_.find('\n', searched_);
      if (lf != std::string::npos || buffer_.size() >= kLineBytesMax || (at_end_ && !buffer_.empty())) {
        const std::size_t bytes = lf != std::string::npos ? lf + 1 : buffer_.size();
        line = buffer_.substr(0, bytes);
        buffer_.erase(0, bytes);
        searched_ = 0;
        return true;
      }
      if (at_end_ || stopped_by != 0) return false;
      searched_ = buffer_.size();
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::poll(&input, 1, kLookEveryMs) <= 0) continue;
      char chunk[64 * 1024];
      const ssize_t n = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) at_end_ = true;
      if (n > 0) buffer_.append(chunk, static_cast<std::size_t>(n));
    }
  }

 private:
  std::string buffer_;
  std::size_t searched_ = 0;
  bool at_end_ = false;
};

// Why nothing is leased: the server does not answer, or is new. Empty: it is only that others have it.
std::string WhyNothing(const dthrottle_lease_status& status) {
  if (status.trouble[0] != '\0') return status.trouble;
  if (status.learning_s <= 0 || status.capacity != 0) return "";
  return fmt::format("the lease server is new, and gives no more than was leased before: it learns for another {:.0f} s",
                     status.learning_s);
}

// Waits for a unit until it comes or we are told to end. Says why it does not come, once.
void Await(RateResource& resource, bool& said) {
  while (stopped_by == 0 && !resource.WaitFor(200ms)) {
    const std::string why = said ? "" : WhyNothing(resource.Status());
    if (!why.empty()) Complain(why, EX_OK);
    said = said || !why.empty();
  }
}

int PassLines(RateResource& resource, const std::vector<std::string>& command) {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  for (const int number : kStops) ::sigaction(number, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Reader reader(command);
  Lines lines;
  std::string line;
  bool said = false;
  while (lines.Next(line)) {
    Await(resource, said);
    if (stopped_by != 0 || !reader.Write(line)) break;
  }
  return reader.Wait();
}

// The lease as a line a fact; it goes on until it expires.
int Print(const RateResource& resource, double timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  dthrottle_lease_status status = resource.Status();
  while (status.leased == 0 && std::chrono::steady_clock::now() < deadline) {
    ::usleep(10'000);
    status = resource.Status();
  }
  if (status.leased == 0) {
    return Complain(status.trouble[0] != '\0' ? status.trouble : "no server answers in time", EX_UNAVAILABLE);
  }
  fmt::print(
      "capacity      {:.15g}\nexpires_in_s  {:.3f}\nrefresh_s     {:.3f}\nsafe          {:.15g}\ntoken         {}\n",
      status.capacity, status.expires_in_s, status.refresh_s, status.safe, status.token);
  if (status.learning_s > 0) fmt::print("learning_s    {:.3f}\n", status.learning_s);
  std::fflush(stdout);
  ::_exit(EX_OK);    // without closing, which would release it
}

// Says what is wrong with the name of a client; empty: nothing is.
std::string WrongClient(const std::string& text) {
  const auto is_blank = [](unsigned char c) { return c <= ' ' || c == 0x7f; };
  const bool fits = text.size() <= kClientBytesMax && std::none_of(text.begin(), text.end(), is_blank);
  return fits ? "" : fmt::format("\"{}\": must be at most {} bytes without blanks", text, kClientBytesMax);
}

int Parse(std::vector<std::string> words, Options& options) {
  CLI::App app(
      "Leases capacity. Without COMMAND it prints the lease, which lasts until it expires; with one it starts COMMAND "
      "and "
      "passes lines from standard input to it, one for each unit of the leased rate.",
      "dthrottlectl lease");
  const std::map<std::string, LeaseMode> modes = {
      {"pessimistic", DTHROTTLE_PESSIMISTIC}, {"optimistic", DTHROTTLE_OPTIMISTIC}, {"safe", DTHROTTLE_SAFE}};
  app.add_option("RESOURCE", options.resource, "What to lease")->required();
  app.add_option("WANTS", options.wants, "How much, in units a second")->required()->check(NumberFrom(1e-6, 1e15));
  app.add_option("COMMAND", options.command, "Behind --: a program and its arguments");
  app.add_option("--servers,-S", options.servers, "Lease servers, unix:/path or tcp:ADDRESS:PORT, with commas between")
      ->envname("DTHROTTLECTL_LEASE_SERVERS")
      ->capture_default_str();
  app.add_option("--client,-c", options.client, "Who asks; the same one renews its lease")->check(WrongClient);
  app.add_option("--mode,-m", options.mode, "What to do when no server answers and the lease has expired")
      ->transform(CLI::CheckedTransformer(modes))
      ->default_str("pessimistic");
  app.add_option("--priority,-p", options.priority, "Of the request")->capture_default_str();
  app.add_option("--timeout,-t", options.timeout_s, "Without COMMAND: seconds to wait for the lease")
      ->check(NumberFrom(0.001, 3600))
      ->capture_default_str();
  std::reverse(words.begin(), words.end());    // as the library wants them
  words.pop_back();
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? -1 : EX_USAGE;
  }
  return EX_OK;
}

}    // namespace

int RunLease(std::vector<std::string> words, const std::string& socket) {
  Options options;
  const std::size_t slash = socket.rfind('/');
  options.servers = "unix:" + socket.substr(0, slash == std::string::npos ? 0 : slash + 1) + "lease.sock";
  if (const int wrong = Parse(std::move(words), options); wrong != EX_OK) return wrong < 0 ? EX_OK : wrong;
  try {
    dthrottle_leases_options of_leases{};
    if (!options.client.empty()) of_leases.client = options.client.c_str();
    Leases leases(options.servers, of_leases);
    dthrottle_resource_options of_resource{};
    of_resource.mode = options.mode;
    of_resource.priority = options.priority;
    of_resource.wants = options.wants;
    RateResource resource(leases, options.resource, of_resource);
    return options.command.empty() ? Print(resource, options.timeout_s) : PassLines(resource, options.command);
  } catch (const std::system_error& e) {
    return Complain(e.what(), e.code() == std::errc::invalid_argument ? EX_USAGE : EX_OSERR);
  }
}

}    // namespace dthrottle
