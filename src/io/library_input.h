// What the thread of libzmq that reads from other hosts does not do by itself. It calls recv and epoll_wait, and the
// dynamic linker finds the definitions in this program before those of libc. Other threads that call them get what libc
// would give them.
//
// It cuts connections that bring more and more without ever completing a message. libzmq hands out whole messages only.
// It collects the parts of a message in memory until the last one has come, and has a bound for the length of a part but
// not for their number, so one endless message takes all memory. Our recv counts what a connection has brought since a
// whole message of it was last taken out. Beyond the bound it says that the connection was reset: libzmq then closes it
// and frees the parts.
//
// It lets small frames of many hosts gather. libzmq wakes for each of them, which is most of what they cost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace dthrottle {

// Without a call there is no bound. A read counts as a whole buffer of libzmq at least, since a small part keeps all of
// the buffer in memory that it lies in.
void BoundLibraryReceives(std::size_t bytes_max);

// A whole message that came by the connection with this descriptor has been taken out of libzmq. Any thread.
void LibraryMessageTaken(int fd);

// Connections that were cut. Any thread.
std::uint64_t LibraryReceivesCut();

// The thread sleeps so long between two looks at its connections. What this host sends waits too. Any thread.
void PauseLibraryInput(Duration pause);

}    // namespace dthrottle
