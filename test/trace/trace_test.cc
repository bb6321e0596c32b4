// Golden traces: a story in commands, and everything that happened. Each file opens with a paragraph of situation; a
// block is commands, a line "----" and what came of them. Set DTHROTTLE_UPDATE_TRACES to write what comes of them now;
// read the difference and commit it only if you understand it.
//
//   rules                     the lines that follow, up to an empty one, are TOML
//   at 500ms                  the time since the start
//   ask TAG N [cost C]        N queries
//   debit TAG N late 2s       hits that a peer served 2 s ago
//   look TAG                  level, and when the tag is served again
//   kill                      kill -9 and start again on the same table
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <sstream>

#include "config/values.h"
#include "limiter/inspect.h"
#include "rule/rulebook.h"
#include "share/inspection.h"
#include "share/ways.h"
#include "test/support/golden.h"
#include "test/support/host.h"

namespace dthrottle::testing {
namespace {

class Story {
 public:
  std::string Run(const std::string& line) {
    std::istringstream words(line);
    std::string command, tag;
    words >> command;
    if (command == "at") {
      words >> tag;
      now_ = FromNanoseconds(0) + ParseDuration(tag).value();
      return "";
    }
    if (command == "kill") {
      host_->Start(Rules(toml_), now_);
      host_->limiter->ways().Get<Debits>().ShareWith(1, std::chrono::seconds(5));
      return fmt::format("{} {} tags kept, {} dropped\n", Clock(), host_->limiter->table().counts().tags,
                         host_->limiter->table().counts().dropped);
    }
    words >> tag;
    if (command == "ask") return Ask(tag, words);
    if (command == "debit") return Debit(tag, words);
    if (command == "look") return Look(tag);
    return "unknown command: " + line + "\n";
  }

  void SetRules(const std::string& toml) {
    toml_ = toml;
    if (host_ == nullptr) {
      host_ = std::make_unique<Host>(toml);
      host_->limiter->ways().Get<Debits>().ShareWith(1, std::chrono::seconds(5));
    } else {
      host_->limiter->Adopt(Rules(toml));
      while (host_->limiter->Tick(now_)) {
      }
    }
  }

 private:
  std::string Clock() const { return fmt::format("{:>8.3f}", Seconds(now_.time_since_epoch())); }

  std::string Ask(const std::string& tag, std::istringstream& words) {
    int n = 1;
    Cost cost = 1;
    std::string word;
    words >> n;
    if (words >> word && word == "cost") words >> cost;
    std::string verdicts;
    int run = 0;
    bool last = false;
    const auto end_run = [&] {
      if (run > 0) verdicts += fmt::format(" {}x{}", last ? "OK" : "NO", run);
      run = 0;
    };
    for (int i = 0; i < n; ++i) {
      const bool served = host_->Serves(tag, now_, cost);
      if (run > 0 && served != last) end_run();
      last = served;
      ++run;
    }
    end_run();
    return fmt::format("{} {}:{}, level {:.3f}\n", Clock(), tag, verdicts, host_->Level(tag, now_));
  }

  std::string Debit(const std::string& tag, std::istringstream& words) {
    Cost hits = 0;
    std::string word, late = "0s";
    words >> hits >> word >> late;
    Entries entries;
    entries.Add({tag, false}, hits, 0);
    const Instant when = now_ - ParseDuration(late).value();
    host_->limiter->ways().Get<Debits>().Debit(entries, 0, 1, when, now_, now_);
    return fmt::format("{} {}: debited {}, {} late, level {:.3f}\n", Clock(), tag, hits, late, host_->Level(tag, now_));
  }

  std::string Look(const std::string& tag) {
    const std::string bytes = tag;
    const Inspection seen = Inspect(*host_->limiter, {{bytes, false}}, now_);
    const Shape& shape = host_->limiter->rules().limit(seen.limit.value()).shape;
    return fmt::format("{} {}: level {:.3f}, served at {:.3f}, full at {:.3f}\n", Clock(), tag,
                       seen.bucket.Level(shape, now_), Seconds(seen.bucket.ServesAt(shape, 1, now_).time_since_epoch()),
                       Seconds((now_ + seen.bucket.UntilFull(now_)).time_since_epoch()));
  }

  Instant now_{};
  std::string toml_;
  std::unique_ptr<Host> host_;
};

// Runs the commands of `text` and returns it with what came of them now.
std::string Replay(const std::string& text) {
  std::istringstream in(text);
  std::string out, line;
  Story story;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') {
      out += line + '\n';
      continue;
    }
    std::string happened;
    if (line == "rules") {
      out += line + '\n';
      std::string toml;
      while (std::getline(in, line) && !line.empty()) toml += line + '\n';
      story.SetRules(toml);
      out += toml + '\n';
      continue;
    }
    do {
      happened += story.Run(line);
      out += line + '\n';
    } while (std::getline(in, line) && line != "----");
    while (std::getline(in, line) && !line.empty()) {
    }
    out += "----\n" + happened + '\n';
  }
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

TEST_CASE("golden traces") {
  CHECK(testing::CheckGoldenTraces(DTHROTTLE_SOURCE "/test/trace", Replay) >= 3);
}

}    // namespace
}    // namespace dthrottle::testing
