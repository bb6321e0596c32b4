// A transaction of one connection: what it sent between MULTI and EXEC (protocol/resp.md).
//
// The commands are kept as bytes of the protocol, in the order of arrival, and EXEC reads them again. So a transaction
// is one bounded string: it needs no tree of arguments, and goes wherever a connection's state goes.
#pragma once

#include <cstddef>
#include <string>

#include "frontend/resp/reader.h"

namespace dthrottle {

struct RespTransaction {
  static constexpr std::size_t kBytesMax = 256 * 1024;    // of its commands, as they stand in the stream

  bool open = false;
  bool broken = false;         // a command was refused, so EXEC runs none
  std::size_t commands = 0;    // in `bytes`
  std::string bytes;

  // Keeps a command for EXEC. False, with nothing kept, if there is no room, or if the command is too long for a
  // reader: an inline command grows when it is kept. REQUIRES: open.
  bool Keep(RespArguments arguments);
};

}    // namespace dthrottle
