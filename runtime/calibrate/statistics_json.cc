#include "runtime/calibrate/statistics_json.h"

namespace tq {
namespace {

// nlohmann throws on a missing key or a wrong type; a journal that somebody edited is an error of
// the outside world.
template <typename Fn>
auto Read(Fn&& fn) -> Result<decltype(fn())> {
  try {
    return fn();
  } catch (const nlohmann::json::exception& e) {
    return DataLoss("the state of the calibration is damaged (", e.what(), "); remove it");
  }
}

nlohmann::json Outlier(const VectorStatistics::Outlier& o) {
  return {o.channel, o.ratio};
}
VectorStatistics::Outlier ReadOutlier(const nlohmann::json& j) {
  return {j.at(0).get<int>(), j.at(1).get<double>()};
}

}  // namespace

nlohmann::json StatisticsToJson(const ModelStatistics& s) {
  nlohmann::json heads = nlohmann::json::array(), attention = nlohmann::json::array();
  for (const HeadStatistics& h : s.heads) {
    heads.push_back({{"k_mean", h.k_mean},
                     {"q_means", h.queries.means},
                     {"q_rms", h.queries.rms},
                     {"k_rms", h.k_rms},
                     {"v_rms", h.v_rms},
                     {"k_outlier", Outlier(h.k_outlier)},
                     {"v_outlier", Outlier(h.v_outlier)}});
  }
  for (const LayerAttention& a : s.attention) {
    attention.push_back({{"sinks", a.sinks}, {"beyond", a.beyond}});
  }
  return {{"tokens", s.tokens}, {"heads", heads}, {"attention", attention}};
}

Result<ModelStatistics> StatisticsFromJson(const nlohmann::json& j) {
  return Read([&] {
    ModelStatistics s;
    s.tokens = j.at("tokens").get<int64_t>();
    for (const auto& h : j.at("heads")) {
      HeadStatistics& out = s.heads.emplace_back();
      out.k_mean = h.at("k_mean").get<std::vector<float>>();
      out.queries.means = h.at("q_means").get<std::vector<std::vector<float>>>();
      out.queries.rms = h.at("q_rms").get<float>();
      out.k_rms = h.at("k_rms").get<double>();
      out.v_rms = h.at("v_rms").get<double>();
      out.k_outlier = ReadOutlier(h.at("k_outlier"));
      out.v_outlier = ReadOutlier(h.at("v_outlier"));
    }
    for (const auto& a : j.at("attention")) {
      LayerAttention& out = s.attention.emplace_back();
      out.sinks = a.at("sinks").get<double>();
      out.beyond = a.at("beyond").get<decltype(out.beyond)>();
    }
    return s;
  });
}

nlohmann::json ErrorsToJson(const std::vector<std::vector<AttentionError>>& errors) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& config : errors) {
    nlohmann::json heads = nlohmann::json::array();
    for (const AttentionError& e : config) {
      heads.push_back({e.error, e.energy, e.cosine, e.score_agreement});
    }
    out.push_back(std::move(heads));
  }
  return out;
}

Result<std::vector<std::vector<AttentionError>>> ErrorsFromJson(const nlohmann::json& j) {
  return Read([&] {
    std::vector<std::vector<AttentionError>> errors;
    for (const auto& config : j) {
      auto& heads = errors.emplace_back();
      for (const auto& e : config) {
        heads.push_back({e.at(0).get<double>(), e.at(1).get<double>(), e.at(2).get<double>(),
                         e.at(3).get<double>()});
      }
    }
    return errors;
  });
}

Result<std::vector<double>> NumbersFromJson(const nlohmann::json& j) {
  return Read([&] { return j.get<std::vector<double>>(); });
}

}  // namespace tq
