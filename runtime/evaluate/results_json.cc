#include "runtime/evaluate/results_json.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/evaluate/footprint.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

Json RowJson(const CompareResult& result, const CompareRow& row) {
  Json j;
  j["kv"] = row.name;
  j["cache"] = CacheJson(row.bytes, row.f16_bytes, row.config);
  j["kld"] = SummaryJson(row.all);
  j["kld_behind_1024"] = SummaryJson(row.behind);
  j["same_top"] = row.all.same_top;
  j["ppl"] = PplJson(row.all);
  j["decode_ms"] = {{"f16", result.plain.decode_ms}, {"quantized", row.decode_ms}};
  j["answers"] = {{"f16", result.plain.answer}, {"quantized", row.answer}};
  if (!result.document.expected.empty()) {
    j["answers"]["expected"] = result.document.expected;
    j["answers"]["f16_is_right"] = result.plain.answer_is_right;
    j["answers"]["quantized_is_right"] = row.answer_is_right;
    j["answers"]["informative"] = AnswersAreInformative(result);
  }
  j["by_position"] = Json::array();
  for (const PositionBucket& b : row.by_position) {
    j["by_position"].push_back({{"first", b.first}, {"end", b.end}, {"kld_mean", b.kld_mean}});
  }
  j["by_depth"] = Json::array();
  for (size_t i = 0; i < row.by_depth.size(); ++i) {
    j["by_depth"].push_back({{"depth", row.by_depth[i].depth},
                             {"f16_ms", result.plain.by_depth[i].median_ms},
                             {"quantized_ms", row.by_depth[i].median_ms}});
  }
  j["pareto"] = row.on_pareto_front;
  j["kernel"] = row.kernel;
  return j;
}

}  // namespace

Json CacheJson(const CacheBytes& bytes, size_t f16_bytes, const CacheConfig& config) {
  const double total = static_cast<double>(bytes.total());
  const double bits = SealedBitsPerValue(config);
  return {{"f16_bytes", f16_bytes},
          {"bytes", bytes.total()},
          {"payload_bytes", bytes.payload},
          {"scales_bytes", bytes.scales},
          {"window_bytes", bytes.window},
          {"sliding_window_bytes", bytes.sliding},
          {"tables_bytes", bytes.tables},
          {"ratio", total > 0 ? static_cast<double>(f16_bytes) / total : 0.0},
          {"ratio_sealed", bits > 0 ? 16 / bits : 0.0},
          {"ratio_at_131072", FootprintRatio(config, 131072)},
          {"bits_per_value", bits},
          {"scales_share", ScalesShare(config)}};
}

Json VSkipJson(float eps, const VSkipTotals& totals) {
  return {{"eps", std::stod(fmt::format("{}", eps))},  // 0.01, not the double next to it
          {"blocks_skipped", totals.skipped_share()},
          {"mass_skipped", totals.mean_mass()},
          {"bound", totals.mean_bound()}};
}

Json SummaryJson(const DivergenceSummary& s) {
  Json j = {{"mean", s.mean},
            {"mean_stderr", s.mean_stderr},
            {"median", s.median},
            {"p90", s.p90},
            {"p95", s.p95},
            {"p99", s.p99},
            {"p999", s.p999},
            {"max", s.max},
            {"positions", s.positions},
            {"same_top", s.same_top},
            {"same_top_stderr", s.same_top_stderr},
            {"ppl_ratio", s.ppl_ratio},
            {"delta_p_rms", s.delta_p_rms},
            {"one_minus_tvd", s.one_minus_tvd}};
  if (s.positions > 0) return j;
  for (auto it = j.begin(); it != j.end(); ++it) {
    if (it.key() != "positions") *it = nullptr;
  }
  return j;
}

Json PplJson(const DivergenceSummary& s) {
  return {{"f16", s.ppl_ref},
          {"quantized", s.ppl_q},
          {"ratio", s.ppl_ratio},
          {"ratio_stderr", s.ppl_ratio_stderr}};
}

Json CompareJson(const CompareResult& result, const std::string& isa) {
  Json j;
  j["model"] = result.model_name;
  j["tokens"] = result.tokens;
  j["text"] = {{"name", result.document.name},
               {"bytes", result.document.text_bytes},
               {"whole", result.document.whole_text},
               {"detail", result.document.detail},
               {"question", result.document.question}};
  j["floor"] = {{"kv", result.floor_name}, {"kld_mean", result.floor.mean}};
  j["isa"] = isa;
  std::vector<const CompareRow*> quantized;
  for (const CompareRow& row : result.rows) {
    if (!row.is_plain) quantized.push_back(&row);
  }
  if (quantized.size() == 1) {
    j.update(RowJson(result, *quantized.front()));
    return j;
  }
  j["rows"] = Json::array();
  for (const CompareRow& row : result.rows) j["rows"].push_back(RowJson(result, row));
  return j;
}

}  // namespace tq
