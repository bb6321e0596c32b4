// Messages to bytes and back. Frames are at most kFrameBytesMax; nothing that comes in makes it allocate more than a
// small multiple of that, or crash.
//
// protocol/report.md has the format with worked bytes. In short: a prefix with the major version, a MessagePack map of
// named fields, and XXH3-64 of both. Entries are one field of bytes, their columns (lengths, phases, tags, values; an
// IPv4 address is four bytes), compressed with zstd where that helps.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bus/message.h"

namespace dthrottle {

enum class DecodeFault {
  kNone,
  kJunk,        // not a frame of ours, or cut off
  kVersion,     // a frame of another major version
  kChecksum,    // damaged
  kContent,     // well-formed, but says what no host says: bad lengths, counts, values
};

// A frame that was taken apart; the message is unspecified unless the fault is kNone.
struct Decoded {
  DecodeFault fault{};
  Message message;
};

// Keeps its memory between messages, the compressor's too: nothing is allocated for each entry. One thread.
class Codec {
 public:
  Codec();
  ~Codec();

  // Replaces `frame`. The result has at most kFrameBytesMax bytes, and the same message is always the same bytes.
  // REQUIRES: the message keeps the bounds of message.h: names of hosts are 1 to 64 bytes of A-Z a-z 0-9 . _ -, and
  // ranges, positions and entries are empty in kinds that have none. `from` is only sent in reports.
  void Encode(const Message& message, std::string& frame);

  // `message` is unspecified unless kNone is returned.
  DecodeFault Decode(std::string_view frame, Message& message);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

}    // namespace dthrottle
