// What a daemon leaves to the program that takes its place in the same process: its listening sockets, its connections
// with what each of them holds of an unfinished line and of answers that were not taken, and the table's memory if that
// has no file. Descriptors stay open across execve, and this says what they are.
//
// As bytes, integers little endian, in a memfd whose number is in the environment:
//
//   magic 8, version u32, checksum u64 of everything behind it
//   listeners    u32 count; each: fd u32, key, address
//   held at      u64 ns of the monotonic clock
//   table        fd u32, or 2^32 - 1; notes
//   connections  u32 count; each: fd u32, unfinished line, over-long tag, unsent answers
//
// where a string is its u32 length and its bytes. All versions begin like this, listeners included, so that a program
// that does not know the version still has those.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "query/framer.h"

namespace dthrottle {

inline constexpr std::uint32_t kHandoverVersion = 1;

struct HandedListener {
  int fd = -1;
  std::string key;        // of the settings: "query.unix"
  std::string address;    // what the key said; empty: the service manager's socket
};

struct HandedConnection {
  int fd = -1;
  Framer::State framer;
  std::string unsent;    // answers that are owed
};

struct Handover {
  std::vector<HandedListener> listeners;
  int table_fd = -1;
  std::string table_notes;    // Table::Notes
  std::vector<HandedConnection> connections;
  Instant held_at{};    // when the last query was answered
  bool whole = true;    // false: of another version, and only the listeners are here
};

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
