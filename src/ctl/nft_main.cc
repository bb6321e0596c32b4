// dthrottle-nft: keeps two sets of nftables equal to what the daemon penalizes. See man/dthrottle-nft.8.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <nftables/libnftables.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <regex>

#include "ctl/admin_call.h"
#include "ctl/packet_filter.h"
#include "io/number_option.h"

namespace dthrottle {
namespace {

constexpr std::chrono::seconds kPatience{5};

Instant Now() {
  return Instant(std::chrono::steady_clock::now().time_since_epoch());
}

// The number of the ruleset, which the kernel counts up with each change that somebody makes.
class Generation {
 public:
  Generation() : socket_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER)) {}
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation() { ::close(socket_); }

  // Nothing if the kernel does not say.
  std::optional<std::uint32_t> Read() const {
    struct {
      nlmsghdr head{.nlmsg_len = sizeof(nlmsghdr) + sizeof(nfgenmsg),
                    .nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN,
                    .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_seq = 0,
                    .nlmsg_pid = 0};
      nfgenmsg family{.nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = 0};
    } request;
    std::array<char, 512> answer;    // comes while the request is sent
    if (::send(socket_, &request, sizeof request, 0) < 0) return std::nullopt;
    const ssize_t received = ::recv(socket_, answer.data(), answer.size(), MSG_DONTWAIT);
    for (std::size_t at = sizeof request; received > 0 && at + sizeof(nlattr) <= static_cast<std::size_t>(received);) {
      nlattr attribute;
      std::memcpy(&attribute, &answer[at], sizeof attribute);
      std::uint32_t value;
      if (attribute.nla_type == NFTA_GEN_ID && attribute.nla_len == sizeof attribute + sizeof value) {
        std::memcpy(&value, &answer[at + sizeof attribute], sizeof value);
        return ntohl(value);
      }
      at += std::max<std::size_t>(NLA_ALIGN(attribute.nla_len), sizeof attribute);
    }
    return std::nullopt;
  }

 private:
  const int socket_;
};

class Kernel {
 public:
  Kernel() : context_(nft_ctx_new(NFT_CTX_DEFAULT)) {
    nft_ctx_buffer_output(context_.get());
    nft_ctx_buffer_error(context_.get());
  }

  // Whether nobody has changed the ruleset since this was asked last, neither somebody else nor Run.
  bool IsUnchanged() {
    const auto is = generation_.Read();
    const bool same = is.has_value() && is == seen_;
    seen_ = is;
    return same;
  }

  // All commands are done, or none and it says why.
  Result<void> Run(const std::string& commands) {
    if (commands.empty() || nft_run_cmd_from_buffer(context_.get(), commands.c_str()) == 0) return {};
    return Fail(Trouble());
  }

  // What this lists, as JSON.
  Result<std::string> List(const std::string& command) {
    nft_ctx_output_set_flags(context_.get(), NFT_CTX_OUTPUT_JSON);
    const int failed = nft_run_cmd_from_buffer(context_.get(), command.c_str());
    nft_ctx_output_set_flags(context_.get(), 0);
    const std::string listed = nft_ctx_get_output_buffer(context_.get());
    if (failed != 0) return Fail(Trouble());
    return listed;
  }

 private:
  std::string Trouble() {
    const std::string why = nft_ctx_get_error_buffer(context_.get());
    return why.substr(0, why.find('\n'));
  }

  struct Free {
    void operator()(nft_ctx* context) const { nft_ctx_free(context); }
  };
  const std::unique_ptr<nft_ctx, Free> context_;
  const Generation generation_;
  std::optional<std::uint32_t> seen_;
};

// Whether it is known what the sets hold. After a change of the ruleset, by whomever, that is what nft lists.
bool AreKnown(PacketFilter& filter, Kernel& kernel) {
  if (kernel.IsUnchanged()) return true;
  std::string listed;
  for (const std::string& listing : filter.Listings()) {
    const auto one = kernel.List(listing);
    if (!one) return false;
    listed += *one;
  }
  return filter.Found(listed, Now());
}

// One look at the daemon. An element that has just ended cannot be deleted, and then nothing is changed; so the sets
// begin anew. `begun` is whether they have been made.
Result<void> Follow(const std::string& socket, PacketFilter& filter, Kernel& kernel, bool& begun) {
  const auto answer = AskAdmin(socket, "json penalties\n", kPatience);
  if (!answer) return Fail(answer.error().message);
  if (auto taken = filter.Take(*answer, Now()); !taken) return taken;
  if (begun && AreKnown(filter, kernel) && kernel.Run(filter.Changes(Now()))) return {};
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
      ->check(NumberFrom(0.05, 3600))
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
