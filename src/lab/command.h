// The subcommands of dthrottle-sim, each in a file X_command.cc, and what they have in common.
#pragma once

#include <sysexits.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/load.h"

namespace CLI {
class App;
}

namespace dthrottle::lab {

// Each adds a subcommand to the program. When that is chosen it does the work, and leaves the exit status (sysexits.h).
void AddRunCommand(CLI::App& app, int& status);
void AddCompareCommand(CLI::App& app, int& status);
void AddReplayCommand(CLI::App& app, int& status);
void AddFigureCommand(CLI::App& app, int& status);
void AddLeaseCommand(CLI::App& app, int& status);

// A word to standard error; returns `status`.
int Complain(int status, const std::string& message);

// Problems of a settings or fleet file to standard error, as dthrottled --check says them.
void Complain(const std::vector<Problem>& problems);

// What texts call an input: "-" is standard input.
std::string InputName(const std::string& path);

// --jobs: on how many threads seeds are run.
void AddJobs(CLI::App& command, std::uint32_t& jobs);

// `status`, unless Ctrl-C has ended the work: then a word, and its exit status.
int UnlessInterrupted(int status, bool interrupted);

// Output that was asked for: "-" is standard output, and "" nothing. EX_OK, or a word and EX_CANTCREAT.
int WriteFile(const std::string& path, const std::string& text);

}    // namespace dthrottle::lab
