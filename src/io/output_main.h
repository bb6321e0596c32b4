// Ends a program whose output cannot be written. fmt::print throws then.
#pragma once

#include <sysexits.h>

#include <cstdio>
#include <system_error>

namespace dthrottle {

// The status of main(), or EX_IOERR.
template <class Main>
int WithOutput(Main&& main) {
  try {
    return main();
  } catch (const std::system_error& e) {    // of fmt::print
    std::fprintf(stderr, "the output could not be written: %s\n", e.code().message().c_str());
    return EX_IOERR;
  }
}

}    // namespace dthrottle
