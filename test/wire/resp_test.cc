// Replays the transcripts of protocol/resp against the listener without sockets, cut at every byte boundary. The live
// daemon is given the same files by test/system.
#include <catch2/catch.hpp>

#include <filesystem>

#include "test/support/resp.h"
#include "test/wire/transcript.h"

namespace dthrottle::testing {
namespace {

std::vector<std::filesystem::path> Files() {
  return TranscriptFiles("resp");
}

// The replies to the pieces of `sent` that end at `cuts`, and at its end.
std::string Replay(const Transcript& t, std::initializer_list<std::size_t> cuts) {
  RespHost host(t.settings, t.accept_limits, t.tag_bytes_max);
  std::string replies;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    replies += host.Send(std::string_view(t.sent).substr(from, cut - from));
    from = cut;
  }
  return replies + host.Send(std::string_view(t.sent).substr(from));
}

TEST_CASE("resp: there are transcripts, and all ask and are answered") {
  CHECK(Files().size() >= 8);
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    CHECK((!LoadTranscript(file).sent.empty() && !LoadTranscript(file).expected.empty()));
  }
}

TEST_CASE("resp: every transcript is answered as written, however it is cut") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    REQUIRE(Replay(t, {}) == t.expected);
    for (std::size_t cut = 1; cut < t.sent.size(); ++cut) {
      CAPTURE(cut);
      REQUIRE(Replay(t, {cut}) == t.expected);
    }
  }
}

TEST_CASE("resp: every transcript is answered the same byte by byte") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    RespHost host(t.settings, t.accept_limits, t.tag_bytes_max);
    std::string replies;
    for (const char byte : t.sent) replies += host.Send({&byte, 1});
    CHECK(replies == t.expected);
  }
}

}    // namespace
}    // namespace dthrottle::testing
