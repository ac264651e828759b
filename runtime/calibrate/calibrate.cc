#include "runtime/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/calibration.h"
#include "runtime/evaluate/footprint.h"
#include "turboquant/base/isa.h"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// What fits into the recent window shows nothing of a format.
std::vector<std::vector<TokenId>> LongWindows(WindowSpan windows, const CalibrateOptions& options) {
  const int64_t open =
      (DivCeil(options.sink_len, kPageLen) + DivCeil(options.recent_len, kPageLen) + 2) *
      int64_t{kPageLen};
  std::vector<std::vector<TokenId>> out;
  for (const std::vector<TokenId>& w : windows) {
    if (static_cast<int64_t>(w.size()) > open) out.push_back(w);
  }
  return out;
}

}  // namespace

Calibration::Calibration(Model& model, WindowSpan calibration, WindowSpan held_out,
                         const CalibrateOptions& options)
    : model_(model),
      arch_(model.arch()),
      calibration_(calibration),
      long_calibration_(LongWindows(calibration, options)),
      long_held_out_(LongWindows(held_out, options)),
      options_(options) {
  held_out_ = TakeWindows(long_held_out_, options.held_out_tokens, kCalibrateLeastWindows);
  site_windows_ = TakeWindows(long_calibration_, options.site_tokens);
  // Other text than the sites', as far as there is some.
  const WindowSpan all = long_calibration_, rest = all.subspan(site_windows_.size());
  const bool enough =
      CountTokens(rest) >= options.search_tokens && rest.size() >= kCalibrateLeastWindows;
  search_windows_ = TakeWindows(enough ? rest : all, options.search_tokens, kCalibrateLeastWindows);
}

Result<CalibrateResult> Calibration::Run() {
  TQ_RETURN_IF_ERROR(Prepare());
  TQ_RETURN_IF_ERROR(Observe());
  if (options_.uniform) {
    TQ_RETURN_IF_ERROR(ChooseBase());
  } else {
    TQ_RETURN_IF_ERROR(MeasureFormats());
    TQ_RETURN_IF_ERROR(MeasureLayers());
    TQ_RETURN_IF_ERROR(MeasureHeads());
    TQ_RETURN_IF_ERROR(Search());
    TQ_RETURN_IF_ERROR(Align());
  }
  TQ_RETURN_IF_ERROR(Verify());
  Finish();
  return std::move(result_);
}

Status Calibration::Prepare() {
  TQ_CHECK(options_.pool != nullptr);
  if (site_windows_.empty() || held_out_.empty()) {
    return InvalidArgument("calibration needs texts that are longer than the recent window of ",
                           options_.recent_len, " tokens, and held-out ones; found ",
                           long_calibration_.size(), " and ", long_held_out_.size(),
                           ": give longer texts, or a smaller --recent-len");
  }
  for (int l = 0; l < arch_.num_layers; ++l) costs_.fixed.push_back(arch_.window(l) > 0);
  if (std::count(costs_.fixed.begin(), costs_.fixed.end(), false) == 0) {
    return Unsupported("all ", arch_.num_layers,
                       " layers have a sliding window and are kept in 16 bit: there is nothing "
                       "to choose");
  }
  costs_.num_layers = arch_.num_layers;
  costs_.num_kv_heads = arch_.num_kv_heads;
  costs_.head_dim = arch_.head_dim;
  costs_.costs.resize(NumHeads());
  TQ_ASSIGN_OR_RETURN(
      ladder_, MakeLadder(options_.base, options_.bits, /*center=*/true, options_.group_lens));
  TQ_ASSIGN_OR_RETURN(metric_, OutputMetric::FromModel(model_));
  journal_ = options_.journal != nullptr ? options_.journal : &own_journal_;
  budget_bits_ = options_.budget_bits;
  if (options_.max_cache_bytes) TQ_RETURN_IF_ERROR(BudgetOfBytes(*options_.max_cache_bytes));
  result_.layers.resize(static_cast<size_t>(arch_.num_layers));

  // In tokens of a whole pass.
  const auto full = static_cast<double>(NumChosenLayers());
  const auto site = static_cast<double>(CountTokens(site_windows_));
  const auto search = static_cast<double>(CountTokens(search_windows_));
  const auto rungs = static_cast<double>(ladder_.k.size() + ladder_.v.size());
  const double head_sites = full * 2 * arch_.num_kv_heads * options_.measured_heads;
  work_ = WorkProgress(
      options_.progress,
      {static_cast<double>(CountTokens(calibration_)), site / 2 * (1 + 0.4 * rungs),
       site * (full * 2 * 0.6 + 2), arch_.num_kv_heads > 1 ? site * (head_sites * 0.6 + 2) : 0,
       search * 8, search * 2, static_cast<double>(CountTokens(held_out_)) * 4});
  return OkStatus();
}

// The bits of sealed blocks with which a sequence of context_len tokens takes at most so much.
Status Calibration::BudgetOfBytes(size_t max_bytes) {
  CacheConfig smallest = model_.MakeCacheConfig();
  smallest.recent_len = options_.recent_len;
  smallest.sink_len = options_.sink_len;
  smallest.tensors.resize(NumHeads());
  size_t block = 0;
  ForEachHead([&](size_t h) {
    HeadFormat& f = smallest.formats[h] = ladder_.Format(0, 0);
    block += RecordLayout::For(f, arch_.head_dim).bytes + SideInfoBytes(f);
  });
  const CacheBytes bytes = CacheFootprint(smallest, options_.context_len);
  const size_t blocks = (bytes.payload + bytes.scales) / block + 1;  // one is sealed ahead
  const size_t fixed = bytes.total() - blocks * block;
  const double values = 2.0 * kPageLen * arch_.head_dim * static_cast<double>(arch_.num_kv_heads) *
                        static_cast<double>(NumChosenLayers());
  if (max_bytes < bytes.total()) {
    return InvalidArgument("a cache of ", max_bytes, " bytes for ", options_.context_len,
                           " tokens; with the smallest formats it takes ", bytes.total(),
                           ": allow more, or a shorter context");
  }
  const double bits =
      8.0 * static_cast<double>(max_bytes - fixed) / static_cast<double>(blocks) / values;
  budget_bits_ = std::min(bits, budget_bits_.value_or(bits));
  Say(StrCat("a cache of ", max_bytes, " bytes for ", options_.context_len, " tokens leaves ", bits,
             " bits per value"));
  return OkStatus();
}

Status Calibration::ChooseBase() {
  std::array<int, 2> rungs{};
  for (const int side : {0, 1}) {
    const Codec& base = side == 0 ? options_.base.k : options_.base.v;
    const std::vector<Codec>& there = ladder_.of(kSides[side]);
    const auto at = std::find_if(there.begin(), there.end(),
                                 [&](const Codec& c) { return c.bits == base.bits; });
    if (at == there.end()) {
      return InvalidArgument("a uniform profile of ", base.bits,
                             " bits: the widths that may be given do not hold them");
    }
    rungs[static_cast<size_t>(side)] = static_cast<int>(at - there.begin());
  }
  ChosenFormats all = AllHeads(rungs[0], rungs[1]);
  result_.chosen = {"uniform " + RungsName(ladder_, rungs[0], rungs[1]),
                    std::move(all.rungs),
                    all.bits,
                    0,
                    {},
                    {}};
  return OkStatus();
}

// On text that nothing was chosen by, against the uniform format that takes as many bytes.
Status Calibration::Verify() {
  const std::optional<CalibrateTrial> uniform =
      options_.uniform ? std::nullopt : Uniform(result_.chosen.bits);
  const ChosenFormats floor = AllHeads(TopRung(0), TopRung(1));
  std::vector<Stream> streams = {{"profile", &model_, ConfigOf(result_.chosen.rungs)},
                                 {"floor", &model_, ConfigOf(floor.rungs)}};
  if (uniform) streams.push_back({uniform->name, &model_, ConfigOf(uniform->rungs)});
  TQ_ASSIGN_OR_RETURN(auto scores,
                      Divergence(streams, held_out_, kVerify, "verifying on held-out text", true));
  result_.held_out = std::move(scores[0]);
  result_.held_out_floor = std::move(scores[1]);
  if (uniform) {
    result_.uniform_name = uniform->name;
    result_.uniform_bits = uniform->bits;
    result_.held_out_uniform = std::move(scores[2]);
    const GroupedMean gain = OverWindows(result_.held_out_uniform, result_.held_out);
    result_.gain = gain.mean();
    result_.gain_stderr = gain.stderr_of_mean();
    // Without a budget the simpler one has to reach the target too.
    KldGate target;
    target.max_kld = options_.target_kld;
    const bool reaches =
        budget_bits_ || GateFailures(target,
                                     Summarize(result_.held_out_uniform.scores,
                                               result_.held_out_uniform.window_positions),
                                     "")
                            .empty();
    if (!IsBeyondItsError(gain) && reaches && options_.objective == Objective::kKld) {
      result_.kept_uniform = true;
      Say(fmt::format(
          "on held-out text the allocation gains {:.6f} ± {:.6f} KL over {}: the simpler "
          "profile is kept",
          gain.mean(), gain.stderr_of_mean(), uniform->name));
      result_.chosen = *uniform;
      TQ_RETURN_IF_ERROR(MeasureTrials({&result_.chosen}, kVerify));
      result_.held_out = result_.held_out_uniform;
      for (CalibrateLayer& layer : result_.layers) layer.raised = false;
    }
  }
  return OkStatus();
}

void Calibration::Finish() {
  const std::vector<double> cosines = LayerCosine(result_.held_out, arch_.num_q_heads);
  for (size_t l = 0; l < result_.layers.size(); ++l) {
    CalibrateLayer& layer = result_.layers[l];
    layer.run_cosine = cosines[l];
    for (int h = 0; h < arch_.num_kv_heads && !costs_.fixed[l]; ++h) {
      const auto& r =
          result_.chosen
              .rungs[l * static_cast<size_t>(arch_.num_kv_heads) + static_cast<size_t>(h)];
      layer.k_bits +=
          static_cast<double>(ladder_.k[static_cast<size_t>(r[0])].bits) / arch_.num_kv_heads;
      layer.v_bits +=
          static_cast<double>(ladder_.v[static_cast<size_t>(r[1])].bits) / arch_.num_kv_heads;
    }
  }
  Profile& p = result_.profile;
  p.model.name = arch_.model_name;
  p.model.architecture = arch_.name;
  p.model.structure_hash = model_.StructureHash();
  p.model.num_layers = arch_.num_layers;
  p.model.num_q_heads = arch_.num_q_heads;
  p.model.num_kv_heads = arch_.num_kv_heads;
  p.model.head_dim = arch_.head_dim;
  p.recent_len = base_.recent_len;
  p.sink_len = base_.sink_len;
  p.recent = base_.recent;
  p.seed = base_.seed;
  p.formats = FormatsOf(result_.chosen.rungs);
  p.tensors = base_.tensors;
  for (const HeadStatistics& h : result_.statistics.heads) {
    p.k_means.push_back(
        h.k_mean.empty() ? std::vector<float>(static_cast<size_t>(arch_.head_dim), 0.f) : h.k_mean);
  }
  if (!options_.uniform && options_.objective == Objective::kKld) {
    ProfileSensitivity& found = p.sensitivity.emplace();
    found.bits = ladder_.k.front().bits;
    for (const auto& head : costs_.costs) {
      found.k.push_back(head[0].front());
      found.v.push_back(head[1].front());
    }
  }
  ProfileCalibration& c = p.calibration.emplace();
  c.sequences = static_cast<int64_t>(calibration_.size());
  c.tokens = result_.statistics.tokens;
  c.context_len = options_.context_len;
  c.objective = options_.objective == Objective::kKld ? "kld" : "cosine";
  c.budget_bits = budget_bits_.value_or(0);
  c.target_kld = options_.gate ? options_.target_kld : 0;
  const DivergenceSummary s = Summarize(result_.held_out.scores, result_.held_out.window_positions);
  ProfileQuality& q = p.quality.emplace();
  q.held_out_tokens = s.positions;
  q.windows = static_cast<int64_t>(held_out_.size());
  q.kld_mean = s.mean;
  q.kld_stderr = s.mean_stderr;
  q.kld_p99 = s.p99;
  q.floor_kld_mean = OverWindows(result_.held_out_floor).mean();
  q.same_top = s.same_top;
  q.ppl_ratio = s.ppl_ratio;
  q.gate_kld_mean = c.target_kld;
  q.device = StrCat("cpu, ", CurrentIsa());
  result_.not_informative = WhyNotInformative(s.ppl_ref, arch_.vocab_size);
  if (!result_.not_informative.empty()) Say("held-out text: " + result_.not_informative);
  KldGate gate;
  if (options_.gate) gate.max_kld = options_.target_kld;
  q.passed = GateFailures(gate, s, result_.not_informative).empty();
}

double CalibrateTrial::kld() const {
  GroupedMean mean;
  for (size_t w = 0; w < window_means.size(); ++w) mean.Add(window_means[w], window_positions[w]);
  return mean.mean();
}

std::string RungsName(const FormatLadder& ladder, int k_rung, int v_rung) {
  return PresetName(ladder.Format(k_rung, v_rung));
}

Result<CalibrateResult> Calibrate(Model& model, std::span<const std::vector<TokenId>> calibration,
                                  std::span<const std::vector<TokenId>> held_out,
                                  const CalibrateOptions& options) {
  return Calibration(model, calibration, held_out, options).Run();
}

}  // namespace tq
