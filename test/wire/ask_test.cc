// Replays the transcripts of protocol/ask against the front end without sockets, cut at every byte boundary. The live
// daemon is given the same files by test/system.
#include <catch2/catch.hpp>

#include <filesystem>

#include "test/support/ask.h"
#include "test/wire/transcript.h"

namespace dthrottle::testing {
namespace {

// The answers to the pieces of `sent` that end at `cut` and at its end.
std::string Replay(const Transcript& t, std::size_t cut) {
  AskHost host(t.settings, t.tag_bytes_max);
  std::string answers = host.Send(std::string_view(t.sent).substr(0, cut));
  return answers + host.Send(std::string_view(t.sent).substr(cut));
}

TEST_CASE("ask: there are transcripts") {
  CHECK(TranscriptFiles("ask").size() >= 12);
}

TEST_CASE("ask: every transcript is answered as written, however it is cut") {
  constexpr std::size_t kLong = 2000;    // cut at a part of its bytes
  for (const auto& file : TranscriptFiles("ask")) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    for (std::size_t cut = 0; cut < t.sent.size(); cut += t.sent.size() > kLong ? 61 : 1) {
      CAPTURE(cut);
      REQUIRE(Replay(t, cut) == t.expected);
    }
  }
}

TEST_CASE("ask: every transcript is answered the same byte by byte") {
  for (const auto& file : TranscriptFiles("ask")) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    AskHost host(t.settings, t.tag_bytes_max);
    std::string answers;
    for (const char byte : t.sent) answers += host.Send({&byte, 1});
    CHECK(answers == t.expected);
  }
}

TEST_CASE("ask: what is under way of a line goes over to another process") {
  AskHost before("[[rule]]\nburst=3\nrate=1\n");
  CHECK(before.Send("take 1 a\ntake 1 ") == "OK 2\n");
  AskHost after("[[rule]]\nburst=3\nrate=1\n");
  after.reader.Restore(before.reader.rest(), before.reader.state());
  CHECK(after.Send("b\n") == "OK 2\n");

  CHECK(before.Send(std::string(9000, 'x')) == "ERR a line has at most 8192 bytes\n");
  after.reader.Restore(before.reader.rest(), before.reader.state());
  CHECK(after.Send("take 1 c\ntake 1 d\n") == "OK 2\n");
}

}    // namespace
}    // namespace dthrottle::testing
