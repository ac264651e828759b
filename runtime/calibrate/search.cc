// Calibration's second half: allocations, measured end to end, and aligned layer by layer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/calibration.h"
#include "runtime/calibrate/statistics_json.h"

namespace tq {

std::vector<HeadFormat> Calibration::FormatsOf(const std::vector<std::array<int, 2>>& rungs) const {
  std::vector<HeadFormat> formats = base_.formats;
  ForEachHead([&](size_t h) { formats[h] = ladder_.Format(rungs[h][0], rungs[h][1]); });
  return formats;
}

CacheConfig Calibration::ConfigOf(const std::vector<std::array<int, 2>>& rungs) const {
  CacheConfig c = base_;
  c.formats = FormatsOf(rungs);
  return c;
}

Result<CalibrateTrial> Calibration::Choose(std::string name, const ChoiceRequest& request) const {
  TQ_ASSIGN_OR_RETURN(const ChosenFormats chosen, ChooseFormats(ladder_, costs_, request));
  return CalibrateTrial{std::move(name), chosen.rungs, chosen.bits, chosen.cost, {}, {}};
}

// Measures what has not been; one pass of the reference for all of them.
Status Calibration::MeasureTrials(std::vector<CalibrateTrial*> trials, Stage stage) {
  const auto key = [](const CalibrateTrial& t) {
    std::string name = "trial ";
    for (const auto& r : t.rungs) name += StrCat(r[0], ' ', r[1], ' ');
    return name;
  };
  std::vector<Stream> streams;
  std::vector<std::string> missing;
  for (const CalibrateTrial* t : trials) {
    const std::string name = key(*t);
    const bool listed = std::find(missing.begin(), missing.end(), name) != missing.end();
    if (listed || journal_->Find(name) != nullptr) continue;
    missing.push_back(name);
    streams.push_back({t->name, &model_, ConfigOf(t->rungs)});
  }
  if (!missing.empty()) {
    TQ_ASSIGN_OR_RETURN(const auto scores, Divergence(streams, search_windows_, stage,
                                                      "measuring allocations", false));
    std::vector<std::pair<std::string, nlohmann::json>> measured;
    for (size_t t = 0; t < missing.size(); ++t) {
      measured.emplace_back(missing[t], scores[t].window_means);
    }
    TQ_RETURN_IF_ERROR(journal_->Put(measured));
  }
  for (CalibrateTrial* t : trials) {
    TQ_ASSIGN_OR_RETURN(t->window_means, NumbersFromJson(*journal_->Find(key(*t))));
    t->window_positions.clear();
    for (const std::vector<TokenId>& w : search_windows_) {
      t->window_positions.push_back(static_cast<int64_t>(w.size()));
    }
  }
  return OkStatus();
}

Result<std::vector<StreamScores>> Calibration::Divergence(std::span<const Stream> streams,
                                                          WindowSpan windows, Stage stage,
                                                          const std::string& what, bool scores) {
  DivergenceOptions o;
  o.at_once = CachesAtOnce(base_, options_.context_len, options_.max_bytes, 16);
  o.keep_scores = scores;
  o.head_cosine = scores;
  o.pool = options_.pool;
  o.progress = work_.Stage(stage, what);
  o.cancel = options_.cancel;
  const Stream plain = {"f16", &model_, model_.MakeCacheConfig()};
  return MeasureDivergence(plain, streams, windows, o);
}

// The uniform formats with the most bits within a budget; of equal ones those of least cost.
std::optional<CalibrateTrial> Calibration::Uniform(double max_bits) const {
  std::optional<CalibrateTrial> best;
  for (int k = 0; k <= TopRung(0); ++k) {
    for (int v = 0; v <= TopRung(1); ++v) {
      ChosenFormats all;
      all.rungs.assign(NumHeads(), {k, v});
      const double bits = BitsOf(ladder_, costs_, all);
      if (bits > max_bits + 1e-9) continue;
      double cost = 0;
      ForEachHead([&](size_t h) {
        cost +=
            costs_.costs[h][0][static_cast<size_t>(k)] + costs_.costs[h][1][static_cast<size_t>(v)];
      });
      if (best &&
          (bits < best->bits - 1e-9 || (bits < best->bits + 1e-9 && cost >= best->predicted))) {
        continue;
      }
      best = CalibrateTrial{"uniform " + RungsName(ladder_, k, v), all.rungs, bits, cost, {}, {}};
    }
  }
  return best;
}

// Several shapes of the same prediction, measured end to end: the simplest that is not beaten
// beyond its standard error wins.
Status Calibration::Search() {
  struct Shape {
    const char* name;
    Granularity granularity;
    double v_weight;
  };
  constexpr Shape kShapes[] = {{"K and V alike", Granularity::kPair, 1},
                               {"layers", Granularity::kLayer, 1},
                               {"layers, V x 0.5", Granularity::kLayer, 0.5},
                               {"layers, V x 2", Granularity::kLayer, 2},
                               {"heads", Granularity::kHead, 1},
                               {"heads, V x 0.5", Granularity::kHead, 0.5},
                               {"heads, V x 2", Granularity::kHead, 2}};
  std::vector<ChoiceRequest> requests;
  std::vector<CalibrateTrial> trials;
  double budget = budget_bits_.value_or(0);
  if (!budget_bits_) {
    // Shapes are compared at the bits that the target is predicted to take.
    ChoiceRequest at_target{.max_cost = options_.target_kld};
    if (options_.objective == Objective::kCosine) at_target = {.max_bits = 3.0};
    const Result<ChosenFormats> chosen = ChooseFormats(ladder_, costs_, at_target);
    if (!chosen.ok()) {
      return chosen.status().WithContext(StrCat("a mean KL of ", options_.target_kld));
    }
    budget = chosen->bits;
  }
  for (const Shape& s : kShapes) {
    if (options_.granularity && *options_.granularity != s.granularity) continue;
    if (!options_.granularity && s.granularity == Granularity::kPair) continue;
    if (!options_.granularity && s.granularity == Granularity::kHead && arch_.num_kv_heads == 1) {
      continue;
    }
    ChoiceRequest request{.max_bits = budget};
    request.granularity = s.granularity;
    request.v_weight = s.v_weight;
    TQ_ASSIGN_OR_RETURN(CalibrateTrial trial, Choose(s.name, request));
    requests.push_back(request);
    trials.push_back(std::move(trial));
  }
  if (const auto uniform = Uniform(budget)) trials.push_back(*uniform);
  std::vector<CalibrateTrial*> all;
  for (CalibrateTrial& t : trials) all.push_back(&t);
  TQ_RETURN_IF_ERROR(MeasureTrials(all, kSearch));
  size_t best = 0;
  for (size_t t = 1; t < requests.size(); ++t) {
    const GroupedMean gain = PairedDifference(trials[t], trials[best]);
    if (gain.mean() > gain.stderr_of_mean()) best = t;
  }
  for (const CalibrateTrial& t : trials) {
    Say(fmt::format("measured {}: {:.3f} bits, KL {:.6f}", t.name, t.bits, t.kld()));
  }
  result_.trials = trials;
  result_.chosen = trials[best];
  request_ = requests[best];
  if (result_.chosen.predicted > 0) {
    result_.scale = result_.chosen.kld() / result_.chosen.predicted;
  }
  if (budget_bits_) return OkStatus();
  return ReachTarget(request_, trials[best].name);
}

// Predictions are off by a factor that hardly depends on the bits: measure, scale, choose again.
Status Calibration::ReachTarget(ChoiceRequest request, const std::string& name) {
  constexpr int kRounds = 4;
  std::optional<CalibrateTrial> reached;
  double scale = result_.scale > 0 ? result_.scale : 1;
  for (int round = 0; round < kRounds; ++round) {
    request.max_bits.reset();
    request.max_cost = options_.target_kld / scale;
    TQ_ASSIGN_OR_RETURN(CalibrateTrial trial, Choose(StrCat(name, ", round ", round + 1), request));
    TQ_RETURN_IF_ERROR(MeasureTrials({&trial}, kSearch));
    Say(fmt::format("measured {}: {:.3f} bits, KL {:.6f} for {:g}", trial.name, trial.bits,
                    trial.kld(), options_.target_kld));
    const bool within = trial.kld() <= options_.target_kld;
    if (within && (!reached || trial.bits < reached->bits)) {
      reached = trial;
      request_ = request;
      result_.scale = scale;
    }
    const bool known = std::any_of(result_.trials.begin(), result_.trials.end(),
                                   [&](const auto& t) { return t.rungs == trial.rungs; });
    result_.trials.push_back(trial);
    if (within && trial.kld() > 0.93 * options_.target_kld) break;
    if (known && within) break;
    scale = trial.predicted > 0 ? trial.kld() / trial.predicted : scale;
    if (!within) scale *= 1.02;  // not to stop just above it
  }
  if (!reached) {
    return InvalidArgument(
        "a mean KL of ", options_.target_kld, " was not reached: ", result_.trials.back().bits,
        " bits per value gave ", result_.trials.back().kld(), "; raise --target-kld, or --budget");
  }
  result_.chosen = *reached;
  return OkStatus();
}

// Layers whose attention is much worse matched than the others' are raised, within the budget.
Status Calibration::Align() {
  constexpr int kRounds = 3;
  // Errors that are small by themselves are never out of line: 0.1 is a cosine of about 0.995.
  constexpr double kTimesMedian = 3, kLeast = 0.1;
  const WindowSpan windows = TakeWindows(search_windows_, options_.context_len);
  const auto measure = [&](const CalibrateTrial& trial,
                           std::vector<AttentionError>* out) -> Status {
    std::string key = "aligned:";
    for (const auto& r : trial.rungs) key += StrCat(r[0], ' ', r[1], ' ');
    TQ_ASSIGN_OR_RETURN(const nlohmann::json j, journal_->Get(key, [&]() -> Result<nlohmann::json> {
      const CacheConfig config = ConfigOf(trial.rungs);
      TQ_ASSIGN_OR_RETURN(const auto errors, AttentionErrors({&config, 1}, windows, true, kAlign));
      return ErrorsToJson(errors);
    }));
    TQ_ASSIGN_OR_RETURN(const auto errors, ErrorsFromJson(j));
    *out = errors.at(0);
    return OkStatus();
  };
  const auto heads = static_cast<size_t>(arch_.num_kv_heads);
  const auto fill = [&](const std::vector<AttentionError>& errors) {
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      double error = 0, energy = 0, cosine = 0, scores = 0;
      for (size_t h = l * heads; h < (l + 1) * heads; ++h) {
        error += errors[h].error;
        energy += errors[h].energy;
        cosine += errors[h].cosine / arch_.num_kv_heads;
        scores += errors[h].score_agreement / arch_.num_kv_heads;
      }
      result_.layers[l].output_error = energy > 0 ? std::sqrt(error / energy) : 0;
      result_.layers[l].output_cosine = cosine;
      result_.layers[l].score_agreement = scores;
    }
  };
  const auto out_of_line = [&] {
    std::vector<double> sorted;
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      if (!costs_.fixed[l]) sorted.push_back(result_.layers[l].output_error);
    }
    std::sort(sorted.begin(), sorted.end());
    const double limit = std::max(kLeast, kTimesMedian * sorted[sorted.size() / 2]);
    std::vector<size_t> layers;
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      if (!costs_.fixed[l] && result_.layers[l].output_error > limit) layers.push_back(l);
    }
    return layers;
  };

  std::vector<AttentionError> errors;
  TQ_RETURN_IF_ERROR(measure(result_.chosen, &errors));
  fill(errors);
  std::vector<size_t> bad = out_of_line();
  if (bad.empty()) {
    Say("alignment: every layer's attention output is in line with the others'");
    return OkStatus();
  }
  const std::vector<AttentionError> before = errors;
  CalibrateTrial trial = result_.chosen;
  ChoiceRequest request = request_;
  request.max_cost.reset();
  request.max_bits = budget_bits_.value_or(result_.chosen.bits);
  std::vector<bool> raised(result_.layers.size());
  for (int round = 0; round < kRounds && !bad.empty(); ++round) {
    request.least_rungs.resize(NumHeads(), {0, 0});
    for (const size_t l : bad) {
      // The side with the larger error, one step up in every head.
      std::array<double, 2> sides{};
      for (size_t h = l * heads; h < (l + 1) * heads; ++h) {
        for (int side = 0; side < 2; ++side) {
          sides[side] += Error(h, side, static_cast<size_t>(trial.rungs[h][side]));
        }
      }
      const int side = sides[0] >= sides[1] ? 0 : 1;
      for (size_t h = l * heads; h < (l + 1) * heads; ++h) {
        request.least_rungs[h][side] = std::min(TopRung(side), trial.rungs[h][side] + 1);
      }
      raised[l] = true;
      Say(fmt::format(
          "alignment: layer {} has an attention output error of {:.3f} (cosine {:.4f}); "
          "raising {}",
          l, result_.layers[l].output_error, result_.layers[l].output_cosine,
          side == 0 ? "K" : "V"));
    }
    if (!budget_bits_) {
      // Without a budget the raised layers add to the bits.
      ChosenFormats more{trial.rungs, 0, 0};
      for (size_t h = 0; h < NumHeads(); ++h) {
        for (int side = 0; side < 2; ++side) {
          more.rungs[h][side] = std::max(more.rungs[h][side], request.least_rungs[h][side]);
        }
      }
      request.max_bits = BitsOf(ladder_, costs_, more);
    }
    Result<CalibrateTrial> next = Choose(result_.chosen.name + ", aligned", request);
    if (!next.ok()) {
      Say("alignment: the budget leaves no room for more");
      break;
    }
    trial = *std::move(next);
    TQ_RETURN_IF_ERROR(measure(trial, &errors));
    fill(errors);
    bad = out_of_line();
  }
  TQ_RETURN_IF_ERROR(MeasureTrials({&trial}, kAlign));
  const GroupedMean harm = PairedDifference(result_.chosen, trial);
  result_.trials.push_back(trial);
  if (options_.objective == Objective::kKld && harm.mean() > harm.stderr_of_mean()) {
    Say(fmt::format("alignment: taken back, the KL grows from {:.6f} to {:.6f}",
                    result_.chosen.kld(), trial.kld()));
    fill(before);
    return OkStatus();
  }
  Say(fmt::format("alignment: KL {:.6f} before, {:.6f} after, at {:.3f} bits", result_.chosen.kld(),
                  trial.kld(), trial.bits));
  for (size_t l = 0; l < raised.size(); ++l) result_.layers[l].raised = raised[l];
  result_.chosen = trial;
  request_ = request;
  return OkStatus();
}

}  // namespace tq
