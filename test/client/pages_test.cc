// What libdthrottle refuses by a page, with a daemon that gives pages of the test's making, right ones and wrong ones.
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/worker_page.h"
#include "client/pages.h"

namespace {

constexpr std::uint32_t kEntries = 4;
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

// A socket for pages, and the page of the one worker that connects.
class Daemon {
 public:
  Daemon() {
    char name[] = "/tmp/dthrottle-pages-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory_ = name;
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (directory_ + "/q").c_str());
    sockaddr_un at = address;
    std::strcat(at.sun_path, DTHROTTLE_PAGE_SUFFIX);
    listening_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    REQUIRE(bind(listening_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(listen(listening_, 8) == 0);
    page_fd = File(dthrottle_page_bytes(kEntries));
    counts_fd = File(dthrottle_page_count_bytes(kEntries));
    page = static_cast<dthrottle_page*>(Map(page_fd, dthrottle_page_bytes(kEntries)));
    counts = static_cast<dthrottle_page_count*>(Map(counts_fd, dthrottle_page_count_bytes(kEntries)));
    page->head.key[0] = 7;
  }
  ~Daemon() {
    Hang();
    close(listening_);
    close(page_fd);
    close(counts_fd);
    munmap(page, dthrottle_page_bytes(kEntries));
    munmap(counts, dthrottle_page_count_bytes(kEntries));
    unlink((directory_ + "/q" + DTHROTTLE_PAGE_SUFFIX).c_str());
    rmdir(directory_.c_str());
  }
  Daemon(const Daemon&) = delete;

  static int File(std::size_t bytes, int seals = F_SEAL_SHRINK) {
    const int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  }

  // Whether a worker has connected.
  bool Accept() {
    const int fd = accept(listening_, nullptr, nullptr);
    if (fd >= 0) Hang(), connection_ = fd;
    return fd >= 0;
  }
  void Hang() {
    if (connection_ >= 0) close(connection_);
    connection_ = -1;
  }
  void Greet(dthrottle_page_hello hello, std::vector<int> fds) {
    iovec io{&hello, sizeof hello};
    alignas(cmsghdr) char control[256] = {};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size() * sizeof(int));
    REQUIRE(sendmsg(connection_, &message, 0) == sizeof hello);
  }
  void Greet() { Greet({DTHROTTLE_PAGE_MAGIC, NowNs(), kEntries, 0}, {page_fd, counts_fd}); }
  void Refuse(const std::string& tag, std::int64_t until, std::uint32_t way = 0) { Say(tag, 0, until, until, way); }
  void Lend(const std::string& tag, std::uint32_t allowed, std::uint32_t way = 0) {
    Say(tag, allowed, NowNs() - 1024, NowNs() - 1024, way);
  }
  void Say(const std::string& tag, std::uint32_t allowed, std::int64_t due, std::int64_t next, std::uint32_t way = 0) {
    const auto hash = dthrottle_page_hash(page->head.key, tag.data(), tag.size());
    dthrottle_page_put(dthrottle_page_at(page, dthrottle_page_set(hash, kEntries) + way), dthrottle_page_name(hash),
                       allowed, dthrottle_page_times(due, next));
  }
  std::string Note() {
    char text[512];
    const ssize_t n = recv(connection_, text, sizeof text, MSG_DONTWAIT);
    return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : "";
  }

  sockaddr_un address{};
  int page_fd, counts_fd;
  dthrottle_page* page;
  dthrottle_page_count* counts;

 private:
  static void* Map(int fd, std::size_t bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    return at;
  }

  std::string directory_;
  int listening_, connection_ = -1;
};

struct Pages : dthrottle_pages {
  explicit Pages(const Daemon& daemon) : dthrottle_pages{} {
    dthrottle_pages_init(this, reinterpret_cast<const sockaddr*>(&daemon.address));
  }
  ~Pages() { dthrottle_pages_close(this); }
  Pages(const Pages&) = delete;

  dthrottle_page_verdict Decide(const std::string& tag, std::int64_t now_ns = 0) {
    return dthrottle_pages_decide(this, tag.data(), tag.size(), now_ns);
  }
  bool Refuse(const std::string& tag) { return Decide(tag) == DTHROTTLE_PAGE_REFUSE; }
  void Refused(const std::string& tag) { dthrottle_pages_answered(this, tag.data(), tag.size(), true); }
  void Served(const std::string& tag) { dthrottle_pages_answered(this, tag.data(), tag.size(), false); }
  // A question of these tags, of a token each.
  dthrottle_page_verdict Decide(const std::vector<dthrottle_tag>& tags) {
    return dthrottle_pages_decide_question(this, tags.data(), tags.size(), 0, &said);
  }
  void Answered(const std::vector<dthrottle_tag>& tags, std::size_t refused) {
    dthrottle_pages_answered_question(this, tags.data(), tags.size(), &said, refused);
  }
  void Fetch(Daemon& daemon) {
    Refused("C");
    REQUIRE(daemon.Accept());
    daemon.Greet();
    Refused("C");
  }

  dthrottle_page_said said{};
};

dthrottle_tag Tag(const char* text, std::uint32_t cost = 1) {
  return {text, std::strlen(text), cost, 0};
}

// What the child exits with.
template <class Child>
int InChild(pid_t pid, Child child) {
  if (pid == 0) _exit(child() ? 0 : 1);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return status;
}

TEST_CASE("a tag is refused by the page until its instant, and counted") {
  Daemon daemon;
  Pages pages(daemon);
  CHECK_FALSE(pages.Refuse("C"));
  pages.Fetch(daemon);
  CHECK(daemon.Note() == "C");
  CHECK_FALSE(pages.Refuse("C"));
  daemon.Refuse("C", NowNs() + kSecond);
  CHECK(pages.Refuse("C"));
  CHECK(pages.Refuse("C"));
  CHECK_FALSE(pages.Refuse("D"));
  CHECK(daemon.counts[0].refused == 2);
  daemon.Refuse("C", NowNs() - 1024);
  CHECK_FALSE(pages.Refuse("C"));
}

TEST_CASE("what is lent is served by tickets, to the last one") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  daemon.Lend("C", 3);
  for (int i = 0; i < 3; ++i) CHECK(pages.Decide("C") == DTHROTTLE_PAGE_SERVE);
  for (int i = 0; i < 3; ++i) CHECK(pages.Decide("C") == DTHROTTLE_PAGE_ASK);
  CHECK(daemon.counts[0].taken == 3);
  daemon.Lend("C", 5);
  CHECK(pages.Decide("C") == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide("C") == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide("D") == DTHROTTLE_PAGE_ASK);
  CHECK(pages.Decide("C") == DTHROTTLE_PAGE_ASK);
}

TEST_CASE("tickets, what is allowed and instants wrap") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  for (const std::uint32_t taken : {0x7fffu, 0xffffu, 0xffffffffu}) {
    daemon.counts[0].taken = taken - 1;
    daemon.Lend("C", taken + 2);
    for (int i = 0; i < 3; ++i) CHECK(pages.Decide("C") == DTHROTTLE_PAGE_SERVE);
    CHECK(pages.Decide("C") == DTHROTTLE_PAGE_ASK);
  }
  const std::int64_t wrap = std::int64_t{1} << 54;    // of 44 bits of 1024 ns
  daemon.counts[0].taken = 0;
  daemon.Say("C", 1, wrap + 1024, wrap + kSecond / 2);
  CHECK(pages.Decide("C", wrap - 1024) == DTHROTTLE_PAGE_REFUSE);
  CHECK(pages.Decide("C", wrap + 2048) == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide("C", wrap + 2048) == DTHROTTLE_PAGE_REFUSE);
}

TEST_CASE("before its token is due a tag is refused, and after the last one until there is another") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  const std::int64_t now = NowNs(), ms = 1'000'000;
  daemon.Say("C", 2, now + 100 * ms, now + 300 * ms);
  const auto at = [&](std::int64_t time_ms) { return pages.Decide("C", now + time_ms * ms); };
  CHECK(at(99) == DTHROTTLE_PAGE_REFUSE);
  CHECK(at(101) == DTHROTTLE_PAGE_SERVE);
  CHECK(at(801) == DTHROTTLE_PAGE_SERVE);    // half a second beyond the last instant
  daemon.counts[0].taken = 1;
  CHECK(at(900) == DTHROTTLE_PAGE_ASK);
  daemon.counts[0].taken = 2;
  CHECK(at(299) == DTHROTTLE_PAGE_REFUSE);
  CHECK(at(301) == DTHROTTLE_PAGE_ASK);
  CHECK(at(-2500) == DTHROTTLE_PAGE_ASK);    // no entry says so far ahead
}

TEST_CASE("a time that is old makes no refusal that the clock does not make") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  const std::int64_t now = NowNs(), old = now - kSecond;
  const auto decide = [&] { return dthrottle_pages_decide_lately(&pages, "C", 1, old); };
  daemon.Lend("C", 1);
  CHECK(decide() == DTHROTTLE_PAGE_SERVE);    // its token was due after the old time
  CHECK(decide() == DTHROTTLE_PAGE_ASK);
  daemon.Refuse("C", now - 1024);
  CHECK(decide() == DTHROTTLE_PAGE_ASK);
  CHECK(daemon.counts[0].refused == 0);
  daemon.Refuse("C", now + kSecond);
  CHECK(decide() == DTHROTTLE_PAGE_REFUSE);
  CHECK(daemon.counts[0].refused == 1);
  daemon.counts[0].taken = 0;
  daemon.Say("C", 1, old - 1024, old - 1024);
  CHECK(decide() == DTHROTTLE_PAGE_SERVE);    // without a look at the clock, by which it would ask
  CHECK(daemon.counts[0].taken == 1);
}

TEST_CASE("a question takes a ticket of each of its tags, or of none") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  daemon.Lend("C", 3, 0);
  daemon.Lend("D", 1, 1);
  CHECK(pages.Decide({Tag("C"), Tag("D")}) == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide({Tag("C"), Tag("D")}) == DTHROTTLE_PAGE_ASK);    // the one token of D is spent
  CHECK(pages.said.unknown == 2);
  CHECK(pages.Decide({Tag("C"), Tag("E")}) == DTHROTTLE_PAGE_ASK);    // of which the page says nothing
  daemon.Refuse("E", NowNs() + kSecond, 2);
  CHECK(pages.Decide({Tag("C"), Tag("E")}) == DTHROTTLE_PAGE_REFUSE);
  CHECK(pages.said.refused == 1);
  CHECK(daemon.counts[0].taken == 1);
  CHECK(daemon.counts[1].taken == 1);
  CHECK(daemon.counts[2].refused == 1);
}

TEST_CASE("a tag is served for what it costs, or for nothing") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  daemon.Lend("C", 10, 0);
  daemon.Refuse("D", NowNs() + kSecond, 1);
  CHECK(pages.Decide({Tag("C", 7)}) == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide({Tag("C", 4)}) == DTHROTTLE_PAGE_ASK);
  CHECK(pages.Decide({Tag("C", 1)}) == DTHROTTLE_PAGE_SERVE);
  CHECK(pages.Decide({Tag("C", 2)}) == DTHROTTLE_PAGE_SERVE);
  CHECK(daemon.counts[0].taken == 10);
  CHECK(daemon.counts[0].more == 7);    // three queries
  daemon.Lend("C", 1000, 0);
  CHECK(pages.Decide({Tag("C", 0)}) == DTHROTTLE_PAGE_ASK);
  CHECK(pages.Decide({Tag("C", 257)}) == DTHROTTLE_PAGE_ASK);
  CHECK(pages.Decide({Tag("C"), Tag("C")}) == DTHROTTLE_PAGE_ASK);
  CHECK(pages.said.unknown == 0);
  CHECK(pages.Decide({Tag("C"), Tag("D", 2)}) == DTHROTTLE_PAGE_REFUSE);
  CHECK(pages.Decide({Tag("C"), Tag("D", 0)}) == DTHROTTLE_PAGE_ASK);
  CHECK(daemon.counts[0].taken == 10);
  CHECK(pages.Decide({Tag("C", 256)}) == DTHROTTLE_PAGE_SERVE);
}

TEST_CASE("of a question's tags those are told of that the page said nothing of and that were decided") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  CHECK(daemon.Note() == "C");
  daemon.Lend("D", 100, 1);
  const std::vector<dthrottle_tag> tags = {Tag("C"), Tag("D"), Tag("E"), Tag("a b"), Tag("a\\b")};
  for (const bool again : {false, true}) {
    CHECK(pages.Decide(tags) == DTHROTTLE_PAGE_ASK);
    pages.Answered(tags, tags.size());    // served
    CHECK(daemon.Note() == "C");
    if (again) CHECK(daemon.Note() == "E");
    CHECK(daemon.Note().empty());
  }
  for (std::size_t i = 0; i < tags.size(); ++i) {
    CAPTURE(i);
    CHECK(pages.Decide(tags) == DTHROTTLE_PAGE_ASK);
    pages.Answered(tags, i);
    CHECK(daemon.Note() == (i == 0 ? "C" : i == 2 ? "E" : ""));
    CHECK(daemon.Note().empty());
  }
}

// D is lent few tokens again and again, so both threads go for the last one.
TEST_CASE("of questions that threads decide at once no ticket of any tag is lost") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  const std::int64_t now = NowNs();
  std::atomic<bool> done{false};
  std::atomic<std::uint32_t> served{0};
  const auto spend = [&] {
    dthrottle_page_said said{};
    const dthrottle_tag tags[] = {Tag("C"), Tag("D")};
    while (!done) {
      served += dthrottle_pages_decide_question(&pages, tags, 2, now, &said) == DTHROTTLE_PAGE_SERVE;
    }
  };
  std::thread one(spend), other(spend);
  for (std::uint32_t tokens = 2000; tokens <= 2'000'000; tokens += 2000) {
    daemon.Say("C", dthrottle_page_taken(&daemon.counts[0]) + 10'000, now - 1024, now - 1024, 0);
    daemon.Say("D", tokens, now - 1024, now - 1024, 1);
    for (int n = 0; n < 200 && dthrottle_page_taken(&daemon.counts[1]) < tokens; ++n) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  done = true;
  one.join();
  other.join();
  CHECK(served > 1000);
  CHECK(daemon.counts[0].taken == served);
  CHECK(daemon.counts[1].taken == served);
}

TEST_CASE("a tag that is served is told of when it is asked for again") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Served("C");
  REQUIRE(daemon.Accept());
  daemon.Greet();
  pages.Served("C");
  CHECK(daemon.Note().empty());
  pages.Served("D");
  CHECK(daemon.Note().empty());
  pages.Served("C");
  CHECK(daemon.Note() == "C");
}

TEST_CASE("a tag that a query says in other bytes is not told of") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  CHECK(daemon.Note() == "C");
  for (const std::string& tag : {std::string(), std::string("a\nb"), std::string("a\r"), std::string(256, 'x')}) {
    pages.Refused(tag);
    CHECK(daemon.Note().empty());
  }
  daemon.page->head.note_one_in = 4;
  std::size_t told = 0;
  for (int i = 0; i < 40; ++i) pages.Refused("C");
  while (!daemon.Note().empty()) ++told;
  CHECK(told == 10);
}

TEST_CASE("a daemon that gives no page as it should is asked") {
  Daemon daemon;
  const std::int64_t now = NowNs();
  const int small = Daemon::File(64), unsealed = Daemon::File(dthrottle_page_bytes(kEntries), F_SEAL_GROW);
  struct Case {
    const char* what;
    dthrottle_page_hello hello;
    std::vector<int> fds;
  };
  const dthrottle_page_hello good{DTHROTTLE_PAGE_MAGIC, 0, kEntries, 0};
  const auto with = [&](auto change) {
    dthrottle_page_hello hello = good;
    change(hello);
    return hello;
  };
  const std::vector<int> fds = {daemon.page_fd, daemon.counts_fd};
  for (const Case& c : std::vector<Case>{
           {"another version", with([](auto& h) { h.magic++; }), fds},
           {"a clock that is behind", with([&](auto& h) { h.now_ns = now - 1; }), fds},
           {"a clock that is ahead", with([&](auto& h) { h.now_ns = now + kSecond; }), fds},
           {"no power of two", with([](auto& h) { h.entries = 5; }), fds},
           {"more entries than there are", with([](auto& h) { h.entries = 8; }), fds},
           {"too many entries", with([](auto& h) { h.entries = 1u << 31; }), fds},
           {"one descriptor", good, {daemon.page_fd}},
           {"a small file", good, {small, daemon.counts_fd}},
           {"a file that can shrink", good, {unsealed, daemon.counts_fd}},
           {"no file", good, {STDIN_FILENO, daemon.counts_fd}}}) {
    CAPTURE(c.what);
    Pages pages(daemon);
    pages.Refused("C");
    REQUIRE(daemon.Accept());
    dthrottle_page_hello hello = c.hello;
    if (hello.now_ns == 0) hello.now_ns = NowNs();
    daemon.Greet(hello, c.fds);
    pages.Refused("C");
    daemon.Refuse("C", NowNs() + kSecond);
    CHECK_FALSE(pages.Refuse("C"));
    CHECK(pages.fd == -1);
    pages.Refused("C");
    CHECK_FALSE(daemon.Accept());    // not at once
  }
  close(small);
  close(unsealed);
}

TEST_CASE("a page ends with its connection, and a thread that looks at it finds nothing") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  daemon.Refuse("C", NowNs() + kSecond);
  CHECK(pages.Refuse("C"));
  std::thread looking([&] {
    while (pages.Refuse("C")) continue;
  });
  daemon.Hang();
  pages.Refused("C");
  looking.join();
  CHECK_FALSE(pages.Refuse("C"));
  pages.retry_at = 0;    // a second later
  pages.Fetch(daemon);
  CHECK(pages.Refuse("C"));
}

TEST_CASE("a page that has ended leaves next to no memory behind") {
  const auto bytes_in_use = [] { return static_cast<long>(mallinfo2().uordblks); };    // 0 under a sanitizer
  constexpr int kLives = 100, kBytesOfEach = 1024;    // of 16 KiB that it has
  Daemon daemon;
  Pages pages(daemon);
  // A look-up that an earlier test gave up may still run, in a thread that allocates too; a leak is in every stretch.
  long least = std::numeric_limits<long>::max();
  for (int stretch = 0; stretch < 3; ++stretch) {
    const long before = bytes_in_use();
    for (int life = 0; life < kLives; ++life) {
      pages.Fetch(daemon);
      daemon.Hang();
      pages.Refused("C");
      REQUIRE(pages.view == nullptr);
      pages.retry_at = 0;    // a second later
    }
    least = std::min(least, bytes_in_use() - before);
  }
  CHECK(least < kLives * kBytesOfEach);
}

TEST_CASE("a child after any kind of fork has not its parent's page, and fetches its own") {
  Daemon daemon;
  Pages pages(daemon);
  pages.Fetch(daemon);
  daemon.Refuse("C", NowNs() + kSecond);
  CHECK(pages.Refuse("C"));
  const auto child = [&] {
    if (pages.Refuse("C")) return false;
    pages.Refused("C");    // connects
    if (!daemon.Accept()) return false;
    daemon.Greet();
    pages.Refused("C");
    return pages.Refuse("C");
  };
  CHECK(InChild(fork(), child) == 0);
  CHECK(InChild(static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)), child) == 0);
  CHECK(pages.Refuse("C"));
}

}    // namespace
