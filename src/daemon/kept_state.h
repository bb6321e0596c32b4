// What an orderly stop leaves to the next start: the sections that an upgrade hands over, in a file beside the table.
//
// Such state may be used once. So the file is removed before it is believed, and it is believed only in the boot in
// which it was written and for an hour: its instants are of this boot's clocks. Where boots are not told apart
// (ReadBootId) the hour is what counts. A start that fails writes it again as its parts leave it, with the time of before.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/files.h"
#include "io/handover.h"

namespace dthrottle {

// A text of our own that was written whole: the magic, a checksum, and `body`. Unsealed returns the body; none: it is
// another's, or damaged.
std::string Sealed(std::string_view magic, std::string_view body);
std::optional<std::string_view> Unsealed(std::string_view magic, std::string_view text);

// Beside a table of this path.
std::string KeptStatePath(const std::string& table);

struct KeptSections {
  Instant written{};    // when they were kept first
  std::vector<HandedSection> sections;
};

// Replaces the file. Descriptors of sections are not kept.
FileResult<void> WriteKeptState(const std::string& path, const KeptSections& kept);

// Removes the file, if there is one, and returns what it held; nothing if that may not be used, with the reason in
// `complaint` where somebody should know it. An error means that something else is there (CheckStateFile).
FileResult<KeptSections> TakeKeptState(const std::string& path, std::string& complaint);

}    // namespace dthrottle
