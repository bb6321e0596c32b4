// What clients of Redis say to a server beside asking the limiter, and what they have to hear to go on: HELLO, PING,
// INFO, CLIENT, COMMAND, CONFIG GET, MULTI and the like, as a Redis 7 without password would answer (protocol/resp.md).
// There are no keys and no subscriptions; what is not known is an error in the words of Redis.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"
#include "frontend/resp/reader.h"
#include "frontend/resp/transaction.h"

namespace dthrottle {

inline constexpr std::size_t kRespNameBytesMax = 64;       // of CLIENT SETNAME
inline constexpr std::size_t kRespQuotedBytesMax = 128;    // of what a client sent, in an error

// Commands that ask the limiter; RespTurn runs them.
inline constexpr std::string_view kRespThrottle = "cl.throttle";
inline constexpr std::string_view kRespTake = "dt.take";
inline constexpr std::string_view kRespPeek = "dt.peek";

// What a connection is remembered by.
struct RespClient {
  std::uint64_t id = 0;
  int protocol = 2;    // or 3
  std::string name;
  bool leaving = false;    // is closed once everything is answered
  RespTransaction transaction;
};

// The client as bytes, for the process that goes on with its connection. Fails on bytes that no client makes.
std::string SaveRespClient(const RespClient& client);
Result<RespClient> LoadRespClient(std::string_view bytes);

// What INFO says of the server.
struct RespStatus {
  Duration uptime{};
  std::uint64_t connections = 0;    // open now
  std::uint64_t accepted = 0;
  std::uint64_t commands = 0;
  std::uint64_t memory = 0;    // bytes, of the tables
};

// ASCII only, as Redis compares names of commands.
bool SameWord(std::string_view a, std::string_view b);

// `-text` on a line of its own, whatever bytes `text` has.
void AppendError(std::string& out, std::string_view text);

// A web page can make a browser send these words to a port of this host, with commands behind them.
bool IsOfBrowser(RespArguments arguments);

// Between MULTI and EXEC: keeps the command for EXEC, appends the reply to that and returns true. False: the command is
// one of those that run at once. REQUIRES: the client's transaction is open.
bool QueueRespCommand(RespClient& client, RespArguments arguments, std::string& out);

// Appends the reply to one command, which neither asks the limiter nor is EXEC; what it changes is in `client`.
void RunRespCommand(RespClient& client, RespArguments arguments, const std::function<RespStatus()>& status,
                    std::string& out);

}    // namespace dthrottle
