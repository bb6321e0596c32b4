// Says what happened when a mapped file goes away under this process.
//
// A store into a page that the file does not have is SIGBUS: the file was truncated, its disk has failed, or the file
// system is full and the page was not claimed yet. Nothing can go on without the table, so the process ends as it would
// anyway; but the last line it writes names the file.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace dthrottle {

// From now on SIGBUS inside `region`, which maps the file at `path` (empty: memory without a name), is explained on
// standard error before the process dies of it. REQUIRES: the process has named fewer than 16 regions so far, and this
// one stays to its end.
void WatchMappedFile(std::span<const std::byte> region, std::string_view path);

}    // namespace dthrottle
