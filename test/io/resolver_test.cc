#include "io/resolver.h"

#include <poll.h>

#include <atomic>
#include <map>

#include "test/io/net.h"

namespace dthrottle {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FreePort;

// The least that can be called a name server: A and SRV records from a map, anything else does not exist.
class NameServer {
 public:
  struct Service {
    std::uint16_t port;
    std::string target;
  };
  enum class Mood { kAnswers, kFails, kSilent };

  NameServer() : port(FreePort()), fd_(testing::Listen(port, SOCK_DGRAM)) {
    REQUIRE(fd_ >= 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~NameServer() {
    stop_ = true;
    thread_.join();
    ::close(fd_);
  }

  void Set(const std::string& name, std::vector<std::string> addresses) {
    const std::lock_guard lock(mutex_);
    addresses_[name] = std::move(addresses);
  }
  void SetService(const std::string& name, std::vector<Service> services) {
    const std::lock_guard lock(mutex_);
    services_[name] = std::move(services);
  }

  const std::uint16_t port;
  std::atomic<Mood> mood{Mood::kAnswers};
  std::atomic<int> asked{0};

 private:
  static std::string U16(unsigned n) { return {static_cast<char>(n >> 8), static_cast<char>(n)}; }
  static std::string Labels(const std::string& name) {
    std::string out;
    for (std::size_t at = 0; at < name.size();) {
      const std::size_t end = std::min(name.find('.', at), name.size());
      out += static_cast<char>(end - at) + name.substr(at, end - at);
      at = end + 1;
    }
    return out + '\0';
  }

  void Run() {
    while (!stop_) {
      pollfd one{fd_, POLLIN, 0};
      if (::poll(&one, 1, 20) <= 0) continue;
      char bytes[512];
      sockaddr_in from{};
      socklen_t size = sizeof from;
      const ssize_t n = ::recvfrom(fd_, bytes, sizeof bytes, 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (n < 17) continue;
      ++asked;
      if (mood == Mood::kSilent) continue;
      std::string name;
      std::size_t at = 12;
      while (at < static_cast<std::size_t>(n) && bytes[at] != 0) {
        const auto length = static_cast<std::size_t>(bytes[at]);
        name += (name.empty() ? "" : ".") + std::string(bytes + at + 1, length);
        at += length + 1;
      }
      const std::string question(bytes + 12, at + 5 - 12);
      const int type = bytes[at + 2];
      std::vector<std::string> records;
      bool exists = false;
      {
        const std::lock_guard lock(mutex_);
        exists = addresses_.count(name) + services_.count(name) > 0;
        if (type == 1) {
          for (const auto& address : addresses_[name]) {
            in_addr raw;
            inet_pton(AF_INET, address.c_str(), &raw);
            records.push_back(std::string(reinterpret_cast<char*>(&raw), 4));
          }
        } else if (type == 33) {
          for (const auto& service : services_[name]) {
            records.push_back(U16(0) + U16(1) + U16(service.port) + Labels(service.target));
          }
        }
      }
      const int code = mood == Mood::kFails ? 2 : exists ? 0 : 3;
      if (code != 0) records.clear();
      std::string reply(bytes, 2);
      reply += static_cast<char>(0x84);
      reply += static_cast<char>(code);
      reply += U16(1) + U16(static_cast<unsigned>(records.size())) + U16(0) + U16(0) + question;
      for (const auto& record : records) {
        reply += U16(0xc00c) + U16(static_cast<unsigned>(type)) + U16(1) + U16(0) + U16(1) +
                 U16(static_cast<unsigned>(record.size())) + record;
      }
      ::sendto(fd_, reply.data(), reply.size(), 0, reinterpret_cast<sockaddr*>(&from), size);
    }
  }

  const int fd_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> addresses_;
  std::map<std::string, std::vector<Service>> services_;
  std::thread thread_;
};

Resolver Make(const NameServer& server, Duration every = milliseconds(50)) {
  return Resolver({every, fmt::format("127.0.0.1:{}", server.port)}, Prng(1));
}

// Runs it until `done`, and says whether that came.
bool Until(Resolver& resolver, const std::function<bool()>& done, Duration limit = seconds(60)) {
  const Instant from = Now();
  while (!done()) {
    if (Now() - from > limit) return false;
    resolver.Tick(Now());
    auto polled = resolver.Descriptors();
    ::poll(polled.data(), polled.size(), 5);
    resolver.Process(polled, Now());
  }
  return true;
}

std::vector<std::string> Texts(const Resolver& resolver) {
  std::vector<std::string> texts;
  for (const auto& a : resolver.Addresses()) texts.push_back(fmt::format("{}:{}", a.endpoint.host, a.endpoint.port));
  std::sort(texts.begin(), texts.end());
  return texts;
}

using List = std::vector<std::string>;

TEST_CASE("entries of connect are addresses, names or services, and may name a key") {
  const auto numeric = ParsePeerEntry("tcp://[fe80::1]:7314#web2");
  REQUIRE(numeric);
  CHECK(numeric->kind == PeerEntry::Kind::kNumeric);
  CHECK(numeric->host == "fe80::1");
  CHECK(numeric->port == 7314);
  CHECK(numeric->key_name == "web2");
  CHECK(ParsePeerEntry("tcp://web2.example:7314")->kind == PeerEntry::Kind::kName);
  CHECK(ParsePeerEntry("srv://_dthrottle._tcp.example")->kind == PeerEntry::Kind::kService);
  for (const char* wrong : {"", "10.0.0.1:7314", "tcp://10.0.0.1", "tcp://10.0.0.1:", "tcp://10.0.0.1:65536",
                            "tcp://a:0", "tcp://:1", "tcp://fe80::1:1", "tcp://a b:1", "srv://example", "tcp://a:1#",
                            "tcp://a:1#b/c", "epgm://239.0.0.1:1", "tcp://a:99999", "tcp://1.2.3.4;5:1"}) {
    CAPTURE(wrong);
    CHECK_FALSE(ParsePeerEntry(wrong));
  }
}

TEST_CASE("a name becomes its addresses, a number itself, a service its targets") {
  NameServer server;
  server.Set("web.example", {"127.0.0.2", "127.0.0.3"});
  server.Set("web9.example", {"127.0.0.9"});
  server.SetService("_dt._tcp.example", {{7000, "web.example"}, {7001, "web9.example"}});
  Resolver resolver = Make(server);
  resolver.SetEntries({"tcp://127.0.0.1:7314", "tcp://web.example:7314#web"}, Now());
  CHECK(Texts(resolver) == List{"127.0.0.1:7314"});
  CHECK(Until(resolver, [&] { return Texts(resolver).size() == 3; }));
  CHECK(Texts(resolver) == List{"127.0.0.1:7314", "127.0.0.2:7314", "127.0.0.3:7314"});
  CHECK(resolver.Addresses().back().key_name == "web");
  CHECK(resolver.Failures().empty());
  resolver.SetEntries({"srv://_dt._tcp.example"}, Now());
  CHECK(Texts(resolver).empty());
  CHECK(Until(resolver, [&] { return Texts(resolver).size() == 3; }));
  CHECK(Texts(resolver) == List{"127.0.0.2:7000", "127.0.0.3:7000", "127.0.0.9:7001"});
}

TEST_CASE("a lookup that fails keeps the last good answer and says so") {
  NameServer server;
  server.Set("web.example", {"127.0.0.2"});
  Resolver resolver = Make(server);
  resolver.SetEntries({"tcp://web.example:7314"}, Now());
  REQUIRE(Until(resolver, [&] { return !Texts(resolver).empty(); }));
  for (const auto mood : {NameServer::Mood::kFails, NameServer::Mood::kSilent}) {
    server.mood = mood;
    REQUIRE(Until(resolver, [&] { return !resolver.Failures().empty(); }));
    CHECK(resolver.Failures()[0].entry == "tcp://web.example:7314");
    CHECK_FALSE(resolver.Failures()[0].nothing_known);
    CHECK(Texts(resolver) == List{"127.0.0.2:7314"});
    server.mood = NameServer::Mood::kAnswers;
    REQUIRE(Until(resolver, [&] { return resolver.Failures().empty(); }));
  }
  CHECK(resolver.counts().failed >= 2);
}

TEST_CASE("a name that was never found is a failure with nothing known, and is asked for again") {
  NameServer server;
  Resolver resolver = Make(server);
  resolver.SetEntries({"tcp://web.example:7314", "nonsense"}, Now());
  REQUIRE(Until(resolver, [&] { return resolver.Failures().size() == 2; }));
  CHECK(resolver.Failures()[0].nothing_known);
  server.Set("web.example", {"127.0.0.2"});
  CHECK(Until(resolver, [&] { return !Texts(resolver).empty(); }));
  CHECK(resolver.Failures().size() == 1);
}

TEST_CASE("an address goes when three answers in a row are without it") {
  NameServer server;
  server.Set("web.example", {"127.0.0.2", "127.0.0.3"});
  Resolver resolver = Make(server);
  resolver.SetEntries({"tcp://web.example:7314"}, Now());
  REQUIRE(Until(resolver, [&] { return Texts(resolver).size() == 2; }));
  const auto before = resolver.counts().lookups;
  server.Set("web.example", {"127.0.0.3", "127.0.0.4"});
  REQUIRE(Until(resolver, [&] { return Texts(resolver).size() == 3; }));
  REQUIRE(Until(resolver, [&] { return Texts(resolver).size() == 2; }));
  CHECK(resolver.counts().lookups >= before + 3);
  CHECK(Texts(resolver) == List{"127.0.0.3:7314", "127.0.0.4:7314"});
}

TEST_CASE("a resolver can go while it waits for answers, and entries too") {
  NameServer server;
  server.mood = NameServer::Mood::kSilent;
  Resolver resolver = Make(server);
  resolver.SetEntries({"tcp://a.example:1", "srv://_b._tcp.example", "tcp://c.example:1"}, Now());
  REQUIRE(Until(resolver, [&] { return server.asked > 0; }));
  resolver.SetEntries({"tcp://c.example:1"}, Now());
  resolver.Tick(Now());
}

}    // namespace
}    // namespace dthrottle
