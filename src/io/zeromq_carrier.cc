#include "io/zeromq_carrier.h"

#include <malloc.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "io/clock.h"
#include "io/library_input.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kLingerMs = 200;

// What one connection may bring without a whole message coming out: all that may wait and one message under way, twice,
// since a frame that arrives in small pieces counts for more than its length (io/library_input).
constexpr std::size_t kIncompleteBytesMax = 2 * (kWaitingMax + 1) * std::size_t{kWireBytesMax};
constexpr Duration kTrimAfter = seconds(1);

zmq::pollitem_t ItemOf(const pollfd& lookup) {
  return {nullptr, lookup.fd,
          static_cast<short>(((lookup.events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                             ((lookup.events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0)),
          0};
}

pollfd ReadyOf(const zmq::pollitem_t& item) {
  return {item.fd, 0,
          static_cast<short>(((item.revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                             ((item.revents & ZMQ_POLLOUT) != 0 ? POLLOUT : 0))};
}

}    // namespace

ZeroMqCarrier::ZeroMqCarrier(const PeerThread::Options& options, const Host& host)
    : options_(options),
      host_(host),
      counts_(host.counts),
      resolver_(options.resolver, Prng(options.seed ^ 0x7265736f6c7665)),
      server_(options, context_, counts_),
      links_(options, context_, host.exchange, counts_) {}

Result<void> ZeroMqCarrier::Open() {
  if (options_.bind.port == 0) return Fail("peers.bind: " + FormatBind(options_.bind) + ": the port must be 1 to 65535");
  try {
    BoundLibraryReceives(kIncompleteBytesMax);
    server_.Open();
    links_.Open();
  } catch (const zmq::error_t& error) {    // memory or descriptors are short
    return Fail(fmt::format("peers.bind: cannot open sockets to peers: {}", error.what()));
  }
  std::string why;
  if (!server_.Bind(why)) return Fail("peers.bind: " + why);
  return {};
}

void ZeroMqCarrier::Close() {
  server_.Close(kLingerMs);
  links_.Close();
  context_.close();    // waits for reports that linger
}

void ZeroMqCarrier::Answer(const Route& route, const Frame& frame) {
  if (!server_.Send(route, frame)) ++counts_.unsent;
}

// Between two bindings there is no connection, and its owner will say hello again.
bool ZeroMqCarrier::Publish(const Route& route, const Frame& frame) {
  if (!server_.open()) return false;
  if (server_.Send(route, frame)) return true;
  ++counts_.unsent;
  return errno != EHOSTUNREACH;
}

Instant ZeroMqCarrier::Tick(Instant now) {
  const Instant next = resolver_.Tick(now);
  if (resolver_.TakeChanged()) links_.Reconcile(resolver_, now);
  if (now >= server_.bind_at()) server_.Rebind(now);
  return std::min(next, server_.bind_at());
}

void ZeroMqCarrier::Wait(Instant until, int wake_fd) {
  const Instant hear_at = gathering_.until();
  if (gathering_.of_all() && hear_at > Now()) return Pause(std::min(until, hear_at), wake_fd);
  const std::vector<pollfd> lookups = resolver_.Descriptors();
  items_.assign(kFixed + lookups.size(), {});
  items_[kWake] = {nullptr, wake_fd, ZMQ_POLLIN, 0};
  // Where nothing is wanted, or there is no socket between two bindings, the place asks for nothing.
  const auto watch = [&](std::size_t place, zmq::socket_t& socket, bool wanted) {
    items_[place] = wanted && socket.handle() != nullptr ? zmq::pollitem_t{socket.handle(), 0, ZMQ_POLLIN, 0}
                                                         : zmq::pollitem_t{nullptr, wake_fd, 0, 0};
  };
  const bool room = !host_.listener.backlogged(), hear = room && Now() >= hear_at;
  // To an owner, reports come as requests.
  watch(kRequests, server_.requests().socket, room || host_.exchange.owners() == nullptr);
  watch(kAnswers, links_.answers().socket, hear);
  watch(kConnections, links_.connections(), true);
  watch(kZap, server_.zap(), true);
  for (std::size_t i = 0; i < lookups.size(); ++i) items_[kFixed + i] = ItemOf(lookups[i]);
  if (room && !hear) until = std::min(until, hear_at);
  const auto wait = std::chrono::ceil<milliseconds>(std::max(until - Now(), Duration(0)));
  if (zmq_poll(items_.data(), static_cast<int>(items_.size()), static_cast<long>(wait.count())) <= 0) items_.clear();
}

// zmq_poll makes some three system calls a socket.
void ZeroMqCarrier::Pause(Instant until, int wake_fd) {
  items_.clear();
  const auto wait = std::chrono::ceil<milliseconds>(std::max(until - Now(), Duration(0)));
  pollfd item{wake_fd, POLLIN, 0};
  ::poll(&item, 1, static_cast<int>(wait.count()));
}

void ZeroMqCarrier::Read(Instant now) {
  if (items_.empty()) return;
  std::vector<pollfd> ready;
  for (std::size_t i = kFixed; i < items_.size(); ++i) {
    if (items_[i].revents != 0) ready.push_back(ReadyOf(items_[i]));
  }
  if (!ready.empty()) resolver_.Process(ready, now);
  if (items_[kZap].revents != 0) server_.OnZapRequest(now);
  if (items_[kConnections].revents != 0) links_.OnConnections();
  if (items_[kRequests].revents != 0) ReadRequests();
  if (items_[kAnswers].revents != 0) ReadAnswers(now);
}

void ZeroMqCarrier::ReadRequests() {
  Inbox& inbox = server_.requests();
  for (int parts = kPartsPerTurn; ReadMessage(inbox, parts, counts_.malformed);) {
    const char* const identity = options_.keys ? zmq_msg_gets(inbox.body.handle(), "User-Id") : nullptr;
    host_.listener.OnRequest(inbox.route, identity != nullptr ? identity : "", inbox.body.to_string_view());
    if (host_.exchange.owners() && host_.listener.backlogged()) return;
  }
}

void ZeroMqCarrier::ReadAnswers(Instant now) {
  int parts = kPartsPerTurn;
  while (ReadMessage(links_.answers(), parts, counts_.malformed)) {
    // A frame of an earlier dial is of a connection that is over, perhaps to a host with another key.
    if (const LinkId link = links_.Answering(); link != 0) {
      host_.listener.OnAnswer(link, links_.answers().body.to_string_view());
    }
    if (host_.listener.backlogged()) return;
  }
  if (parts > 0) gathering_.Begin(now);
}

void ZeroMqCarrier::Watch(std::vector<PeerStatus>& peers, const ExchangeCounts& counts, Instant now) {
  gathering_.Look(peers.size(), options_.exchange.period, counts, now);
  // Each look takes little of one connection, so large frames would queue up.
  PauseLibraryInput(gathering_.of_small() ? Gathering::kShort : Duration(0));
  if (links_.keeps()) links_.Reconcile(resolver_, now);
  links_.Watch(peers, now);
  WatchEndless(now);
  counts_.lookups = resolver_.counts().lookups;
  counts_.lookups_failed = resolver_.counts().failed;
}

void ZeroMqCarrier::WatchEndless(Instant now) {
  if (const std::uint64_t endless = LibraryReceivesCut() - counts_.endless; endless != 0) {
    counts_.endless += endless;
    trim_at_ = std::min(trim_at_, now + kTrimAfter);
    Say(options_, LogLevel::kWarning,
        "cut {} connections between hosts: each brought more than {} bytes without a whole message", endless,
        kIncompleteBytesMax);
  }
  if (now >= trim_at_) {    // libzmq has freed the parts; the allocator would keep them for the process
    trim_at_ = Instant::max();
    malloc_trim(0);
  }
}

void ZeroMqCarrier::SetConnect(const std::vector<std::string>& connect, Instant now) {
  resolver_.SetEntries(connect, now);
}

void ZeroMqCarrier::OnKeys(bool removed, Instant now) {
  links_.Reconcile(resolver_, now);
  if (removed) server_.Restart(now);
}

}    // namespace dthrottle
