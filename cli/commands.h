// One function per subcommand: adds it to the program.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/common.h"

namespace tq::cli {

Command AddRun(CLI::App& app);
Command AddCompare(CLI::App& app);
Command AddInfo(CLI::App& app);
Command AddPlan(CLI::App& app);
Command AddBench(CLI::App& app);
Command AddQuantize(CLI::App& app);
Command AddEval(CLI::App& app);
Command AddCalibrate(CLI::App& app);

}  // namespace tq::cli
