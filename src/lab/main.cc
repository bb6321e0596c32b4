// dthrottle-sim: says in advance what a fleet and its rules will do, with the shipped limiter, sharing and exchange on
// virtual clocks and wires. See man/dthrottle-sim.1.
#include <CLI/CLI.hpp>

#include "io/output_main.h"
#include "lab/command.h"

namespace dthrottle::lab {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Says in advance what a fleet of hosts and its rules will do.", "dthrottle-sim");
  app.set_version_flag("--version,-V", "dthrottle-sim " DTHROTTLE_VERSION);
  app.require_subcommand(1);
  int status = EX_OK;    // of the subcommand that was chosen
  AddRunCommand(app, status);
  AddCompareCommand(app, status);
  AddReplayCommand(app, status);
  AddFigureCommand(app, status);
  AddLeaseCommand(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EX_OK : EX_USAGE;
  }
  return status;
}

}    // namespace
}    // namespace dthrottle::lab

int main(int argc, char** argv) {
  return dthrottle::WithOutput([&] { return dthrottle::lab::Main(argc, argv); });
}
