// What a server may answer to libdthrottle, in bytes of its choice: verdicts are what their bytes say, wherever they
// are cut; a lease that is taken is within every bound; and the asker gives each question back once, by its deadline,
// with no more answers than it has tags.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "client/answers.h"
#include "client/asker.h"
#include "client/question.h"

namespace {

void Check(bool good) {
  if (!good) std::abort();
}

// Lines that the reader has accepted are exactly "OK" and "NO", and it stops at the first byte of anything else.
void ReadVerdicts(std::string_view bytes) {
  dthrottle_verdict_reader reader{};
  std::string heard;
  std::size_t taken = 0;
  for (const char byte : bytes) {
    const dthrottle_read read = dthrottle_read_verdict(&reader, byte);
    if (read == DTHROTTLE_READ_BAD) break;
    ++taken;
    if (read == DTHROTTLE_READ_OK) heard += "OK\n";
    if (read == DTHROTTLE_READ_NO) heard += "NO\n";
  }
  const std::string_view rest = bytes.substr(heard.size(), taken - heard.size());
  Check(bytes.substr(0, heard.size()) == heard && rest.size() < 3);
  Check(std::string_view("OK\n").starts_with(rest) || std::string_view("NO\n").starts_with(rest));
  Check(taken == bytes.size() || reader.begun[rest.size()] == bytes[taken]);
}

void ReadLease(std::string_view bytes) {
  dthrottle_lease_line lease{};
  if (!dthrottle_read_lease(std::string(bytes).c_str(), &lease)) return;
  Check(lease.capacity >= 0 && lease.capacity <= DTHROTTLE_AMOUNT_MAX && lease.safe <= DTHROTTLE_AMOUNT_MAX);
  Check(std::isfinite(lease.safe) && lease.refresh_s > 0 && lease.refresh_s <= DTHROTTLE_LEASE_S_MAX);
  Check(lease.expiry_s >= 0 && lease.expiry_s <= DTHROTTLE_LEASE_S_MAX);
  Check(lease.token <= static_cast<std::uint64_t>(INT64_MAX));
  Check(lease.learning_s >= 0 && lease.learning_s <= DTHROTTLE_LEASE_S_MAX);
}

// The tag of a word, as protocol/ask.md rule 9 has it. (The daemon's reader is in a namespace with the name of a type
// of the client's.)
std::string Unescaped(std::string_view word) {
  std::string tag;
  for (; !word.empty(); word.remove_prefix(1)) {
    const bool blank = word.starts_with("\\x20");
    const bool escaped = blank || word.starts_with("\\x5c");
    tag += blank ? ' ' : word.front();
    if (escaped) word.remove_prefix(3);
  }
  return tag;
}

// Up to the first byte 0xff each LF begins another tag; what stands behind it is the answer.
void AskQuestion(std::string_view bytes) {
  const std::size_t split = bytes.find('\xff');
  std::string_view rest = bytes.substr(0, split);
  const std::string_view said = split != bytes.npos ? bytes.substr(split + 1) : std::string_view();
  std::vector<dthrottle_tag> tags;
  for (bool more = true; more && tags.size() < 16;) {
    const std::size_t lf = rest.find('\n');
    more = lf != rest.npos;
    const std::string_view tag = rest.substr(0, lf);
    tags.push_back({tag.data(), tag.size(), static_cast<std::uint32_t>(tag.size() * 65537), 0});
    if (more) rest.remove_prefix(lf + 1);
  }
  dthrottle_question question{};
  question.tags = tags.data();
  question.count = tags.size();
  std::string line(dthrottle_question_room(&question), '\0');
  Check(!line.empty() && line.size() <= DTHROTTLE_QUESTION_LINE_BYTES);
  line.resize(dthrottle_write_question(&question, line.data()));

  std::string_view words = std::string_view(line).substr(4);
  for (const dthrottle_tag& tag : tags) {
    std::string cost = " " + std::to_string(tag.cost) + " ";
    Check(words.starts_with(cost));
    words.remove_prefix(cost.size());
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(word.size());
    Check(!word.empty() && word.find_first_of("\r\n", word.size() - 1) == word.npos);
    std::string sent(tag.text, tag.bytes);
    if (sent.empty() || sent.back() == '\r') sent.append(sent.empty(), '_').back() = '_';
    const std::string read = Unescaped(word);
    const bool cut = word.size() + 4 > (8192 - 4) / tags.size() - 12;
    Check(read == sent || (cut && sent.substr(0, read.size() - 1) == read.substr(0, read.size() - 1)));
  }
  Check(words.empty());

  dthrottle_verdict verdict{};
  dthrottle_answer answer{};
  if (!dthrottle_read_answer(line.data(), line.size(), said.data(), said.size(), &verdict, &answer)) return;
  Check(verdict == DTHROTTLE_SERVE || verdict == DTHROTTLE_THROTTLE || verdict == DTHROTTLE_BAD_QUESTION);
  Check((verdict == DTHROTTLE_THROTTLE) == (answer.reason != DTHROTTLE_REASON_NONE));
  Check(answer.refused < tags.size() && answer.wait_ms >= 0 && std::strlen(answer.rule) < DTHROTTLE_RULE_BYTES);
  for (const std::int64_t left : answer.left) Check(left >= DTHROTTLE_UNLIMITED);
}

constexpr std::size_t kQuestions = 12;
constexpr std::size_t kLines = 2;
constexpr std::size_t kBufferBytes = 8;

// Each byte is something that happens to an asker; answers are the bytes behind it.
class Asker {
 public:
  explicit Asker(bool asks_questions) : asks_questions_(asks_questions) {
    const dthrottle_asker_options options{
        lines_, kLines, buffers_, kBufferBytes, 2, 4, 10, 5000, 1, asks_questions ? answers_ : nullptr};
    dthrottle_asker_init(&asker_, &options);
  }

  void Run(std::string_view bytes) {
    while (!bytes.empty()) {
      const unsigned char what = static_cast<unsigned char>(bytes.front());
      dthrottle_line& line = lines_[what >> 3 & 1];
      bytes.remove_prefix(1);
      switch (what & 7) {
        case 0:
        case 1:
          Ask(what >> 3);
          break;
        case 2:
          dthrottle_asker_opened(&asker_, &line);
          break;
        case 3:
          bytes.remove_prefix(Hear(line, bytes.substr(0, what >> 4)));
          break;
        case 4:
          dthrottle_asker_ended(&asker_, &line, DTHROTTLE_UNREACHABLE, now_);
          break;
        case 5:
          Forget(what >> 3);
          break;
        default:
          now_ += what;
          Send(line);
      }
      Settle();
    }
    now_ = DTHROTTLE_NEVER - 1;
    Settle();
    for (const State& state : states_) Check(!state.asked);    // all are back
  }

 private:
  struct State {
    dthrottle_pending question{};
    dthrottle_verdict verdicts[2]{};
    dthrottle_answer answer{};
    bool asked = false;
  };

  void Ask(unsigned how) {
    static const char* const tags[] = {"a", "somewhat longer"};
    static const char* const lines[] = {"take 1 a", "peek 1 a 2 b 1 a"};
    State& state = states_[how % kQuestions];
    if (state.asked) return;
    state.question.tags = (asks_questions_ ? lines : tags) + how % 2;
    state.question.count = how % 2 == 0 && !(asks_questions_ && how % 3 > 1) ? how % 3 : 1;
    state.question.verdicts = state.verdicts;
    state.question.answer = &state.answer;
    state.question.deadline = now_ + how;
    state.asked = dthrottle_asker_ask(&asker_, &state.question, now_) == DTHROTTLE_ASKED;
    Check(!state.asked || state.question.line->waiting <= 4);
  }

  std::size_t Hear(dthrottle_line& line, std::string_view bytes) {
    if (!line.open) return 0;
    if (!dthrottle_asker_heard(&asker_, &line, bytes.data(), bytes.size())) {
      dthrottle_asker_ended(&asker_, &line, DTHROTTLE_BAD_ANSWER, now_);
    }
    return bytes.size();
  }

  void Send(dthrottle_line& line) {
    std::size_t bytes = 0;
    const char* const out = dthrottle_line_output(&line, &bytes);
    Check(bytes <= kBufferBytes && (bytes == 0 || out != nullptr));
    if (line.open) dthrottle_line_sent(&line, bytes / 2 + bytes % 2);
  }

  // A tag that is longer than the buffer must not be forgotten half-way.
  void Forget(unsigned which) {
    State& state = states_[which % kQuestions];
    if (!state.asked || state.question.written_bytes > 0) return;
    dthrottle_asker_forget(&asker_, &state.question);
    state.asked = false;
  }

  void Settle() {
    while (dthrottle_asker_tick(&asker_, now_) != nullptr) {
    }
    Check(dthrottle_asker_next_deadline(&asker_) > now_);
    while (dthrottle_pending* const back = dthrottle_asker_next_back(&asker_)) {
      State* state = states_;
      while (&state->question != back) ++state;
      Check(state->asked && back->answered <= back->count);
      Check(back->outcome != DTHROTTLE_SERVE || back->answered == back->count);
      state->asked = false;
    }
  }

  dthrottle_line lines_[kLines]{};
  const bool asks_questions_;
  char buffers_[kLines * kBufferBytes]{};
  char answers_[kLines * DTHROTTLE_ANSWER_LINE_BYTES];
  dthrottle_asker asker_{};
  State states_[kQuestions];
  std::int64_t now_ = 0;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadVerdicts(bytes);
  ReadLease(bytes);
  AskQuestion(bytes);
  Asker(false).Run(bytes);
  Asker(true).Run(bytes);
  return 0;
}
