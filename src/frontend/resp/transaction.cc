#include "frontend/resp/transaction.h"

#include <fmt/format.h>

#include <iterator>

namespace dthrottle {

bool RespTransaction::Keep(RespArguments arguments) {
  const std::size_t before = bytes.size();
  fmt::format_to(std::back_inserter(bytes), "*{}\r\n", arguments.size());
  for (const std::string_view argument : arguments) {
    fmt::format_to(std::back_inserter(bytes), "${}\r\n{}\r\n", argument.size(), argument);
  }
  if (bytes.size() > kBytesMax || bytes.size() - before > kRespCommandBytesMax) {
    bytes.resize(before);
    return false;
  }
  ++commands;
  return true;
}

}    // namespace dthrottle
