// The least that can be called an Exchange: says hello, publishes what it is handed and hands on what it hears. For
// tests of the transport that shall not depend on the protocol.
#include <fmt/format.h>

#include "report/exchange.h"

namespace dthrottle {

struct Exchange::State {
  Options options;
  ToPeersRing& in;
  FromPeersRing& out;
  Transport& transport;
  std::map<LinkId, PeerStatus> links;
  std::map<LinkId, Instant> heard;
  std::deque<FromPeers> waiting;
  ExchangeCounts counts;
  Instant hello{};

  Frame Make(char kind, const std::string& text) {
    return std::make_shared<const std::string>(fmt::format("{}{}{}\n{}", kFramePrefix, kind, options.name, text));
  }
};

namespace {

// Kind, name, text; kind 0 if it is junk.
struct Parsed {
  char kind = 0;
  std::string name, text;
};

Parsed Parse(std::string_view frame) {
  if (!frame.starts_with(kFramePrefix) || frame.size() < kFramePrefix.size() + 2) return {};
  frame.remove_prefix(kFramePrefix.size());
  const auto end = frame.find('\n');
  if (end == std::string_view::npos) return {};
  return {frame[0], std::string(frame.substr(1, end - 1)), std::string(frame.substr(end + 1))};
}

}    // namespace

Exchange::Exchange(Options options, ToPeersRing& from_limiter, FromPeersRing& to_limiter, Transport& transport, Prng,
                   Instant)
    : state_(new State{std::move(options), from_limiter, to_limiter, transport, {}, {}, {}, {}, {}}) {}
Exchange::~Exchange() = default;

void Exchange::AddLink(LinkId link, std::string address, Instant) {
  PeerStatus& s = state_->links[link];
  s.link = link;
  s.address = std::move(address);
}

void Exchange::RemoveLink(LinkId link, Instant) {
  state_->links.erase(link);
}

void Exchange::OnPublished(std::string_view frame, Instant now) {
  const Parsed p = Parse(frame);
  if (p.kind != 'R') {
    ++state_->counts.junk;
    return;
  }
  ++state_->counts.received;
  for (auto& [id, s] : state_->links) {
    if (s.name != p.name || s.state == PeerState::kSelf) continue;
    s.state = PeerState::kUp;
    state_->heard[id] = now;
  }
  FromPeers item;
  item.kind = FromPeers::Kind::kDebits;
  if (!p.text.empty()) item.entries.Add({p.text}, 1, 0);
  if (!p.text.empty()) state_->waiting.push_back(std::move(item));
}

void Exchange::OnAnswer(LinkId link, std::string_view frame, Instant now) {
  const Parsed p = Parse(frame);
  PeerStatus& s = state_->links.at(link);
  if (p.kind == 'W') {
    s.name = p.name;
    if (p.name == state_->options.name) s.state = PeerState::kSelf;
    if (s.state == PeerState::kRefused) s.state = PeerState::kConnecting;
    state_->heard[link] = now;
  } else if (p.kind == 'X') {
    s.state = PeerState::kRefused;
    s.reason = p.text;
  } else {
    ++state_->counts.junk;
  }
}

void Exchange::OnRequest(const Route& route, std::string_view identity, std::string_view frame, Instant) {
  const Parsed p = Parse(frame);
  if (p.kind != 'H') {
    ++state_->counts.junk;
  } else if (state_->options.identities_proven && identity != p.name) {
    ++state_->counts.strangers;
    state_->transport.Answer(route, state_->Make('X', fmt::format("you are {}", identity)));
  } else {
    state_->transport.Answer(route, state_->Make('W', ""));
  }
}

bool Exchange::backlogged() const {
  return state_->waiting.size() > 16;
}

Instant Exchange::Tick(Instant now) {
  State& s = *state_;
  while (!s.waiting.empty() && s.out.TryPush(std::move(s.waiting.front()))) s.waiting.pop_front();
  for (ToPeers item; s.in.TryPop(item);) {
    std::string tags;
    for (const Entry& e : item.entries.list()) tags += item.entries.tag(e).bytes;
    s.transport.Publish(s.Make('R', tags));
    ++s.counts.published;
  }
  if (now >= s.hello) {
    s.hello = now + std::chrono::milliseconds(100);
    for (auto& [id, status] : s.links) s.transport.Ask(id, s.Make('H', ""));
  }
  for (auto& [id, status] : s.links) {
    if (status.state == PeerState::kUp && now - s.heard[id] > std::chrono::milliseconds(300))
      status.state = PeerState::kSilent;
  }
  return s.hello;
}

std::vector<PeerStatus> Exchange::Peers(Instant) const {
  std::vector<PeerStatus> result;
  for (const auto& [id, s] : state_->links) result.push_back(s);
  return result;
}

ExchangeCounts Exchange::Counts() const {
  return state_->counts;
}
bool Exchange::joining() const {
  return false;
}

}    // namespace dthrottle
