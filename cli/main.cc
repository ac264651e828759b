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

int BadUse(const std::string& where, const std::string& what) {
  PrintError(where, what);
  std::fprintf(stderr, "Try: %s --help\n", where.c_str());
  return kBadUse;
}

// Before the parser sees --help, which it answers whatever stands before it.
int RefuseUnknownCommand(const CLI::App& app, int argc, char** argv) {
  std::string where = "tq";
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<const CLI::App*> commands =
        at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) break;
    const std::string name = argv[i];
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* c) { return c->get_name() == name; });
    if (found == commands.end()) {
      return BadUse(where, "there is no command '" + name + "'");
    }
    where += " " + name;
    at = *found;
  }
  return kDone;
}

// The parser's words for what people do most often are hard to read.
std::string Explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what(), many = ": At Most 1 required but received ";
  const size_t at = text.find(many);
  if (at == std::string::npos) return text;
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::string name = text.substr(0, at);
  const CLI::Option* option = command->get_option_no_throw(name);
  const bool has_word = option != nullptr && option->get_positional();
  return name + " is given " + text.substr(at + many.size()) + " times" +
         (has_word ? " (a word without a flag is one of them)" : "") + "; give it once";
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
  RefuseEmptyPaths(app);
  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return kBadUse;
  }
  try {
    if (const int code = RefuseUnknownCommand(app, argc, argv); code != kDone) return code;
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::string where = "tq";
    for (const CLI::App* sub : app.get_subcommands()) where += " " + sub->get_name();
    return BadUse(where, Explain(app, error));
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
