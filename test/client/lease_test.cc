// Lease clients against lease servers that the test plays: what they ask for, what they use, and what they do when
// nobody answers. The real servers are in test/system/test_lease.py.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/answers.h"
#include "client/dthrottle_lease.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 60s;                                       // for what has to happen
constexpr dthrottle_leases_options kQuick{"tester", 5000, 50, {}};    // quick to try again, patient with an answer

template <class Condition>
bool Eventually(Condition condition) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end; std::this_thread::sleep_for(2ms)) {
    if (condition()) return true;
  }
  return false;
}

// Words of a line.
std::vector<std::string> Split(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// A place for a server's socket.
class Place {
 public:
  Place() {
    char name[] = "/tmp/dthrottle-lease-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory_ = name;
  }
  ~Place() {
    unlink(path().c_str());
    rmdir(directory_.c_str());
  }
  std::string path() const { return directory_ + "/s"; }
  std::string address() const { return "unix:" + path(); }

 private:
  std::string directory_;
};

// Serves one connection at a time, which is all that a client opens.
class Server {
 public:
  // The answer to a line, both without LF; nothing: hangs up.
  using Script = std::function<std::optional<std::string>(const std::string& line)>;

  Server(const Place& place, Script script) : place_(place), script_(std::move(script)) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, place.path().c_str());
    unlink(address.sun_path);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(fd_, 100) == 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Server() {
    ending_ = true;
    thread_.join();
    close(fd_);
    unlink(place_.path().c_str());
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::vector<std::string> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  bool Readable(int fd) {
    while (!ending_) {
      pollfd p{fd, POLLIN, 0};
      if (poll(&p, 1, 10) > 0) return true;
    }
    return false;
  }

  void Serve() {
    while (Readable(fd_)) {
      const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      std::string line;
      for (char c; Readable(fd) && read(fd, &c, 1) == 1;) {
        if (c != '\n') {
          line += c;
          continue;
        }
        {
          const std::lock_guard lock(mutex_);
          heard_.push_back(line);
        }
        const auto answer = script_(line);
        if (!answer) break;
        const std::string text = *answer + "\n";
        [[maybe_unused]] const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
        line.clear();
      }
      close(fd);
    }
  }

  const Place& place_;
  Script script_;
  int fd_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::vector<std::string> heard_;
  std::thread thread_;
};

Server::Script Always(std::string answer) {
  return [answer](const std::string&) { return answer; };
}

dthrottle_resource_options Wanting(double wants, dthrottle_lease_mode mode = DTHROTTLE_PESSIMISTIC) {
  dthrottle_resource_options options{};
  options.wants = wants;
  options.mode = mode;
  return options;
}

TEST_CASE("a lease line with a value out of bounds is no lease") {
  dthrottle_lease_line lease{};
  for (const char* good : {"25 60.000 16.000 5 1000", "0 0 1 -1 0", "1 86400 86400 -1 9223372036854775807",
                           "0 60 16 5 9223372036854775807 learning 41.500"}) {
    INFO(good);
    CHECK(dthrottle_read_lease(good, &lease));
  }
  CHECK(lease.token == INT64_MAX);
  CHECK(lease.learning_s == 41.5);
  for (const char* bad :
       {"25 60 16 5 -1", "25 60 16 5 +1", "25 60 16 5 9223372036854775808", "25 60 16 5 ", "25 60 16 5",
        "25 1000000000 16 5 7", "25 86401 16 5 7", "25 60 86401 5 7", "25 60 0 5 7", "-1 60 16 5 7",
        "25 60 16 9000000000000000 7", "25 60 16 5 7 8", "25 60 16 5 7x", "0 60 16 5 7 learning", "0 60 16 5 7 learning -1",
        "0 60 16 5 7 learning 86401", "0 60 16 5 7 learning 1 2", "0 60 16 5 7 learns 1", "1e3 60 16 5 7"}) {
    INFO(bad);
    CHECK_FALSE(dthrottle_read_lease(bad, &lease));
  }
}

TEST_CASE("a rate is taken from evenly, and never faster than it is leased") {
  const Place place;
  Server server(place, Always("lease 200 60.000 16.000 1 5"));
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::RateResource rate(leases, "r", Wanting(200));
  const auto begin = Clock::now();
  int taken = 0;
  const auto enough = [&] { return taken >= 20 && Clock::now() > begin + 500ms; };
  while (!enough() && Clock::now() < begin + kPatience)
    taken += rate.WaitFor(100ms);    // a busy machine takes its time
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CHECK(taken <= 200 * seconds + 200 * 0.1 + 1);
  CHECK(taken >= 20);
}

TEST_CASE("after a rest no more comes at once than is due in a tenth of a second") {
  const Place place;
  Server server(place, Always("lease 200 60.000 16.000 1 5"));
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::RateResource rate(leases, "r", Wanting(200));
  REQUIRE(Eventually([&] { return rate.Status().leased != 0; }));
  std::this_thread::sleep_for(500ms);
  const auto begin = Clock::now();
  int taken = 0;
  while (rate.Try()) ++taken;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CHECK(taken >= 20);
  CHECK(taken <= 21 + 200 * seconds);
}

TEST_CASE("a try does not wait, and a deadline holds") {
  const Place place;
  Server server(place, Always("lease 0.001 60.000 16.000 1 5"));
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::RateResource rate(leases, "r", Wanting(1));
  REQUIRE(Eventually([&] { return rate.Status().leased != 0; }));
  const auto begin = Clock::now();
  CHECK(!rate.Try());
  CHECK(!rate.WaitFor(30ms));
  CHECK(Clock::now() >= begin + 30ms);
  CHECK(Clock::now() < begin + kPatience);
}

TEST_CASE("a request tells what is held, by whom, under which token and for how long") {
  const Place place;
  Server server(place, Always("lease 12.5 60.000 0.100 3 77"));
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle_resource_options options = Wanting(40.25);
  options.priority = -3;
  dthrottle::RateResource rate(leases, "disk:1", options);
  REQUIRE(Eventually([&] { return server.heard().size() >= 2; }));
  const auto first = Split(server.heard()[0]), second = Split(server.heard()[1]);
  CHECK(first == std::vector<std::string>{"get", "tester", "disk:1", "40.250000", "0.000000", "-3", "0", "0.000"});
  REQUIRE(second.size() == 8);
  CHECK(second[4] == "12.500000");
  CHECK(second[6] == "77");
  CHECK((std::stod(second[7]) > 30 && std::stod(second[7]) < 60));
  const dthrottle_lease_status status = rate.Status();
  CHECK((status.leased && status.capacity == 12.5 && status.safe == 3 && status.token == 77 && status.wants == 40.25));
}

TEST_CASE("when the server is gone a lease lasts until its end, then the mode says what may be used; it recovers") {
  struct Case {
    dthrottle_lease_mode mode;
    double after;    // capacity
  };
  for (const Case c : {Case{DTHROTTLE_PESSIMISTIC, 0}, Case{DTHROTTLE_OPTIMISTIC, 300}, Case{DTHROTTLE_SAFE, 70}}) {
    CAPTURE(c.mode);
    const Place place;
    auto server = std::make_unique<Server>(place, Always("lease 100 1.500 0.050 70 5"));
    dthrottle::Leases leases(place.address(), kQuick);
    dthrottle::RateResource rate(leases, "r", Wanting(300, c.mode));
    REQUIRE(Eventually([&] { return rate.Status().leased != 0; }));
    server.reset();
    const dthrottle_lease_status held = rate.Status();
    if (held.leased != 0) CHECK(held.capacity == 100);    // a busy machine may be late
    REQUIRE(Eventually([&] { return rate.Status().leased == 0; }));
    CHECK(rate.Status().capacity == c.after);
    CHECK(rate.WaitFor(c.after > 0 ? 5000ms : 50ms) == (c.after > 0));
    REQUIRE(Eventually([&] { return rate.Status().trouble[0] != '\0'; }));
    server = std::make_unique<Server>(place, Always("lease 50 60.000 16.000 70 6"));
    REQUIRE(Eventually([&] { return rate.Status().leased != 0; }));
    CHECK(rate.Status().capacity == 50);
    CHECK(rate.Status().trouble[0] == '\0');
    CHECK(rate.WaitFor(5000ms));
  }
}

TEST_CASE("before any server has answered only an optimist begins") {
  const Place place;
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::RateResource pessimist(leases, "p", Wanting(100)), safe(leases, "s", Wanting(100, DTHROTTLE_SAFE)),
      optimist(leases, "o", Wanting(100, DTHROTTLE_OPTIMISTIC));
  CHECK(optimist.WaitFor(5000ms));
  CHECK(!pessimist.WaitFor(50ms));
  CHECK(!safe.WaitFor(50ms));
}

TEST_CASE("a lease counts from when it was asked for") {
  const Place place;
  Server server(place, [](const std::string&) {
    std::this_thread::sleep_for(300ms);
    return "lease 100 0.200 16.000 1 5";
  });
  dthrottle::Leases leases(place.address(), {"tester", 2000, 50, {}});
  dthrottle::RateResource rate(leases, "r", Wanting(100));
  REQUIRE(Eventually([&] { return rate.Status().token == 5; }));
  CHECK(rate.Status().leased == 0);
  CHECK(!rate.Try());
}

TEST_CASE("clients that are given no name have different ones, also where host, process and number are the same") {
  const Place place;
  Server server(place, Always("lease 10 60.000 30.000 1 5"));
  std::set<std::string> digits;
  for (int i = 0; i < 3; ++i) {
    dthrottle::Leases leases(place.address());
    dthrottle::RateResource rate(leases, "r", Wanting(10));
    const std::size_t before = server.heard().size();
    REQUIRE(Eventually([&] { return server.heard().size() > before; }));
    const std::string line = server.heard()[before];
    CAPTURE(line);
    std::smatch name;
    REQUIRE(std::regex_search(line, name, std::regex("^get [^ ]+:[0-9]+:[0-9]+:([0-9a-f]{8}) r ")));
    digits.insert(name[1]);
  }
  CHECK(digits.size() == 3);
}

TEST_CASE("a client goes where the master is, and finds the next one") {
  const Place a, b, c;
  std::mutex mutex;
  std::string master = b.address();
  Server first(a, [&](const std::string&) {
    const std::lock_guard lock(mutex);
    return "elsewhere " + master;
  });
  auto second = std::make_unique<Server>(b, Always("lease 10 60.000 0.050 1 5"));
  dthrottle::Leases leases(a.address(), kQuick);
  dthrottle::RateResource rate(leases, "r", Wanting(10));
  REQUIRE(Eventually([&] { return rate.Status().token == 5; }));
  const std::size_t asked = first.heard().size();
  REQUIRE(Eventually([&] { return second->heard().size() >= 4; }));
  CHECK(first.heard().size() <= asked + 1);    // it knows by now
  {
    const std::lock_guard lock(mutex);
    master = "-";
  }
  second.reset();
  REQUIRE(Eventually([&] { return std::string(rate.Status().trouble) == "no server knows who is master"; }));
  Server third(c, Always("lease 10 60.000 0.050 1 6"));
  {
    const std::lock_guard lock(mutex);
    master = c.address();
  }
  CHECK(Eventually([&] { return rate.Status().token == 6; }));
}

TEST_CASE("servers that send a client round in circles do not keep it busy") {
  const Place a, b;
  Server first(a, Always("elsewhere " + b.address())), second(b, Always("elsewhere " + a.address()));
  dthrottle::Leases leases(a.address(), {"tester", 500, 60'000, {}});
  dthrottle::RateResource rate(leases, "r", Wanting(10));
  REQUIRE(Eventually([&] { return rate.Status().trouble[0] != '\0'; }));
  std::this_thread::sleep_for(50ms);
  CHECK(first.heard().size() + second.heard().size() <= 8);
}

TEST_CASE("while a lease holds, an answer with a smaller token is from a master of the past") {
  const Place place;
  std::atomic<int> token = 9;
  Server server(place, [&](const std::string&) { return "lease 10 60.000 0.030 1 " + std::to_string(token); });
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::RateResource rate(leases, "r", Wanting(10));
  REQUIRE(Eventually([&] { return rate.Status().token == 9; }));
  token = 8;
  REQUIRE(Eventually([&] { return std::strstr(rate.Status().trouble, "master no more") != nullptr; }));
  CHECK(rate.Status().token == 9);
  token = 10;
  CHECK(Eventually([&] { return rate.Status().token == 10; }));
}

TEST_CASE("a resource that is opened twice is one, and is released with its last opening") {
  const Place place;
  Server server(place, [](const std::string& line) {
    return line.starts_with("release") ? "released" : "lease 10 60.000 16.000 1 5";
  });
  const auto releases = [&] {
    int count = 0;
    for (const std::string& line : server.heard()) count += line == "release tester r";
    return count;
  };
  dthrottle::Leases leases(place.address(), kQuick);
  {
    dthrottle::RateResource one(leases, "r", Wanting(10));
    {
      dthrottle::RateResource other(leases, "r", Wanting(99));
      REQUIRE(Eventually([&] { return other.Status().leased != 0; }));
      CHECK(other.Status().wants == 10);
      CHECK_THROWS_AS(dthrottle::GaugeResource(leases, "r"), std::system_error);
    }
    std::this_thread::sleep_for(50ms);
    CHECK(releases() == 0);
  }
  CHECK(Eventually([&] { return releases() == 1; }));
}

TEST_CASE("whoever ends releases what it holds") {
  const Place place;
  Server server(place, [](const std::string& line) {
    return line.starts_with("release") ? "released" : "lease 10 60.000 16.000 1 5";
  });
  {
    dthrottle::Leases leases(place.address(), kQuick);
    dthrottle::RateResource rate(leases, "r", Wanting(10));
    REQUIRE(Eventually([&] { return rate.Status().leased != 0; }));
  }
  CHECK(server.heard().back() == "release tester r");
}

TEST_CASE("a child after fork ends at once what it has from its parent, which keeps all") {
  const Place place;
  Server server(place, [](const std::string& line) {
    return line.starts_with("release") ? "released" : "lease 10 60.000 16.000 1 5";
  });
  auto leases = std::make_unique<dthrottle::Leases>(place.address(), kQuick);
  auto gauge = std::make_unique<dthrottle::GaugeResource>(*leases, "g", Wanting(10));
  gauge->Mark();
  const pid_t child = fork();
  if (child == 0) {    // destructors run, as when a program ends
    gauge->Release();
    gauge.reset();
    leases.reset();
    _exit(0);
  }
  int status = -1;
  const bool ended = Eventually([&] { return waitpid(child, &status, WNOHANG) == child; });
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  CHECK(ended);
  CHECK(status == 0);
  CHECK(gauge->Status().outstanding == 1);
  CHECK(server.heard().back().starts_with("get tester g "));
  gauge.reset();
  leases.reset();
  CHECK(server.heard().back() == "release tester g");
}

TEST_CASE("a gauge never has more places taken than are leased, and fewer when the lease shrinks") {
  const Place place;
  std::atomic<int> capacity = 5;
  Server server(place, [&](const std::string&) { return "lease " + std::to_string(capacity) + ".9 60.000 0.020 1 5"; });
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::GaugeResource gauge(leases, "g", Wanting(10));
  std::atomic<int> outstanding = 0, most = 0, marks = 0;
  std::atomic<bool> ending = false;
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, 8> turns{};
  for (std::atomic<int>& turn : turns) {
    threads.emplace_back([&] {
      for (; !ending; ++turn) {
        if (!gauge.MarkFor(20ms)) continue;
        const int now = ++outstanding;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        ++marks;
        std::this_thread::sleep_for(1ms);
        --outstanding;
        gauge.Release();
      }
    });
  }
  CHECK(Eventually([&] { return most == 5; }));
  CHECK(Eventually([&] { return marks > 200; }));
  CHECK(most == 5);
  capacity = 2;
  REQUIRE(Eventually([&] { return gauge.Status().capacity < 3; }));
  // Places that were taken before are given back when each thread has ended the turn that it was in.
  std::array<int, 8> then{};
  for (std::size_t i = 0; i < turns.size(); ++i) then[i] = turns[i];
  REQUIRE(Eventually([&] {
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (turns[i] == then[i]) return false;
    }
    return true;
  }));
  most = 0;
  const int before = marks;
  CHECK(Eventually([&] { return marks > before + 100; }));
  CHECK(most <= 2);
  ending = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(gauge.Status().outstanding == 0);
}

TEST_CASE("a gauge without an estimate asks for as many places as were wanted at once") {
  const Place place;
  Server server(place, [](const std::string& line) {
    return line.starts_with("get") ? "lease " + Split(line)[3] + " 60.000 0.030 1 5" : "released";    // all it wants
  });
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle::GaugeResource gauge(leases, "g");
  std::vector<std::unique_ptr<dthrottle::UnderGauge>> places;
  for (int i = 0; i < 7; ++i)
    places.push_back(std::make_unique<dthrottle::UnderGauge>(gauge));    // each waits for more
  CHECK(Eventually([&] { return gauge.Status().wants == 7; }));
  places.clear();
  CHECK(Eventually([&] { return gauge.Status().wants == 0; }));
}

TEST_CASE("who has to wait for a rate asks for more of it, and who does not use it for less") {
  const Place place;
  Server server(place, [](const std::string& line) {
    return line.starts_with("get") ? "lease " + Split(line)[3] + " 60.000 0.200 1 5" : "released";
  });
  dthrottle::Leases leases(place.address(), kQuick);
  dthrottle_resource_options options{};
  options.wants_max = 40;
  dthrottle::RateResource rate(leases, "r", options);
  std::atomic<bool> ending = false;
  std::thread user([&] {
    while (!ending) rate.WaitFor(1000ms);
  });
  CHECK(Eventually([&] { return rate.Status().wants == 40; }));
  ending = true;
  user.join();
  CHECK(Eventually([&] { return rate.Status().wants < 5; }));
}

TEST_CASE("answers that are none change nothing, and are said") {
  for (const char* answer : {"", "lease", "lease 1 2 3", "lease a b c d e", "lease -1 60 16 1 5", "lease 1 60 0 1 5",
                             "lease 1e3 60 16 1 5", "lease 1 60 16 1 5 6", "LEASE 1 60 16 1 5", "released",
                             "error no [[resource]] is for r", "lease 99999999999999999999 60 16 1 5", "OK"}) {
    CAPTURE(answer);
    const Place place;
    Server server(place, Always(answer));
    dthrottle::Leases leases(place.address(), {"tester", 200, 20, {}});
    dthrottle::RateResource rate(leases, "r", Wanting(10));
    REQUIRE(Eventually([&] { return rate.Status().trouble[0] != '\0'; }));
    CHECK(rate.Status().leased == 0);
    CHECK(!rate.Try());
  }
}

TEST_CASE("what cannot be opened says why") {
  dthrottle::Leases leases("unix:/nonexistent,tcp:127.0.0.1:1", kQuick);
  CHECK(dthrottle_rate_open(leases.get(), "a name", nullptr) == nullptr);
  CHECK(dthrottle_rate_open(leases.get(), "", nullptr) == nullptr);
  CHECK(dthrottle_rate_open(leases.get(), std::string(256, 'x').c_str(), nullptr) == nullptr);
  const dthrottle_resource_options negative = Wanting(-1);
  CHECK(dthrottle_rate_open(leases.get(), "r", &negative) == nullptr);
  for (const char* address : {"", "x", "unix:", "tcp:localhost:1", "tcp:127.0.0.1:0", "unix:/a,", "unix:/a,,unix:/b"}) {
    CAPTURE(address);
    CHECK(dthrottle_leases_open(address, nullptr) == nullptr);
  }
  const dthrottle_leases_options blank{"a b", 0, 0, {}};
  CHECK(dthrottle_leases_open(nullptr, &blank) == nullptr);
  dthrottle_resource_close(nullptr);
  dthrottle_leases_close(nullptr);
}

}    // namespace
