// The subcommands of tq eval.
#pragma once

#include "cli/common.h"

namespace tq::cli {

Command AddEvalKld(CLI::App& app);
Command AddEvalPpl(CLI::App& app);
Command AddEvalBlame(CLI::App& app);
Command AddEvalSweep(CLI::App& app);
Command AddEvalNeedle(CLI::App& app);
Command AddEvalAdversarial(CLI::App& app);
Command AddEvalReplay(CLI::App& app);
Command AddEvalGenerate(CLI::App& app);
Command AddEvalSuite(CLI::App& app);

}  // namespace tq::cli
