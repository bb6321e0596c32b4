#include "io/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <string>
#include <string_view>
#include <utility>

namespace dthrottle {
namespace {

// What a log is written to, and what reads it.
struct Ends {
  int log = -1, reader = -1;

  Ends() = default;
  Ends(const Ends&) = delete;
  ~Ends() {
    ::close(log);
    ::close(reader);
  }

  // Everything that is there.
  std::string Read() const {
    std::string all(1 << 20, '\0');
    std::size_t size = 0;
    for (pollfd readable{reader, POLLIN, 0}; ::poll(&readable, 1, 0) > 0;) {
      const ssize_t n = ::read(reader, &all[size], all.size() - size);
      if (n <= 0) break;
      size += static_cast<std::size_t>(n);
    }
    all.resize(size);
    std::erase(all, '\r');    // a terminal adds them
    return all;
  }
};

void MakePipe(Ends& ends) {
  int both[2];
  REQUIRE(::pipe(both) == 0);
  ends.reader = both[0], ends.log = both[1];
}

void MakeSocket(Ends& ends) {
  int both[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
  ends.reader = both[0], ends.log = both[1];
}

void MakeTerminal(Ends& ends) {
  ends.reader = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE((ends.reader >= 0 && ::grantpt(ends.reader) == 0 && ::unlockpt(ends.reader) == 0));
  ends.log = ::open(::ptsname(ends.reader), O_RDWR | O_NOCTTY);
  REQUIRE(ends.log >= 0);
}

constexpr std::size_t kLineBytes = 700;

std::size_t Count(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("a log whose reader stalls holds nobody up, and loses whole lines, which it counts and says") {
  void (*const make)(Ends&) = GENERATE(&MakePipe, &MakeSocket, &MakeTerminal);
  Ends ends;
  make(ends);
  Log log(ends.log);
  const std::string line(kLineBytes, 'x');
  std::size_t said = 0;
  for (; log.suppressed() < 10 && said < 100'000; ++said) log.Say(LogLevel::kInfo, line);
  REQUIRE(log.suppressed() == 10);
  std::string read = ends.Read();
  log.Say(LogLevel::kInfo, "at last");
  read += ends.Read();
  CHECK(Count(read, line + "\n") == said - 10);
  CHECK(Count(read, "\n") == said - 10 + 1);
  CHECK(read.ends_with("info: at last (10 lines before this one are lost)\n"));
  log.Say(LogLevel::kInfo, "and on");
  CHECK(ends.Read().ends_with("info: and on\n"));
  CHECK(log.suppressed() == 10);
}

TEST_CASE("a log that cannot be written is no reason to stop") {
  ::signal(SIGPIPE, SIG_IGN);    // as the daemon does
  Ends ends;
  MakePipe(ends);
  ::close(std::exchange(ends.reader, -1));
  for (const int fd : {ends.log, -1}) {
    Log log(fd);
    log.Say(LogLevel::kInfo, "to nobody");
    CHECK(log.suppressed() == 1);
  }
}

}    // namespace
}    // namespace dthrottle
