// The program: flags, choice of the command, and the one place where an error becomes an exit code
// and a line.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

// Blocks of the cache are large and come and go: each gets pages of its own, so that what is
// released leaves the process and the resident memory is what tq plan says. Otherwise glibc raises
// this threshold with the first large block that is freed, and holes stay.
void GiveBlocksTheirOwnPages() {
#ifdef M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
#endif
}

int Main(int argc, char** argv) {
  GiveBlocksTheirOwnPages();
  CLI::App app("TurboQuant: language models over a quantized KV cache");
  app.name("tq");
  app.set_version_flag("--version", std::string("tq ") + Version());
  app.require_subcommand(1);
  app.footer("tq COMMAND --help shows an example and the flags of a command.");
  std::vector<Command> commands = {AddRun(app),  AddCompare(app),  AddInfo(app),
                                   AddPlan(app), AddBench(app),    AddQuantize(app),
                                   AddEval(app), AddCalibrate(app)};
  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return kBadUse;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::string where = "tq";
    for (const CLI::App* sub : app.get_subcommands()) where += " " + sub->get_name();
    const std::string first = argv[1];
    const bool is_command = std::any_of(commands.begin(), commands.end(),
                                        [&](const Command& c) { return c.name == first; });
    if (!is_command && first.rfind('-', 0) != 0) {
      PrintError(where, "there is no command '" + first + "'");
    } else {
      PrintError(where, error.what());
    }
    std::fprintf(stderr, "Try: %s --help\n", where.c_str());
    return kBadUse;
  }
  for (const Command& command : commands) {
    if (!app.got_subcommand(command.name)) continue;
    const std::string name = "tq " + command.name;
    Status status = ApplyIsaFromEnvironment();
    int code = kDone;
    if (status.ok()) {
      InstallInterruptHandler();
      Result<int> result = command.run();
      status = result.status();
      if (status.ok()) {
        code = *result;
        status = FlushStdout();
      }
    }
    if (status.ok()) return code;
    PrintError(name, status.message());
    return ExitCodeOf(status);
  }
  return kBadUse;
}

}  // namespace
}  // namespace tq::cli

int main(int argc, char** argv) {
  try {
    return tq::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    tq::cli::PrintError("tq", "out of memory; use a shorter --context or a format with fewer bits");
  } catch (const std::exception& error) {
    tq::cli::PrintError("tq", error.what());
  }
  return tq::cli::kEnvironment;
}
