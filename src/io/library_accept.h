// Bounds the connections that libraries accept by themselves: those between hosts, which belong to libzmq.
//
// libzmq accepts whatever comes, without a bound, and its thread turns as fast as it can where descriptors run out. It
// has no option for that, but it accepts by calling accept4, and the dynamic linker finds the definition in this
// program before that of libc. Ours closes what is beyond the bounds at once and says that the connection went away,
// which libzmq takes for what it is. Our own listeners ask the kernel directly (io/listener), and libuv and gRPC never
// accept here.
#pragma once

#include <cstdint>

#include "io/places.h"

namespace dthrottle {

// From now on libraries have so many places, all listening sockets together. Without a call there is no bound.
void BoundLibraryAccepts(PlaceBounds bounds);

// Connections that were closed at once.
std::uint64_t LibraryAcceptsRefused();

}    // namespace dthrottle
