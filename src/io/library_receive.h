// Cuts connections between hosts that bring more and more without ever completing a message.
//
// libzmq hands out whole messages only. It collects the parts of a message in memory until the last one has come, and
// has a bound for the length of a part but not for their number, so one endless message takes all memory. It reads by
// calling recv, and the dynamic linker finds the definition in this program before that of libc. Ours counts, in the
// thread of libzmq that does the input, what a connection has brought since a whole message of it was last taken out.
// Beyond the bound it says that the connection was reset: libzmq then closes it and frees the parts.
//
// Other threads that call recv get what libc would give them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dthrottle {

// Without a call there is no bound. A read counts as a whole buffer of libzmq at least, since a small part keeps all of
// the buffer in memory that it lies in.
void BoundLibraryReceives(std::size_t bytes_max);

// A whole message that came by the connection with this descriptor has been taken out of libzmq. Any thread.
void LibraryMessageTaken(int fd);

// Connections that were cut. Any thread.
std::uint64_t LibraryReceivesCut();

}    // namespace dthrottle
