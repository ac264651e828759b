// A comparison as JSON, with the keys that the command line promises.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/evaluate/compare.h"
#include "runtime/model/v_skip_totals.h"

namespace tq {

// payload, scales, window, tables and total of a cache, with its ratios, under the keys of `cache`.
nlohmann::ordered_json CacheJson(const CacheBytes& bytes, size_t f16_bytes,
                                 const CacheConfig& config);

// Without positions all but their number is null: nothing was measured, which is no zero.
nlohmann::ordered_json SummaryJson(const DivergenceSummary& summary);
// Both perplexities and their ratio, under the keys of `ppl`.
nlohmann::ordered_json PplJson(const DivergenceSummary& summary);

// eps, the share of sealed blocks whose V was skipped, the mean share of the softmax mass that they
// have and the mean bound of the error.
nlohmann::ordered_json VSkipJson(float eps, const VSkipTotals& totals);

// One quantized row: its keys lie at the top level. Several: under `rows`, with what they share at
// the top.
nlohmann::ordered_json CompareJson(const CompareResult& result, const std::string& isa);

}  // namespace tq
