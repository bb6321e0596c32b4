// Questions about several tags as the client library writes and reads them (client/question.h). The other end of the
// same lines is frontend/ask, with protocol/ask.md between them.
#include <catch2/catch.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "client/question.h"

namespace {

struct Tag {
  std::string_view text;
  std::uint32_t cost = 1;
};

dthrottle_question Question(const std::vector<Tag>& tags, std::vector<dthrottle_tag>& room,
                            dthrottle_verb verb = DTHROTTLE_TAKE) {
  for (const Tag& tag : tags) room.push_back({tag.text.data(), tag.text.size(), tag.cost, 0});
  dthrottle_question question{};
  question.verb = verb;
  question.tags = room.data();
  question.count = room.size();
  return question;
}

// The line that asks; empty: it is no question.
std::string Line(const std::vector<Tag>& tags, dthrottle_verb verb = DTHROTTLE_TAKE) {
  std::vector<dthrottle_tag> room;
  const dthrottle_question question = Question(tags, room, verb);
  std::string line(dthrottle_question_room(&question), '\0');
  if (line.empty()) return line;
  const std::size_t bytes = dthrottle_write_question(&question, line.data());
  CHECK(bytes <= line.size());
  CHECK(line.size() <= DTHROTTLE_QUESTION_LINE_BYTES);
  line.resize(bytes);
  return line;
}

struct Heard {
  bool good = false;
  dthrottle_verdict verdict = DTHROTTLE_TIMED_OUT;
  dthrottle_answer answer{};

  std::vector<std::int64_t> left(std::size_t count) const { return {answer.left, answer.left + count}; }
};

Heard Hear(std::string_view asked, std::string_view text) {
  Heard heard;
  heard.good =
      dthrottle_read_answer(asked.data(), asked.size(), text.data(), text.size(), &heard.verdict, &heard.answer);
  return heard;
}

std::vector<Tag> Named(std::size_t count, std::string_view text) {
  return std::vector<Tag>(count, Tag{text});
}

}    // namespace

TEST_CASE("a question is one line of costs and tags") {
  CHECK(Line({{"a"}}) == "take 1 a");
  CHECK(Line({{"user:alice"}, {"net:10.0.0.7", 0}, {"t", 4294967295}}, DTHROTTLE_PEEK) ==
        "peek 1 user:alice 0 net:10.0.0.7 4294967295 t");
}

TEST_CASE("whatever is in a tag, it is one word that the daemon reads as that tag") {
  CHECK(Line({{"two words "}, {R"(a\x20b\x5cc\x5)"}, {R"(c:\dir)"}}) ==
        R"(take 1 two\x20words\x20 1 a\x5cx20b\x5cx5cc\x5 1 c:\dir)");
  // What no word can hold is a '_', as everywhere in the library.
  CHECK(Line({{"a\nb"}, {"\r"}, {"c\rd\r"}, {""}, {"\t\x01"}}) == "take 1 a_b 1 _ 1 c\rd_ 1 _ 1 \t\x01");
}

TEST_CASE("a question of no tags, of more than sixteen or of another verb is none") {
  CHECK(Line({}).empty());
  CHECK(Line(Named(17, "a")).empty());
  std::vector<dthrottle_tag> room;
  dthrottle_question question = Question({{"a"}}, room);
  const int verb = 7;    // of a later library
  std::memcpy(&question.verb, &verb, sizeof verb);
  CHECK(dthrottle_question_room(&question) == 0);
  CHECK(Line(Named(16, "a")).size() == 4 + 16 * 4);
}

TEST_CASE("tags that a line has no room for are cut, so that a long tag does not free the others of their limits") {
  const std::string long_one(9000, 'x'), blanks(9000, ' ');
  CHECK(Line({{long_one}}) == "take 1 " + std::string(8176, 'x'));
  CHECK(Line({{long_one}, {"short"}}) == "take 1 " + std::string(4082, 'x') + " 1 short");
  std::vector<Tag> many = Named(16, long_one);
  for (Tag& tag : many) tag.cost = 4294967295;
  CHECK(Line(many).size() == 4 + 16 * (12 + 499));
  // No escape is cut in two.
  CHECK(Line(Named(16, blanks)).find("\\x2 ") == std::string::npos);
  CHECK(Line(Named(16, blanks)).size() == 4 + 16 * (3 + 496));
  // Nor does a cut leave a CR at the end of the line, where the daemon would drop it.
  const std::string cr = std::string(8175, 'x') + "\rxxx";
  CHECK(Line({{cr}}) == "take 1 " + std::string(8175, 'x') + "_");
}

TEST_CASE("what is left comes back at the place of its tag") {
  const Heard heard = Hear("take 1 a 2 b 3 c", "OK 9 - 9223372036854775807");
  REQUIRE(heard.good);
  CHECK(heard.verdict == DTHROTTLE_SERVE);
  CHECK(heard.left(4) == std::vector<std::int64_t>{9, DTHROTTLE_UNLIMITED, INT64_MAX, 0});
  CHECK(heard.answer.reason == DTHROTTLE_REASON_NONE);

  const Heard twice = Hear("take 3 a 1 b 4 a", "OK 3 9");
  REQUIRE(twice.good);
  CHECK(twice.left(3) == std::vector<std::int64_t>{3, 9, 3});
}

TEST_CASE("a refusal says why, how long, under which rule and which tag") {
  const std::string asked = R"(take 1 a 2 two\x20words 2 a)";
  const Heard limit = Hear(asked, R"(NO limit 2000 1 addresses two\x20words)");
  REQUIRE(limit.good);
  CHECK(limit.verdict == DTHROTTLE_THROTTLE);
  CHECK(limit.answer.reason == DTHROTTLE_REASON_LIMIT);
  CHECK(limit.answer.wait_ms == 2000);
  CHECK(limit.answer.refused == 1);
  CHECK(limit.left(3) == std::vector<std::int64_t>{0, 1, 0});
  CHECK(limit.answer.rule == std::string_view("addresses"));

  const Heard never = Hear(asked, "NO never - 7 - a");
  REQUIRE(never.good);
  CHECK(never.answer.reason == DTHROTTLE_REASON_NEVER);
  CHECK(never.answer.refused == 0);
  CHECK(never.answer.rule == std::string_view("-"));

  const Heard shed = Hear(asked, "NO shed - - hot a");
  REQUIRE(shed.good);
  CHECK(shed.answer.reason == DTHROTTLE_REASON_SHED);
  CHECK(shed.answer.left[0] == DTHROTTLE_UNLIMITED);
}

TEST_CASE("a question that wants to know the limit says so, and the answer has it") {
  std::vector<dthrottle_tag> room;
  dthrottle_question question = Question({{"a"}, {"b", 2}}, room);
  question.tell_limit = 1;
  std::string asked(dthrottle_question_room(&question), '\0');
  asked.resize(dthrottle_write_question(&question, asked.data()));
  CHECK(asked == "take tell=limit 1 a 2 b");

  const Heard served = Hear(asked, "OK 9 2 addresses b 3 30000 10000");
  REQUIRE(served.good);
  CHECK(served.left(2) == std::vector<std::int64_t>{9, 2});
  CHECK(served.answer.nearest == 1);
  CHECK(served.answer.rule == std::string_view("addresses"));
  CHECK(served.answer.quota == 3);
  CHECK(served.answer.window_ms == 30000);
  CHECK(served.answer.next_ms == 10000);

  const Heard refused = Hear(asked, "NO limit 2000 1 addresses b 3 30000 9000");
  REQUIRE(refused.good);
  CHECK(refused.answer.refused == 1);
  CHECK(refused.answer.wait_ms == 2000);
  CHECK(refused.answer.next_ms == 9000);

  const Heard unlimited = Hear(asked, "OK - -"), shed = Hear(asked, "NO shed - - hot a - - -");
  CHECK((unlimited.good && unlimited.answer.quota == 0));
  CHECK((shed.good && shed.answer.quota == 0));
  CHECK_FALSE(Hear(asked, "OK 9 2 addresses c 3 30000 10000").good);
  CHECK_FALSE(Hear(asked, "OK 9 2 addresses b 3 30000").good);
  CHECK_FALSE(Hear(asked, "OK 9 2 addresses b 3 30000 x").good);
}

TEST_CASE("a question that would rather wait says how long, and the answer says when it goes on") {
  std::vector<dthrottle_tag> room;
  dthrottle_question question = Question({{"a"}, {"b", 2}}, room);
  question.wait_ms = 4294967295;
  question.tell_limit = 1;
  std::string asked(dthrottle_question_room(&question), '\0');
  asked.resize(dthrottle_write_question(&question, asked.data()));
  CHECK(asked == "take wait=4294967295 keep tell=limit 1 a 2 b");
  question.verb = DTHROTTLE_HOLD;
  CHECK(asked.substr(0, dthrottle_write_question(&question, asked.data())).find("wait=") == asked.npos);

  const std::string line = "take wait=500 keep 1 a 2 b";
  const Heard waits = Hear(line, "WAIT 99.25 af2d0b1c55e10f02 3 0");
  REQUIRE(waits.good);
  CHECK(waits.verdict == DTHROTTLE_SERVE);
  CHECK(waits.answer.delay_us == 99250);
  CHECK(waits.answer.hold == 0xaf2d0b1c55e10f02);
  CHECK(waits.answer.wait_ms == 0);
  CHECK(waits.left(2) == std::vector<std::int64_t>{3, 0});
  CHECK(Hear(line, "WAIT 100 - 3 0").answer.hold == 0);
  CHECK(Hear(line, "WAIT 0.001 - 3 0").answer.delay_us == 1);
  CHECK(Hear(line, "OK 3 0").answer.delay_us == 0);
  for (const char* const bad : {"WAIT - - 3 0", "WAIT 1. - 3 0", "WAIT 1.2345 - 3 0", "WAIT .5 - 3 0", "WAIT 1.x - 3 0",
                                "WAIT 4294967296 - 3 0", "WAIT 1 x 3 0", "WAIT 1 0 3 0", "WAIT 1 3 0", "WAIT"}) {
    CAPTURE(bad);
    CHECK_FALSE(Hear(line, bad).good);
  }
}

TEST_CASE("a tag that every line has room for fits one that asks for the limit too") {
  std::vector<dthrottle_tag> room;
  const std::string long_one(9000, 'x');
  dthrottle_question question = Question(Named(16, long_one), room);
  question.tell_limit = 1;
  std::string line(dthrottle_question_room(&question), '\0');
  CHECK(line.size() <= DTHROTTLE_QUESTION_LINE_BYTES);
  CHECK(dthrottle_write_question(&question, line.data()) <= line.size());
}

TEST_CASE("a hold says for how long, and its answer what it is called") {
  std::vector<dthrottle_tag> room;
  dthrottle_question question = Question({{"a", 500}, {"b", 2}}, room);
  question.verb = DTHROTTLE_HOLD;
  question.ttl_ms = 60000;
  std::string asked(dthrottle_question_room(&question), '\0');
  asked.resize(dthrottle_write_question(&question, asked.data()));
  CHECK(asked == "hold 60000 500 a 2 b");
  const Heard held = Hear(asked, "OK 3ee6599080000 500 -");
  REQUIRE(held.good);
  CHECK(held.verdict == DTHROTTLE_SERVE);
  CHECK(held.answer.hold == 0x3ee6599080000);
  CHECK(held.left(2) == std::vector<std::int64_t>{500, DTHROTTLE_UNLIMITED});
  const Heard refused = Hear(asked, "NO limit 2000 1 r b"), busy = Hear(asked, "NO busy - 0 r a");
  CHECK((refused.good && refused.answer.hold == 0 && refused.answer.refused == 1));
  CHECK((busy.good && busy.answer.reason == DTHROTTLE_REASON_BUSY));
  for (const char* const wrong : {"OK", "OK 500 -", "OK 0 500 -", "OK 11111111111111111 500 -", "OK x 500 -"}) {
    CAPTURE(wrong);
    CHECK_FALSE(Hear(asked, wrong).good);
  }
}

TEST_CASE("a settlement names its hold and what each tag has cost") {
  char line[DTHROTTLE_SETTLEMENT_BYTES];
  const std::vector<std::uint32_t> actual(DTHROTTLE_TAGS_MAX, UINT32_MAX);
  const auto written = [&](std::uint64_t hold, std::size_t count) {
    return std::string(line, dthrottle_write_settlement(hold, actual.data(), count, line));
  };
  CHECK(written(0x80000, 0) == "release 80000");
  CHECK(written(0x80001, 2) == "commit 80001 4294967295 4294967295");
  CHECK(written(UINT64_MAX, DTHROTTLE_TAGS_MAX).size() <= sizeof line);
  for (const char* const settled : {"OK committed 371", "OK committed 1 2", "OK released", "OK expired"}) {
    CHECK(Hear("commit 80000 371", settled).verdict == DTHROTTLE_SERVE);
  }
  for (const char* const not_settled : {"NO unknown", "ERR holds are off"}) {
    const Heard heard = Hear("release 80000", not_settled);
    CHECK((heard.good && heard.verdict == DTHROTTLE_BAD_QUESTION));
  }
  for (const char* const wrong : {"OK", "OK 5", "NO", "NO limit 1 0 r a", ""}) {
    CAPTURE(wrong);
    CHECK_FALSE(Hear("commit 80000 1", wrong).good);
  }
}

TEST_CASE("a report names its value in whole digits, whatever the locale, and its tag in one word") {
  const auto written = [](double value, std::string_view tag) {
    char line[DTHROTTLE_QUESTION_LINE_BYTES];
    const dthrottle_tag named = {tag.data(), tag.size(), 0, 0};
    return std::string(line, dthrottle_write_indication(value, &named, line));
  };
  CHECK(written(0.042, "api:a b") == "indicate 420000000e-10 api:a\\x20b");
  CHECK(written(1e12, "x") == "indicate 100000000e4 x");
  CHECK(written(1e-320, "x").starts_with("indicate "));
  CHECK(written(1, std::string(20'000, 'x')).size() == DTHROTTLE_QUESTION_LINE_BYTES);
  CHECK(Hear("indicate 1e0 x", "OK").verdict == DTHROTTLE_SERVE);
  CHECK(Hear("indicate 1e0 x", "ERR this host divides nothing").verdict == DTHROTTLE_BAD_QUESTION);
  for (const char* const wrong : {"OK 1", "NO", "O", ""}) CHECK_FALSE(Hear("indicate 1e0 x", wrong).good);
}

TEST_CASE("what to do while nobody answers is asked in a line that the daemon takes, and refused or served") {
  const auto written = [](std::vector<std::string> texts) {
    char line[DTHROTTLE_QUESTION_LINE_BYTES];
    std::vector<dthrottle_tag> tags;
    for (const std::string& text : texts) tags.push_back({text.data(), text.size(), 1, 0});
    return std::string(line, dthrottle_write_absence(tags.data(), tags.size(), line));
  };
  CHECK(written({"login:a b", ""}) == "absent login:a\\x20b _");
  CHECK(written(std::vector(DTHROTTLE_TAGS_MAX, std::string(2000, ' '))).size() <= DTHROTTLE_QUESTION_LINE_BYTES);
  CHECK(Hear("absent a", "OK serve").verdict == DTHROTTLE_SERVE);
  CHECK(Hear("absent a", "OK refuse").verdict == DTHROTTLE_THROTTLE);
  CHECK(Hear("absent a", "ERR absent TAG [TAG]...").verdict == DTHROTTLE_BAD_QUESTION);
  for (const char* const wrong : {"OK", "OK 1", "NO refuse", "refuse", ""}) CHECK_FALSE(Hear("absent a", wrong).good);
}

TEST_CASE("what did not count is given back in a line that the daemon takes") {
  const auto written = [](std::vector<std::string> texts, std::uint32_t cost) {
    char line[DTHROTTLE_QUESTION_LINE_BYTES];
    std::vector<dthrottle_tag> tags;
    for (const std::string& text : texts) tags.push_back({text.data(), text.size(), cost, 0});
    return std::string(line, dthrottle_write_refund(tags.data(), tags.size(), line));
  };
  CHECK(written({"login:a b", ""}, 3) == "refund 3 login:a\\x20b 3 _");
  CHECK(written(std::vector(DTHROTTLE_TAGS_MAX, std::string(2000, ' ')), 4'294'967'295).size() <=
        DTHROTTLE_QUESTION_LINE_BYTES);
  CHECK(written({std::string(9000, 'x')}, 4'294'967'295).size() == DTHROTTLE_QUESTION_LINE_BYTES);
  CHECK(Hear("refund 1 a", "OK").verdict == DTHROTTLE_SERVE);
  CHECK(Hear("refund 1 a", "ERR a line gives back at most 16 tags").verdict == DTHROTTLE_BAD_QUESTION);
  for (const char* const wrong : {"OK 1", "NO", "O", ""}) CHECK_FALSE(Hear("refund 1 a", wrong).good);
}

TEST_CASE("a rule's name that is too long is cut") {
  const Heard heard = Hear("take 1 a", "NO limit 1 0 " + std::string(100, 'r') + " a");
  REQUIRE(heard.good);
  CHECK(heard.answer.rule == std::string(64, 'r'));
}

TEST_CASE("a daemon that does not know the question says so, and is a daemon") {
  const Heard heard = Hear("take 1 a", "ERR COST TAG must follow, once for each tag");
  REQUIRE(heard.good);
  CHECK(heard.verdict == DTHROTTLE_BAD_QUESTION);
}

TEST_CASE("what does not fit the question is no answer to it") {
  for (const char* text : {"",
                           "OK",
                           "NO",
                           "OK 1",
                           "OK 1 2 3",
                           "OK 1 x",
                           "OK 1 -1",
                           "OK 1 9223372036854775808",
                           "ok 1 2",
                           "OKAY 1 2",
                           "NO limit",
                           "NO limit 1 1 rule",
                           "NO limit 1 1 rule c",
                           "NO limit 1 1 rule ab",
                           "NO limit - 1 rule a",
                           "NO limit 1 x rule a",
                           "NO limit 1 1 rule a b",
                           "NO never 1 1 rule a",
                           "NO shed 1 1 rule a",
                           "NO why 1 1 rule a",
                           "NO limit 99999999999999999999 1 rule a"}) {
    INFO(text);
    const Heard heard = Hear("take 1 a 1 b", text);
    CHECK_FALSE(heard.good);
    CHECK(heard.verdict == DTHROTTLE_TIMED_OUT);
    CHECK(heard.answer.rule[0] == '\0');
  }
}
