// Cuts a stream of bytes into commands of the Redis protocol, without sockets (protocol/resp.md): arrays of bulk
// strings, or inline commands, which are words in a line.
//
// Like Framer, it copies nothing on the usual path: arguments are views into the caller's bytes, and what is left of an
// unfinished command is kept here for the caller to put in front of the next bytes. Every size is bounded before
// anything is waited for, so a command that can never fit is an error at once.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dthrottle {

inline constexpr std::size_t kRespArgumentsMax = 64;              // of a command, its name included
inline constexpr std::size_t kRespCommandBytesMax = 16 * 1024;    // of a command as it stands in the stream
inline constexpr std::size_t kRespHeaderBytesMax = 32;            // of a line such as "*3" or "$10", with its end

using RespArguments = std::span<const std::string_view>;

class RespReader {
 public:
  static constexpr std::size_t kRestBytesMax = kRespCommandBytesMax + kRespHeaderBytesMax;

  // Bytes of an unfinished command; they must come again, first, in the next Read. At most kRestBytesMax.
  std::string_view rest() const { return rest_; }

  // Goes on where another reader left `rest`. REQUIRES: nothing has been read.
  void PutBack(std::string_view rest) { rest_ = rest; }

  // Reads `bytes`, which start with rest(), and calls sink.OnCommand(RespArguments) -> bool, in order of arrival. The
  // arguments are views into `bytes`, one at least. Ends early when OnCommand returns false, and fails, in the words
  // of Redis, on bytes that are no command. After either nothing more may be read.
  template <class Sink>
  Result<void> Read(std::string_view bytes, Sink& sink) {
    rest_.clear();
    Arguments arguments;
    while (!bytes.empty()) {
      const auto step = Next(bytes, arguments);
      if (!step) return tl::unexpected(step.error());
      if (step->bytes == 0) break;
      bytes.remove_prefix(step->bytes);
      if (step->arguments > 0 && !sink.OnCommand(RespArguments(arguments.data(), step->arguments))) return {};
    }
    rest_.assign(bytes);
    return {};
  }

 private:
  using Arguments = std::array<std::string_view, kRespArgumentsMax>;

  struct Step {
    std::size_t bytes;        // that were read; 0: the command is not complete
    std::size_t arguments;    // 0: nothing to do
  };

  static Result<Step> Next(std::string_view bytes, Arguments& arguments);
  static Result<Step> NextInline(std::string_view bytes, Arguments& arguments);

  std::string rest_;
};

}    // namespace dthrottle
