#include "runtime/evaluate/kld_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/evaluate/compare.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/results_json.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

bool SameShapes(const Architecture& a, const Architecture& b) {
  return a.num_layers == b.num_layers && a.num_q_heads == b.num_q_heads && a.head_dim == b.head_dim;
}

bool Quantizes(const CacheConfig& config) {
  return std::any_of(config.formats.begin(), config.formats.end(),
                     [](const HeadFormat& f) { return f.k.bits < 16 || f.v.bits < 16; });
}

// The `count` windows of `scores` from `first` on.
KldStatistics Statistics(const std::string& name, const StreamScores& scores, size_t first,
                         size_t count, bool quantizes) {
  KldStatistics s;
  s.name = name;
  const auto before = std::span(scores.window_positions).first(first);
  const auto windows = std::span(scores.window_positions).subspan(first, count);
  const auto sum = [](std::span<const int64_t> sizes) {
    return static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  };
  const auto positions = std::span(scores.scores).subspan(sum(before), sum(windows));
  s.all = Summarize(positions, windows);
  if (quantizes) s.behind = SummarizeBehind(positions, KldResult::kBehind, windows);
  for (size_t w = first; w < first + count; ++w) {
    s.over_windows.Add(scores.window_means[w], scores.window_positions[w]);
    s.window_means.push_back(scores.window_means[w]);
  }
  return s;
}

void Judge(const KldStatistics& floor, const std::string& floor_name, KldRow* row) {
  const KldStatistics& s = row->total;
  const double noise = 2 * std::hypot(s.all.mean_stderr, floor.all.mean_stderr);
  // Few or short windows have large errors: they must not make everything look the same.
  if (s.all.mean <= std::min(floor.all.mean + noise, 2 * floor.all.mean)) {
    row->verdict = KldVerdict::kSame;
    row->explanation = fmt::format("same: its KL is within the noise floor ({})", floor_name);
    return;
  }
  row->verdict = KldVerdict::kWorse;
  row->explanation = fmt::format("worse: its KL is {:.5f}, ", s.all.mean);
  row->explanation += floor.all.mean > 0 ? fmt::format("{:.1f} times the floor's ({})",
                                                       s.all.mean / floor.all.mean, floor_name)
                                         : fmt::format("the floor's ({}) is 0", floor_name);
  if (s.all.ppl_ratio < 1) {
    row->explanation += fmt::format(
        "; that its perplexity is {:.2f} % lower is no gain, it is another model than the plain "
        "one",
        100 * (1 - s.all.ppl_ratio));
  }
}

KldRow MakeRow(const KldOptions& options, const Stream& stream, const StreamScores& scores,
               int64_t context) {
  KldRow row;
  row.name = stream.name;
  row.config = stream.config;
  row.bits_per_value = SealedBitsPerValue(row.config);
  row.bits_all_counted = 16 / FootprintRatio(row.config, context);
  row.scales_share = ScalesShare(row.config);
  row.kernel = KernelNames(row.config);
  const bool quantizes = Quantizes(row.config);
  row.total = Statistics("all", scores, 0, scores.window_means.size(), quantizes);
  row.by_position = ByPosition(scores.scores);
  row.head_cosine = scores.head_cosine;
  row.v_skip = scores.v_skip;
  row.layer_cosine = LayerCosine(scores, stream.model->arch().num_q_heads);
  size_t first = 0;
  for (const EvalText& text : options.texts) {
    row.texts.push_back(Statistics(text.name, scores, first, text.windows.size(), quantizes));
    first += text.windows.size();
  }
  return row;
}

// The keys of a row that are figures of its text.
void PutStatistics(const KldStatistics& s, Json* j) {
  Json& out = *j;
  out["kld"] = SummaryJson(s.all);
  out["kld"]["mean_stderr_windows"] = s.over_windows.stderr_of_mean();
  out["kld_behind_1024"] = SummaryJson(s.behind);
  out["same_top"] = s.all.same_top;
  out["same_top_stderr"] = s.all.same_top_stderr;
  out["ppl"] = PplJson(s.all);
  out["delta_p_rms"] = s.all.delta_p_rms;
  out["one_minus_tvd"] = s.all.one_minus_tvd;
}

Json RowJson(const KldResult& result, const KldRow& row) {
  Json j;
  j["kv"] = row.name;
  j["bits_per_value"] = row.bits_per_value;
  j["bits_all_counted"] = row.bits_all_counted;
  j["scales_share"] = row.scales_share;
  PutStatistics(row.total, &j);
  if (row.config.v_skip > 0) j["v_skip"] = VSkipJson(row.config.v_skip, row.v_skip);
  j["by_text"] = Json::array();
  for (const KldStatistics& t : row.texts) {
    Json text = {{"text", t.name}, {"windows", t.over_windows.groups()}};
    PutStatistics(t, &text);
    text["kld_by_window"] = t.window_means;  // caches of one text can be compared pair by pair
    j["by_text"].push_back(std::move(text));
  }
  j["by_position"] = Json::array();
  for (const PositionBucket& b : row.by_position) {
    j["by_position"].push_back(
        {{"first", b.first}, {"end", b.end}, {"kld_mean", b.kld_mean}, {"positions", b.positions}});
  }
  j["by_layer"] = Json::array();
  const size_t heads =
      row.layer_cosine.empty() ? 0 : row.head_cosine.size() / row.layer_cosine.size();
  for (size_t l = 0; l < row.layer_cosine.size(); ++l) {
    const auto first = row.head_cosine.begin() + static_cast<std::ptrdiff_t>(l * heads);
    const auto worst = std::min_element(first, first + static_cast<std::ptrdiff_t>(heads));
    j["by_layer"].push_back({{"layer", l},
                             {"cosine", row.layer_cosine[l]},
                             {"worst_q_head", worst - first},
                             {"worst_cosine", *worst}});
  }
  j["verdict"] = row.verdict == KldVerdict::kSame ? "same" : "worse";
  j["explanation"] = row.explanation;
  if (result.gate.any()) {
    j["passed"] = row.failures.empty();
    j["failures"] = row.failures;
  }
  if (row.seen.pieces > 0) {
    j["seen_by_calibration"] = {{"share", row.seen.share()}, {"certain", row.seen.certain()}};
  }
  j["kernel"] = row.kernel;
  return j;
}

}  // namespace

std::string F32FloorWords(const KldStatistics& floor) {
  return fmt::format(
      "The plain cache beside keys and values of 32 bits: mean KL {:.7f} \u00b1 {:.7f}, same top "
      "{:.2f} %.",
      floor.all.mean, floor.all.mean_stderr, 100 * floor.all.same_top);
}

std::string SeenWords(const TextOverlap& seen) {
  constexpr double kGoodPart = 0.05;
  if (!seen.certain() || seen.share() < kGoodPart) return "";
  return fmt::format(
      "about {:.0f} % of this text was read by its calibration, and what was seen flatters: --part "
      "held-out with the data and flags of the calibration leaves that out, prompts that repeat "
      "aside",
      100 * seen.share());
}

std::vector<std::string> GateFailures(const KldGate& gate, const DivergenceSummary& s,
                                      const std::string& not_informative) {
  std::vector<std::string> failures;
  if (gate.max_kld && s.mean > *gate.max_kld + s.mean_stderr) {
    failures.push_back(fmt::format("mean KL {:.5f} \u00b1 {:.5f} is above {:.5f}", s.mean,
                                   s.mean_stderr, *gate.max_kld));
  }
  if (gate.max_ppl_ratio && s.ppl_ratio > *gate.max_ppl_ratio) {
    failures.push_back(
        fmt::format("perplexity ratio {:.5f} is above {:.5f}", s.ppl_ratio, *gate.max_ppl_ratio));
  }
  if (gate.min_same_top && s.same_top < *gate.min_same_top) {
    failures.push_back(
        fmt::format("same top {:.4f} is below {:.4f}", s.same_top, *gate.min_same_top));
  }
  if (gate.any() && !not_informative.empty()) {
    failures.push_back("not informative, so that no bound is proven: " + not_informative);
  }
  return failures;
}

void ApplyGate(KldResult* result) {
  for (KldRow& row : result->rows) {
    row.failures = GateFailures(result->gate, row.total.all, result->note);
  }
}

bool KldResult::passed() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const KldRow& row) { return row.failures.empty(); });
}

EvalWindows AllWindows(std::span<const EvalText> texts) {
  EvalWindows all;
  for (const EvalText& text : texts) {
    for (const std::vector<TokenId>& w : text.windows) {
      all.tokens += static_cast<int64_t>(w.size());
      all.context_len = std::max(all.context_len, static_cast<int64_t>(w.size()));
      all.windows.push_back(w);
    }
  }
  return all;
}

std::string WhyNotInformative(double plain_ppl, int vocab_size) {
  if (plain_ppl <= 0.1 * vocab_size) return "";
  return fmt::format(
      "the plain model has a perplexity of {:.0f} on these texts, not far from guessing ({}): they "
      "say little about a cache",
      plain_ppl, vocab_size);
}

Result<KldResult> RunKld(const KldOptions& options) {
  KldResult result;
  result.model_name = options.reference.model->arch().model_name;
  result.reference_name = options.reference.name;
  result.first_scored = options.measure.first_scored;
  result.gate = options.gate;
  const EvalWindows all = AllWindows(options.texts);
  result.tokens = all.tokens;
  result.context_len = all.context_len;
  result.windows = static_cast<int64_t>(all.windows.size());
  std::vector<Stream> streams = options.candidates;
  const auto is_floor = [&](const Stream& s) {
    return s.name == options.floor.name && s.model == options.floor.model;
  };
  const auto floor_at =
      static_cast<size_t>(std::find_if(streams.begin(), streams.end(), is_floor) - streams.begin());
  if (floor_at == streams.size()) streams.push_back(options.floor);
  if (options.f32_floor) streams.push_back(*options.f32_floor);
  DivergenceOptions measure = options.measure;
  measure.keep_scores = true;
  measure.head_cosine = std::all_of(streams.begin(), streams.end(), [&](const Stream& s) {
    return SameShapes(s.model->arch(), options.reference.model->arch());
  });
  TQ_ASSIGN_OR_RETURN(const std::vector<StreamScores> scores,
                      MeasureDivergence(options.reference, streams, all.windows, measure));
  result.floor_name = options.floor.name;
  result.floor = Statistics(result.floor_name, scores[floor_at], 0,
                            scores[floor_at].window_means.size(), true);
  if (options.f32_floor) {
    result.f32_floor = Statistics(options.f32_floor->name, scores.back(), 0,
                                  scores.back().window_means.size(), false);
  }
  for (size_t c = 0; c < options.candidates.size(); ++c) {
    KldRow row = MakeRow(options, streams[c], scores[c], result.context_len);
    Judge(result.floor, result.floor_name, &row);
    if (c < options.calibrated_on.size()) row.seen = options.calibrated_on[c].With(all.windows);
    result.rows.push_back(std::move(row));
  }
  result.note =
      WhyNotInformative(result.floor.all.ppl_ref, options.reference.model->arch().vocab_size);
  result.informative = result.note.empty();
  ApplyGate(&result);
  return result;
}

Json KldJson(const KldResult& result) {
  Json j;
  j["model"] = result.model_name;
  j["reference"] = result.reference_name;
  j["tokens"] = result.tokens;
  j["windows"] = result.windows;
  j["context"] = result.context_len;
  j["first_scored"] = result.first_scored;
  j["informative"] = result.informative;
  if (!result.note.empty()) j["note"] = result.note;
  j["floor"] = {{"kv", result.floor_name},
                {"kld_mean", result.floor.all.mean},
                {"same_top", result.floor.all.same_top},
                {"ppl_ratio", result.floor.all.ppl_ratio}};
  if (result.f32_floor) {
    j["floor_f32"] = {{"kld_mean", result.f32_floor->all.mean},
                      {"kld_stderr", result.f32_floor->all.mean_stderr},
                      {"same_top", result.f32_floor->all.same_top},
                      {"ppl_ratio", result.f32_floor->all.ppl_ratio}};
  }
  if (result.gate.any()) {
    Json& gate = j["gate"];
    if (result.gate.max_kld) gate["max_kld"] = *result.gate.max_kld;
    if (result.gate.max_ppl_ratio) gate["max_ppl_ratio"] = *result.gate.max_ppl_ratio;
    if (result.gate.min_same_top) gate["min_same_top"] = *result.gate.min_same_top;
    j["passed"] = result.passed();
  }
  if (result.rows.size() == 1) {
    j.update(RowJson(result, result.rows.front()));
    return j;
  }
  j["rows"] = Json::array();
  for (const KldRow& row : result.rows) j["rows"].push_back(RowJson(result, row));
  return j;
}

}  // namespace tq
