// Transcripts of a protocol: what an application sends and exactly what it gets back. The files stand beside the page
// that states the rules, in protocol/query/, protocol/resp/ and protocol/lease/; their format is described there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle::testing {

struct Transcript {
  std::string settings;    // TOML: the rules and max_tag_bytes
  std::size_t tag_bytes_max = 255;
  bool accept_limits = false;    // of protocol/resp only
  bool learning = false;         // these four of protocol/lease only
  bool gateway = false;          // the connection is the gateway's
  std::string elsewhere;         // where the master is; empty: here
  int min_request_interval_s = 0;
  std::string sent;        // all bytes of the application, in order
  std::string expected;    // all bytes of the answers, in order
};

Result<Transcript> ParseTranscript(std::string_view text);

// The transcripts of protocol/FOLDER, by name.
std::vector<std::filesystem::path> TranscriptFiles(std::string_view folder);

// Throws, with the path, what is wrong with it.
Transcript LoadTranscript(const std::filesystem::path& path);

}    // namespace dthrottle::testing
