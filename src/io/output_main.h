// Ends a program whose output cannot be written. fmt::print throws then, or the last flush fails.
#pragma once

#include <sysexits.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace dthrottle {

// The status of main(), or EX_IOERR where it is 0 and the output could not be written.
template <class Main>
int WithOutput(Main&& main) {
  const auto failed = [](const std::error_code& why) {
    std::fprintf(stderr, "the output could not be written: %s\n", why.message().c_str());
    return EX_IOERR;
  };
  try {
    const int status = main();
    // A short output is still in the buffer, and what exit() cannot write is lost in silence.
    errno = EIO;    // where it was an earlier write that failed
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    const int told = failed({errno, std::generic_category()});
    return status == EX_OK ? told : status;
  } catch (const std::system_error& e) {    // of fmt::print
    return failed(e.code());
  }
}

}    // namespace dthrottle
