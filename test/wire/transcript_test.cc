// Replays the transcripts of protocol/query against the limiter without sockets, cut at every byte boundary. The live
// daemon is given the same files by test/system.
#include <catch2/catch.hpp>

#include <filesystem>

#include "query/framer.h"
#include "test/support/host.h"
#include "test/wire/transcript.h"

namespace dthrottle::testing {
namespace {

class Application {
 public:
  explicit Application(const Transcript& t)
      : host_(t.settings), limits_{t.tag_bytes_max, host_.limiter->keys().digest} {}

  // What the daemon would answer to these bytes, now.
  std::string Send(std::string_view bytes) {
    const std::string whole = std::string(framer_.rest()) + std::string(bytes);
    answers_.clear();
    framer_.Read(whole, limits_, *this);
    return answers_;
  }

  void OnTag(std::string_view tag) { Ask({{tag, false}}); }

  void OnOverLongTag(std::unique_ptr<OverLongReader> reader) {
    const OverLongTag tag = reader->Finish();
    Ask({{{tag.digest.data(), tag.digest.size()}, true}, 1, &tag});
  }

 private:
  void Ask(const Query& query) {
    Verdict verdict;
    host_.limiter->Answer({&query, 1}, {&verdict, 1}, 0, host_.prng, FromNanoseconds(1'000'000'000));
    char answer[kAnswerBytes];
    WriteAnswers({&verdict, 1}, answer);
    answers_.append(answer, kAnswerBytes);
  }

  Host host_;
  FramerLimits limits_;
  Framer framer_;
  std::string answers_;
};

std::vector<std::filesystem::path> Files() {
  return TranscriptFiles("query");
}

TEST_CASE("there are transcripts, and nearly all ask and are answered") {
  std::size_t asked = 0;
  for (const auto& file : Files())
    asked += !LoadTranscript(file).sent.empty() && !LoadTranscript(file).expected.empty();
  CHECK(asked >= 10);
}

TEST_CASE("every transcript is answered as written") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    CHECK(Application(t).Send(t.sent) == t.expected);
  }
}

TEST_CASE("every transcript is answered the same when it is cut anywhere") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    for (std::size_t cut = 0; cut <= t.sent.size(); ++cut) {
      Application application(t);
      std::string answers = application.Send(std::string_view(t.sent).substr(0, cut));
      answers += application.Send(std::string_view(t.sent).substr(cut));
      CAPTURE(cut);
      REQUIRE(answers == t.expected);
    }
  }
}

TEST_CASE("every transcript is answered the same byte by byte") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    Application application(t);
    std::string answers;
    for (const char byte : t.sent) answers += application.Send({&byte, 1});
    CHECK(answers == t.expected);
  }
}

}    // namespace
}    // namespace dthrottle::testing
