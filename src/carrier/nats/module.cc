// dthrottle-nats.so: a NatsClient by libnats, which is known here alone.
//
// One thread connects and publishes, so that whatever libnats waits for is waited for here. libnats delivers what comes
// from a thread of its own. It connects anew by itself, to any of its servers; where it gives up, because a server has
// turned it away twice, this thread begins anew with the servers of the settings.
#include <nats/nats.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "carrier/nats/client.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr std::int64_t kConnectMs = 2000, kReconnectMs = 100, kJitterMs = 200, kJitterTlsMs = 500;
constexpr std::int64_t kPingMs = 3000, kWriteMs = 2000, kFlushMs = 200;
constexpr int kPingsOut = 2;
// While there is no server next to nothing is kept: frames are numbered, and sent again from the ring where they matter.
constexpr int kReconnectBytes = 32 << 10;
constexpr int kPendingMessages = 65'536, kPendingBytes = 32 << 20;    // in libnats, until this module takes them
constexpr milliseconds kAgainMin(250), kAgainMax(5000);                // between attempts that are turned away
constexpr std::chrono::seconds kHearAgain(10);
constexpr steady_clock::time_point kNever = steady_clock::time_point::max();
constexpr milliseconds kEnd(400);                                      // for the thread, when it is to end

struct Destroy {
  void operator()(natsOptions* o) const { natsOptions_Destroy(o); }
  void operator()(natsConnection* c) const { natsConnection_Destroy(c); }
  void operator()(natsSubscription* s) const { natsSubscription_Destroy(s); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;

// What the thread, libnats's threads and the daemon's share.
struct Shared {
  explicit Shared(NatsOptions o) : options(std::move(o)) {}

  const NatsOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false, over = false;    // to end; has ended
  natsConnection* current = nullptr;      // what others than it say is over
  bool closed = false;                    // libnats has given it up
  std::deque<std::pair<std::string, std::shared_ptr<const std::string>>> out;
  std::size_t out_bytes = 0;
  std::vector<std::string> subjects;    // to be heard; only more are added
  std::size_t heard = 0;                // of these, subscribed to on the present connection
  steady_clock::time_point hear_again = kNever;    // where the server refuses one: it may be allowed later
  std::deque<NatsClient::Message> in;
  std::size_t in_bytes = 0;
  NatsStatus status;

  // REQUIRES: mutex is held. What is stopping wakes nobody: the daemon's side is gone soon.
  void Wake() {
    if (!stopping && options.wake) options.wake();
  }
  void Tell(std::string trouble) {
    ++status.errors;
    status.trouble = std::move(trouble);
    Wake();
  }
  void LoseOut() {
    status.unsent += out.size();
    out.clear();
    out_bytes = 0;
  }
};

// ---- Called by libnats, in its threads ----

void OnMessage(natsConnection*, natsSubscription*, natsMsg* message, void* closure) {
  Shared& s = *static_cast<Shared*>(closure);
  NatsClient::Message read{natsMsg_GetSubject(message),
                           {natsMsg_GetData(message), static_cast<std::size_t>(natsMsg_GetDataLength(message))}};
  natsMsg_Destroy(message);
  const std::lock_guard lock(s.mutex);
  if (s.in_bytes + read.body.size() > s.options.receive_bytes) return void(++s.status.dropped);
  s.in_bytes += read.body.size();
  s.in.push_back(std::move(read));
  if (s.in.size() == 1) s.Wake();
}

void OnError(natsConnection* connection, natsSubscription*, natsStatus error, void* closure) {
  Shared& s = *static_cast<Shared*>(closure);
  const char* text = nullptr;
  if (error != NATS_SLOW_CONSUMER) natsConnection_GetLastError(connection, &text);
  const std::lock_guard lock(s.mutex);
  s.Tell(text != nullptr && *text != '\0' ? text : natsStatus_GetText(error));
  if (error != NATS_NOT_PERMITTED || s.status.trouble.find("Subscription") == std::string::npos) return;
  s.hear_again = steady_clock::now() + kHearAgain;
  s.changed.notify_one();
}

void OnDisconnected(natsConnection* connection, void* closure) {
  Shared& s = *static_cast<Shared*>(closure);
  const char* text = nullptr;
  natsConnection_GetLastError(connection, &text);
  const std::lock_guard lock(s.mutex);
  if (connection != s.current) return;
  s.status.connected = false;
  s.status.trouble = text != nullptr && *text != '\0' ? text : "the connection ended";
  s.LoseOut();
  s.Wake();
}

// REQUIRES: the mutex is held.
void SetConnected(Shared& s, natsConnection* connection) {
  char url[256] = "";
  if (natsConnection_GetConnectedUrl(connection, url, sizeof url) != NATS_OK) return;    // it is gone again
  s.status.connected = true;
  s.status.server = url;
  s.status.frame_bytes_max = static_cast<std::size_t>(std::max<std::int64_t>(natsConnection_GetMaxPayload(connection), 0));
  s.status.trouble.clear();    // it was of what came before
  ++s.status.connects;
  s.Wake();
}

void OnReconnected(natsConnection* connection, void* closure) {
  Shared& s = *static_cast<Shared*>(closure);
  const std::lock_guard lock(s.mutex);
  if (connection == s.current) SetConnected(s, connection);
}

void OnClosed(natsConnection* connection, void* closure) {
  Shared& s = *static_cast<Shared*>(closure);
  const std::lock_guard lock(s.mutex);
  if (connection != s.current) return;
  s.status.connected = false;
  s.closed = true;
  s.changed.notify_all();
  s.Wake();
}

natsStatus Sign(char** why, unsigned char** signature, int* length, const char* nonce, void* closure) {
  const natsStatus signed_now = nats_Sign(static_cast<Shared*>(closure)->options.seed.c_str(), nonce, signature, length);
  if (signed_now != NATS_OK) *why = ::strdup("the nkey seed cannot sign");
  return signed_now;
}

// ---- Connecting ----

// The first thing that goes wrong stays.
class Setting {
 public:
  void operator()(natsStatus status) {
    if (first_ == NATS_OK) first_ = status;
  }
  natsStatus first() const { return first_; }

 private:
  natsStatus first_ = NATS_OK;
};

natsStatus SetProofs(natsOptions* options, Shared& s) {
  const NatsOptions& o = s.options;
  Setting set;
  if (!o.user.empty()) set(natsOptions_SetUserInfo(options, o.user.c_str(), o.password.c_str()));
  if (!o.nkey.empty()) set(natsOptions_SetNKey(options, o.nkey.c_str(), Sign, &s));
  if (!o.jwt_file.empty()) set(natsOptions_SetUserCredentialsFromFiles(options, o.jwt_file.c_str(), nullptr));
  if (!o.tls) return set.first();
  set(natsOptions_SetSecure(options, true));
  set(natsOptions_LoadCATrustedCertificates(options, o.ca_file.c_str()));
  if (!o.certificate_file.empty()) {
    set(natsOptions_LoadCertificatesChain(options, o.certificate_file.c_str(), o.key_file.c_str()));
  }
  return set.first();
}

natsStatus SetOptions(natsOptions* options, Shared& s) {
  std::vector<const char*> servers;
  for (const std::string& server : s.options.servers) servers.push_back(server.c_str());
  Setting set;
  set(natsOptions_SetServers(options, servers.data(), static_cast<int>(servers.size())));
  set(natsOptions_SetName(options, s.options.name.c_str()));
  set(natsOptions_SetTimeout(options, kConnectMs));
  set(natsOptions_SetMaxReconnect(options, -1));
  set(natsOptions_SetReconnectWait(options, kReconnectMs));
  set(natsOptions_SetReconnectJitter(options, kJitterMs, kJitterTlsMs));
  set(natsOptions_SetReconnectBufSize(options, kReconnectBytes));
  set(natsOptions_SetPingInterval(options, kPingMs));
  set(natsOptions_SetMaxPingsOut(options, kPingsOut));
  set(natsOptions_SetWriteDeadline(options, kWriteMs));
  set(natsOptions_SetNoEcho(options, true));
  set(natsOptions_UseGlobalMessageDelivery(options, true));    // one thread for all subscriptions
  set(natsOptions_SetErrorHandler(options, OnError, &s));
  set(natsOptions_SetDisconnectedCB(options, OnDisconnected, &s));
  set(natsOptions_SetReconnectedCB(options, OnReconnected, &s));
  set(natsOptions_SetClosedCB(options, OnClosed, &s));
  return set.first() != NATS_OK ? set.first() : SetProofs(options, s);
}

struct Connection {
  std::vector<Owned<natsSubscription>> subscriptions;
  natsConnection* connection = nullptr;

  ~Connection() {
    subscriptions.clear();
    if (connection != nullptr) natsConnection_Destroy(connection);
  }

  // Subscribes to what is to be heard and is not yet.
  natsStatus Hear(Shared& s) {
    std::vector<std::string> subjects;
    {
      const std::lock_guard lock(s.mutex);
      subjects = s.subjects;
      s.heard = subjects.size();
    }
    while (subscriptions.size() < subjects.size()) {
      const char* const subject = subjects[subscriptions.size()].c_str();
      natsSubscription* subscription = nullptr;
      natsStatus status = natsConnection_Subscribe(&subscription, connection, subject, OnMessage, &s);
      subscriptions.emplace_back(subscription);
      if (status == NATS_OK) status = natsSubscription_SetPendingLimits(subscription, kPendingMessages, kPendingBytes);
      if (status != NATS_OK) return status;
    }
    return NATS_OK;
  }

  natsStatus Open(Shared& s) {
    natsOptions* made = nullptr;
    if (const natsStatus status = natsOptions_Create(&made); status != NATS_OK) return status;
    const Owned<natsOptions> options(made);
    if (const natsStatus status = SetOptions(made, s); status != NATS_OK) return status;
    if (const natsStatus status = natsConnection_Connect(&connection, made); status != NATS_OK) return status;
    if (const natsStatus status = Hear(s); status != NATS_OK) return status;
    const std::lock_guard lock(s.mutex);
    s.current = connection;
    s.closed = natsConnection_IsClosed(connection);
    SetConnected(s, connection);
    return NATS_OK;
  }
};

// ---- The thread ----

natsStatus PublishOne(natsConnection* connection, const std::string& subject, const std::string& body) {
  // While libnats connects anew it would keep frames, and send them when they are stale.
  if (natsConnection_Status(connection) != NATS_CONN_STATUS_CONNECTED) return NATS_CONNECTION_DISCONNECTED;
  return natsConnection_Publish(connection, subject.c_str(), body.data(), static_cast<int>(body.size()));
}

// Publishes what waits, and subscribes, until libnats gives up or all is to end; then true.
bool Publish(Shared& s, Connection& with) {
  natsConnection* const connection = with.connection;
  std::unique_lock lock(s.mutex);
  for (;;) {
    const auto woken = [&] { return s.stopping || s.closed || !s.out.empty() || s.heard < s.subjects.size(); };
    while (!woken() && steady_clock::now() < s.hear_again) s.changed.wait_until(lock, s.hear_again);
    const bool again = steady_clock::now() >= s.hear_again;
    if (again) {
      s.hear_again = kNever;
      s.heard = 0;
    }
    const auto batch = std::exchange(s.out, {});
    s.out_bytes = 0;
    const bool stopping = s.stopping, closed = s.closed, hears = s.heard < s.subjects.size();
    lock.unlock();
    if (again) with.subscriptions.clear();
    if (hears && with.Hear(s) != NATS_OK) return false;    // and connects anew
    std::uint64_t unsent = 0;
    for (const auto& [subject, body] : batch) unsent += PublishOne(connection, subject, *body) != NATS_OK;
    if (stopping && natsConnection_Status(connection) == NATS_CONN_STATUS_CONNECTED) {
      natsConnection_FlushTimeout(connection, kFlushMs);
    }
    if (stopping || closed) return stopping;
    lock.lock();
    s.status.unsent += unsent;
  }
}

void Run(const std::shared_ptr<Shared>& shared) {
  Shared& s = *shared;
  std::minstd_rand chance(std::random_device{}());
  milliseconds patience = kAgainMin;
  for (;;) {
    Connection connection;
    const natsStatus status = connection.Open(s);
    if (status == NATS_OK) {
      patience = kAgainMin;
      if (Publish(s, connection)) return;
    }
    const char* const text = status != NATS_OK ? nats_GetLastError(nullptr) : nullptr;
    std::unique_lock lock(s.mutex);
    if (status != NATS_OK) s.Tell(text != nullptr && *text != '\0' ? text : natsStatus_GetText(status));
    const auto wait = patience + patience * (chance() % 100) / 100;
    if (s.changed.wait_for(lock, wait, [&] { return s.stopping; })) return;
    patience = std::min(2 * patience, kAgainMax);
  }
}

class Client final : public NatsClient {
 public:
  explicit Client(NatsOptions options) : shared_(std::make_shared<Shared>(std::move(options))) {
    // libnats may call back for a moment after a connection has ended, so nothing that it was given is freed.
    static auto& kept = *new std::vector<std::shared_ptr<Shared>>;
    kept.push_back(shared_);
    std::thread([shared = shared_] {
      Run(shared);
      nats_ReleaseThreadMemory();
      const std::lock_guard lock(shared->mutex);
      shared->over = true;
      shared->changed.notify_all();
    }).detach();
  }

  // A thread that waits for a name or a handshake is left to itself, with what it uses.
  ~Client() override {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, kEnd, [&] { return shared_->over; });
    shared_->in.clear();
    shared_->LoseOut();
  }

  bool Send(const std::string& subject, std::shared_ptr<const std::string> body) override {
    Shared& s = *shared_;
    const std::lock_guard lock(s.mutex);
    if (!s.status.connected || s.out_bytes + body->size() > s.options.send_bytes) return false;
    s.out_bytes += body->size();
    s.out.emplace_back(subject, std::move(body));
    if (s.out.size() == 1) s.changed.notify_all();
    return true;
  }

  bool Take(Message& message) override {
    Shared& s = *shared_;
    const std::lock_guard lock(s.mutex);
    if (s.in.empty()) return false;
    message = std::move(s.in.front());
    s.in.pop_front();
    s.in_bytes -= message.body.size();
    return true;
  }

  bool empty() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->in.empty();
  }

  void Hear(std::string subject) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->subjects.push_back(std::move(subject));
    shared_->changed.notify_all();
  }

  NatsStatus Status() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->status;
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

std::unique_ptr<NatsClient> Make(NatsOptions options) {
  // A thread that is left to itself may be in OpenSSL when the process ends, so nothing is taken from under it then.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  return std::make_unique<Client>(std::move(options));
}

}    // namespace

}    // namespace dthrottle

extern "C" __attribute__((visibility("default"))) const dthrottle::NatsModule dthrottle_nats_module = {
    DTHROTTLE_VERSION, dthrottle::Make};
