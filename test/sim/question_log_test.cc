#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "lab/question_log.h"
#include "lab/waits.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;
using Does = LoggedQuestion::Does;

constexpr std::string_view kDate = "[10/Oct/2000:13:55:36 -0700]";
constexpr std::int64_t kDateS = 971211336;

QuestionReader Reader(const std::vector<std::string>& tags = {"ip:%h"}, const std::vector<std::string>& costs = {}) {
  QuestionTemplate made;
  for (const std::string& tag : tags) made.tags.push_back(TagTemplate::Parse(tag).value());
  for (const std::string& cost : costs) made.costs.push_back(TagTemplate::Parse(cost).value());
  return QuestionReader(std::move(made));
}

std::string Words(const LoggedQuestion& question) {
  std::string words;
  for (const auto& [name, cost] : question.tags) words += fmt::format("{}{} {}", words.empty() ? "" : " ", cost, name);
  return words;
}

TEST_CASE("a line of a log of questions is a date, a request and a line of the protocol") {
  QuestionReader reader = Reader();
  std::string line;    // which views are of
  const auto read = [&](std::string_view words) {
    line = fmt::format("{} {}", kDate, words);
    return reader.Read(line).value();
  };
  const LoggedQuestion take = read("17 take wait=500 1 user:alice 3 tenant:ac\\x20me\r");
  CHECK((take.time_s == kDateS && take.does == Does::kAsk && take.verb == Verb::kTake && take.patience == 500ms));
  CHECK((take.request == "17" && Words(take) == "1 user:alice 3 tenant:ac me"));
  const LoggedQuestion hold = read("x hold 60000 500 t");
  CHECK((hold.verb == Verb::kHold && hold.ttl == 1min && Words(hold) == "500 t"));
  CHECK(read("x enter 0 t").verb == Verb::kEnter);
  CHECK(read("x enter 0 t").ttl == 0s);
  CHECK(read("- enter lasts=0.350s 1 t").ttl == 350ms);
  CHECK(read("- enter lasts=20ms 1 t").ttl == 20ms);
  CHECK(read("- enter lasts=0.000s 1 t").ttl > 0s);
  CHECK(read("-  take  1  t ").request.empty());
  const LoggedQuestion commit = read("x commit 371 9");
  CHECK((commit.does == Does::kCommit && commit.tags.size() == 2 && commit.tags[1].cost == 9));
  CHECK(read("x release").does == Does::kRelease);
  const LoggedQuestion refund = read("x refund 2 a 3 b");
  CHECK((refund.does == Does::kRefund && Words(refund) == "2 a 3 b"));
  CHECK(read("- peek wait=5 1 t").does == Does::kPeek);
  CHECK(read("x give").does == Does::kGive);
}

TEST_CASE("what an answer is to tell, and whether a wait is kept, changes no question") {
  QuestionReader reader = Reader();
  const auto read = [&](std::string_view words) {
    return Words(reader.Read(fmt::format("{} x {}", kDate, words)).value());
  };
  CHECK(read("take tell=limit 1 t") == "1 t");
  CHECK(read("take wait=5 tell=all 1 t") == "1 t");
  CHECK(read("take wait=5 keep tell=all 1 t") == "1 t");
  CHECK(read("enter tell=all 1 t") == "1 t");
  CHECK(read("hold tell=limit 60000 here 5 t") == "5 t");
  CHECK_FALSE(reader.Read(fmt::format("{} x take tell=more 1 t", kDate)).has_value());
  CHECK_FALSE(reader.Read(fmt::format("{} x take keep 1 t", kDate)).has_value());
}

TEST_CASE("a tag that is named twice pays the sum of both costs") {
  QuestionReader reader = Reader();
  CHECK(Words(reader.Read(fmt::format("{} - take 1 a 2 b 4294967295 a", kDate)).value()) == "4294967295 a 2 b");
}

TEST_CASE("a line that is no question says what it should be") {
  QuestionReader reader = Reader();
  const std::string many = [] {
    std::string words;
    for (int i = 0; i < 17; ++i) words += fmt::format(" 1 t{}", i);
    return words;
  }();
  const std::pair<std::string, std::string> lines[] = {
      {"x", "\"\": must be take, peek, enter, hold, commit, release, give or refund, behind a request's name"},
      {"x steal 1 t", "\"steal\": must be take, peek, enter, hold"},
      {"x refund", "COST TAG [COST TAG]... must follow"},
      {"- refund 1 t", "refund needs the name of its request, not -"},
      {"x take", "COST TAG [COST TAG]... must follow"},
      {"x take 1", "no tag behind the last cost"},
      {"x take -1 t", "cost -1: must be a whole number of tokens from 0 to 4294967295"},
      {"x take 4294967296 t", "cost 4294967296: must be"},
      {"x take wait=1s 1 t", "wait=1s: must be milliseconds from 0 to 2678400000"},
      {"x hold t 1 t", "TTL t: must be milliseconds"},
      {"x take" + many, "a question has at most 16 tags"},
      {"x commit", "ACTUAL must follow commit, once or for each tag"},
      {"x commit t", "cost t: must be"},
      {"x give t", "nothing may follow give"},
      {"x release 5", "nothing may follow release"},
      {"- enter lasts=20 1 t", "lasts=20: must be a duration such as 350ms or 0.350s"},
      {"- enter lasts=-1s 1 t", "lasts=-1s: must be a duration"},
      {"- enter lasts=99d 1 t", "lasts=99d: must be a duration"},
      {"- enter 1 t", "enter needs the name of its request, not -"},
      {"- hold 5 1 t", "hold needs the name of its request, not -"},
      {"- give", "give needs the name of its request, not -"},
      {std::string(256, 'x') + " take 1 t", "the request's name has more than 255 bytes"}};
  for (const auto& [words, reason] : lines) {
    const auto read = reader.Read(fmt::format("{} {}", kDate, words));
    REQUIRE_FALSE(read.has_value());
    CAPTURE(read.error().message);
    CHECK(read.error().message.starts_with(reason));
  }
  for (const std::string_view line : {"[10/", "[10/Oct/2000:13:55:36 -0700", "[10/Oct/2000:13:55:36] x take 1 t",
                                      "[10/Oct/2000:13:55:36 -0700 ] x take 1 t", "[99/Oct/2000:13:55:36 -0700] x"}) {
    CHECK_FALSE(reader.Read(line).has_value());
  }
}

TEST_CASE("a line of an access log is a question about every tag of the templates") {
  constexpr std::string_view kLine = R"(10.0.0.1 - eve [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 326)";
  const LoggedQuestion plain = Reader().Read(kLine).value();
  CHECK((plain.time_s == kDateS && plain.request.empty() && plain.does == Does::kAsk && plain.verb == Verb::kTake));
  const auto words = [&](const std::vector<std::string>& tags, const std::vector<std::string>& costs) {
    QuestionReader reader = Reader(tags, costs);
    return Words(reader.Read(kLine).value());
  };
  CHECK(words({"ip:%h"}, {}) == "1 ip:10.0.0.1");
  CHECK(words({"ip:%h", "user:%u"}, {"7"}) == "7 ip:10.0.0.1 7 user:eve");
  CHECK(words({"ip:%h", "user:%u"}, {"1", "%b"}) == "1 ip:10.0.0.1 326 user:eve");
  CHECK(words({"%h", "all", "%h"}, {"2"}) == "4 10.0.0.1 2 all");
  CHECK(words({"a"}, {"%l"}) == "0 a");    // "-": there is none
  const auto wrong = Reader({"a"}, {"%u"}).Read(kLine);
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().message.starts_with("cost eve: must be a whole number of tokens"));
  CHECK(Reader().Read(R"([::1] - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 326)").has_value());
}

TEST_CASE("a list of questions gives back what was added") {
  QuestionReader reader = Reader();
  QuestionList list;
  const std::vector<std::string> lines = {"r1 take wait=5 1 a 2 bb", "- take 3 ccc", "r2 hold 7 4 dddd", "r2 commit 1 2"};
  for (const std::string& line : lines) list.Add(reader.Read(fmt::format("{} {}", kDate, line)).value());
  std::vector<std::string> seen;
  list.ForEach([&](const LoggedQuestion& question) {
    seen.push_back(fmt::format("{}|{}|{}|{}", question.request, question.patience.count() + question.ttl.count(),
                               static_cast<int>(question.does), Words(question)));
  });
  const std::string commit = fmt::format("r2|0|{}|1  2 ", static_cast<int>(Does::kCommit));
  CHECK(seen == std::vector<std::string>{"r1|5000000|0|1 a 2 bb", "|0|0|3 ccc", "r2|7000000|0|4 dddd", commit});
  CHECK((list.size() == 4 && list.bytes() > 20));
  list.Clear();
  CHECK((list.size() == 0 && list.bytes() == 0));
}

TEST_CASE("quantiles of waits are at most a 64th too long") {
  Prng prng(5);
  Waits waits;
  std::vector<Duration> all;
  for (int i = 0; i < 10'000; ++i) {
    all.push_back(Duration(static_cast<Duration::rep>(prng.Next() >> (2 + prng.Below(60)))));
    waits.Add(all.back());
  }
  std::ranges::sort(all);
  for (const double q : {0.0001, 0.01, 0.5, 0.99, 1.0}) {
    const Duration exact = all[static_cast<std::size_t>(q * 10'000) - 1], told = waits.Quantile(q);
    CAPTURE(q, exact.count(), told.count());
    CHECK(told >= exact);
    CHECK(told - exact <= exact / 64);
  }
  CHECK((waits.count() == 10'000 && waits.longest() == all.back() && waits.Quantile(1) == all.back()));
}

}    // namespace
}    // namespace dthrottle::lab
