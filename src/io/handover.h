// What a daemon leaves to the program that takes its place in the same process: its listening sockets, its connections
// with the bytes that are on their way in and out, and a section for each part of the daemon that has something to hand
// over. Descriptors stay open across execve, and this says what they are.
//
// The bytes, integers little endian, are in a memfd whose number is in the environment:
//
//   magic 8, version u32, checksum u64 of everything behind it
//   listeners    u32 count; each: fd u32, key, address
//   held at      u64 ns of the monotonic clock
//   sections     u32 count; each: key, fd u32 or 2^32 - 1, bytes
//   connections  u32 count; each: fd u32, front end, unread bytes, state, unsent answers, ending u8,
//                silent for u64 ns
//
// where a string is its u32 length and its bytes. Each section's bytes are the affair of the part that wrote them. A
// program passes over a section that it does not know, so a new section needs no new version. All versions begin with
// the listeners, so that a program that does not know the version still has those.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace dthrottle {

inline constexpr std::uint32_t kHandoverVersion = 2;

struct HandedListener {
  int fd = -1;
  std::string key;        // of the settings: "query.unix"
  std::string address;    // what the key said; empty: the service manager's socket
};

struct HandedConnection {
  int fd = -1;
  std::string front;      // the front end that serves it: "query", "resp"
  std::string unread;     // bytes that were read and not answered: of an unfinished question
  std::string state;      // what else the protocol remembers of the connection, in its own format
  std::string unsent;     // answers that are owed
  bool ending = false;    // it is closed when they are sent, and read no more
  Duration silent{};      // since the last byte arrived, about
};

// What one part of the daemon leaves to its successor.
struct HandedSection {
  std::string key;    // "table"
  int fd = -1;        // one descriptor that belongs to it, if it has any
  std::string bytes;
};

struct Handover {
  std::vector<HandedListener> listeners;
  std::vector<HandedSection> sections;
  std::vector<HandedConnection> connections;
  Instant held_at{};    // when the last query was answered
  bool whole = true;    // false: of another version, and only the listeners are here

  // Removes the section of this key and returns it; an empty one without a descriptor if there is none.
  HandedSection Take(std::string_view key);
};

// Removes connections that have more of something than a program takes over, and returns how many: one that has must
// not cost all others their place.
std::size_t DropOversized(Handover& handover);

std::string EncodeHandover(const Handover& handover);

// Believes nothing but descriptors being what they are said to be. An error means that nothing of it can be used.
Result<Handover> DecodeHandover(std::string_view bytes);

// ---- Across execve ----

// The program that this process runs, to be found again at the same path when it has been replaced: absolute, links not
// followed. `argv0` as main got it; to be asked for before anything changes the working directory.
std::string OwnProgram(const char* argv0);

// Becomes `program` with these arguments, leaving it `handover`. Returns only if that fails, with the reason, and with
// everything as it was.
Error BecomeProgram(const std::string& program, const std::vector<std::string>& args, const Handover& handover);

// What the program before this one has left, once: none if there was none. To be called before this process opens
// anything: descriptors that nobody has spoken for are closed. Takes those with a complaint where something was left
// that cannot be used.
struct Inheritance {
  bool any = false;
  Handover handover;
  std::string complaint;
};
Inheritance TakeInheritance();

}    // namespace dthrottle
