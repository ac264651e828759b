// Calibration's first half: what the model looks like, and what each format of each site costs.
#include <algorithm>
#include <cmath>

#include "runtime/calibrate/calibration.h"
#include "runtime/calibrate/statistics_json.h"

namespace tq {

Status Calibration::Observe() {
  TQ_ASSIGN_OR_RETURN(
      const nlohmann::json j, journal_->Get("statistics", [&]() -> Result<nlohmann::json> {
        TQ_ASSIGN_OR_RETURN(
            const ModelStatistics s,
            MeasureStatistics(model_, calibration_, work_.Stage(kObserve, "reading the text"),
                              options_.cancel));
        return StatisticsToJson(s);
      }));
  TQ_ASSIGN_OR_RETURN(result_.statistics, StatisticsFromJson(j));
  // From here on every cache is the one that will ship.
  base_ = model_.MakeCacheConfig();
  base_.recent_len = options_.recent_len;
  base_.sink_len = options_.sink_len;
  base_.centers.clear();
  base_.tensors.resize(NumHeads());
  for (size_t h = 0; h < NumHeads(); ++h) {
    const HeadStatistics& s = result_.statistics.heads[h];
    base_.centers.push_back(s.k_mean.empty() ? HeadCenter{} : MakeHeadCenter(s.k_mean, base_.rope));
    base_.tensors[h].queries = s.queries;
  }
  return OkStatus();
}

// With the other side as good as it gets: anchors need integers on both.
HeadFormat Calibration::OneSide(int side, int rung) const {
  HeadFormat f;
  if (ladder_.anchors > 0) {
    return side == 0 ? ladder_.Format(rung, TopRung(1)) : ladder_.Format(TopRung(0), rung);
  }
  (side == 0 ? f.k : f.v) = ladder_.of(kSides[side])[static_cast<size_t>(rung)];
  return f;
}

Status Calibration::MeasureFormats() {
  std::vector<CacheConfig> configs;
  for (int side = 0; side < 2; ++side) {
    for (int r = 0; r <= TopRung(side); ++r) {
      CacheConfig& c = configs.emplace_back(base_);
      ForEachHead([&](size_t h) { c.formats[h] = OneSide(side, r); });
    }
  }
  // Half of the sites' text: sums over many queries settle sooner than KL does.
  const WindowSpan windows = TakeWindows(site_windows_, CountTokens(site_windows_) / 2);
  TQ_ASSIGN_OR_RETURN(
      const nlohmann::json j, journal_->Get("formats", [&]() -> Result<nlohmann::json> {
        TQ_ASSIGN_OR_RETURN(const auto errors, AttentionErrors(configs, windows, false, kFormats));
        return ErrorsToJson(errors);
      }));
  TQ_ASSIGN_OR_RETURN(errors_, ErrorsFromJson(j));
  return OkStatus();
}

Result<std::vector<std::vector<AttentionError>>> Calibration::AttentionErrors(
    std::span<const CacheConfig> configs, WindowSpan windows, bool scores, Stage stage) {
  AttentionErrorOptions o;
  o.scores = scores;
  o.max_bytes = options_.max_bytes;
  o.pool = options_.pool;
  o.progress = work_.Stage(stage, stage == kFormats ? "measuring formats" : "aligning layers");
  o.cancel = options_.cancel;
  return MeasureAttentionErrors(model_, metric_, configs, windows, o);
}

SiteRun Calibration::MakeSite(const SiteName& s) const {
  SiteRun run{s.layer, base_};
  for (int h = 0; h < arch_.num_kv_heads; ++h) {
    if (s.head >= 0 && h != s.head) continue;
    run.config.formats[static_cast<size_t>(s.layer) * arch_.num_kv_heads + h] = OneSide(s.side, 0);
  }
  return run;
}

// Mean KL of each; measured in pieces, so that little is lost when interrupted.
Result<std::vector<GroupedMean>> Calibration::MeasureSiteList(const std::vector<SiteName>& sites,
                                                              Stage stage,
                                                              const std::string& what) {
  const auto key = [](const SiteName& s) {
    return StrCat("site ", s.layer, s.head < 0 ? "" : StrCat(":", s.head), s.side == 0 ? "k" : "v");
  };
  std::vector<SiteName> missing;
  for (const SiteName& s : sites) {
    if (journal_->Find(key(s)) == nullptr) missing.push_back(s);
  }
  const auto piece =
      static_cast<size_t>(CachesAtOnce(base_, options_.context_len, options_.max_bytes, 8));
  const ProgressSink whole = work_.Stage(stage, what);
  for (size_t first = 0; first < missing.size(); first += piece) {
    const size_t end = std::min(first + piece, missing.size());
    std::vector<SiteRun> runs;
    for (size_t s = first; s < end; ++s) runs.push_back(MakeSite(missing[s]));
    SiteRunOptions o;
    o.max_bytes = options_.max_bytes;
    o.pool = options_.pool;
    o.cancel = options_.cancel;
    o.progress = [&](size_t done, size_t total, const std::string&) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      const double there = static_cast<double>(sites.size() - missing.size() + first) +
                           share * static_cast<double>(end - first);
      return whole(static_cast<size_t>(1000 * there), 1000 * sites.size(), what);
    };
    TQ_ASSIGN_OR_RETURN(const auto klds, MeasureSites(model_, runs, site_windows_, o));
    std::vector<std::pair<std::string, nlohmann::json>> measured;
    for (size_t s = first; s < end; ++s) measured.emplace_back(key(missing[s]), klds[s - first]);
    TQ_RETURN_IF_ERROR(journal_->Put(measured));
  }
  const int64_t unscored = FirstScored(base_);
  std::vector<GroupedMean> means;
  for (const SiteName& s : sites) {
    TQ_ASSIGN_OR_RETURN(const std::vector<double> klds, NumbersFromJson(*journal_->Find(key(s))));
    GroupedMean& mean = means.emplace_back();
    for (size_t w = 0; w < klds.size(); ++w) {
      mean.Add(klds[w], static_cast<int64_t>(site_windows_[w].size()) - unscored);
    }
  }
  return means;
}

Status Calibration::MeasureLayers() {
  std::vector<SiteName> sites;
  for (int l = 0; l < arch_.num_layers; ++l) {
    for (int side = 0; side < 2 && !costs_.fixed[static_cast<size_t>(l)]; ++side) {
      sites.push_back({l, -1, side});
    }
  }
  TQ_ASSIGN_OR_RETURN(const auto klds, MeasureSiteList(sites, kLayers, "measuring layers"));
  for (size_t s = 0; s < sites.size(); ++s) {
    CalibrateLayer& layer = result_.layers[static_cast<size_t>(sites[s].layer)];
    (sites[s].side == 0 ? layer.k_kld : layer.v_kld) = klds[s].mean();
    (sites[s].side == 0 ? layer.k_stderr : layer.v_stderr) = klds[s].stderr_of_mean();
  }
  return OkStatus();
}

// The KL of a layer is shared out by what each head's error does to the residual stream; the
// heads that matter most are measured.
Status Calibration::MeasureHeads() {
  std::vector<std::array<double, 2>> floor(NumHeads());
  std::vector<std::pair<double, SiteName>> order;
  ForEachHead([&](size_t h) {
    const auto layer = static_cast<int>(h) / arch_.num_kv_heads;
    const CalibrateLayer& measured = result_.layers[static_cast<size_t>(layer)];
    for (int side = 0; side < 2; ++side) {
      double sum = 0;
      for (int other = 0; other < arch_.num_kv_heads; ++other) {
        sum += Error(static_cast<size_t>(layer) * arch_.num_kv_heads + other, side, 0);
      }
      const double share = sum > 0 ? Error(h, side, 0) / sum : 1.0 / arch_.num_kv_heads;
      floor[h][side] = share * (side == 0 ? measured.k_kld : measured.v_kld);
      order.push_back({floor[h][side], {layer, static_cast<int>(h) % arch_.num_kv_heads, side}});
    }
  });
  if (arch_.num_kv_heads > 1 && options_.granularity != Granularity::kLayer &&
      options_.granularity != Granularity::kPair) {
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    order.resize(static_cast<size_t>(
        std::ceil(static_cast<double>(order.size()) * options_.measured_heads)));
    std::vector<SiteName> sites;
    for (const auto& [cost, site] : order) sites.push_back(site);
    // By layer, so that runs that begin late share a reference.
    std::stable_sort(sites.begin(), sites.end(),
                     [](const SiteName& a, const SiteName& b) { return a.layer < b.layer; });
    TQ_ASSIGN_OR_RETURN(const auto klds, MeasureSiteList(sites, kHeads, "measuring heads"));
    for (size_t s = 0; s < sites.size(); ++s) {
      floor[static_cast<size_t>(sites[s].layer) * arch_.num_kv_heads + sites[s].head]
           [sites[s].side] = klds[s].mean();
    }
  }
  FillCosts(floor);
  return OkStatus();
}

// From the KL of each head at the floor to that of every rung, by the measured errors.
void Calibration::FillCosts(const std::vector<std::array<double, 2>>& floor) {
  for (size_t h = 0; h < NumHeads(); ++h) {
    const size_t layer = h / static_cast<size_t>(arch_.num_kv_heads);
    double energy = 0;
    for (int other = 0; other < arch_.num_kv_heads; ++other) {
      energy +=
          errors_[0][layer * static_cast<size_t>(arch_.num_kv_heads) + static_cast<size_t>(other)]
              .energy;
    }
    for (int side = 0; side < 2; ++side) {
      std::vector<double>& costs = costs_.costs[h][side];
      for (int r = 0; r <= TopRung(side); ++r) {
        double cost = 0;
        if (costs_.fixed[layer]) {
          cost = 0;
        } else if (options_.objective == Objective::kCosine) {
          cost = energy > 0 ? Error(h, side, r) / energy : 0;
        } else {
          cost = Error(h, side, 0) > 0 ? floor[h][side] * Error(h, side, r) / Error(h, side, 0) : 0;
        }
        // More bits are never predicted to be worse.
        if (r > 0) cost = std::min(cost, costs.back());
        costs.push_back(cost);
      }
    }
  }
}

}  // namespace tq
