// The subcommands of tq bench.
#pragma once

#include "cli/common.h"

namespace tq::cli {

Command AddBenchBandwidth(CLI::App& app);
Command AddBenchAttention(CLI::App& app);
Command AddBenchDecode(CLI::App& app);
Command AddBenchPrefill(CLI::App& app);
Command AddBenchProducts(CLI::App& app);

}  // namespace tq::cli
