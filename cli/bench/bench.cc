// tq bench: speeds of this machine, one subcommand each.
#include "cli/bench/bench.h"

#include <memory>
#include <vector>

#include "cli/commands.h"

namespace tq::cli {

Command AddBench(CLI::App& app) {
  CLI::App* command = AddCommand(app, "bench", "Measure this machine", "tq bench bandwidth");
  command->require_subcommand(1);
  const auto commands = std::make_shared<std::vector<Command>>(std::vector<Command>{
      AddBenchBandwidth(*command), AddBenchAttention(*command), AddBenchDecode(*command),
      AddBenchPrefill(*command), AddBenchProducts(*command)});
  return {"bench", [command, commands]() -> Result<int> {
            for (const Command& one : *commands) {
              if (command->got_subcommand(one.name)) return one.run();
            }
            return InvalidArgument("tq bench needs a subcommand");
          }};
}

}  // namespace tq::cli
