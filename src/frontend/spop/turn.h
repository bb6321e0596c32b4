// Frames of many connections of HAProxy, answered together at one instant (protocol/spop.md): each message of a NOTIFY
// is a question about the tags that its arguments name, and variables of the ACK say what became of it. Knows no
// sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "admin/snapshot.h"
#include "frontend/answers.h"
#include "frontend/spop/frame.h"
#include "limiter/asking.h"

namespace dthrottle {

// What a connection is remembered by.
struct SpopClient {
  std::size_t frame_bytes_max = 0;    // as HELLO has agreed; 0: before it
  bool leaving = false;               // is closed once everything is answered

  static constexpr std::uint32_t kVersion = 1;    // for ReadState
  static void Fields(auto& state, auto& self) {
    state(self.frame_bytes_max);
    state.Check(self.frame_bytes_max == 0 || (self.frame_bytes_max >= SpopReader::kFrameBytesMin &&
                                              self.frame_bytes_max <= SpopReader::kFrameBytesMax));
  }
};

class SpopTurn {
 public:
  static constexpr std::size_t kMessagesMax = 16;          // of one NOTIFY
  static constexpr std::size_t kShownTagBytesMax = 255;    // of a tag in a variable

  // Uses `lane` of the limiter, on its thread. The limiter must outlive this object.
  SpopTurn(Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max);

  // Takes a frame, whose bytes must stay until Answer.
  void OnFrame(SpopClient& client, const SpopFrame& frame);
  // Takes the news that the bytes that come next are no frame, or one that is too long; the client leaves.
  void OnNoFrame(SpopClient& client) { Dismiss(client, SpopStatus::kTooBig); }

  // Replies to be given, and tags that questions name.
  std::size_t size() const { return replies_.size(); }
  std::size_t tags() const { return asking_.tags(); }

  // Decides everything at `now`. Then answers() are the replies, until Clear().
  void Answer(Instant now);
  const Answers& answers() const { return answers_; }
  void Clear();

  // What frames count; connections are the server's.
  const SpopCounts& counts() const { return counts_; }
  std::uint64_t over_long() const { return asking_.over_long(); }

 private:
  // A frame that is there, at [begin, end) of texts_, or the ACK to a NOTIFY whose questions are [begin, end).
  struct Reply {
    bool ack;
    std::size_t begin, end;
    std::uint64_t stream_id, frame_id;
    std::size_t bytes_max;    // of the ACK
  };

  void OnHello(SpopClient& client, std::string_view payload);
  void OnNotify(SpopClient& client, const SpopFrame& frame);
  bool ReadMessage(SpopCursor& cursor);
  bool NameTag(std::string_view name, const SpopValue& value, Cost cost);
  void Dismiss(SpopClient& client, SpopStatus status);
  void AppendAck(const Reply& reply);

  Asking asking_;
  std::vector<Reply> replies_;
  std::string texts_;
  std::deque<std::string> tags_;    // whose bytes questions point to
  Answers answers_;

  SpopCounts counts_;
};

}    // namespace dthrottle
