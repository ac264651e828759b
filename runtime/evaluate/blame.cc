#include "runtime/evaluate/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

// The format that a pin gives: presets know no calibrated axes, so these go.
Result<HeadFormat> PinFormat(const HeadFormat& format, const BlameSite& site, int bits) {
  TQ_ASSIGN_OR_RETURN(const Codec restored, DefaultCodec(bits));
  HeadFormat f = format;
  if (site.k) f.k = restored;
  if (site.v) f.v = restored;
  // Suffixes that the restored pair cannot have are left out.
  Result<HeadFormat> parsed = ParsePreset(PresetName(f));
  if (parsed.ok() && ValidateFormat(*parsed).ok()) return parsed;
  const std::string plain = PresetName(f);
  return ParsePreset(plain.substr(0, plain.find('-')));
}

bool Gains(const HeadFormat& f, const BlameSite& site, int bits) {
  return (site.k && f.k.bits < bits) || (site.v && f.v.bits < bits);
}

class Blame {
 public:
  explicit Blame(const BlameOptions& options)
      : options_(options), texts_(AllWindows(options.texts)) {}

  Result<BlameResult> Run() {
    const CacheConfig& config = options_.candidate.config;
    const Architecture& arch = options_.candidate.model->arch();
    result_.model_name = arch.model_name;
    result_.candidate_name = options_.candidate.name;
    result_.restore_bits = options_.restore_bits;
    result_.num_layers = config.num_layers;
    result_.num_kv_heads = config.num_kv_heads;
    result_.tokens = texts_.tokens;
    result_.context_len = texts_.context_len;
    result_.windows = static_cast<int64_t>(texts_.windows.size());
    result_.bits_per_value = SealedBitsPerValue(config);
    result_.bytes = static_cast<int64_t>(CacheFootprint(config, result_.context_len).total());

    std::vector<BlameSite> sites;
    for (int l = 0; l < config.num_layers; ++l) {
      if (SiteGains({l})) sites.push_back({l});
    }
    if (sites.empty()) {
      return InvalidArgument(options_.candidate.name, " has no layer below ", options_.restore_bits,
                             " bit that could be restored");
    }
    TQ_RETURN_IF_ERROR(Measure(sites, "layers", &result_.layers));

    const size_t worst = NumWorst();
    std::vector<BlameSite> sides, heads;
    for (size_t i = 0; i < worst; ++i) {
      const int layer = result_.layers[i].site.layer;
      for (const BlameSite& s :
           {BlameSite{layer, -1, true, false}, BlameSite{layer, -1, false, true}}) {
        if (SiteGains(s)) sides.push_back(s);
      }
      for (int h = 0; h < config.num_kv_heads && config.num_kv_heads > 1; ++h) {
        if (SiteGains({layer, h})) heads.push_back({layer, h});
      }
    }
    std::vector<BlameSite> both = sides;
    both.insert(both.end(), heads.begin(), heads.end());
    std::vector<BlameEntry> apart;
    TQ_RETURN_IF_ERROR(Measure(both, "K, V and heads of the worst layers", &apart));
    for (BlameEntry& e : apart) {
      (e.site.head < 0 ? result_.sides : result_.heads).push_back(std::move(e));
    }
    result_.note = WhyNotInformative(plain_ppl_, arch.vocab_size);
    const BlameEntry& most = result_.layers.front();
    const double clear = ClearErrors(result_.layers.size());
    if (most.recovered >= clear * most.recovered_stderr) {
      TQ_RETURN_IF_ERROR(MeasureJoint());
    } else if (result_.note.empty() && most.recovered <= 0) {
      result_.note =
          "no layer recovers anything: the cache costs too little on these texts to say "
          "where";
    } else if (result_.note.empty()) {
      // What is clear beside it recovers less than it: pins of that would mislead.
      result_.note = fmt::format(
          "layer {}, which recovers the most, does so by {:.1f} times its standard error, and the "
          "best of {} reaches {:.1f} by chance: more or longer windows are needed before pins can "
          "be named",
          most.site.layer, most.recovered / most.recovered_stderr, result_.layers.size(), clear);
    }
    result_.informative = result_.note.empty();
    return std::move(result_);
  }

 private:
  size_t NumWorst() const {
    const double n = std::ceil(options_.worst_share * static_cast<double>(result_.num_layers));
    return std::min(result_.layers.size(), static_cast<size_t>(std::max(1.0, n)));
  }

  bool SiteGains(const BlameSite& site) const {
    const CacheConfig& c = options_.candidate.config;
    if (c.window(site.layer) > 0) return false;
    for (int h = 0; h < c.num_kv_heads; ++h) {
      const size_t i = static_cast<size_t>(site.layer) * c.num_kv_heads + h;
      if ((site.head < 0 || site.head == h) && Gains(c.formats[i], site, options_.restore_bits)) {
        return true;
      }
    }
    return false;
  }

  // All sites of a list, beside the candidate itself; most recovered first.
  Status Measure(const std::vector<BlameSite>& sites, const std::string& what,
                 std::vector<BlameEntry>* entries) {
    std::vector<Stream> streams = {options_.candidate};
    for (const BlameSite& site : sites) {
      TQ_ASSIGN_OR_RETURN(RestoredSite restored,
                          RestoreSite(options_.candidate.config, site, options_.restore_bits));
      BlameEntry e;
      e.site = site;
      e.pin = restored.pin;
      entries->push_back(std::move(e));
      streams.push_back({DescribeSite(site), options_.candidate.model, std::move(restored.config)});
    }
    TQ_RETURN_IF_ERROR(MeasureStreams(streams, what, *entries));
    std::stable_sort(
        entries->begin(), entries->end(),
        [](const BlameEntry& a, const BlameEntry& b) { return a.recovered > b.recovered; });
    return OkStatus();
  }

  // streams[0] is the candidate, streams[i + 1] that of entries[i].
  Status MeasureStreams(const std::vector<Stream>& streams, const std::string& what,
                        std::span<BlameEntry> entries) {
    DivergenceOptions measure = options_.measure;
    // Of dozens of streams only sums are kept, and the candidate's KL, which each is paired with.
    measure.keep_scores = false;
    std::vector<double> base_kld;
    std::vector<RunningMean> by_position(entries.size());
    RunningMean plain_nll;
    measure.on_scores = [&](size_t stream, std::span<const PositionScore> scores) {
      for (const PositionScore& s : scores) {
        if (stream == 0) {
          base_kld.push_back(s.kld);
          if (s.has_target) plain_nll.Add(-s.ref_logprob);
        } else {
          RunningMean& recovered = by_position[stream - 1];
          recovered.Add(base_kld[static_cast<size_t>(recovered.count())] - s.kld);
        }
      }
    };
    measure.head_cosine = false;
    const ProgressSink progress = options_.measure.progress;
    measure.progress = [&](size_t done, size_t total, const std::string&) {
      return ReportProgress(progress, done, total, what);
    };
    TQ_ASSIGN_OR_RETURN(const std::vector<StreamScores> scores,
                        MeasureDivergence(options_.reference, streams, texts_.windows, measure));
    const StreamScores& base = scores[0];
    result_.kld = base.kld.mean();
    result_.kld_stderr = std::max(base.kld.stderr_of_mean(), OverWindows(base).stderr_of_mean());
    plain_ppl_ = std::exp(plain_nll.mean());
    for (size_t i = 0; i < entries.size(); ++i) {
      const StreamScores& s = scores[i + 1];
      BlameEntry& e = entries[i];
      e.kld = s.kld.mean();
      e.recovered = by_position[i].mean();
      e.recovered_stderr =
          std::max(by_position[i].stderr_of_mean(), OverWindows(base, s).stderr_of_mean());
      const CacheConfig& config = streams[i + 1].config;
      e.cost_bytes =
          static_cast<int64_t>(CacheFootprint(config, result_.context_len).total()) - result_.bytes;
      e.cost_bits = SealedBitsPerValue(config) - result_.bits_per_value;
    }
    return OkStatus();
  }

  Status MeasureJoint() {
    constexpr double kLeastShare = 0.02;
    std::vector<const BlameEntry*> by_price;
    const double clear = ClearErrors(result_.layers.size() + result_.sides.size());
    for (const auto* list : {&result_.layers, &result_.sides}) {
      for (const BlameEntry& e : *list) {
        // What is clear may still be next to nothing: not worth its bytes.
        const bool worth = e.recovered > kLeastShare * result_.kld && e.cost_bytes > 0;
        if (worth && e.recovered > clear * e.recovered_stderr) by_price.push_back(&e);
      }
    }
    std::stable_sort(by_price.begin(), by_price.end(),
                     [](const BlameEntry* a, const BlameEntry* b) {
                       return a->recovered / static_cast<double>(a->cost_bytes) >
                              b->recovered / static_cast<double>(b->cost_bytes);
                     });
    CacheConfig config = options_.candidate.config;
    double expected = 0;
    std::vector<int> taken;
    for (const BlameEntry* e : by_price) {
      if (expected > 0.5 * result_.kld || taken.size() >= NumWorst()) break;
      if (std::find(taken.begin(), taken.end(), e->site.layer) != taken.end()) continue;
      TQ_ASSIGN_OR_RETURN(RestoredSite restored,
                          RestoreSite(config, e->site, options_.restore_bits));
      config = std::move(restored.config);
      result_.joint.pin += (result_.joint.pin.empty() ? "" : ";") + restored.pin;
      expected += e->recovered;
      taken.push_back(e->site.layer);
    }
    if (taken.empty()) return OkStatus();
    return MeasureStreams({options_.candidate, {"joint", options_.candidate.model, config}},
                          "the worst together", {&result_.joint, 1});
  }

  const BlameOptions& options_;
  const EvalWindows texts_;
  BlameResult result_;
  double plain_ppl_ = 0;
};

Json EntryJson(const BlameResult& r, const BlameEntry& e) {
  Json j;
  j["layer"] = e.site.layer;
  if (e.site.head >= 0) j["head"] = e.site.head;
  j["side"] = e.site.k && e.site.v ? "kv" : e.site.k ? "k" : "v";
  j["kld"] = e.kld;
  j["recovered"] = e.recovered;
  j["recovered_stderr"] = e.recovered_stderr;
  j["recovered_share"] = r.kld > 0 ? e.recovered / r.kld : 0.0;
  j["cost_bytes"] = e.cost_bytes;
  j["cost_bits"] = e.cost_bits;
  j["pin"] = e.pin;
  return j;
}

std::vector<std::string> Cells(const BlameResult& r, const BlameEntry& e) {
  return {DescribeSite(e.site),
          fmt::format("{:.5f} \u00b1 {:.5f}", e.recovered, e.recovered_stderr),
          fmt::format("{:.1f} %", r.kld > 0 ? 100 * e.recovered / r.kld : 0.0),
          fmt::format("{:+.1f} KiB", static_cast<double>(e.cost_bytes) / 1024),
          fmt::format("{:+.3f}", e.cost_bits),
          "--pin \"" + e.pin + "\""};
}

Chart Bars(const std::string& title, const std::string& note,
           const std::vector<BlameEntry>& entries) {
  Chart chart;
  chart.kind = Chart::Kind::kBars;
  chart.title = title;
  chart.note = note;
  chart.y_title = "KL recovered";
  ChartSeries series{"recovered", {}, true, 1};
  for (const BlameEntry& e : entries) {
    series.points.push_back({static_cast<double>(chart.categories.size()), e.recovered});
    std::string name = std::to_string(e.site.layer);
    if (e.site.head >= 0) name += ":" + std::to_string(e.site.head);
    if (!e.site.v) name += " K";
    if (!e.site.k) name += " V";
    chart.categories.push_back(std::move(name));
  }
  chart.series.push_back(std::move(series));
  return chart;
}

}  // namespace

std::string DescribeSite(const BlameSite& site) {
  std::string out = site.k && site.v ? "" : site.k ? "K of " : "V of ";
  out += "layer " + std::to_string(site.layer);
  if (site.head >= 0) out += ", head " + std::to_string(site.head);
  return out;
}

double ClearErrors(size_t sites) {
  const auto beyond = [](double errors) { return 0.5 * std::erfc(errors / std::sqrt(2.0)); };
  const double rare = beyond(2) / static_cast<double>(std::max<size_t>(sites, 1));
  double low = 2, high = 10;
  while (high - low > 1e-9) {
    const double middle = 0.5 * (low + high);
    (beyond(middle) > rare ? low : high) = middle;
  }
  return high;
}

Result<RestoredSite> RestoreSite(const CacheConfig& config, const BlameSite& site, int bits) {
  RestoredSite out{config, ""};
  // Heads of one format are one pin.
  std::vector<std::pair<std::string, std::string>> pins;  // preset, heads
  int restored = 0;
  for (int h = 0; h < config.num_kv_heads; ++h) {
    if (site.head >= 0 && site.head != h) continue;
    HeadFormat& f = out.config.formats[static_cast<size_t>(site.layer) * config.num_kv_heads + h];
    BlameSite gains = site;
    gains.k = site.k && f.k.bits < bits;
    gains.v = site.v && f.v.bits < bits;
    if (!gains.k && !gains.v) continue;
    Result<HeadFormat> pinned = PinFormat(f, gains, bits);
    if (!pinned.ok()) return pinned.status().WithContext(DescribeSite(site));
    const std::string preset = PresetName(*pinned);
    f = *pinned;
    if (!config.centers.empty() && !f.k.is_float()) f.k = WithCenter(f.k, Center::kRopeMean);
    const std::string head = std::to_string(h);
    const auto same =
        std::find_if(pins.begin(), pins.end(), [&](const auto& p) { return p.first == preset; });
    if (same != pins.end()) {
      same->second += "," + head;
    } else {
      pins.emplace_back(preset, head);
    }
    ++restored;
  }
  if (restored == 0) {
    return InvalidArgument(DescribeSite(site), " has nothing below ", bits, " bit");
  }
  for (const auto& [preset, heads] : pins) {
    if (!out.pin.empty()) out.pin += ";";
    out.pin += std::to_string(site.layer);
    if (pins.size() > 1 || restored < config.num_kv_heads) out.pin += ":" + heads;
    out.pin += "=" + preset;
  }
  TQ_RETURN_IF_ERROR(out.config.Validate());
  return out;
}

Result<BlameResult> RunBlame(const BlameOptions& options) {
  return Blame(options).Run();
}

Json BlameJson(const BlameResult& r) {
  Json j;
  j["model"] = r.model_name;
  j["kv"] = r.candidate_name;
  j["restore_bits"] = r.restore_bits;
  j["tokens"] = r.tokens;
  j["windows"] = r.windows;
  j["context"] = r.context_len;
  j["informative"] = r.informative;
  if (!r.note.empty()) j["note"] = r.note;
  j["kld"] = {{"mean", r.kld}, {"mean_stderr", r.kld_stderr}};
  j["bits_per_value"] = r.bits_per_value;
  j["cache_bytes"] = r.bytes;
  const auto list = [&](const char* key, const std::vector<BlameEntry>& entries) {
    j[key] = Json::array();
    for (const BlameEntry& e : entries) j[key].push_back(EntryJson(r, e));
  };
  list("layers", r.layers);
  list("sides", r.sides);
  list("heads", r.heads);
  if (!r.joint.pin.empty()) {
    j["joint"] = EntryJson(r, r.joint);
    for (const char* key : {"layer", "side"}) j["joint"].erase(key);
    j["joint"]["note"] = kJointNote;
  }
  return j;
}

std::string BlameSection(const BlameResult& r) {
  std::string out = SectionHead("What costs the most");
  out += SectionText(fmt::format(
      "{} on {} has a mean KL of {:.5f} over {} of up to {} tokens. Each layer, and of the "
      "worst ones K, V and each head, was stored in {} bit in turn; ranked by the KL that this "
      "recovers.",
      r.candidate_name, r.model_name, r.kld, FormatCount(r.windows, "window"),
      FormatCount(r.context_len), r.restore_bits));
  if (!r.informative) out += SectionText("Not informative: " + r.note + ".");
  if (!r.joint.pin.empty()) {
    out += SectionText(fmt::format(
        "Together, --pin \"{}\" brings the KL from {:.5f} to {:.5f} ({:.0f} % "
        "recovered) for {:+.3f} "
        "bits per value ({}).",
        r.joint.pin, r.kld, r.joint.kld, r.kld > 0 ? 100 * r.joint.recovered / r.kld : 0.0,
        r.joint.cost_bits, kJointNote));
  }
  constexpr size_t kShown = 10;
  const std::pair<const char*, const std::vector<BlameEntry>*> lists[] = {
      {"Whole layers", &r.layers},
      {"K and V apart, of the worst layers", &r.sides},
      {"Heads of the worst layers", &r.heads}};
  for (const auto& [title, list] : lists) {
    if (list->empty()) continue;
    std::vector<std::vector<std::string>> rows;
    for (size_t i = 0; i < std::min(kShown, list->size()); ++i) {
      rows.push_back(Cells(r, (*list)[i]));
    }
    out += TableCard(
        {title, "KL recovered", "of all", "costs", "bits per\nvalue", "mended by"}, rows, {},
        fmt::format("Costs at {} tokens, of one sequence.{}", FormatCount(r.context_len),
                    list->size() > kShown
                        ? fmt::format(" The first {} of {}.", kShown, list->size())
                        : std::string()));
  }
  std::vector<BlameEntry> by_layer = r.layers;
  std::sort(by_layer.begin(), by_layer.end(),
            [](const BlameEntry& a, const BlameEntry& b) { return a.site.layer < b.site.layer; });
  std::vector<Chart> charts = {
      Bars("By layer", "KL recovered when K and V of a layer are restored", by_layer),
      Bars("K and V of the worst layers", "Most recovered first", r.sides)};
  if (!r.heads.empty()) {
    charts.push_back(
        Bars("Heads of the worst layers", "Layer:head, most recovered first", r.heads));
  }
  return out + ChartGrid(charts);
}

}  // namespace tq
