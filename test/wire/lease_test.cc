// Replays the transcripts of protocol/lease without sockets, cut at every byte boundary, and sends what no client
// should.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/prng.h"
#include "config/load.h"
#include "frontend/lease/lines.h"
#include "lease/name.h"
#include "test/wire/transcript.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

// A master of leases, or not, and one connection to it.
class LeaseHost {
 public:
  explicit LeaseHost(const Transcript& t) {
    const LoadedSettings loaded = ParseSettings(t.settings, "transcript");
    if (!loaded.ok()) FAIL(loaded.Errors());
    lease::ServerOptions options;
    options.min_request_interval = std::chrono::seconds(t.min_request_interval_s);
    server_ = std::make_unique<lease::LeaseServer>(options, *lease::Templates::Make(loaded.settings.resources));
    if (t.elsewhere.empty()) {
      server_->BecomeMaster({.epoch = 1000, .since = t.learning ? now_ : now_ - 1h, .former = 900});
      server_->SetMasterAddress("tcp:10.0.0.1:7315,grpc:10.0.0.1:7316");
    } else {
      server_->SetMasterAddress(t.elsewhere == "-" ? "" : t.elsewhere);
    }
    if (t.gateway) gateway_ = {.calls_max = 1000, .further = {500}};
  }

  std::string Send(std::string_view bytes) {
    if (ended_) return "";
    const std::string read = rest_ + std::string(bytes);
    const LeaseLines lines = SplitLeaseLines(read);
    std::string answers;
    AnswerLeaseLines(lines, *server_, now_, answers, gateway_ ? &*gateway_ : nullptr);
    rest_ = lines.rest;
    ended_ = lines.too_long;
    CHECK(rest_.size() <= kLeaseLineBytesMax);
    return answers;
  }

 private:
  const BootInstant now_ = BootInstant(1000h);
  std::unique_ptr<lease::LeaseServer> server_;
  std::optional<GatewayCalls> gateway_;
  std::string rest_;
  bool ended_ = false;
};

std::vector<std::filesystem::path> Files() {
  return TranscriptFiles("lease");
}

TEST_CASE("lease: there are transcripts, and all ask and are answered") {
  CHECK(Files().size() >= 9);
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    CHECK((!LoadTranscript(file).sent.empty() && !LoadTranscript(file).expected.empty()));
  }
}

TEST_CASE("lease: every transcript is answered as written, however it is cut") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    for (std::size_t cut = 0; cut <= t.sent.size(); ++cut) {
      LeaseHost host(t);
      std::string answers = host.Send(std::string_view(t.sent).substr(0, cut));
      answers += host.Send(std::string_view(t.sent).substr(cut));
      CAPTURE(cut);
      REQUIRE(answers == t.expected);
    }
  }
}

TEST_CASE("lease: every transcript is answered the same byte by byte") {
  for (const auto& file : Files()) {
    CAPTURE(file.filename().string());
    const Transcript t = LoadTranscript(file);
    LeaseHost host(t);
    std::string answers;
    for (const char byte : t.sent) answers += host.Send({&byte, 1});
    CHECK(answers == t.expected);
  }
}

TEST_CASE("lease: what the gateway counts adds up") {
  const auto templates = *lease::Templates::Make({});
  lease::LeaseServer server({}, templates);
  GatewayCalls gateway;
  std::string answers;
  AnswerLeaseLines(SplitLeaseLines("count 3 2 1\ncount 4 0 1\n"), server, BootInstant(1000h), answers, &gateway);
  CHECK(gateway.calls == 7);
  CHECK(gateway.refused == 2);
  CHECK(gateway.invalid == 2);
}

TEST_CASE("lease: a name is the same after it has been a word") {
  constexpr std::string_view kPieces[] = {" ", "\\", "x20", "x5c", "a", "\\x20", "x"};
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Prng prng(seed);
    std::string name;
    for (int i = 0; i < 6; ++i) name += kPieces[prng.Below(std::size(kPieces))];
    CAPTURE(name);
    CHECK(lease::FromWord(lease::ToWord(name)) == name);
    CHECK(lease::ToWord(name).find(' ') == std::string::npos);
  }
}

TEST_CASE("lease: a parent is asked for a resource with a blank in its name") {
  const std::string line = ParentLine("leaf 1", {.resource = "disk writes", .outstanding = 0, .wants = {}, .has = {}}, {});
  CHECK(line == "server leaf\\x201 disk\\x20writes - 0 0\n");
}

TEST_CASE("lease: whatever is sent, each line has one line for an answer, of printable bytes") {
  Transcript t;
  t.settings = "[[resource]]\nidentifier_glob = \"r*\"\ncapacity = 100\n";
  constexpr std::string_view kPieces[] = {"get ",  "release ", "discover", "a ", "r1 ", "1 ",     "1e15 ", "-1 ",
                                          "1e-9 ", "\x1b[2J ", "\xff ",    "\r", "\n",  "\n",     "\n",    "0x1 ",
                                          "inf ",  " ",        "9e99 ",    "",   "r2 ", "1.5.2 ", "+1 ",   "\0x "};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Prng prng(seed);
    LeaseHost host(t);
    std::string sent;
    for (int i = 0; i < 200; ++i) sent += kPieces[prng.Below(std::size(kPieces))];
    const std::string answers = host.Send(sent);
    CAPTURE(seed);
    CHECK(std::count(answers.begin(), answers.end(), '\n') == std::count(sent.begin(), sent.end(), '\n'));
    CHECK(std::all_of(answers.begin(), answers.end(), [](char c) { return c == '\n' || (c >= 0x20 && c <= 0x7e); }));
  }
}

}    // namespace
}    // namespace dthrottle::testing
