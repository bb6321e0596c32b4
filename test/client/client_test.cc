// libdthrottle against servers that do what no daemon should: the answers stay right, and a call never takes longer
// than its deadline. How much longer a busy machine lets it take is not ours to promise, hence kSlack.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/dthrottle.h"
#include "client/endpoint.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kPatienceMs = 120'000;      // for what has to succeed
constexpr milliseconds kSlack{20'000};    // a deadline missed by more is not the scheduler's doing
constexpr int kShortMs = 30;

// A listening socket in a directory of its own.
class Listener {
 public:
  explicit Listener(int backlog = 100) {
    char name[] = "/tmp/dthrottle-client-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory_ = name;
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path().c_str());
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(fd_, backlog) == 0);
  }
  ~Listener() {
    close(fd_);
    unlink(path().c_str());
    rmdir(directory_.c_str());
  }
  Listener(const Listener&) = delete;

  int fd() const { return fd_; }
  std::string path() const { return directory_ + "/s"; }
  std::string address() const { return "unix:" + path(); }

 private:
  std::string directory_;
  int fd_;
};

// Accepts, and gives every connection to a thread of its own, with its number from 0.
class Server : public Listener {
 public:
  using Script = std::function<void(Server&, int fd, int number)>;

  explicit Server(Script script) : script_(std::move(script)), thread_([this] { Accept(); }) {}
  ~Server() {
    ending_ = true;
    shutdown(fd(), SHUT_RDWR);
    thread_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int connection : open_) shutdown(connection, SHUT_RDWR);
    }
    for (std::thread& worker : workers_) worker.join();
  }

  bool ending() const { return ending_; }
  int connections() const { return connections_; }

  std::string heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

  // The next line, with its LF; empty at the end of the stream.
  std::string ReadLine(int fd) {
    std::string line;
    char c = 0;
    while (c != '\n') {
      if (read(fd, &c, 1) != 1) return "";
      line += c;
    }
    const std::lock_guard lock(mutex_);
    heard_ += line;
    return line;
  }

  static void Say(int fd, std::string_view text) {
    // The other end may have left.
    [[maybe_unused]] const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  }

 private:
  void Accept() {
    for (;;) {
      const int fd = accept4(this->fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const int number = connections_++;
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      workers_.emplace_back([this, fd, number] {
        script_(*this, fd, number);
        const std::lock_guard end(mutex_);
        std::erase(open_, fd);
        close(fd);
      });
    }
  }

  Script script_;
  std::atomic<bool> ending_ = false;
  std::atomic<int> connections_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;
  std::string heard_;
  std::vector<std::thread> workers_;
  std::thread thread_;
};

// Refuses tags that begin with n.
std::string_view Answer(const std::string& line) {
  return line.starts_with("n") ? "NO\n" : "OK\n";
}

void Honest(Server& server, int fd, int) {
  for (std::string line; !(line = server.ReadLine(fd)).empty();) Server::Say(fd, Answer(line));
}

void Hang(Server& server, int fd, int) {
  while (!server.ReadLine(fd).empty()) {
  }
}

dthrottle_options Pauses(unsigned min_ms, unsigned max_ms) {
  dthrottle_options options{};
  options.backoff_min_ms = min_ms;
  options.backoff_max_ms = max_ms;
  return options;
}

dthrottle_options Connections(unsigned most) {
  dthrottle_options options{};
  options.connections_max = most;
  return options;
}

// Refuses the second tag of a question that names one that begins with n, and serves all others.
std::string_view AnswerQuestion(const std::string& line) {
  return line.find(" n") != line.npos ? "NO limit 20 3 rule no\n" : "OK 7 -\n";
}

void HonestAsk(Server& server, int fd, int) {
  for (std::string line; !(line = server.ReadLine(fd)).empty();) Server::Say(fd, AnswerQuestion(line));
}

class Handle {
 public:
  using Opener = dthrottle* (*)(const char*, const dthrottle_options*);

  explicit Handle(const std::string& address, dthrottle_options options = {}, Opener open = dthrottle_open)
      : handle_(open(address.c_str(), &options)) {
    REQUIRE(handle_ != nullptr);
  }
  ~Handle() { dthrottle_close(handle_); }
  Handle(const Handle&) = delete;

  dthrottle* get() const { return handle_; }

  dthrottle_verdict Ask(const std::string& tag, int deadline_ms = kPatienceMs) const {
    return dthrottle_ask(handle_, tag.data(), tag.size(), deadline_ms);
  }

  // Asks until it is not backing off.
  dthrottle_verdict AskInTheEnd(const std::string& tag, int deadline_ms = kPatienceMs) const {
    for (;;) {
      const dthrottle_verdict verdict = Ask(tag, deadline_ms);
      if (verdict != DTHROTTLE_BACKING_OFF) return verdict;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

 private:
  dthrottle* handle_;
};

// A handle that asks about two tags.
class AskHandle : public Handle {
 public:
  explicit AskHandle(const std::string& address, dthrottle_options options = {})
      : Handle(address, options, dthrottle_open_ask) {}

  dthrottle_verdict AskBoth(const std::string& tag, dthrottle_answer* answer = nullptr,
                            int deadline_ms = kPatienceMs) const {
    const dthrottle_tag tags[] = {{"user", 4, 2, 0}, {tag.data(), tag.size(), 1, 0}};
    return AskTags(tags, 2, answer, deadline_ms);
  }

  dthrottle_verdict AskTags(const dthrottle_tag* tags, std::size_t count, dthrottle_answer* answer = nullptr,
                            int deadline_ms = kPatienceMs) const {
    dthrottle_question question{};
    question.tags = tags;
    question.count = count;
    return dthrottle_ask_question(get(), &question, answer, deadline_ms);
  }
};

// Something that one thread waits for and another lets come, once.
class Moment {
 public:
  void Come() { come_.set_value(); }
  void Await() { come_.get_future().wait_for(milliseconds(kPatienceMs)); }    // no CHECK: it is of any thread

 private:
  std::promise<void> come_;
};

class Stopwatch {
 public:
  milliseconds elapsed() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - begin_); }

 private:
  Clock::time_point begin_ = Clock::now();
};

// Opens connections until the backlog takes no more.
std::vector<int> FillBacklog(const sockaddr* address, socklen_t bytes) {
  std::vector<int> fds;
  for (int i = 0; i < 100; ++i) {
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    fds.push_back(fd);
    if (connect(fd, address, bytes) == 0) continue;
    if (errno == EAGAIN) return fds;
    pollfd p{fd, POLLOUT, 0};
    if (errno == EINPROGRESS && poll(&p, 1, 200) == 0) return fds;
  }
  FAIL("the backlog has no end");
  return fds;
}

}    // namespace

TEST_CASE("the daemon's answer is the verdict, on one connection") {
  Server server(Honest);
  const Handle handle(server.address());
  CHECK(dthrottle_connect(handle.get(), kPatienceMs) == DTHROTTLE_SERVE);
  for (int i = 0; i < 100; ++i) {
    CHECK(handle.Ask("yes") == DTHROTTLE_SERVE);
    CHECK(handle.Ask("no") == DTHROTTLE_THROTTLE);
  }
  CHECK(handle.Ask("") == DTHROTTLE_SERVE);
  CHECK(handle.Ask("n" + std::string(100'000, 'x')) == DTHROTTLE_THROTTLE);
  CHECK(server.connections() == 1);
}

TEST_CASE("a batch has its verdicts in order, however large") {
  Server server(Honest);
  const Handle handle(server.address());
  std::vector<std::string> text;
  for (int i = 0; i < 50'000; ++i) text.push_back((i % 3 == 0 ? "n" : "y") + std::to_string(i));
  std::vector<const char*> tags;
  std::vector<size_t> bytes;
  for (const std::string& tag : text) {
    tags.push_back(tag.c_str());
    bytes.push_back(tag.size());
  }
  std::vector<dthrottle_verdict> verdicts(tags.size(), DTHROTTLE_BACKING_OFF);
  for (const size_t* lengths : {static_cast<const size_t*>(bytes.data()), static_cast<const size_t*>(nullptr)}) {
    REQUIRE(dthrottle_ask_batch(handle.get(), tags.data(), lengths, tags.size(), verdicts.data(), kPatienceMs) ==
            tags.size());
    size_t wrong = 0;
    for (size_t i = 0; i < tags.size(); ++i) {
      wrong += verdicts[i] != (i % 3 == 0 ? DTHROTTLE_THROTTLE : DTHROTTLE_SERVE);
    }
    CHECK(wrong == 0);
  }
  CHECK(dthrottle_ask_batch(handle.get(), tags.data(), nullptr, 0, verdicts.data(), kPatienceMs) == 0);
}

TEST_CASE("whatever is in a tag, it is one line") {
  Server server(Honest);
  const Handle handle(server.address());
  CHECK(handle.Ask("a\nno\r\n") == DTHROTTLE_SERVE);
  CHECK(handle.Ask("cr\r") == DTHROTTLE_SERVE);
  CHECK(handle.Ask(std::string("\r\0\xff", 3)) == DTHROTTLE_SERVE);
  CHECK(server.heard() == std::string("a_no\r_\ncr_\n\r\0\xff\n", 15));
}

TEST_CASE("without a daemon one call fails and the next ones do not even try") {
  const Handle handle("unix:/nonexistent/dthrottle", Pauses(60'000, 60'000));
  CHECK(handle.Ask("C") == DTHROTTLE_UNREACHABLE);
  const Stopwatch stopwatch;
  for (int i = 0; i < 10'000; ++i) REQUIRE(handle.Ask("C") == DTHROTTLE_BACKING_OFF);
  CHECK(stopwatch.elapsed() < kSlack);
}

TEST_CASE("a daemon that hangs costs the deadline, and then nothing") {
  Listener nobody_accepts;
  Server nobody_answers(Hang);
  for (const std::string& address : {nobody_accepts.address(), nobody_answers.address()}) {
    const Handle handle(address, Pauses(60'000, 60'000));
    const Stopwatch stopwatch;
    CHECK(handle.Ask("C", kShortMs) == DTHROTTLE_TIMED_OUT);
    CHECK(stopwatch.elapsed() >= milliseconds(kShortMs));
    CHECK(handle.Ask("C") == DTHROTTLE_BACKING_OFF);
    CHECK(stopwatch.elapsed() < kSlack);
  }
}

TEST_CASE("without time there is no query, and no failure either") {
  Server server(Honest);
  const Handle handle(server.address());
  for (const int deadline : {0, -1, -2'000'000'000}) CHECK(handle.Ask("C", deadline) == DTHROTTLE_TIMED_OUT);
  CHECK(handle.Ask("C") == DTHROTTLE_SERVE);
  CHECK(server.heard() == "C\n");
}

TEST_CASE("a full backlog is a failure at once, or at the deadline") {
  SECTION("unix") {
    Listener listener(0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, listener.path().c_str());
    const std::vector<int> fds = FillBacklog(reinterpret_cast<sockaddr*>(&address), sizeof address);
    const Stopwatch stopwatch;
    CHECK(Handle(listener.address()).Ask("C", 60'000) == DTHROTTLE_UNREACHABLE);
    CHECK(stopwatch.elapsed() < kSlack);
    for (const int fd : fds) close(fd);
  }
  SECTION("tcp") {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(listen(listener, 0) == 0);
    REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    const std::vector<int> fds = FillBacklog(reinterpret_cast<sockaddr*>(&address), sizeof address);
    const Handle handle("tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
    const Stopwatch stopwatch;
    CHECK(handle.Ask("C", kShortMs) == DTHROTTLE_TIMED_OUT);
    CHECK(stopwatch.elapsed() < kSlack);
    for (const int fd : fds) close(fd);
    close(listener);
  }
}

TEST_CASE("the deadline is for the whole batch, not for each byte of it") {
  Server server([](Server& s, int fd, int) {
    while (!s.ReadLine(fd).empty() && !s.ending()) {
      for (const char* byte : {"N", "O", "\n"}) {
        std::this_thread::sleep_for(milliseconds(3));
        Server::Say(fd, byte);
      }
    }
  });
  const Handle handle(server.address());
  const std::vector<const char*> tags(100'000, "C");
  std::vector<dthrottle_verdict> verdicts(tags.size());
  const Stopwatch stopwatch;
  constexpr milliseconds kDeadline(2000);    // of which the server is given some to begin in
  const size_t answered =
      dthrottle_ask_batch(handle.get(), tags.data(), nullptr, tags.size(), verdicts.data(), kDeadline.count());
  CHECK(stopwatch.elapsed() >= kDeadline);
  CHECK(stopwatch.elapsed() < kDeadline + kSlack);
  CHECK(answered > 0);
  CHECK(answered <= static_cast<size_t>(stopwatch.elapsed() / milliseconds(9)));
  for (size_t i = 0; i < tags.size(); i += i < 500 ? 1 : 1000)
    CHECK(verdicts[i] == (i < answered ? DTHROTTLE_THROTTLE : DTHROTTLE_TIMED_OUT));
}

TEST_CASE("an answer that is there is heard, however late its thread looks") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  dthrottle_talk talk{};
  talk.output = [](void*, size_t* bytes) -> const char* {
    *bytes = 0;
    return nullptr;
  };
  talk.hear = [](void* heard, const char* data, size_t bytes) {
    static_cast<std::string*>(heard)->append(data, bytes);
    return DTHROTTLE_SERVE;
  };
  std::string heard;
  const int64_t long_ago = dthrottle_now_ns() - 1'000'000'000;
  CHECK(dthrottle_talk_on(ends[0], &talk, &heard, long_ago) == DTHROTTLE_TIMED_OUT);
  Server::Say(ends[1], "NO\n");
  CHECK(dthrottle_talk_on(ends[0], &talk, &heard, long_ago) == DTHROTTLE_SERVE);
  CHECK(heard == "NO\n");
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("an answer that is late is not the answer to the next query") {
  Moment too_late, said;
  Server server([&](Server& s, int fd, int number) {
    if (number > 0) return Honest(s, fd, number);
    s.ReadLine(fd);
    too_late.Await();
    Server::Say(fd, "NO\nNO\n");
    said.Come();
  });
  const Handle handle(server.address(), Pauses(1, 1));
  CHECK(handle.Ask("no", kShortMs) == DTHROTTLE_TIMED_OUT);
  too_late.Come();
  said.Await();
  CHECK(handle.AskInTheEnd("yes") == DTHROTTLE_SERVE);
  CHECK(server.connections() == 2);
}

TEST_CASE("a connection that has ended meanwhile is replaced without a word") {
  SECTION("before the query") {
    Server server([](Server& s, int fd, int) { Server::Say(fd, Answer(s.ReadLine(fd))); });
    const Handle handle(server.address());
    for (int i = 0; i < 20; ++i) CHECK(handle.Ask("no") == DTHROTTLE_THROTTLE);
    CHECK(server.connections() == 20);
  }
  SECTION("with the query") {
    Server server([](Server& s, int fd, int) {
      Server::Say(fd, Answer(s.ReadLine(fd)));
      s.ReadLine(fd);
    });
    const Handle handle(server.address());
    for (int i = 0; i < 20; ++i) CHECK(handle.Ask("no") == DTHROTTLE_THROTTLE);
    CHECK(server.connections() == 20);
  }
}

TEST_CASE("a fresh connection that ends is a failure, and is tried once") {
  Server server([](Server& s, int fd, int) { s.ReadLine(fd); });
  const Handle handle(server.address());
  CHECK(handle.Ask("C") == DTHROTTLE_UNREACHABLE);
  CHECK(server.connections() == 1);
}

TEST_CASE("what is no answer is not taken for one") {
  for (const char* said : {"HTTP/1.1 400 Bad Request\r\n\r\n", "OK NO", "OK\nNO\n", "NOOK\n"}) {
    Server server([said](Server& s, int fd, int) {
      s.ReadLine(fd);
      Server::Say(fd, said);
      s.ReadLine(fd);
    });
    CHECK(Handle(server.address()).Ask("C") == DTHROTTLE_BAD_ANSWER);
  }
}

TEST_CASE("what a daemon says unasked spoils the connection, not the next verdict") {
  Moment answered, said;
  Server server([&](Server& s, int fd, int number) {
    if (number > 0) return Honest(s, fd, number);
    s.ReadLine(fd);
    Server::Say(fd, "OK\n");
    answered.Await();
    Server::Say(fd, "NO\n");
    said.Come();
    s.ReadLine(fd);
  });
  const Handle handle(server.address());
  CHECK(handle.Ask("yes") == DTHROTTLE_SERVE);
  answered.Come();
  said.Await();
  CHECK(handle.Ask("yes") == DTHROTTLE_SERVE);
}

TEST_CASE("pauses double up to the longest") {
  Server server([](Server& s, int fd, int) { s.ReadLine(fd); });
  const Handle handle(server.address(), Pauses(20, 160));
  struct Try {
    Clock::time_point begin, end;
  };
  std::vector<Try> tried;
  while (tried.size() < 7) {
    const auto begin = Clock::now();
    const dthrottle_verdict verdict = handle.Ask("C");
    if (verdict == DTHROTTLE_UNREACHABLE) {
      tried.push_back({begin, Clock::now()});
    } else {
      REQUIRE(verdict == DTHROTTLE_BACKING_OFF);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  for (const size_t i : {1, 2, 3, 4, 5, 6}) {
    const auto least = milliseconds(std::min(20 << (i - 1), 160)) * 3 / 4;    // less the part that is left to chance
    INFO("pause " << i);
    CHECK(tried[i].end - tried[i - 1].begin >= least);
  }
  CHECK(tried[6].end - tried[0].begin < 6 * milliseconds(160) + kSlack);
}

TEST_CASE("after a pause one asks, and the others do not wait for him") {
  Server server(Hang);
  const Handle handle(server.address(), Pauses(20, 60'000));
  REQUIRE(handle.Ask("C", 1) == DTHROTTLE_TIMED_OUT);
  std::this_thread::sleep_for(milliseconds(25));
  std::atomic<int> timed_out = 0, backing_off = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const dthrottle_verdict verdict = handle.Ask("C", 5000);    // in which all threads have begun
      timed_out += verdict == DTHROTTLE_TIMED_OUT;
      backing_off += verdict == DTHROTTLE_BACKING_OFF;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(timed_out == 1);
  CHECK(backing_off == 7);
}

TEST_CASE("calls that fail together are one failure") {
  Server server(Hang);
  const Handle handle(server.address(), Pauses(1, 3'600'000));
  std::vector<std::thread> threads;
  std::atomic<int> timed_out = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] { timed_out += handle.Ask("C", 3000) == DTHROTTLE_TIMED_OUT; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(timed_out > 1);
  // Were each of them counted, the pause would be 2^15 ms by now.
  const Stopwatch stopwatch;
  CHECK(handle.AskInTheEnd("C", 1) == DTHROTTLE_TIMED_OUT);
  CHECK(stopwatch.elapsed() < kSlack);
}

TEST_CASE("when all connections are taken, a call waits for one until its deadline") {
  Moment waited;
  Server server([&](Server& s, int fd, int) {
    for (std::string line; !(line = s.ReadLine(fd)).empty();) {
      if (line == "slow\n") waited.Await();
      Server::Say(fd, "OK\n");
    }
  });
  const Handle handle(server.address(), Connections(1));
  REQUIRE(handle.Ask("C") == DTHROTTLE_SERVE);
  std::thread slow([&] { handle.Ask("slow"); });
  while (server.heard() != "C\nslow\n") std::this_thread::sleep_for(milliseconds(1));
  const Stopwatch stopwatch;
  CHECK(handle.Ask("C", kShortMs) == DTHROTTLE_TIMED_OUT);
  CHECK(stopwatch.elapsed() >= milliseconds(kShortMs));
  waited.Come();
  CHECK(handle.Ask("C") == DTHROTTLE_SERVE);    // and it was no failure
  slow.join();
  CHECK(server.connections() == 1);
}

TEST_CASE("threads share a handle and each gets its own answers") {
  Server server(Honest);
  const Handle handle(server.address(), Connections(3));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const bool refused = (i * 7 + t) % 3 == 0;
        const std::string tag = (refused ? "n" : "y") + std::to_string(t) + "-" + std::to_string(i);
        wrong += handle.Ask(tag) != (refused ? DTHROTTLE_THROTTLE : DTHROTTLE_SERVE);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(server.connections() <= 3);
}

TEST_CASE("a child asks on connections of its own, and the parent keeps his") {
  Server server(Honest);
  const Handle handle(server.address());
  REQUIRE(handle.Ask("yes") == DTHROTTLE_SERVE);
  const pid_t child = fork();
  if (child == 0) {
    const bool good = handle.Ask("no") == DTHROTTLE_THROTTLE && handle.Ask("yes") == DTHROTTLE_SERVE;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(handle.Ask("no") == DTHROTTLE_THROTTLE);
  CHECK(server.connections() == 2);
}

TEST_CASE("a signal does not cut a call short") {
  struct sigaction interrupt {};
  struct sigaction before {};
  interrupt.sa_handler = [](int) {};    // and no SA_RESTART
  sigaction(SIGALRM, &interrupt, &before);
  Server server([](Server& s, int fd, int) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    while (!s.ReadLine(fd).empty()) {
      std::this_thread::sleep_for(milliseconds(10));
      Server::Say(fd, "NO\n");
    }
  });
  const Handle handle(server.address());
  REQUIRE(handle.Ask("C") == DTHROTTLE_THROTTLE);
  const itimerval often{{0, 500}, {0, 500}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  int wrong = 0;
  for (int i = 0; i < 10; ++i) wrong += handle.Ask("C") != DTHROTTLE_THROTTLE;
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  CHECK(wrong == 0);
}

TEST_CASE("a question about several tags has one verdict, and its answer says what the daemon said") {
  Server server(HonestAsk);
  const AskHandle handle(server.address());
  REQUIRE(dthrottle_connect(handle.get(), kPatienceMs) == DTHROTTLE_SERVE);
  dthrottle_answer answer{};
  CHECK(handle.AskBoth("yes", &answer) == DTHROTTLE_SERVE);
  CHECK(answer.left[0] == 7);
  CHECK(answer.left[1] == DTHROTTLE_UNLIMITED);
  CHECK(handle.AskBoth("no", &answer) == DTHROTTLE_THROTTLE);
  CHECK(answer.reason == DTHROTTLE_REASON_LIMIT);
  CHECK(answer.refused == 1);
  CHECK(answer.wait_ms == 20);
  CHECK(answer.left[1] == 3);
  CHECK(answer.rule == std::string("rule"));
  CHECK(handle.AskBoth("no") == DTHROTTLE_THROTTLE);
  CHECK(server.heard() == "take 2 user 1 yes\ntake 2 user 1 no\ntake 2 user 1 no\n");
  CHECK(server.connections() == 1);
}

TEST_CASE("a call that sleeps returns when it is time to go on, and gives back a slot that is too late") {
  Server server([](Server& s, int fd, int) {
    for (std::string line; !(line = s.ReadLine(fd)).empty();) {
      if (line.find(" late") != line.npos) Server::Say(fd, "WAIT 3600000 af 0\n");
      else if (line.starts_with("release")) Server::Say(fd, "OK released\n");
      else Server::Say(fd, "WAIT 20.5 ae 0\n");
    }
  });
  const AskHandle handle(server.address());
  const auto ask = [&](const char* tag, unsigned wait_ms, unsigned sleeps, dthrottle_answer& answer) {
    const dthrottle_tag named{tag, std::strlen(tag), 1, 0};
    dthrottle_question question{};
    question.tags = &named;
    question.count = 1;
    question.wait_ms = wait_ms;
    question.sleeps = sleeps;
    return dthrottle_ask_question(handle.get(), &question, &answer, kPatienceMs);
  };
  dthrottle_answer answer{};
  const auto begin = std::chrono::steady_clock::now();
  CHECK(ask("soon", 50, 1, answer) == DTHROTTLE_SERVE);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::microseconds(20500));
  CHECK(answer.delay_us == 20500);

  CHECK(ask("late", 0, 1, answer) == DTHROTTLE_THROTTLE);
  CHECK(answer.reason == DTHROTTLE_REASON_LIMIT);
  CHECK(answer.wait_ms == 3600000);
  CHECK(answer.hold == 0);

  CHECK(ask("late", 50, 0, answer) == DTHROTTLE_SERVE);
  CHECK(answer.delay_us == 3'600'000'000);
  CHECK(answer.hold == 0xaf);
  CHECK(dthrottle_release(handle.get(), answer.hold, kPatienceMs) == DTHROTTLE_SERVE);
  CHECK(server.heard() == "take wait=50 keep 1 soon\ntake wait=" + std::to_string(kPatienceMs) +
                              " keep 1 late\nrelease af\ntake wait=50 keep 1 late\nrelease af\n");
}

TEST_CASE("a line of eight thousand bytes goes out, and its tag comes back") {
  Server server([](Server& s, int fd, int) {
    const std::string line = s.ReadLine(fd);
    Server::Say(fd, "NO never - 0 rule " + line.substr(line.rfind(' ') + 1));
  });
  const std::string longest(9000, 'x');
  const dthrottle_tag tags[] = {{"a", 1, 1, 0}, {longest.data(), longest.size(), 1, 0}};
  dthrottle_answer answer{};
  CHECK(AskHandle(server.address()).AskTags(tags, 2, &answer) == DTHROTTLE_THROTTLE);
  CHECK(answer.reason == DTHROTTLE_REASON_NEVER);
  CHECK(answer.refused == 1);
}

TEST_CASE("questions fail open as tags do, and say nothing then") {
  dthrottle_answer answer{};
  answer.wait_ms = 1;
  SECTION("nobody there") {
    const AskHandle handle("unix:/nowhere/ask.sock");
    CHECK(handle.AskBoth("no", &answer) == DTHROTTLE_UNREACHABLE);
    CHECK(handle.AskBoth("no", &answer) == DTHROTTLE_BACKING_OFF);
  }
  SECTION("a daemon that hangs") {
    Server server(Hang);
    CHECK(AskHandle(server.address()).AskBoth("no", &answer, kShortMs) == DTHROTTLE_TIMED_OUT);
  }
  SECTION("the socket for tags") {
    Server server(Honest);
    CHECK(AskHandle(server.address()).AskBoth("no", &answer) == DTHROTTLE_BAD_ANSWER);
  }
  SECTION("half an answer") {
    Server server([](Server& s, int fd, int) {
      s.ReadLine(fd);
      Server::Say(fd, "NO limit 20 3 ");
    });
    CHECK(AskHandle(server.address()).AskBoth("no", &answer) == DTHROTTLE_UNREACHABLE);
  }
  CHECK(answer.wait_ms == 0);
}

TEST_CASE("what is no question says so at once, and is no failure") {
  Server server(HonestAsk);
  const AskHandle handle(server.address());
  const std::vector<dthrottle_tag> tags(17, dthrottle_tag{"a", 1, 1, 0});
  CHECK(handle.AskTags(tags.data(), 0) == DTHROTTLE_BAD_QUESTION);
  CHECK(handle.AskTags(tags.data(), 17) == DTHROTTLE_BAD_QUESTION);
  CHECK(handle.Ask("a") == DTHROTTLE_BAD_QUESTION);
  const char* const batch[] = {"a", "b"};
  dthrottle_verdict verdicts[2];
  CHECK(dthrottle_ask_batch(handle.get(), batch, nullptr, 2, verdicts, kPatienceMs) == 0);
  CHECK(verdicts[1] == DTHROTTLE_BAD_QUESTION);
  CHECK(server.connections() == 0);
  CHECK(handle.AskBoth("no") == DTHROTTLE_THROTTLE);

  Server other(Honest);
  const Handle of_tags(other.address());
  dthrottle_question question{};
  question.tags = tags.data();
  question.count = 1;
  CHECK(dthrottle_ask_question(of_tags.get(), &question, nullptr, kPatienceMs) == DTHROTTLE_BAD_QUESTION);
  CHECK(other.connections() == 0);
}

TEST_CASE("a daemon that does not know a question is asked the next one") {
  Server server([](Server& s, int fd, int) {
    for (std::string line; !(line = s.ReadLine(fd)).empty();) {
      Server::Say(fd, line.find(" odd") != line.npos ? "ERR what\n" : AnswerQuestion(line));
    }
  });
  const AskHandle handle(server.address());
  CHECK(handle.AskBoth("odd") == DTHROTTLE_BAD_QUESTION);
  CHECK(handle.AskBoth("no") == DTHROTTLE_THROTTLE);
  CHECK(server.connections() == 1);
}

TEST_CASE("threads and a child share a handle for questions as they share one for tags") {
  Server server(HonestAsk);
  const AskHandle handle(server.address(), Connections(3));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const bool refused = (i + t) % 3 == 0;
        dthrottle_answer answer{};
        const dthrottle_verdict verdict = handle.AskBoth(refused ? "no" : "yes", &answer);
        wrong += verdict != (refused ? DTHROTTLE_THROTTLE : DTHROTTLE_SERVE) || answer.refused != (refused ? 1 : 0) ||
                 answer.left[0] != (refused ? 0 : 7);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  const pid_t child = fork();
  if (child == 0) _exit(handle.AskBoth("no") == DTHROTTLE_THROTTLE ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(handle.AskBoth("yes") == DTHROTTLE_SERVE);
  CHECK(server.connections() <= 4);
}

TEST_CASE("an address that cannot be one is refused when the handle is opened") {
  const std::string long_path = "unix:/" + std::string(200, 'x');
  for (const char* address : {"", "unix:", "/run/s", "http://x", "tcp:", "tcp:localhost:7311", "tcp:127.0.0.1",
                              "tcp:127.0.0.1:", "tcp:127.0.0.1:0", "tcp:127.0.0.1:65536", "tcp:127.0.0.1:1x",
                              "tcp:[::1:7311", "tcp:[::1]7311", "tcp:[::1]", "tcp:1.2.3:4", long_path.c_str()}) {
    INFO(address);
    errno = 0;
    CHECK(dthrottle_open(address, nullptr) == nullptr);
    CHECK(dthrottle_open_ask(address, nullptr) == nullptr);
    CHECK(errno == (address == long_path ? ENAMETOOLONG : EINVAL));
  }
  for (const char* address : {"unix:s", "tcp:127.0.0.1:7311", "tcp:[::1]:65535"}) Handle{address};
  const dthrottle_options options = Connections(1025);
  CHECK(dthrottle_open(nullptr, &options) == nullptr);
  dthrottle_close(nullptr);
}

TEST_CASE("every verdict has a name") {
  CHECK(std::string(dthrottle_verdict_name(DTHROTTLE_SERVE)) == "serve");
  CHECK(std::string(dthrottle_verdict_name(DTHROTTLE_BACKING_OFF)) == "backing off");
  CHECK(std::string(dthrottle_verdict_name(DTHROTTLE_BAD_QUESTION)) == "bad question");
  CHECK(std::string(dthrottle_verdict_name(static_cast<dthrottle_verdict>(7))) == "unknown");
}
