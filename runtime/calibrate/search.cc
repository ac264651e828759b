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

ChosenFormats Calibration::AllHeads(int k_rung, int v_rung) const {
  ChosenFormats all;
  all.rungs.assign(NumHeads(), {k_rung, v_rung});
  all.bits = BitsOf(ladder_, costs_, all);
  return all;
}

// The uniform formats with the most bits within a budget; of equal ones those of least cost.
std::optional<CalibrateTrial> Calibration::Uniform(double max_bits) const {
  std::optional<CalibrateTrial> best;
  for (int k = 0; k <= TopRung(0); ++k) {
    for (int v = 0; v <= TopRung(1); ++v) {
      const ChosenFormats all = AllHeads(k, v);
      const double bits = all.bits;
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
    budget = chosen.ok() ? chosen->bits : AllHeads(TopRung(0), TopRung(1)).bits;
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
    if (IsBeyondItsError(PairedDifference(trials[t], trials[best]))) best = t;
  }
  for (const CalibrateTrial& t : trials) {
    Say(fmt::format("measured {}: {:.3f} bits, KL {:.6f}", t.name, t.bits, t.kld()));
  }
  result_.trials = trials;
  result_.chosen = trials[best];
  request_ = requests[best];
  if (!budget_bits_) TQ_RETURN_IF_ERROR(ReachTarget());
  if (result_.chosen.predicted > 0) {
    result_.scale = result_.chosen.kld() / result_.chosen.predicted;
  }
  return OkStatus();
}

// Fewest bits of the chosen shape whose measured KL is within the target: bits between those known
// to be too few and enough, guessed from what one more bit does to the KL of any code.
Status Calibration::ReachTarget() {
  constexpr int kRounds = 8;
  constexpr double kNear = 0.93;           // of the target: fewer bits are not worth another run
  constexpr double kLogKldPerBit = 1.386;  // a quarter for each bit
  constexpr double kLeastStep = 0.01;      // bits
  const std::string name = result_.chosen.name;
  std::optional<CalibrateTrial> reached;
  // `few` are not enough, or the fewest there are; `enough` reach the target, or are all there are.
  double few = AllHeads(0, 0).bits, enough = AllHeads(TopRung(0), TopRung(1)).bits;
  bool few_known = false;
  const auto learn = [&](const CalibrateTrial& trial, double asked) {
    if (trial.kld() <= options_.target_kld) {
      if (!reached || trial.bits < reached->bits) reached = trial;
      enough = std::min(enough, trial.bits);
    } else {
      few = std::max(few, asked);
      few_known = true;
    }
  };
  CalibrateTrial last = result_.chosen;
  learn(last, last.bits);
  for (int round = 1; round <= kRounds; ++round) {
    if (reached && reached->kld() > kNear * options_.target_kld) break;
    if (enough - few < kLeastStep) break;
    double bits = last.bits + std::log(std::max(last.kld(), 1e-12) / (0.97 * options_.target_kld)) /
                                  kLogKldPerBit;
    if (bits <= few) bits = few_known ? (few + enough) / 2 : few;
    if (bits >= enough) bits = reached ? (few + enough) / 2 : enough;
    ChoiceRequest request = request_;
    request.max_bits = bits;
    TQ_ASSIGN_OR_RETURN(CalibrateTrial trial, Choose(StrCat(name, ", round ", round), request));
    const bool known = std::any_of(result_.trials.begin(), result_.trials.end(),
                                   [&](const auto& t) { return t.rungs == trial.rungs; });
    TQ_RETURN_IF_ERROR(MeasureTrials({&trial}, kSearch));
    if (!known) {
      Say(fmt::format("measured {}: {:.3f} bits, KL {:.6f} for {:g}", trial.name, trial.bits,
                      trial.kld(), options_.target_kld));
      result_.trials.push_back(trial);
    }
    learn(trial, bits);
    last = std::move(trial);
  }
  if (!reached) {
    reached = *std::min_element(
        result_.trials.begin(), result_.trials.end(),
        [](const CalibrateTrial& a, const CalibrateTrial& b) { return a.kld() < b.kld(); });
    Say(
        fmt::format("a mean KL of {:g} was not reached: the least that was measured is {:.6f}, at "
                    "{:.3f} bits; raise --target-kld",
                    options_.target_kld, reached->kld(), reached->bits));
  }
  result_.chosen = *std::move(reached);
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
  const auto name_of = [](const std::vector<size_t>& layers) {
    std::string names;
    for (const size_t l : layers) names += StrCat(names.empty() ? "" : ", ", l);
    return names;
  };
  const CalibrateTrial before = result_.chosen;
  std::vector<AttentionError> aligned = errors;  // of result_.chosen
  ChoiceRequest request = request_;
  request.max_bits = budget_bits_.value_or(result_.chosen.bits);
  for (int round = 0; round < kRounds && !bad.empty(); ++round) {
    const Rungs& rungs = result_.chosen.rungs;
    request.least_rungs.resize(NumHeads(), {0, 0});
    for (const size_t l : bad) {
      // The side with the larger error, one step up in every head; the other where it has the most.
      std::array<double, 2> sides{};
      std::array<bool, 2> can_rise{};
      for (size_t h = l * heads; h < (l + 1) * heads; ++h) {
        for (int side = 0; side < 2; ++side) {
          sides[side] += Error(h, side, static_cast<size_t>(rungs[h][side]));
          can_rise[side] = can_rise[side] || rungs[h][side] < TopRung(side);
        }
      }
      if (!can_rise[0] && !can_rise[1]) continue;
      const int side = can_rise[0] && (sides[0] >= sides[1] || !can_rise[1]) ? 0 : 1;
      for (size_t h = l * heads; h < (l + 1) * heads; ++h) {
        request.least_rungs[h][side] = std::min(TopRung(side), rungs[h][side] + 1);
      }
      Say(fmt::format(
          "alignment: layer {} has an attention output error of {:.3f} (cosine {:.4f}); "
          "raising {}",
          l, result_.layers[l].output_error, result_.layers[l].output_cosine,
          side == 0 ? "K" : "V"));
    }
    if (!budget_bits_) {
      // Without a budget the raised layers add to the bits.
      ChosenFormats more{rungs, 0, 0};
      for (size_t h = 0; h < NumHeads(); ++h) {
        for (int side = 0; side < 2; ++side) {
          more.rungs[h][side] = std::max(more.rungs[h][side], request.least_rungs[h][side]);
        }
      }
      request.max_bits = BitsOf(ladder_, costs_, more);
    }
    Result<CalibrateTrial> next = Choose(before.name + ", aligned", request);
    if (!next.ok()) {
      Say("alignment: the budget leaves no room for more");
      break;
    }
    CalibrateTrial trial = *std::move(next);
    if (trial.rungs == rungs) break;
    TQ_RETURN_IF_ERROR(measure(trial, &errors));
    TQ_RETURN_IF_ERROR(MeasureTrials({&trial}, kAlign));
    result_.trials.push_back(trial);
    if (options_.objective == Objective::kKld &&
        IsBeyondItsError(PairedDifference(before, trial))) {
      Say(fmt::format("alignment: taken back, the KL grows from {:.6f} to {:.6f}", before.kld(),
                      trial.kld()));
      break;
    }
    Say(fmt::format("alignment: KL {:.6f} before, {:.6f} after, at {:.3f} bits", before.kld(),
                    trial.kld(), trial.bits));
    result_.chosen = std::move(trial);
    aligned = errors;
    fill(errors);
    bad = out_of_line();
  }
  fill(aligned);
  bad = out_of_line();
  if (!bad.empty()) Say("alignment: still out of line: layers " + name_of(bad));
  for (size_t h = 0; h < NumHeads(); ++h) {
    for (const int side : {0, 1}) {
      if (result_.chosen.rungs[h][side] > before.rungs[h][side]) {
        result_.layers[h / heads].raised = true;
      }
    }
  }
  return OkStatus();
}

}  // namespace tq
