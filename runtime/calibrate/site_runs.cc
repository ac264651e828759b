#include "runtime/calibrate/site_runs.h"

#include <algorithm>
#include <map>

#include "runtime/calibrate/plain.h"
#include "runtime/engine/session.h"
#include "runtime/evaluate/divergence.h"

namespace tq {
namespace {

// One site on its way through a window.
struct Lane {
  const SiteRun* site = nullptr;
  std::unique_ptr<KvCache> cache;
  SeqId seq = 0;
  RunningMean kld;
};

class Runner {
 public:
  Runner(Model& model, const SiteRunOptions& options)
      : model_(model),
        options_(options),
        rows_(static_cast<size_t>(model.arch().vocab_size), options.pool) {}

  Status RunWindow(std::span<const TokenId> window, std::vector<Lane>& lanes) {
    const auto context = static_cast<int64_t>(window.size());
    TQ_ASSIGN_OR_RETURN(const auto plain, KvCache::Create(PlainConfig(model_, context)));
    const SeqId seq = plain->NewSequence();
    std::map<int, std::vector<float>> hidden;  // what enters the layers of the sites
    for (Lane& lane : lanes) {
      lane.seq = lane.cache->NewSequence();
      lane.kld = {};
      hidden[lane.site->layer];
    }
    const PrecisionRule& rule = lanes.front().cache->rule();
    for (int64_t from = 0; from < context;) {
      // Logits are not needed before something sealed is read.
      const int64_t scored_from = FirstScored(lanes.front().site->config);
      const int64_t cut = from < scored_from ? scored_from : context;
      const int64_t to = std::min({from + Session::kPrefillChunk, cut, context});
      const bool scored = from >= scored_from;
      const ForwardItem item = {
          .seq = seq,
          .tokens = window.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
          .all_logits = scored};
      model_.set_layer_probe([&](int layer, std::span<const float> x) {
        const auto it = hidden.find(layer);
        if (it != hidden.end()) it->second.assign(x.begin(), x.end());
      });
      const Status read = model_.Forward(*plain, {&item, 1}, scored ? &logits_ : nullptr);
      model_.set_layer_probe({});
      TQ_RETURN_IF_ERROR(read);
      if (scored) {
        rows_.Start(from);
        TQ_RETURN_IF_ERROR(rows_.Add(logits_));
      }
      TQ_RETURN_IF_ERROR(Progress(to - from, 0));
      for (Lane& lane : lanes) {
        ForwardItem there = item;
        there.seq = lane.seq;
        TQ_RETURN_IF_ERROR(model_.ForwardFrom(lane.site->layer, hidden[lane.site->layer],
                                              *lane.cache, there, scored ? &logits_ : nullptr));
        if (scored) {
          scores_.clear();
          TQ_RETURN_IF_ERROR(rows_.Score(window, rule, from, logits_, &scores_));
          for (const PositionScore& s : scores_) lane.kld.Add(s.kld);
        }
        TQ_RETURN_IF_ERROR(Progress(to - from, lane.site->layer));
      }
      from = to;
    }
    for (Lane& lane : lanes) TQ_RETURN_IF_ERROR(lane.cache->Free(lane.seq));
    return OkStatus();
  }

  // Counted in tokens times layers that are run.
  void AddWork(int64_t tokens, int first_layer) {
    total_ +=
        static_cast<size_t>(tokens) * static_cast<size_t>(model_.arch().num_layers - first_layer);
  }

 private:
  Status Progress(int64_t tokens, int first_layer) {
    done_ +=
        static_cast<size_t>(tokens) * static_cast<size_t>(model_.arch().num_layers - first_layer);
    const bool stop = options_.cancel != nullptr && options_.cancel->load();
    if (!stop && ReportProgress(options_.progress, done_, total_, "measuring sites")) {
      return OkStatus();
    }
    return Cancelled("measuring sites was stopped");
  }

  Model& model_;
  const SiteRunOptions& options_;
  ReferenceRows rows_;
  std::vector<float> logits_;
  std::vector<PositionScore> scores_;
  size_t done_ = 0, total_ = 0;
};

}  // namespace

int64_t FirstScored(const CacheConfig& config) {
  return (DivCeil(config.sink_len, kPageLen) + DivCeil(config.recent_len, kPageLen) + 1) *
         int64_t{kPageLen};
}

Result<std::vector<std::vector<double>>> MeasureSites(Model& model, std::span<const SiteRun> sites,
                                                      std::span<const std::vector<TokenId>> windows,
                                                      const SiteRunOptions& options) {
  std::vector<std::vector<double>> results(sites.size());
  size_t longest = 0;
  for (const std::vector<TokenId>& w : windows) longest = std::max(longest, w.size());
  constexpr int kMost = 32;
  const auto at_once = static_cast<size_t>(CachesAtOnce(
      model.MakeCacheConfig(), static_cast<int64_t>(longest), options.max_bytes, kMost));
  Runner runner(model, options);
  for (const std::vector<TokenId>& w : windows) {
    const auto tokens = static_cast<int64_t>(w.size());
    for (const SiteRun& s : sites) runner.AddWork(tokens, s.layer);
    for (size_t first = 0; first < sites.size(); first += at_once) runner.AddWork(tokens, 0);
  }
  for (size_t first = 0; first < sites.size(); first += at_once) {
    const size_t end = std::min(first + at_once, sites.size());
    std::vector<Lane> lanes;
    for (size_t s = first; s < end; ++s) {
      Lane& lane = lanes.emplace_back();
      lane.site = &sites[s];
      TQ_ASSIGN_OR_RETURN(lane.cache, KvCache::Create(sites[s].config));
    }
    for (const std::vector<TokenId>& w : windows) {
      TQ_RETURN_IF_ERROR(runner.RunWindow(w, lanes));
      for (size_t s = first; s < end; ++s) {
        const RunningMean& kld = lanes[s - first].kld;
        if (kld.count() == 0) {
          return InvalidArgument("a window of ", w.size(), " tokens reads nothing behind the ",
                                 "recent window of ", sites[s].config.recent_len,
                                 " tokens; use longer windows");
        }
        results[s].push_back(kld.mean());
      }
    }
  }
  return results;
}

}  // namespace tq
