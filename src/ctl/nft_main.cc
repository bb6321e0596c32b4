// dthrottle-nft: keeps two sets of nftables equal to what the daemon penalizes. See man/dthrottle-nft.8.
#include <fmt/format.h>
#include <nftables/libnftables.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <regex>

#include "ctl/admin_call.h"
#include "ctl/packet_filter.h"

namespace dthrottle {
namespace {

constexpr std::chrono::seconds kPatience{5};

Instant Now() {
  return Instant(std::chrono::steady_clock::now().time_since_epoch());
}

class Kernel {
 public:
  Kernel() : context_(nft_ctx_new(NFT_CTX_DEFAULT)) {
    nft_ctx_buffer_output(context_.get());
    nft_ctx_buffer_error(context_.get());
  }

  // All commands are done, or none and it says why.
  Result<void> Run(const std::string& commands) {
    if (commands.empty() || nft_run_cmd_from_buffer(context_.get(), commands.c_str()) == 0) return {};
    const std::string why = nft_ctx_get_error_buffer(context_.get());
    return Fail(why.substr(0, why.find('\n')));
  }

 private:
  struct Free {
    void operator()(nft_ctx* context) const { nft_ctx_free(context); }
  };
  std::unique_ptr<nft_ctx, Free> context_;
};

// One look at the daemon. An element that has just ended cannot be deleted, and then nothing is changed; so the sets
// begin anew. `begun` is whether they have been made.
Result<void> Follow(const std::string& socket, PacketFilter& filter, Kernel& kernel, bool& begun) {
  const auto answer = AskAdmin(socket, "json penalties\n", kPatience);
  if (!answer) return Fail(answer.error().message);
  if (auto taken = filter.Take(*answer, Now()); !taken) return taken;
  if (begun && kernel.Run(filter.Changes(Now()))) return {};
  const auto done = kernel.Run(filter.Everything(Now()));
  begun = done.has_value();
  return done;
}

// Until SIGTERM or SIGINT. What is in the sets then ends by its timeout.
int Stay(const std::string& socket, PacketFilter& filter, std::chrono::milliseconds every) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  pollfd ended{signalfd(-1, &signals, SFD_CLOEXEC), POLLIN, 0};
  Kernel kernel;
  bool begun = false;
  std::string trouble;
  do {
    const auto followed = Follow(socket, filter, kernel, begun);
    const std::string now = followed ? "" : followed.error().message;
    if (now != trouble) fmt::print(stderr, "dthrottle-nft: {}\n", now.empty() ? "all is well again" : now);
    trouble = now;
  } while (::poll(&ended, 1, static_cast<int>(every.count())) == 0);
  return EX_OK;
}

int Main(int argc, char** argv) {
  CLI::App app("Keeps two sets of nftables equal to what dthrottled penalizes.", "dthrottle-nft");
  std::string socket = DefaultAdminSocket(), table = "inet dthrottle";
  std::vector<std::string> prefixes = {""};
  double every_s = 1;
  bool once = false;
  app.add_option("--socket,-s", socket, "The daemon's admin socket")->capture_default_str();
  app.add_option("--table,-t", table, "The table of the sets penalized4 and penalized6, with its family")
      ->check([](const std::string& text) {
        return std::regex_match(text, std::regex("(inet|netdev) [A-Za-z_][A-Za-z0-9_]{0,30}"))
                   ? std::string()
                   : "must be a family, inet or netdev, and a name, such as \"inet dthrottle\"";
      })
      ->capture_default_str();
  app.add_option("--prefix,-p", prefixes, "What stands before the address in a tag, such as ip:; may be given again")
      ->allow_extra_args(false);
  app.add_option("--every,-e", every_s, "Seconds between two looks at the daemon")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  app.add_flag("--once", once, "Look once, and end");
  app.set_version_flag("--version,-V", "dthrottle-nft " DTHROTTLE_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EX_OK : EX_USAGE;
  }
  PacketFilter filter(table, prefixes);
  if (!once) return Stay(socket, filter, std::chrono::milliseconds(static_cast<std::int64_t>(every_s * 1000)));
  Kernel kernel;
  bool begun = false;
  const auto followed = Follow(socket, filter, kernel, begun);
  if (followed) return EX_OK;
  fmt::print(stderr, "dthrottle-nft: {}\n", followed.error().message);
  return EX_UNAVAILABLE;
}

}    // namespace
}    // namespace dthrottle

int main(int argc, char** argv) {
  return dthrottle::Main(argc, argv);
}
