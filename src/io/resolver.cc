#include "io/resolver.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/time.h>

#include <algorithm>
#include <map>
#include <utility>

#include "config/values.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kAddressesMax = 256;    // of one entry
constexpr std::size_t kTargetsMax = 64;       // of one service
constexpr int kAbsencesMax = 3;
constexpr Duration kRetry = seconds(5);
constexpr int kTryMs = 2000;
constexpr int kTries = 2;

}    // namespace

struct Resolver::Entry {
  struct Known {
    Endpoint endpoint;
    int absences = 0;
  };

  std::string text;
  PeerEntry parsed;
  std::vector<Known> known;
  std::string failure;    // of the last lookup; empty: it went well
  Instant due{};
  bool dropped = false;    // from the list, while a lookup is under way

  // The lookup under way.
  int pending = 0;    // questions without an answer
  std::vector<Endpoint> answer;
  std::string fault;
};

struct Resolver::State {
  State(Options o, Prng p) : options(std::move(o)), prng(p) {}

  Options options;
  Prng prng;
  ares_channel channel = nullptr;
  std::string channel_fault = "not started";
  std::map<int, short> descriptors;
  std::vector<std::shared_ptr<Entry>> entries;
  Instant due = Instant::max();    // of the first of them that waits
  Counts counts;
  bool changed = true;
  Instant now{};

  void Open();
  void Start(const std::shared_ptr<Entry>& entry);
  void AskAddresses(const std::shared_ptr<Entry>& entry, const std::string& host, std::uint16_t port);
  void Done(Entry& entry);
  Duration Jittered(Duration d) {
    return d - d / 10 + Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(d.count() / 5 + 1))));
  }
};

// What a callback of the library gets: it must outlive the entry's place in the list.
struct Resolver::Lookup {
  State& state;
  std::shared_ptr<Entry> entry;
  std::uint16_t port;

  void Failed(const std::string& what, int status) {
    if (entry->fault.empty()) entry->fault = fmt::format("{}: {}", what, ares_strerror(status));
  }

  static void OnAddresses(void* arg, int status, int, ares_addrinfo* info) {
    const std::unique_ptr<Lookup> self(static_cast<Lookup*>(arg));
    if (status == ARES_EDESTRUCTION) return;
    if (status != ARES_SUCCESS) self->Failed("no address", status);
    for (const ares_addrinfo_node* node = info != nullptr ? info->nodes : nullptr; node != nullptr;
         node = node->ai_next) {
      char text[INET6_ADDRSTRLEN];
      const void* raw = node->ai_family == AF_INET
                            ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(node->ai_addr)->sin_addr)
                            : &reinterpret_cast<sockaddr_in6*>(node->ai_addr)->sin6_addr;
      if (inet_ntop(node->ai_family, raw, text, sizeof text) == nullptr) continue;
      if (self->entry->answer.size() < kAddressesMax) self->entry->answer.push_back({text, self->port});
    }
    if (info != nullptr) ares_freeaddrinfo(info);
    self->state.Done(*self->entry);
  }

  static void OnService(void* arg, int status, int, unsigned char* bytes, int size) {
    const std::unique_ptr<Lookup> self(static_cast<Lookup*>(arg));
    if (status == ARES_EDESTRUCTION) return;
    ares_srv_reply* list = nullptr;
    if (status == ARES_SUCCESS) status = ares_parse_srv_reply(bytes, size, &list);
    if (status != ARES_SUCCESS) self->Failed("no service", status);
    std::size_t targets = 0;
    for (const ares_srv_reply* one = list; one != nullptr && targets < kTargetsMax; one = one->next) {
      // A lone dot says that there is decidedly no such service.
      if (one->port == 0 || one->port == 65535 || !IsDnsName(one->host)) continue;
      ++targets;
      self->state.AskAddresses(self->entry, one->host, one->port);
    }
    if (list != nullptr) ares_free_data(list);
    self->state.Done(*self->entry);
  }

  static void OnDescriptor(void* arg, ares_socket_t fd, int readable, int writable) {
    auto& descriptors = static_cast<State*>(arg)->descriptors;
    const short events = static_cast<short>((readable != 0 ? POLLIN : 0) | (writable != 0 ? POLLOUT : 0));
    if (events == 0) {
      descriptors.erase(fd);
    } else {
      descriptors[fd] = events;
    }
  }
};

void Resolver::State::Open() {
  static const int ready = ares_library_init(ARES_LIB_INIT_ALL);
  ares_options o{};
  o.timeout = kTryMs;
  o.tries = kTries;
  o.sock_state_cb = Lookup::OnDescriptor;
  o.sock_state_cb_data = this;
  int status = ready;
  if (status == ARES_SUCCESS) {
    status = ares_init_options(&channel, &o, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
    if (status != ARES_SUCCESS) channel = nullptr;
  }
  if (status == ARES_SUCCESS && !options.servers.empty()) {
    status = ares_set_servers_ports_csv(channel, options.servers.c_str());
  }
  channel_fault = status == ARES_SUCCESS ? "" : fmt::format("cannot look up names: {}", ares_strerror(status));
}

void Resolver::State::Start(const std::shared_ptr<Entry>& entry) {
  if (!channel_fault.empty()) {
    if (channel != nullptr) ares_destroy(std::exchange(channel, nullptr));
    Open();
  }
  entry->answer.clear();
  entry->fault = channel_fault;
  entry->pending = 1;    // this function's own, because an answer may come before it returns
  if (channel_fault.empty()) {
    if (entry->parsed.kind == PeerEntry::Kind::kService) {
      ++entry->pending;
      ares_query(channel, entry->parsed.host.c_str(), ns_c_in, ns_t_srv, Lookup::OnService,
                 new Lookup{*this, entry, 0});
    } else {
      AskAddresses(entry, entry->parsed.host, entry->parsed.port);
    }
  }
  Done(*entry);
}

void Resolver::State::AskAddresses(const std::shared_ptr<Entry>& entry, const std::string& host, std::uint16_t port) {
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_flags = ARES_AI_NOSORT;    // sorting would open a socket for each address
  ++entry->pending;
  ares_getaddrinfo(channel, host.c_str(), nullptr, &hints, Lookup::OnAddresses, new Lookup{*this, entry, port});
}

// One question has been answered. The last one settles the lookup.
void Resolver::State::Done(Entry& entry) {
  if (--entry.pending > 0 || entry.dropped) return;
  ++counts.lookups;
  const bool whole = entry.fault.empty();
  if (!whole) ++counts.failed;
  std::size_t before = entry.known.size();
  for (auto& known : entry.known) {
    const bool present = std::ranges::find(entry.answer, known.endpoint) != entry.answer.end();
    known.absences = present ? 0 : known.absences + (whole ? 1 : 0);
  }
  std::erase_if(entry.known, [](const Entry::Known& known) { return known.absences >= kAbsencesMax; });
  changed = changed || before != entry.known.size() || entry.failure != entry.fault;
  before = entry.known.size();
  for (const Endpoint& endpoint : entry.answer) {
    const auto same = [&](const Entry::Known& known) { return known.endpoint == endpoint; };
    if (entry.known.size() < kAddressesMax && std::ranges::none_of(entry.known, same)) {
      entry.known.push_back({endpoint});
    }
  }
  changed = changed || before != entry.known.size();
  entry.failure = entry.fault;
  entry.due = now + Jittered(whole ? options.every : std::min(kRetry, options.every));
  due = std::min(due, entry.due);
}

Resolver::Resolver(Options options, Prng prng) : state_(std::make_unique<State>(std::move(options), prng)) {}

Resolver::~Resolver() {
  if (state_->channel != nullptr) ares_destroy(state_->channel);    // calls back, so the state must still be there
}

void Resolver::SetEntries(const std::vector<std::string>& entries, Instant now) {
  std::vector<std::shared_ptr<Entry>> kept;
  for (const std::string& text : entries) {
    const auto same = [&](const auto& entry) { return entry->text == text; };
    if (std::ranges::any_of(kept, same)) continue;
    if (const auto old = std::ranges::find_if(state_->entries, same); old != state_->entries.end()) {
      kept.push_back(*old);
      continue;
    }
    auto entry = std::make_shared<Entry>();
    entry->text = text;
    entry->due = now;
    if (auto parsed = ParsePeerEntry(text)) {
      entry->parsed = std::move(*parsed);
      if (entry->parsed.kind == PeerEntry::Kind::kNumeric)
        entry->known.push_back({{entry->parsed.host, entry->parsed.port}});
    } else {
      entry->failure = parsed.error().message;
      entry->due = Instant::max();
    }
    if (entry->parsed.kind == PeerEntry::Kind::kNumeric) entry->due = Instant::max();
    kept.push_back(std::move(entry));
  }
  for (const auto& old : state_->entries) old->dropped = std::ranges::find(kept, old) == kept.end();
  state_->entries = std::move(kept);
  state_->due = now;
  state_->changed = true;
}

std::vector<pollfd> Resolver::Descriptors() const {
  std::vector<pollfd> result;
  for (const auto& [fd, events] : state_->descriptors) result.push_back({fd, events, 0});
  return result;
}

void Resolver::Process(std::span<const pollfd> ready, Instant now) {
  state_->now = now;
  for (const pollfd& one : ready) {
    const bool failed = (one.revents & (POLLERR | POLLHUP)) != 0;
    ares_process_fd(state_->channel, (one.revents & POLLIN) != 0 || failed ? one.fd : ARES_SOCKET_BAD,
                    (one.revents & POLLOUT) != 0 ? one.fd : ARES_SOCKET_BAD);
  }
}

Instant Resolver::Tick(Instant now) {
  state_->now = now;
  if (state_->channel != nullptr) ares_process_fd(state_->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  if (state_->due <= now) {
    state_->due = Instant::max();
    // An answer may come while we ask, but it never changes the list.
    for (const auto& entry : state_->entries) {
      if (entry->pending == 0 && entry->due <= now) state_->Start(entry);
      if (entry->pending == 0) state_->due = std::min(state_->due, entry->due);
    }
  }
  Instant next = state_->due;
  timeval left{};
  if (state_->channel != nullptr && ares_timeout(state_->channel, nullptr, &left) != nullptr) {
    next = std::min(next, now + seconds(left.tv_sec) + std::chrono::microseconds(left.tv_usec));
  }
  return next;
}

bool Resolver::TakeChanged() {
  return std::exchange(state_->changed, false);
}

std::vector<Resolver::Address> Resolver::Addresses() const {
  std::vector<Address> result;
  std::map<std::string, std::size_t> places;
  for (const auto& entry : state_->entries) {
    for (const auto& known : entry->known) {
      const auto [place, is_new] = places.emplace(FormatEndpoint(known.endpoint), result.size());
      if (is_new) {
        result.push_back({known.endpoint, entry->parsed.key_name, entry->text});
      } else if (result[place->second].key_name.empty()) {
        result[place->second].key_name = entry->parsed.key_name;
      }
    }
  }
  return result;
}

std::vector<Resolver::Failure> Resolver::Failures() const {
  std::vector<Failure> result;
  for (const auto& entry : state_->entries) {
    if (!entry->failure.empty()) result.push_back({entry->text, entry->failure, entry->known.empty()});
  }
  return result;
}

Resolver::Counts Resolver::counts() const {
  return state_->counts;
}

}    // namespace dthrottle
