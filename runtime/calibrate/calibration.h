// The stages of a calibration and what they share. calibrate.cc runs them, in the order in which
// they stand here; sensitivity.cc and search.cc are the two halves.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/calibrate/attention_error.h"
#include "runtime/calibrate/calibrate.h"
#include "runtime/calibrate/journal.h"
#include "runtime/calibrate/plain.h"
#include "runtime/calibrate/site_runs.h"
#include "runtime/calibrate/work_progress.h"
#include "runtime/evaluate/divergence.h"

namespace tq {

using WindowSpan = std::span<const std::vector<TokenId>>;

// The first windows that have at least `tokens` tokens together, and at least `least` of them; all,
// if there are fewer.
inline WindowSpan TakeWindows(WindowSpan windows, int64_t tokens, size_t least = 1) {
  size_t n = 0;
  for (int64_t sum = 0; n < windows.size() && (sum < tokens || n < least); ++n) {
    sum += static_cast<int64_t>(windows[n].size());
  }
  return windows.first(n);
}

inline int64_t CountTokens(WindowSpan windows) {
  int64_t sum = 0;
  for (const std::vector<TokenId>& w : windows) sum += static_cast<int64_t>(w.size());
  return sum;
}

// Of b's KL minus a's, window by window.
inline GroupedMean PairedDifference(const CalibrateTrial& a, const CalibrateTrial& b) {
  GroupedMean mean;
  for (size_t w = 0; w < a.window_means.size(); ++w) {
    mean.Add(b.window_means[w] - a.window_means[w], a.window_positions[w]);
  }
  return mean;
}

// A difference of one window says nothing about other windows.
inline bool IsBeyondItsError(const GroupedMean& difference) {
  return difference.groups() > 1 && difference.mean() > difference.stderr_of_mean();
}

class Calibration {
 public:
  Calibration(Model& model, WindowSpan calibration, WindowSpan held_out,
              const CalibrateOptions& options);
  Result<CalibrateResult> Run();

 private:
  using Rungs = std::vector<std::array<int, 2>>;
  enum Stage { kObserve, kFormats, kLayers, kHeads, kSearch, kAlign, kVerify };
  // K or V of a layer, or of one of its heads.
  struct SiteName {
    int layer = 0, head = -1, side = 0;  // head -1: all
  };
  static constexpr Side kSides[] = {Side::kK, Side::kV};

  Status Prepare();
  Status BudgetOfBytes(size_t max_bytes);

  Status ChooseBase();

  // --- Sensitivity ------------------------------------------------------------------------------
  Status Observe();
  Status MeasureFormats();
  Status MeasureLayers();
  Status MeasureHeads();
  HeadFormat OneSide(int side, int rung) const;
  Result<std::vector<std::vector<AttentionError>>> AttentionErrors(
      std::span<const CacheConfig> configs, WindowSpan windows, bool scores, Stage stage);
  int TopRung(int side) const { return static_cast<int>(ladder_.of(kSides[side]).size()) - 1; }
  double Error(size_t head, int side, size_t rung) const {
    return errors_[static_cast<size_t>(side) * ladder_.k.size() + rung][head].error;
  }
  SiteRun MakeSite(const SiteName& s) const;
  Result<std::vector<GroupedMean>> MeasureSiteList(const std::vector<SiteName>& sites, Stage stage,
                                                   const std::string& what);
  void FillCosts(const std::vector<std::array<double, 2>>& floor);

  // --- Search -----------------------------------------------------------------------------------
  Status Search();
  Status ReachTarget();
  Status Align();
  std::vector<HeadFormat> FormatsOf(const Rungs& rungs) const;
  CacheConfig ConfigOf(const Rungs& rungs) const;
  Result<CalibrateTrial> Choose(std::string name, const ChoiceRequest& request) const;
  Status MeasureTrials(std::vector<CalibrateTrial*> trials, Stage stage);
  Result<std::vector<StreamScores>> Divergence(std::span<const Stream> streams, WindowSpan windows,
                                               Stage stage, const std::string& what, bool scores);
  std::optional<CalibrateTrial> Uniform(double max_bits) const;
  ChosenFormats AllHeads(int k_rung, int v_rung) const;  // cost: not set

  // --- Proof ------------------------------------------------------------------------------------
  Status Verify();
  void Finish();

  size_t NumHeads() const {
    return static_cast<size_t>(arch_.num_layers) * static_cast<size_t>(arch_.num_kv_heads);
  }
  int64_t NumChosenLayers() const {
    return std::count(costs_.fixed.begin(), costs_.fixed.end(), false);
  }
  // Of the layers whose formats are chosen.
  template <typename Fn>
  void ForEachHead(Fn&& fn) const {
    for (size_t h = 0; h < NumHeads(); ++h) {
      if (!costs_.fixed[h / static_cast<size_t>(arch_.num_kv_heads)]) fn(h);
    }
  }
  void Say(const std::string& text) {
    result_.log.push_back(text);
    Log(options_.log, LogLevel::kInfo, text);
  }

  Model& model_;
  const Architecture& arch_;
  WindowSpan calibration_;
  std::vector<std::vector<TokenId>> long_calibration_, long_held_out_;
  WindowSpan held_out_, site_windows_, search_windows_;
  const CalibrateOptions& options_;
  std::optional<double> budget_bits_;
  WorkProgress work_{{}, {}};
  Journal own_journal_;
  Journal* journal_ = nullptr;
  OutputMetric metric_;
  FormatLadder ladder_;
  CacheConfig base_;                                 // of every cache; formats f16
  std::vector<std::vector<AttentionError>> errors_;  // [K rungs, then V rungs][heads]
  SiteCosts costs_;
  ChoiceRequest request_;  // the shape of what the search chose
  CalibrateResult result_;
};

}  // namespace tq
