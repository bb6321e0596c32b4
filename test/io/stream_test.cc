// What the engine of connections is made of.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/idle_ticks.h"
#include "io/outgoing.h"
#include "io/stream.h"
#include "io/stream_server.h"
#include "io/turn_arena.h"

namespace dthrottle {
namespace {

// One end of a socket is a stream of the loop, and the other is read by hand.
struct Ends {
  Ends() {
    ::signal(SIGPIPE, SIG_IGN);    // as the daemon does
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    REQUIRE(OpenStream(&loop, fds[0], here));
    here.handle.data = this;
    there = fds[1];
  }
  ~Ends() {
    if (there >= 0) ::close(there);
    uv_close(&here.handle, nullptr);
    while (uv_run(&loop, UV_RUN_NOWAIT) != 0) continue;
    uv_loop_close(&loop);
  }

  std::string Read() {
    std::string bytes(1 << 16, '\0');
    const ssize_t n = ::recv(there, bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
  }
  // Reads until nothing waits any more.
  std::string ReadAll() {
    std::string all;
    while (sent == 0) {
      all += Read();
      uv_run(&loop, UV_RUN_NOWAIT);
    }
    for (std::string more = Read(); !more.empty(); more = Read()) all += more;
    return all;
  }

  uv_loop_t loop;
  const int made = uv_loop_init(&loop);
  StreamHandle here;
  int there = -1;
  int sent = 0, status = 0;    // times that OnSent was called, and with what last
  Outgoing outgoing{&here.stream, [](uv_stream_t* stream, int said) {
                      Owner<Ends>(stream)->sent++;
                      Owner<Ends>(stream)->status = said;
                    }};
};

const std::string kMuch(4 << 20, 'm');    // more than the socket has room for

TEST_CASE("bytes that the socket has room for are sent at once") {
  Ends ends;
  REQUIRE(ends.outgoing.Send("OK\n"));
  CHECK(!ends.outgoing.waits());
  CHECK(ends.outgoing.Unsent().empty());
  CHECK(ends.Read() == "OK\n");
  CHECK(ends.sent == 0);
}

TEST_CASE("what the socket has no room for waits, and leaves in order when there is room") {
  Ends ends;
  REQUIRE(ends.outgoing.Send(kMuch));
  REQUIRE(ends.outgoing.waits());
  REQUIRE(ends.outgoing.Send("last"));
  CHECK((ends.ReadAll() == kMuch + "last"));
  CHECK(!ends.outgoing.waits());
  CHECK(ends.sent == 1);
  CHECK(ends.status == 0);
}

TEST_CASE("what waits can be handed over, without what has left") {
  Ends ends;
  REQUIRE(ends.outgoing.Send(kMuch));
  REQUIRE(ends.outgoing.Send("last"));
  const std::string unsent = ends.outgoing.Unsent();
  std::string left;
  for (std::string more = ends.Read(); !more.empty(); more = ends.Read()) left += more;
  CHECK(left.size() > 0);
  CHECK((left + unsent == kMuch + "last"));
}

TEST_CASE("a stream that breaks while bytes wait says so once") {
  Ends ends;
  REQUIRE(ends.outgoing.Send(kMuch));
  ::close(ends.there);
  ends.there = -1;
  while (ends.sent == 0) uv_run(&ends.loop, UV_RUN_ONCE);
  CHECK(ends.status < 0);
  CHECK(!ends.outgoing.Send("more"));
}

TEST_CASE("what has been silent for a timeout is idle, also where another process has counted some of it") {
  uv_loop_t loop;
  REQUIRE(uv_loop_init(&loop) == 0);
  int ticks = 0;
  IdleTicks idle(&loop, [&] { ++ticks; });
  idle.SetTimeout(std::chrono::milliseconds(16));
  const IdleTicks::Mark mark = idle.now(), old = idle.Before(std::chrono::milliseconds(8));
  CHECK(idle.Silence(old) == std::chrono::milliseconds(8));
  uv_run(&loop, UV_RUN_NOWAIT);
  CHECK(ticks == 0);    // there is no connection
  idle.Run(true);
  for (; !idle.IsIdle(mark); uv_run(&loop, UV_RUN_ONCE)) CHECK(idle.IsIdle(old) == (ticks > 4));
  CHECK(ticks == 9);
  idle.Close();
  uv_run(&loop, UV_RUN_NOWAIT);
  CHECK(uv_loop_close(&loop) == 0);
}

TEST_CASE("bytes of a turn stay in place behind one another, and a full arena has no room for a whole read") {
  TurnArena arena({1 << 14, 16});
  arena.Open();
  char* const first = arena.Put("abc");
  CHECK(std::string(first - 3, 3) == "abc");
  arena.Keep(3 + (1 << 14));
  CHECK(arena.Put("") == first + (1 << 14));
  CHECK(std::string(first - 3, 3) == "abc");
  int reads = 1;
  for (; !arena.full(); ++reads) arena.Keep(1 << 14);
  CHECK(reads == 4);
  arena.Clear();
  CHECK(arena.empty());
  CHECK(arena.Put("abc") == first);
}

// Answers each line with itself, and knows how much a turn has brought.
class Echo final : public StreamServer {
 public:
  static constexpr std::size_t kReadBytes = 16 * 1024;
  explicit Echo(uv_loop_t* loop) : StreamServer(loop, {kReadBytes, 64}, Duration::zero()) {}

  std::size_t heard = 0;    // bytes since somebody set it to 0

 private:
  std::unique_ptr<Connection> MakeConnection() override { return std::make_unique<Line>(); }
  Then OnBytes(Connection& connection, std::string_view bytes) override {
    auto& line = static_cast<Line&>(connection);
    heard += bytes.size();
    const std::size_t end = bytes.rfind('\n') + 1;
    line.Keep(bytes.substr(end));
    answers_.emplace_back(&connection, bytes.substr(0, end));
    return Then::kRead;
  }
  void Answer() override {
    for (const auto& [connection, answer] : std::exchange(answers_, {})) Write(*connection, answer);
  }

  struct Line : Connection {
    void Keep(std::string_view rest) { unread_ = rest; }
  };
  std::vector<std::pair<Connection*, std::string_view>> answers_;
};

TEST_CASE("connections that send without end divide a turn, and one that asks once waits for two") {
  ::signal(SIGPIPE, SIG_IGN);
  uv_loop_t loop;
  REQUIRE(uv_loop_init(&loop) == 0);
  {
    Echo server(&loop);
    std::vector<int> there;
    for (int i = 0; i < 31; ++i) {
      int fds[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
      server.Take(fds[0]);
      there.push_back(fds[1]);
    }
    std::string flood;
    while (flood.size() < 4096) flood += "many questions\n";
    const auto pour = [&] {    // as much as all but the last take, and their answers away
      std::string away(1 << 16, '\0');
      for (std::size_t i = 0; i + 1 < there.size(); ++i) {
        while (::send(there[i], flood.data(), flood.size(), 0) == static_cast<ssize_t>(flood.size())) continue;
        while (::recv(there[i], away.data(), away.size(), 0) > 0) continue;
      }
    };
    const auto turn = [&] {
      server.heard = 0;
      pour();
      uv_run(&loop, UV_RUN_NOWAIT);
      return server.heard;
    };
    CHECK(turn() <= 30 * (Echo::kReadBytes + 64));    // nobody has divided yet
    for (int i = 0; i < 5; ++i) {
      const std::size_t heard = turn();
      CHECK(heard > 32 * 1024);
      CHECK(heard <= 64 * 1024 + 30 * 64);
    }
    REQUIRE(::send(there.back(), "one\n", 4, 0) == 4);
    turn(), turn();
    char answer[8];
    CHECK(::recv(there.back(), answer, sizeof answer, 0) == 4);
    for (const int fd : there) ::close(fd);
    bool drained = false;
    server.Drain([&] { drained = true; });
    for (int i = 0; !drained && i < 10'000; ++i) uv_run(&loop, UV_RUN_ONCE);
    CHECK(drained);
    server.Close();
    while (uv_run(&loop, UV_RUN_NOWAIT) != 0) continue;
  }
  CHECK(uv_loop_close(&loop) == 0);
}

}    // namespace
}    // namespace dthrottle
