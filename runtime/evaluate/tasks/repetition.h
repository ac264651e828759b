// Signs that a long answer decays: it repeats itself, or leaves its subject.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tq {

// Share of the runs of `length` words that stood before in the same text: 0 none, towards 1 a loop.
// Words are cut at whitespace and compared without case (ASCII). Fewer than two runs: 0.
double RepeatedShare(std::string_view text, int length = 4);

// The text in four parts of equally many words; empty with fewer than `min_words`.
std::vector<std::string> Quarters(std::string_view text, size_t min_words = 80);

}  // namespace tq
