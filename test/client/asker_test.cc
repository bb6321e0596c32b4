// The asker of client/asker.h in virtual time, without sockets: a daemon that answers after a while, hangs, is
// restarted, lies or is not there. What a question comes back with is what the daemon said to its own tag, or nothing.
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "client/asker.h"

namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::size_t kBufferBytes = 64;

struct Shape {
  unsigned lines = 2;
  std::size_t deep = 3;
  std::size_t waiting_max = 8;
  bool asks_questions = false;    // by the ask protocol
};

class Asker {
 public:
  explicit Asker(Shape shape = {})
      : lines_(shape.lines),
        buffers_(shape.lines * kBufferBytes),
        answers_(shape.asks_questions ? shape.lines * DTHROTTLE_ANSWER_LINE_BYTES : 0) {
    const dthrottle_asker_options options{lines_.data(),
                                          shape.lines,
                                          buffers_.data(),
                                          kBufferBytes,
                                          shape.deep,
                                          shape.waiting_max,
                                          10 * kMs,
                                          5000 * kMs,
                                          1,
                                          shape.asks_questions ? answers_.data() : nullptr};
    dthrottle_asker_init(&asker_, &options);
  }

  dthrottle_asker* get() { return &asker_; }
  dthrottle_line& line(std::size_t i) { return lines_[i]; }
  std::size_t lines() const { return lines_.size(); }

  // All that a line has to send.
  std::string Send(dthrottle_line& line) {
    std::string sent;
    for (;;) {
      std::size_t bytes = 0;
      const char* const out = dthrottle_line_output(&line, &bytes);
      if (bytes == 0) return sent;
      sent.append(out, bytes);
      dthrottle_line_sent(&line, bytes);
    }
  }

  bool Hear(dthrottle_line& line, std::string_view said) {
    return dthrottle_asker_heard(&asker_, &line, said.data(), said.size());
  }
  void Open(dthrottle_line& line) { dthrottle_asker_opened(&asker_, &line); }
  void End(dthrottle_line& line, dthrottle_verdict why, std::int64_t now) {
    dthrottle_asker_ended(&asker_, &line, why, now);
  }

 private:
  std::vector<dthrottle_line> lines_;
  std::vector<char> buffers_, answers_;
  dthrottle_asker asker_{};
};

// A question of one or more tags.
class Question {
 public:
  explicit Question(std::vector<std::string> tags, std::int64_t deadline = DTHROTTLE_NEVER - 1)
      : tags_(std::move(tags)), verdicts(tags_.size(), DTHROTTLE_BACKING_OFF) {
    for (const std::string& tag : tags_) {
      begins_.push_back(tag.data());
      bytes_.push_back(tag.size());
    }
    question_.tags = begins_.data();
    question_.tag_bytes = bytes_.data();
    question_.count = tags_.size();
    question_.verdicts = verdicts.data();
    question_.answer = &answer;
    question_.deadline = deadline;
  }
  explicit Question(std::string tag, std::int64_t deadline = DTHROTTLE_NEVER - 1)
      : Question(std::vector{std::move(tag)}, deadline) {}
  Question(const Question&) = delete;

  dthrottle_pending* get() { return &question_; }
  dthrottle_pending* operator->() { return &question_; }
  const std::vector<std::string>& tags() const { return tags_; }

 private:
  std::vector<std::string> tags_;
  std::vector<const char*> begins_;
  std::vector<std::size_t> bytes_;
  dthrottle_pending question_{};

 public:
  std::vector<dthrottle_verdict> verdicts;
  dthrottle_answer answer{};
};

dthrottle_asked Ask(Asker& asker, Question& question, std::int64_t now) {
  return dthrottle_asker_ask(asker.get(), question.get(), now);
}

}    // namespace

TEST_CASE("answers go to the questions in the order in which they were asked") {
  Asker asker({.lines = 1});
  Question a("a"), b("b"), c("c");
  for (Question* question : {&a, &b, &c}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  CHECK(dthrottle_line_wants_connection(a->line));
  asker.Open(asker.line(0));
  CHECK_FALSE(dthrottle_line_wants_connection(a->line));
  CHECK(asker.Send(asker.line(0)) == "a\nb\nc\n");
  CHECK(asker.Hear(asker.line(0), "OK\nN"));
  CHECK(asker.Hear(asker.line(0), "O\n"));
  CHECK(dthrottle_asker_next_back(asker.get()) == a.get());
  CHECK(dthrottle_asker_next_back(asker.get()) == b.get());
  CHECK(dthrottle_asker_next_back(asker.get()) == nullptr);
  CHECK(a.verdicts[0] == DTHROTTLE_SERVE);
  CHECK(b.verdicts[0] == DTHROTTLE_THROTTLE);
  CHECK_FALSE(c->back);
}

TEST_CASE("a line takes questions until it is deep, then another one is connected, then the one with least") {
  Asker asker({.lines = 2, .deep = 2, .waiting_max = 3});
  std::vector<std::unique_ptr<Question>> questions;
  std::string where;
  for (int i = 0; i < 7; ++i) {
    questions.push_back(std::make_unique<Question>("t"));
    const dthrottle_asked asked = Ask(asker, *questions.back(), 0);
    where += asked == DTHROTTLE_ASKED ? static_cast<char>('0' + ((*questions.back())->line - &asker.line(0))) : '-';
  }
  CHECK(where == "001101-");
}

TEST_CASE("what does not fit into the buffer of a line follows when there is room, whole if that can be") {
  Asker asker({.lines = 1, .deep = 9, .waiting_max = 9});
  Question some(std::string(40, 'x')), more(std::string(30, 'y')), long_one(std::string(200, 'z')), last("l");
  for (Question* question : {&some, &more, &long_one, &last}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  dthrottle_line& line = asker.line(0);
  asker.Open(line);
  std::size_t bytes = 0;
  dthrottle_line_output(&line, &bytes);
  CHECK(bytes == 41);
  dthrottle_line_sent(&line, 10);
  dthrottle_line_output(&line, &bytes);
  CHECK(bytes == 31 + 31);
  CHECK(asker.Send(line).substr(31) == std::string(30, 'y') + "\n" + std::string(200, 'z') + "\nl\n");
}

TEST_CASE("a question is forgotten before it is in the buffer") {
  Asker asker({.lines = 1, .deep = 9, .waiting_max = 9});
  Question some(std::string(40, 'x')), more(std::string(30, 'y')), last("l");
  for (Question* question : {&some, &more, &last}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  dthrottle_asker_forget(asker.get(), more.get());
  dthrottle_line& line = asker.line(0);
  asker.Open(line);
  CHECK(asker.Send(line) == std::string(40, 'x') + "\nl\n");
  REQUIRE(asker.Hear(line, "OK\nNO\n"));
  CHECK(last.verdicts[0] == DTHROTTLE_THROTTLE);
  CHECK(line.waiting == 0);
}

TEST_CASE("a tag is one line, whatever is in it") {
  Asker asker({.lines = 1});
  Question odd(std::vector<std::string>{"a\nb", "c\r", std::string("\r\0d", 3), ""});
  REQUIRE(Ask(asker, odd, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  CHECK(asker.Send(asker.line(0)) == std::string("a_b\nc_\n\r\0d\n\n", 12));
}

TEST_CASE("the answer of a question that was given up is dropped, and the next question gets its own") {
  Asker asker({.lines = 1});
  Question slow("slow", 20 * kMs), next("next", 900 * kMs);
  REQUIRE(Ask(asker, slow, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  asker.Send(asker.line(0));
  CHECK(dthrottle_asker_next_deadline(asker.get()) == 20 * kMs);
  CHECK(dthrottle_asker_tick(asker.get(), 20 * kMs - 1) == nullptr);
  CHECK_FALSE(slow->back);
  CHECK(dthrottle_asker_tick(asker.get(), 20 * kMs) == nullptr);
  CHECK(dthrottle_asker_next_back(asker.get()) == slow.get());
  CHECK(slow->outcome == DTHROTTLE_TIMED_OUT);
  CHECK(dthrottle_asker_next_deadline(asker.get()) == DTHROTTLE_NEVER);

  SECTION("asked behind it") {
    REQUIRE(Ask(asker, next, 40 * kMs) == DTHROTTLE_ASKED);
  }
  SECTION("the late answer comes first") {
    REQUIRE(asker.Hear(asker.line(0), "NO\n"));
    REQUIRE(Ask(asker, next, 40 * kMs) == DTHROTTLE_ASKED);
    asker.Send(asker.line(0));
    REQUIRE(asker.Hear(asker.line(0), "OK\n"));
    CHECK(next.verdicts[0] == DTHROTTLE_SERVE);
    return;
  }
  asker.Send(asker.line(0));
  REQUIRE(asker.Hear(asker.line(0), "NO\n"));
  CHECK_FALSE(next->back);
  REQUIRE(asker.Hear(asker.line(0), "OK\n"));
  CHECK(next->back);
  CHECK(next.verdicts[0] == DTHROTTLE_SERVE);
}

TEST_CASE("a question is forgotten wherever it is") {
  Asker asker({.lines = 1});
  Question a("a"), b("b"), c("c"), d("d");
  for (Question* question : {&a, &b, &c}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  asker.Send(asker.line(0));
  dthrottle_asker_forget(asker.get(), b.get());
  dthrottle_asker_forget(asker.get(), c.get());
  REQUIRE(Ask(asker, d, 0) == DTHROTTLE_ASKED);
  asker.Send(asker.line(0));
  REQUIRE(asker.Hear(asker.line(0), "OK\nOK\nOK\nNO\n"));
  dthrottle_asker_forget(asker.get(), a.get());    // it is back
  CHECK(dthrottle_asker_next_back(asker.get()) == d.get());
  CHECK(d.verdicts[0] == DTHROTTLE_THROTTLE);
  CHECK(dthrottle_asker_next_back(asker.get()) == nullptr);
  CHECK(asker.line(0).waiting == 0);
}

TEST_CASE("after a failure nothing is asked, then one question is, and the pause doubles up to the longest") {
  Asker asker;
  std::int64_t now = 0;
  for (std::int64_t longest = 10 * kMs; longest <= 10'000 * kMs; longest *= 2) {
    Question probe("probe"), other("other");
    REQUIRE(Ask(asker, probe, now) == DTHROTTLE_ASKED);
    if (now > 0) CHECK(Ask(asker, other, now) == DTHROTTLE_PAUSED);
    asker.End(*probe->line, DTHROTTLE_UNREACHABLE, ++now);
    CHECK(probe->outcome == DTHROTTLE_UNREACHABLE);
    const std::int64_t pause = asker.get()->pause, most = std::min(longest, 5000 * kMs);
    CHECK(pause <= most);
    CHECK(pause >= most - most / 4);
    CHECK(Ask(asker, other, now + pause - 1) == DTHROTTLE_PAUSED);
    now += pause;
    CHECK(dthrottle_asker_next_back(asker.get()) == probe.get());
  }
  Question good("good"), other("other");
  REQUIRE(Ask(asker, good, now) == DTHROTTLE_ASKED);
  asker.Open(*good->line);
  dthrottle_line* const line = good->line;
  asker.Send(*line);
  REQUIRE(asker.Hear(*line, "OK\n"));
  CHECK(asker.get()->failures == 0);
  CHECK(Ask(asker, other, now) == DTHROTTLE_ASKED);
}

TEST_CASE("questions that fail together are one failure") {
  Asker asker({.lines = 2, .deep = 1});
  Question a("a"), b("b");
  REQUIRE(Ask(asker, a, 1) == DTHROTTLE_ASKED);
  REQUIRE(Ask(asker, b, 2) == DTHROTTLE_ASKED);
  REQUIRE(a->line != b->line);
  asker.End(*a->line, DTHROTTLE_UNREACHABLE, 3);
  asker.End(*b->line, DTHROTTLE_UNREACHABLE, 4);
  CHECK(asker.get()->failures == 1);
}

TEST_CASE("when the question that finds out is forgotten, another one may") {
  Asker asker;
  Question a("a"), probe("probe"), other("other");
  REQUIRE(Ask(asker, a, 0) == DTHROTTLE_ASKED);
  asker.End(*a->line, DTHROTTLE_UNREACHABLE, 1);
  const std::int64_t later = 1 + asker.get()->pause;
  REQUIRE(Ask(asker, probe, later) == DTHROTTLE_ASKED);
  REQUIRE(Ask(asker, other, later) == DTHROTTLE_PAUSED);
  dthrottle_asker_forget(asker.get(), probe.get());
  CHECK(Ask(asker, other, later) == DTHROTTLE_ASKED);
}

TEST_CASE("a connection that has worked may end: what waits is asked once more, and only once") {
  Asker asker({.lines = 1});
  Question first("first"), a("a"), b(std::vector<std::string>{"b1", "b2"});
  REQUIRE(Ask(asker, first, 0) == DTHROTTLE_ASKED);
  dthrottle_line& line = *first->line;
  asker.Open(line);
  asker.Send(line);
  REQUIRE(asker.Hear(line, "OK\n"));
  REQUIRE(Ask(asker, a, 1) == DTHROTTLE_ASKED);
  REQUIRE(Ask(asker, b, 1) == DTHROTTLE_ASKED);
  CHECK(asker.Send(line) == "a\nb1\nb2\n");
  SECTION("nothing is answered") {
    asker.End(line, DTHROTTLE_UNREACHABLE, 2);
    CHECK(asker.get()->failures == 0);
    CHECK(dthrottle_line_wants_connection(&line));
    asker.Open(line);
    CHECK(asker.Send(line) == "a\nb1\nb2\n");
    REQUIRE(asker.Hear(line, "NO\n"));
    asker.End(line, DTHROTTLE_UNREACHABLE, 3);    // it has worked, but b has had its turn
    CHECK(b->outcome == DTHROTTLE_UNREACHABLE);
    CHECK(asker.get()->failures == 1);
    CHECK_FALSE(dthrottle_line_wants_connection(&line));
  }
  SECTION("a part of a question is answered") {
    REQUIRE(asker.Hear(line, "NO\nOK\n"));
    asker.End(line, DTHROTTLE_UNREACHABLE, 2);
    CHECK(b->outcome == DTHROTTLE_UNREACHABLE);
    CHECK(b->answered == 1);
    CHECK(b.verdicts[1] == DTHROTTLE_BACKING_OFF);
  }
  SECTION("there is no daemon any more") {
    asker.End(line, DTHROTTLE_UNREACHABLE, 2);
    asker.End(line, DTHROTTLE_UNREACHABLE, 3);
    CHECK(a->outcome == DTHROTTLE_UNREACHABLE);
    CHECK(asker.get()->failures == 1);
  }
}

TEST_CASE("the second deadline missed in a row ends the connection, and the first does not") {
  Asker asker({.lines = 1});
  Question a("a", 10 * kMs), b("b", 60 * kMs), c("c", 60 * kMs);
  REQUIRE(Ask(asker, a, 0) == DTHROTTLE_ASKED);
  dthrottle_line& line = *a->line;
  asker.Open(line);
  asker.Send(line);
  REQUIRE(dthrottle_asker_tick(asker.get(), 10 * kMs) == nullptr);
  REQUIRE(Ask(asker, b, 30 * kMs) == DTHROTTLE_ASKED);
  asker.Send(line);
  SECTION("still no answer") {
    CHECK(dthrottle_asker_tick(asker.get(), 60 * kMs) == &line);
    CHECK_FALSE(line.open);
    CHECK(b->outcome == DTHROTTLE_TIMED_OUT);
    CHECK(dthrottle_asker_tick(asker.get(), 60 * kMs) == nullptr);
  }
  SECTION("the late answer has come") {
    REQUIRE(asker.Hear(line, "OK\n"));
    CHECK(dthrottle_asker_tick(asker.get(), 60 * kMs) == nullptr);
    CHECK(line.open);
    CHECK(b->outcome == DTHROTTLE_TIMED_OUT);
  }
}

TEST_CASE("what is no answer, or was not asked for, is refused") {
  for (const char* said : {"HTTP/1.1 400\r\n", "OK NO", "OK\nNO\n", "NOOK\n", "\n"}) {
    INFO(said);
    Asker asker({.lines = 1});
    Question a("a");
    REQUIRE(Ask(asker, a, 0) == DTHROTTLE_ASKED);
    dthrottle_line& line = *a->line;
    asker.Open(line);
    asker.Send(line);
    REQUIRE_FALSE(asker.Hear(line, said));
    asker.End(line, DTHROTTLE_BAD_ANSWER, 1);
    CHECK(asker.get()->failures == 1);
    CHECK(a->back);
  }
}

TEST_CASE("no answer comes before its tag was sent") {
  Asker asker({.lines = 1});
  Question two(std::vector<std::string>{std::string(40, 'x'), std::string(40, 'y')});
  REQUIRE(Ask(asker, two, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  CHECK(asker.Hear(asker.line(0), "OK\n"));
  CHECK_FALSE(asker.Hear(asker.line(0), "OK\n"));
}

TEST_CASE("what a connection has begun to say does not go on with the next one") {
  Asker asker({.lines = 1});
  Question a("a"), b("b");
  dthrottle_line& line = asker.line(0);
  for (Question* question : {&a, &b}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  asker.Open(line);
  asker.Send(line);
  REQUIRE(asker.Hear(line, "OK\nN"));
  asker.End(line, DTHROTTLE_UNREACHABLE, 1);
  asker.Open(line);
  asker.Send(line);
  REQUIRE(asker.Hear(line, "OK\n"));
  CHECK(b.verdicts[0] == DTHROTTLE_SERVE);
}

TEST_CASE("answers to questions about several tags go to the questions in their order, wherever they are cut") {
  Asker asker({.lines = 1, .asks_questions = true});
  Question a("take 1 a 2 b"), b("peek 1 c");
  dthrottle_line& line = asker.line(0);
  for (Question* question : {&a, &b}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  asker.Open(line);
  CHECK(asker.Send(line) == "take 1 a 2 b\npeek 1 c\n");
  const std::string said = "NO limit 20 1 rule b\nOK 5\n";
  const std::size_t cut = GENERATE(std::size_t{0}, 1, 20, 21, 22, 25);
  CHECK(asker.Hear(line, said.substr(0, cut)));
  CHECK(asker.Hear(line, said.substr(cut)));
  CHECK(dthrottle_asker_next_back(asker.get()) == a.get());
  CHECK(dthrottle_asker_next_back(asker.get()) == b.get());
  CHECK(a.verdicts[0] == DTHROTTLE_THROTTLE);
  CHECK(a.answer.refused == 1);
  CHECK(a.answer.wait_ms == 20);
  CHECK(b.verdicts[0] == DTHROTTLE_SERVE);
  CHECK(b.answer.left[0] == 5);
  CHECK(line.waiting == 0);
}

TEST_CASE("an answer to a question that was given up is dropped, whatever it says and however much of it has come") {
  Asker asker({.lines = 1, .asks_questions = true});
  Question slow("take 1 slow", 20 * kMs), next("take 1 next", 900 * kMs);
  REQUIRE(Ask(asker, slow, 0) == DTHROTTLE_ASKED);
  dthrottle_line& line = asker.line(0);
  asker.Open(line);
  asker.Send(line);
  const std::string late = GENERATE("NO limit 2000 0 rule slow\n", "ERR what\n", "OK 1 2 3\n");
  const std::size_t begun = GENERATE(0, 4);
  REQUIRE(asker.Hear(line, late.substr(0, begun)));
  REQUIRE(dthrottle_asker_tick(asker.get(), 20 * kMs) == nullptr);
  REQUIRE(dthrottle_asker_next_back(asker.get()) == slow.get());
  REQUIRE(Ask(asker, next, 40 * kMs) == DTHROTTLE_ASKED);
  asker.Send(line);
  REQUIRE(asker.Hear(line, late.substr(begun) + "OK 7\n"));
  CHECK(next.verdicts[0] == DTHROTTLE_SERVE);
  CHECK(next.answer.left[0] == 7);
  CHECK(slow.answer.wait_ms == 0);
}

TEST_CASE("what is no answer to a question, or was not asked for, or has no end, is refused") {
  const std::string endless(DTHROTTLE_ANSWER_LINE_BYTES + 1, 'O');
  for (const std::string& said : {std::string("OK\n"), std::string("NO\n"), std::string("OK 1\nOK 1\n"), endless}) {
    INFO(said.substr(0, 20));
    Asker asker({.lines = 1, .asks_questions = true});
    Question a("take 1 a");
    REQUIRE(Ask(asker, a, 0) == DTHROTTLE_ASKED);
    dthrottle_line& line = *a->line;
    asker.Open(line);
    asker.Send(line);
    CHECK_FALSE(asker.Hear(line, said));
  }
}

TEST_CASE("no part of an answer goes on with the next connection") {
  Asker asker({.lines = 1, .asks_questions = true});
  Question a("take 1 a"), b("take 1 b");
  dthrottle_line& line = asker.line(0);
  for (Question* question : {&a, &b}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  asker.Open(line);
  asker.Send(line);
  REQUIRE(asker.Hear(line, "OK 1\nNO lim"));
  asker.End(line, DTHROTTLE_UNREACHABLE, 1);
  asker.Open(line);
  CHECK(asker.Send(line) == "take 1 b\n");
  REQUIRE(asker.Hear(line, "OK 2\n"));
  CHECK(b.verdicts[0] == DTHROTTLE_SERVE);
  CHECK(b.answer.left[0] == 2);
}

TEST_CASE("a daemon that does not know a question has answered it, which is no failure") {
  Asker asker({.lines = 1, .asks_questions = true});
  Question a("take 1 a");
  REQUIRE(Ask(asker, a, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  asker.Send(asker.line(0));
  REQUIRE(asker.Hear(asker.line(0), "ERR what\n"));
  CHECK(a->outcome == DTHROTTLE_SERVE);
  CHECK(a.verdicts[0] == DTHROTTLE_BAD_QUESTION);
  CHECK(asker.get()->failures == 0);
}

TEST_CASE("deadlines come in their order, whatever the order of the questions") {
  Asker asker({.lines = 1});
  Question late("late", 30), soon("soon", 10), middle("middle", 20);
  for (Question* question : {&late, &soon, &middle}) REQUIRE(Ask(asker, *question, 0) == DTHROTTLE_ASKED);
  asker.Open(asker.line(0));
  asker.Send(asker.line(0));
  CHECK(dthrottle_asker_next_deadline(asker.get()) == 10);
  dthrottle_asker_tick(asker.get(), 10);
  CHECK(dthrottle_asker_next_back(asker.get()) == soon.get());
  CHECK(dthrottle_asker_next_deadline(asker.get()) == 20);
}

TEST_CASE("a question without tags is back when its line is connected") {
  Asker asker({.lines = 1});
  Question nothing(std::vector<std::string>{});
  REQUIRE(Ask(asker, nothing, 0) == DTHROTTLE_ASKED);
  dthrottle_line& line = *nothing->line;
  CHECK_FALSE(nothing->back);
  asker.Open(line);
  CHECK(nothing->outcome == DTHROTTLE_SERVE);
  CHECK(nothing->back);
}

// ---- A worker and a daemon in virtual time ----

namespace {

bool Throttled(std::string_view tag) {
  return tag.size() % 3 == 1;
}

// A daemon that answers each query some time after it came. Chance restarts it, makes it hang, and takes it away.
class World {
 public:
  explicit World(std::uint64_t seed) : prng_(seed), asker_({.lines = 3, .deep = 4, .waiting_max = 16}) {
    links_.resize(asker_.lines());
  }

  void Run(std::int64_t until) {
    while (now_ < until) {
      Step();
      now_ += static_cast<std::int64_t>(1 + Below(kMs / 2));
    }
    fate_ = Fate::kGood;
    for (const std::int64_t end = now_ + 60'000 * kMs; !questions_.empty() && now_ < end; now_ += kMs) Move();
  }

  void Check() {
    CHECK(wrong_ == 0);
    CHECK(late_ == 0);
    CHECK(refused_ == 0);
    CHECK(questions_.empty());
  }

  int served = 0, throttled = 0, open = 0, paused = 0, dropped = 0;

 private:
  enum class Fate { kGood, kHangs, kGone };
  struct Answer {
    std::int64_t at;
    std::string text;
  };
  // A connection, and what the daemon has read and is going to say on it.
  struct Link {
    bool up = false;
    std::string read;
    std::deque<Answer> answers;
  };

  std::uint64_t Below(std::uint64_t bound) { return prng_() % bound; }

  void Step() {
    const auto chance = Below(1000);
    if (chance < 4) fate_ = static_cast<Fate>(Below(3));
    if (chance < 40 && fate_ != Fate::kGood && Below(4) == 0) fate_ = Fate::kGood;
    if (fate_ == Fate::kGone || chance == 999) Restart();
    if (chance < 600) AskOne();
    if (chance >= 990 && !questions_.empty()) DropOne();
    Move();
  }

  void AskOne() {
    auto question = std::make_unique<Question>(std::string(1 + Below(30), 'x'),
                                               now_ + static_cast<std::int64_t>(1 + Below(20)) * kMs);
    if (Ask(asker_, *question, now_) != DTHROTTLE_ASKED) {
      ++paused;
      return;
    }
    dthrottle_pending* const key = question->get();
    questions_.emplace(key, std::move(question));
    Connect();
  }

  void DropOne() {
    const auto at = std::next(questions_.begin(), static_cast<std::ptrdiff_t>(Below(questions_.size())));
    dthrottle_asker_forget(asker_.get(), at->first);
    questions_.erase(at);
    ++dropped;
  }

  void Restart() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (links_[i].up) EndLink(i, DTHROTTLE_UNREACHABLE);
    }
    Connect();
  }

  void EndLink(std::size_t i, dthrottle_verdict why) {
    links_[i] = {};
    asker_.End(asker_.line(i), why, now_);
  }

  void Connect() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      while (dthrottle_line_wants_connection(&asker_.line(i))) {
        if (fate_ == Fate::kGone) {
          EndLink(i, DTHROTTLE_UNREACHABLE);
        } else {
          links_[i].up = true;
          asker_.Open(asker_.line(i));
        }
      }
    }
  }

  void Exchange(std::size_t i) {
    Link& link = links_[i];
    link.read += asker_.Send(asker_.line(i));
    if (fate_ == Fate::kHangs) return;
    for (std::size_t end; (end = link.read.find('\n')) != std::string::npos; link.read.erase(0, end + 1)) {
      const std::int64_t soon = now_ + static_cast<std::int64_t>(Below(3 * kMs));
      const std::int64_t at = link.answers.empty() ? soon : std::max(soon, link.answers.back().at);
      link.answers.push_back({at, Throttled(link.read.substr(0, end)) ? "NO\n" : "OK\n"});
    }
    for (; !link.answers.empty() && link.answers.front().at <= now_; link.answers.pop_front()) {
      refused_ += !asker_.Hear(asker_.line(i), link.answers.front().text);
    }
  }

  void Move() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (links_[i].up) Exchange(i);
    }
    while (dthrottle_line* const line = dthrottle_asker_tick(asker_.get(), now_)) {
      links_[static_cast<std::size_t>(line - &asker_.line(0))] = {};
    }
    while (dthrottle_pending* const back = dthrottle_asker_next_back(asker_.get())) Judge(back);
    for (const auto& [question, _] : questions_) late_ += question->deadline <= now_;
  }

  void Judge(dthrottle_pending* back) {
    const auto at = questions_.find(back);
    REQUIRE(at != questions_.end());
    const bool answered = back->outcome == DTHROTTLE_SERVE;
    const dthrottle_verdict verdict = at->second->verdicts[0];
    const bool throttles = Throttled(at->second->tags()[0]);
    wrong_ += answered && verdict != (throttles ? DTHROTTLE_THROTTLE : DTHROTTLE_SERVE);
    (!answered ? open : throttles ? throttled : served)++;
    questions_.erase(at);
  }

  std::mt19937_64 prng_;
  Asker asker_;
  std::vector<Link> links_;
  std::map<dthrottle_pending*, std::unique_ptr<Question>> questions_;
  Fate fate_ = Fate::kGood;
  std::int64_t now_ = 0;
  int wrong_ = 0, late_ = 0, refused_ = 0;
};

}    // namespace

TEST_CASE("whatever becomes of the daemon, each question gets its own answer or none, and in time") {
  int answered = 0, open = 0, paused = 0, dropped = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    World world(seed);
    world.Run(5'000 * kMs);
    world.Check();
    answered += world.served + world.throttled;
    open += world.open;
    paused += world.paused;
    dropped += world.dropped;
  }
  // All of it has happened.
  CHECK(answered > 50'000);
  CHECK(open > 500);
  CHECK(paused > 5'000);
  CHECK(dropped > 500);
}
