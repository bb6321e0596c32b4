// What a server may answer to libdthrottle, in bytes of its choice: verdicts are what their bytes say, wherever they
// are cut; a lease that is taken is within every bound; and the asker gives each question back once, by its deadline,
// with no more answers than it has tags.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client/answers.h"
#include "client/asker.h"

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
}

constexpr std::size_t kQuestions = 12;
constexpr std::size_t kLines = 2;
constexpr std::size_t kBufferBytes = 8;

// Each byte is something that happens to an asker; answers are the bytes behind it.
class Asker {
 public:
  Asker() {
    const dthrottle_asker_options options{lines_, kLines, buffers_, kBufferBytes, 2, 4, 10, 5000, 1};
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
    dthrottle_question question{};
    dthrottle_verdict verdicts[2]{};
    bool asked = false;
  };

  void Ask(unsigned how) {
    static const char* const tags[] = {"a", "somewhat longer"};
    State& state = states_[how % kQuestions];
    if (state.asked) return;
    state.question.tags = how % 2 == 0 ? tags : tags + 1;
    state.question.count = how % 2 == 0 ? how % 3 : 1;
    state.question.verdicts = state.verdicts;
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
    while (dthrottle_question* const back = dthrottle_asker_next_back(&asker_)) {
      State* state = states_;
      while (&state->question != back) ++state;
      Check(state->asked && back->answered <= back->count);
      Check(back->outcome != DTHROTTLE_SERVE || back->answered == back->count);
      state->asked = false;
    }
  }

  dthrottle_line lines_[kLines]{};
  char buffers_[kLines * kBufferBytes]{};
  dthrottle_asker asker_{};
  State states_[kQuestions];
  std::int64_t now_ = 0;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadVerdicts(bytes);
  ReadLease(bytes);
  Asker().Run(bytes);
  return 0;
}
