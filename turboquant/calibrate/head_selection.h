// Which layers and heads an override means: "1,10", "0-3", "3:0", "2-5:1-2".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// "0-3,7" -> {0, 1, 2, 3, 7}, sorted, each once, all below `limit`. `what` ("layer") names the
// index in messages.
Result<std::vector<int>> ParseIndexList(std::string_view text, int limit, const char* what);

// "1,10" (all heads) or "3:0,2-4:1" -> (layer, head) pairs, sorted, each once.
Result<std::vector<std::pair<int, int>>> ParseHeadSelection(std::string_view text, int num_layers,
                                                            int num_heads);

// The inverse of ParseIndexList for sorted input, with ranges: {0, 1, 2, 7} -> "0-2,7".
std::string FormatIndexList(const std::vector<int>& indices);

}  // namespace tq
