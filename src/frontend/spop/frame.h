// Frames of HAProxy's stream processing offload protocol, version 2.0, without sockets (protocol/spop.md): bytes in,
// frames and typed values out, and back. Nothing is copied: what is read are views into the caller's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dthrottle {

enum class SpopType : std::uint8_t {
  kHaproxyHello = 1,
  kHaproxyDisconnect = 2,
  kNotify = 3,
  kAgentHello = 101,
  kAgentDisconnect = 102,
  kAck = 103,
};

// Why a peer is told to go.
enum class SpopStatus : std::uint8_t {
  kNormal = 0,
  kTooBig = 3,
  kInvalid = 4,
  kNoVersion = 5,
  kNoFrameSize = 6,
  kNoCapabilities = 7,
  kBadVersion = 8,
  kBadFrameSize = 9,
  kFragmented = 10,
};

struct SpopFrame {
  std::uint8_t type = 0;    // a SpopType, or one that is not known
  bool whole = true;        // it is no fragment
  std::uint64_t stream_id = 0, frame_id = 0;
  std::string_view payload;
};

// A typed value.
struct SpopValue {
  enum class Kind { kNull, kBool, kInteger, kIpv4, kIpv6, kBytes };

  Kind kind = Kind::kNull;
  std::int64_t number = 0;    // of kBool and kInteger
  std::string_view bytes;     // of the others, an address in network order

  // Appends it as people write it; of kNull nothing.
  void AppendText(std::string& out) const;
};

// Takes values off bytes, from the front. The first that is not there, or malformed, makes it fail for good: it is
// empty then, and all that is read is null.
class SpopCursor {
 public:
  explicit SpopCursor(std::string_view bytes) : rest_(bytes) {}

  bool failed() const { return failed_; }
  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

  std::uint8_t Byte();
  std::uint64_t Varint();
  std::string_view Bytes(std::uint64_t n);
  std::string_view Text() { return Bytes(Varint()); }    // with its length in front
  SpopValue Value();

 private:
  void Fail();
  SpopValue Address(SpopValue::Kind kind, std::size_t size);

  std::string_view rest_;
  bool failed_ = false;
};

// Cuts a stream into frames.
class SpopReader {
 public:
  static constexpr std::size_t kLengthBytes = 4;
  static constexpr std::size_t kFrameBytesMin = 256;    // HAProxy agrees to no smaller ones
  // Without its length. HAProxy offers 4 bytes less than its tune.bufsize, which has a request's header fields too.
  static constexpr std::size_t kFrameBytesMax = 64 * 1024 - kLengthBytes;

  // Calls sink.OnFrame(SpopFrame) -> bool for each whole frame of `bytes`, which are those of rest() and what was read
  // behind them, until it returns false. False: the next frame is too long, or no frame; nothing more may be read.
  template <class Sink>
  bool Read(std::string_view bytes, Sink& sink) {
    while (bytes.size() >= kLengthBytes) {
      const std::size_t length = Length(bytes);
      if (length > kFrameBytesMax) return false;
      if (bytes.size() < kLengthBytes + length) break;
      SpopFrame frame;
      if (!Parse(bytes.substr(kLengthBytes, length), frame)) return false;
      bytes.remove_prefix(kLengthBytes + length);
      if (!sink.OnFrame(frame)) break;
    }
    rest_ = bytes;
    return true;
  }

  std::string_view rest() const { return rest_; }    // at most kFrameBytesMax + kLengthBytes bytes
  void PutBack(std::string_view rest) { rest_ = rest; }

  static std::size_t Length(std::string_view bytes);
  static bool Parse(std::string_view frame, SpopFrame& parsed);

 private:
  std::string rest_;
};

// Appends a frame: the header first, then the payload by the other functions; the destructor completes it.
class SpopWriter {
 public:
  SpopWriter(std::string& out, SpopType type, std::uint64_t stream_id, std::uint64_t frame_id);
  ~SpopWriter();
  SpopWriter(const SpopWriter&) = delete;
  SpopWriter& operator=(const SpopWriter&) = delete;

  // Pairs of a name and a value, as in HELLO and DISCONNECT.
  void Pair(std::string_view name, std::string_view value);
  void Pair(std::string_view name, std::uint32_t value);

  // Actions of ACK: sets a variable of the transaction.
  void SetBool(std::string_view name, bool value);
  void SetInteger(std::string_view name, std::int64_t value);
  void SetText(std::string_view name, std::string_view value);

  // How many bytes of text the variable may have at most if the frame is not to exceed `bytes_max`, without its length.
  std::size_t RoomForText(std::string_view name, std::size_t bytes_max) const;

 private:
  void Text(std::string_view text);
  void Varint(std::uint64_t value);
  void BeginSet(std::string_view name);

  std::string& out_;
  const std::size_t begin_;
};

}    // namespace dthrottle
