#include "carrier/nats/nats_carrier.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/words.h"
#include "carrier/nats/nkey.h"
#include "carrier/nats/subjects.h"
#include "io/clock.h"
#include "io/keys.h"

namespace dthrottle {

namespace {

constexpr int kMessagesPerTurn = 128;
constexpr Duration kSayEvery = std::chrono::seconds(10);
constexpr Duration kShowFor = std::chrono::minutes(1);    // an error among the peers
constexpr std::string_view kJwt = "-----BEGIN NATS USER JWT-----";

// Beside this program, as in a build directory, or where it is to be installed.
std::string PathOfModule() {
  std::error_code failed;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path() / kNatsFile;
  if (::access(beside.c_str(), R_OK) == 0) return beside;
  return fmt::format("{}/{}", DTHROTTLE_PROGRAMS, kNatsFile);
}

// It stays loaded, since libnats keeps threads of its own.
Result<const NatsModule*> LoadModule() {
  const std::string path = PathOfModule();
  if (::access(path.c_str(), R_OK) != 0) {
    return Fail(fmt::format("peers.transport = \"nats\": {} is not there: install the package dthrottle-nats, or build with "
                            "-Dnats=enabled",
                            path));
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(fmt::format("peers.transport = \"nats\": cannot be loaded: {}", ::dlerror()));
  const auto* const module = static_cast<const NatsModule*>(::dlsym(library, kNatsSymbol));
  if (module == nullptr || std::strcmp(module->version, DTHROTTLE_VERSION) != 0) {
    return Fail(fmt::format("peers.transport = \"nats\": {} is of version {}, not " DTHROTTLE_VERSION, path,
                            module != nullptr ? module->version : "unknown"));
  }
  return module;
}

// A file has a seed, "user:password", or a JWT with its seed.
Result<void> ReadCredentials(const std::string& path, NatsOptions& options) {
  const auto secret = ReadSecret(path);
  if (!secret) return Fail("peers.nats_credentials: " + secret.error().message);
  const std::string_view text = Trimmed(*secret, " \t\r\n");
  if (text.find(kJwt) != std::string_view::npos) {
    options.jwt_file = path;
    return {};
  }
  const auto wrong = [&](std::string_view why) {
    return Fail(fmt::format("peers.nats_credentials: {}: {}", path, why));
  };
  if (text.find('\n') != std::string_view::npos) return wrong("must be one line, or a file with a JWT and its seed");
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    options.user = text.substr(0, colon);
    options.password = text.substr(colon + 1);
    return options.user.empty() ? wrong("the user before the colon is empty") : Result<void>();
  }
  auto key = NkeyOf(text);
  if (!key) return wrong(key.error().message + "; must be that, or user:password, or a file with a JWT");
  options.nkey = std::move(*key);
  options.seed = text;
  return {};
}

}    // namespace

Result<void> NatsCarrier::Check(const Settings&) {
  const auto module = LoadModule();
  if (!module) return tl::unexpected(module.error());
  return {};
}

MakeCarrier NatsCarrier::For(const Settings& settings) {
  const auto& peers = settings.peers;
  Options options;
  options.prefix = peers.nats_subject;
  options.credentials_file = peers.nats_credentials;
  options.client.servers = peers.nats;
  options.client.tls = !peers.nats.empty() && peers.nats.front().starts_with("tls:");
  options.client.ca_file = peers.nats_ca;
  options.client.certificate_file = peers.nats_certificate;
  options.client.key_file = peers.nats_key;
  return [options](const Host& host) { return std::make_unique<NatsCarrier>(options, host); };
}

NatsCarrier::NatsCarrier(Options options, const Host& host)
    : options_(std::move(options)), host_(host), token_(NatsToken(host.name)) {
  DT_CHECK(host.exchange.owners() != nullptr);
  NatsOptions& client = options_.client;
  client.name = "dthrottle " + host.name;
  client.wake = host.wake;
}

Result<void> NatsCarrier::Open() {
  if (const std::string& path = options_.credentials_file; !path.empty()) {
    if (auto read = ReadCredentials(path, options_.client); !read) return read;
  }
  if (const std::string& key = options_.client.key_file; !key.empty()) {
    if (const auto secret = CheckSecretFile(key); !secret) return Fail("peers.nats_key: " + secret.error().message);
  }
  const auto module = LoadModule();
  if (!module) return tl::unexpected(module.error());
  client_ = (*module)->make(options_.client);
  Hear(NatsSubject::kAnswer);
  return {};
}

void NatsCarrier::SetConnect(const std::vector<std::string>& connect, Instant now) {
  named_ = connect;
  Reconcile(now);
}

// Links lead to the owners that the settings name, and to those in force; to others as long as the exchange needs them.
// The other hosts call: a host that owns tags, or will, hears what they ask from then on.
void NatsCarrier::Reconcile(Instant now) {
  owners_ = host_.exchange.owners();
  const std::vector<std::string> in_force = owners_->names();
  std::set<std::string> wanted(named_.begin(), named_.end());
  wanted.insert(in_force.begin(), in_force.end());
  if (wanted.erase(host_.name) > 0 && !std::exchange(asked_, true)) Hear(NatsSubject::kAsk);
  keeps_ = false;
  for (auto i = links_.begin(); i != links_.end();) {
    const auto [name, link] = *i;
    const bool needed = !wanted.contains(name) && host_.exchange.Needs(link, now);
    keeps_ |= needed;
    if (needed || wanted.contains(name)) {
      ++i;
      continue;
    }
    host_.exchange.RemoveLink(link);
    subjects_.erase(link);
    i = links_.erase(i);
  }
  for (const std::string& name : wanted) {
    if (links_.contains(name)) continue;
    const LinkId link = ++last_link_;
    subjects_[link] = NatsSubjectOf(options_.prefix, NatsSubject::kAsk, token_, NatsToken(name));
    links_[name] = link;
    host_.exchange.AddLink(link, "nats:" + name, now, name);
  }
}

void NatsCarrier::Hear(std::string_view verb) {
  client_->Hear(NatsSubjectOf(options_.prefix, verb, "*", token_));
}

// ---- Frames ----

void NatsCarrier::Send(const std::string& subject, const Frame& frame) {
  if (!client_->Send(subject, frame)) ++refused_;
}

void NatsCarrier::Ask(LinkId link, const Frame& frame) {
  if (const auto found = subjects_.find(link); found != subjects_.end()) Send(found->second, frame);
}

void NatsCarrier::Answer(const Route& route, const Frame& frame) {
  Send(NatsSubjectOf(options_.prefix, NatsSubject::kAnswer, token_, NatsToken(route)), frame);
}

bool NatsCarrier::Publish(const Route& route, const Frame& frame) {
  Answer(route, frame);
  return true;
}

void NatsCarrier::Wait(Instant until, int wake_fd) {
  const bool readable = !host_.listener.backlogged() && !client_->empty();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Now(), Duration(0)));
  pollfd woken{wake_fd, POLLIN, 0};
  ::poll(&woken, 1, readable ? 0 : static_cast<int>(wait.count()));
}

void NatsCarrier::Read(Instant) {
  NatsClient::Message message;
  for (int i = 0; i < kMessagesPerTurn && !host_.listener.backlogged() && client_->Take(message); ++i) OnMessage(message);
}

void NatsCarrier::OnMessage(const NatsClient::Message& message) {
  const auto subject = ParseNatsSubject(options_.prefix, token_, message.subject);
  if (!subject || message.body.size() > kFrameBytesMax) return void(++host_.counts.malformed);
  if (subject->verb == NatsSubject::kAsk) return host_.listener.OnRequest(subject->from, subject->from, message.body);
  const auto link = links_.find(subject->from);
  if (link == links_.end()) return void(++host_.counts.malformed);    // it is no owner
  host_.listener.OnAnswer(link->second, message.body);
}

// ---- How the connection is doing ----

// A connection that is new may have missed anything, so every owner hears a hello.
Instant NatsCarrier::Tick(Instant now) {
  if (host_.exchange.owners() != owners_) Reconcile(now);
  const NatsStatus status = client_->Status();
  if (status.connects != told_.connects) {
    for (const auto& [link, subject] : subjects_) host_.exchange.OnConnected(link);
  }
  host_.counts.unsent = refused_ + status.unsent;
  host_.counts.nats_connects = status.connects;
  host_.counts.nats_errors = status.errors;
  host_.counts.nats_dropped = status.dropped;
  Tell(status, now);
  return Instant::max();
}

std::string NatsCarrier::Narrow(const NatsStatus& status) const {
  if (!status.connected || status.frame_bytes_max >= kFrameBytesMax) return "";
  return fmt::format("its max_payload is {}: frames are lost that are longer, and may have {} bytes", status.frame_bytes_max,
                     kFrameBytesMax);
}

void NatsCarrier::Tell(const NatsStatus& status, Instant now) {
  const auto say = [&](LogLevel level, std::string text) {
    if (host_.log) host_.log(level, std::move(text));
  };
  if (status.connects != told_.connects) troubled_ = Instant();
  const bool worse = status.errors != told_.errors || (told_.connected && !status.connected);
  if (worse && !status.trouble.empty()) troubled_ = now;
  if (status.connected && status.connects != told_.connects) {
    say(LogLevel::kNotice, "connected to " + status.server);
    if (const std::string narrow = Narrow(status); !narrow.empty()) say(LogLevel::kWarning, status.server + ": " + narrow);
  } else if (told_.connected && !status.connected) {
    say(LogLevel::kWarning, fmt::format("{} is lost: {}", told_.server, status.trouble));
  } else if (status.errors != told_.errors) {
    if (now - said_ < kSayEvery) return;    // and again when it is due
    said_ = now;
    say(LogLevel::kWarning, fmt::format("NATS: {}{}", status.trouble, status.connected ? "" : "; trying again"));
  }
  told_ = status;
}

void NatsCarrier::Watch(std::vector<PeerStatus>& peers, const ExchangeCounts&, Instant now) {
  if (keeps_) Reconcile(now);
  const bool troubled = troubled_ != Instant() && now - troubled_ < kShowFor;
  const std::string narrow = Narrow(told_);
  if (told_.connected && !troubled && narrow.empty()) return;
  PeerStatus server;
  server.address = told_.server.empty() ? options_.client.servers.front() : told_.server;
  server.state = told_.connected ? PeerState::kUp : PeerState::kConnecting;
  server.reason = told_.connected && !troubled ? narrow : told_.trouble;
  if (server.reason.empty()) server.reason = "no server has answered yet";
  server.last_heard = Duration(-1);
  peers.push_back(std::move(server));
}

}    // namespace dthrottle
