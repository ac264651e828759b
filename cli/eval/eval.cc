// tq eval: how far the model with a quantized cache is from the plain one, one subcommand each.
#include "cli/eval/eval.h"

#include <memory>
#include <vector>

#include "cli/commands.h"

namespace tq::cli {

Command AddEval(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "eval", "How far the quantized model is from the plain one", "tq eval kld");
  command->require_subcommand(1);
  const auto commands = std::make_shared<std::vector<Command>>(std::vector<Command>{
      AddEvalKld(*command),
      AddEvalPpl(*command),
      AddEvalBlame(*command),
      AddEvalSweep(*command),
      AddEvalNeedle(*command),
      AddEvalAdversarial(*command),
      AddEvalReplay(*command),
      AddEvalGenerate(*command),
      AddEvalSuite(*command),
  });
  return {"eval", [command, commands]() -> Result<int> {
            for (const Command& one : *commands) {
              if (command->got_subcommand(one.name)) return one.run();
            }
            return InvalidArgument("tq eval needs a subcommand");
          }};
}

}  // namespace tq::cli
