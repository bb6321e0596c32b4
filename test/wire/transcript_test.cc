// Replays the transcripts of protocol/query against the limiter without sockets, cut at every byte boundary. The live
// daemon is given the same files by test/system.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

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
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DTHROTTLE_SOURCE "/protocol/query")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Transcript Load(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto transcript = ParseTranscript(text);
  if (!transcript) throw std::runtime_error(path.string() + ": " + transcript.error().message);
  return *transcript;
}

TEST_CASE("there are transcripts, and nearly all ask and are answered") {
  std::size_t asked = 0;
  for (const auto& file : Files()) asked += !Load(file).sent.empty() && !Load(file).expected.empty();
  CHECK(asked >= 10);
}

TEST_CASE("every transcript is answered as written") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = Load(file);
    CHECK(Application(t).Send(t.sent) == t.expected);
  }
}

TEST_CASE("every transcript is answered the same when it is cut anywhere") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = Load(file);
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
    const Transcript t = Load(file);
    Application application(t);
    std::string answers;
    for (const char byte : t.sent) answers += application.Send({&byte, 1});
    CHECK(answers == t.expected);
  }
}

}    // namespace
}    // namespace dthrottle::testing
