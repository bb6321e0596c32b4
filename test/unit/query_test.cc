#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "base/prng.h"
#include "query/framer.h"
#include "query/verdict.h"

namespace dthrottle {
namespace {

FramerLimits Limits(std::size_t max) {
  FramerLimits limits{max, {}};
  limits.digest_key[0] = std::byte{1};
  return limits;
}

struct Sink {
  std::vector<std::string> tags;
  void OnTag(std::string_view tag) { tags.emplace_back(tag); }
  void OnOverLongTag(std::unique_ptr<OverLongReader> reader) {
    const OverLongTag tag = reader->Finish();
    tags.push_back("over-long " + std::to_string(tag.size) + " " + std::string(tag.digest.data(), tag.digest.size()) +
                   std::string(tag.head) + std::string(tag.tail));
  }
};

// What a framer says of bytes that come in pieces cut at `cuts`.
std::vector<std::string> Tags(std::string_view bytes, std::vector<std::size_t> cuts, std::size_t max) {
  const FramerLimits limits = Limits(max);
  Framer framer;
  Sink sink;
  cuts.push_back(bytes.size());
  std::size_t start = 0;
  for (const std::size_t cut : cuts) {
    const std::string piece = std::string(framer.rest()) + std::string(bytes.substr(start, cut - start));
    CHECK(framer.rest().size() <= max + 1);
    framer.Read(piece, limits, sink);
    start = cut;
  }
  return sink.tags;
}

using Strings = std::vector<std::string>;

TEST_CASE("each line is a tag") {
  CHECK(Tags("a\nbc\n", {}, 255) == Strings{"a", "bc"});
  CHECK(Tags("\n\n", {}, 255) == Strings{"", ""});
  CHECK(Tags("a", {}, 255) == Strings{});
  CHECK(Tags("a\nb", {}, 255) == Strings{"a"});
}

TEST_CASE("one carriage return before the line feed is not part of the tag, any other is") {
  CHECK(Tags("a\r\n", {}, 255) == Strings{"a"});
  CHECK(Tags("a\r\r\n", {}, 255) == Strings{"a\r"});
  CHECK(Tags("\r\n", {}, 255) == Strings{""});
  CHECK(Tags("a\rb\n", {}, 255) == Strings{"a\rb"});
  CHECK(Tags("1234\r\n", {}, 4) == Strings{"1234"});
}

TEST_CASE("where the bytes are cut makes no difference") {
  const std::string streams[] = {
      "a\nbc\n\n\r\nlonger tag\r\nx\ry\r\r\n",
      "1234\r\n12345\r\n1234\r5\n" + std::string(40, 'x') + "\r\n" + std::string(40, 'x') + "\r\r\nab\n",
      std::string(700, 'q') + "\n" + std::string(699, 'q') + "\r\nend\n",
  };
  for (const std::string& bytes : streams) {
    for (const std::size_t max : {4u, 8u, 255u}) {
      const Strings whole = Tags(bytes, {}, max);
      for (std::size_t a = 0; a <= bytes.size(); ++a) {
        REQUIRE(Tags(bytes, {a}, max) == whole);
        REQUIRE(Tags(bytes, {a / 2, a}, max) == whole);
      }
      std::vector<std::size_t> every(bytes.size());
      for (std::size_t i = 0; i < every.size(); ++i) every[i] = i;
      CHECK(Tags(bytes, every, max) == whole);
    }
  }
}

TEST_CASE("a tag at the limit is itself, one byte more is a digest") {
  CHECK(Tags(std::string(255, 'a') + "\n", {}, 255) == Strings{std::string(255, 'a')});
  const Strings tags = Tags(std::string(256, 'a') + "\n", {}, 255);
  REQUIRE(tags.size() == 1);
  CHECK(tags[0].starts_with("over-long 256 "));
}

TEST_CASE("over-long tags that differ in one byte anywhere are different tags") {
  const std::string tag(1000, 'a');
  const std::string digest = Tags(tag + "\n", {}, 255)[0].substr(0, 40);
  for (const std::size_t at : {0u, 254u, 255u, 500u, 744u, 999u}) {
    std::string other = tag;
    other[at] = 'b';
    CAPTURE(at);
    CHECK(Tags(other + "\n", {}, 255)[0].substr(0, 40) != digest);
  }
  CHECK(Tags(tag + "\n", {300}, 255)[0].substr(0, 40) == digest);
}

TEST_CASE("the digest depends on the key") {
  OverLongReader a(Limits(255).digest_key), b(DigestKey{});
  a.Read("x");
  b.Read("x");
  CHECK(a.Finish().digest != b.Finish().digest);
}

TEST_CASE("of an over-long tag both ends are kept") {
  OverLongReader reader(Limits(255).digest_key);
  std::string tag;
  for (int i = 0; i < 1000; ++i) tag += static_cast<char>('a' + i % 26);
  for (std::size_t i = 0; i < tag.size(); i += 7) reader.Read(std::string_view(tag).substr(i, 7));
  const OverLongTag kept = reader.Finish();
  CHECK(kept.size == 1000);
  CHECK(kept.head == tag.substr(0, 255));
  CHECK(kept.tail == tag.substr(745));
}

TEST_CASE("both ends of an over-long line are known before it is whole, with a CR that may not be of the tag") {
  const FramerLimits limits = Limits(255);
  Framer framer;
  Sink sink;
  framer.Read("GET /", limits, sink);
  CHECK(framer.ends().empty());    // all of it is rest
  framer.Read("GET /" + std::string(600, 'x'), limits, sink);
  framer.Read(" HTTP/1.1\r", limits, sink);
  CHECK(framer.rest().empty());
  CHECK(framer.ends().starts_with("GET /xxx"));
  CHECK(framer.ends().ends_with("xxx HTTP/1.1\r"));
  framer.Read("\n", limits, sink);
  CHECK(framer.ends().empty());
}

TEST_CASE("answers are three bytes each") {
  const Verdict verdicts[] = {Verdict::kServe, Verdict::kThrottle, Verdict::kServe};
  char out[9];
  WriteAnswers(verdicts, out);
  CHECK(std::string(out, 9) == "OK\nNO\nOK\n");
}

TEST_CASE("a framer goes on where another left off, wherever the bytes are cut") {
  const std::string bytes =
      "one\n" + std::string(700, 'x') + "\r\ntwo\r\n" + std::string(260, 'y') + "\r" + "z\nlast\n";
  const FramerLimits limits = Limits(255);
  const std::vector<std::string> expected = Tags(bytes, {}, 255);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Framer before, after;
    Sink sink;
    before.Read(std::string_view(bytes).substr(0, cut), limits, sink);
    REQUIRE(after.Restore(before.Save(), limits));
    after.Read(std::string(after.rest()) + bytes.substr(cut), limits, sink);
    CHECK(sink.tags == expected);
  }
}

TEST_CASE("an over-long reader is restored from its own bytes only") {
  OverLongReader reader(Limits(255).digest_key);
  reader.Read(std::string(300, 'x'));
  const std::string saved = reader.Save();
  CHECK(OverLongReader::Load(saved) != nullptr);
  for (std::size_t size = 0; size < saved.size(); ++size) CHECK(OverLongReader::Load(saved.substr(0, size)) == nullptr);
  CHECK(OverLongReader::Load(saved + "x") == nullptr);
  std::string other_library = saved;
  ++other_library[0];
  CHECK(OverLongReader::Load(other_library) == nullptr);
}

TEST_CASE("an unfinished line that a lower limit has made over-long is over-long") {
  Framer before, after;
  Sink sink;
  before.Read("abcdef", Limits(255), sink);
  REQUIRE(after.Restore(before.Save(), Limits(3)));
  CHECK(after.rest().empty());
  after.Read("g\n", Limits(3), sink);
  CHECK(sink.tags == Tags("abcdefg\n", {}, 3));
}

}    // namespace
}    // namespace dthrottle
