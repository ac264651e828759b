#include "turboquant/calibrate/profile_provenance.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

// "k" and "v": a number for each layer, or a list with one for each of its heads.
Status ReadSensitivity(const Json& json, const std::string& where, Profile* p) {
  Fields f(json, where);
  TQ_RETURN_IF_ERROR(f.CheckObject());
  ProfileSensitivity& out = p->sensitivity.emplace();
  TQ_RETURN_IF_ERROR(f.Int("bits", 1, 16, &out.bits));
  const auto heads = static_cast<size_t>(p->model.num_kv_heads);
  for (const auto& [key, values] : {std::pair("k", &out.k), std::pair("v", &out.v)}) {
    const Json* rows = f.Get(key);
    const auto wrong = [&] {
      return InvalidArgument(where, ".", key, " is not a list with a number, or with ", heads,
                             " numbers, for each of ", p->model.num_layers, " layers");
    };
    if (rows == nullptr || !rows->is_array() ||
        rows->size() != static_cast<size_t>(p->model.num_layers)) {
      return wrong();
    }
    for (const Json& row : *rows) {
      const bool of_layer = row.is_number();
      if (!of_layer && (!row.is_array() || row.size() != heads)) return wrong();
      if (row.is_array() != (*rows)[0].is_array()) return wrong();
      for (size_t h = 0; h < (of_layer ? 1 : heads); ++h) {
        const Json& value = of_layer ? row : row[h];
        if (!value.is_number()) return wrong();
        values->push_back(value.get<double>());
      }
    }
  }
  if (out.k.size() != out.v.size()) {
    return InvalidArgument(where, ": k has ", out.k.size(), " numbers and v ", out.v.size());
  }
  return OkStatus();
}

Json SensitivityToJson(const ProfileSensitivity& s, int num_layers) {
  Json j = {{"bits", s.bits}};
  const auto n = static_cast<size_t>(std::max(num_layers, 1));
  for (const auto& [key, values] : {std::pair("k", &s.k), std::pair("v", &s.v)}) {
    Json rows = Json::array();
    const size_t heads = values->size() / n;
    for (size_t l = 0; l < n && heads > 0; ++l) {
      if (values->size() == n) {
        rows.push_back((*values)[l]);
      } else {
        rows.push_back(
            std::vector<double>(values->begin() + static_cast<std::ptrdiff_t>(l * heads),
                                values->begin() + static_cast<std::ptrdiff_t>((l + 1) * heads)));
      }
    }
    j[key] = rows;
  }
  return j;
}
Json ProvenanceToJson(const ProfileCalibration& c) {
  Json j;
  if (c.corpus_hash) j["corpus_xxh3"] = Hex(*c.corpus_hash);
  j["sequences"] = c.sequences;
  j["tokens"] = c.tokens;
  j["context_len"] = c.context_len;
  j["objective"] = c.objective;
  if (c.budget_bits > 0) j["budget_bits"] = c.budget_bits;
  if (c.target_kld > 0) j["target_kld"] = c.target_kld;
  if (!c.date.empty()) j["date"] = c.date;
  if (!c.text.empty()) j["text_sketch"] = c.text.ToString();
  return j;
}

}  // namespace

Json QualityToJson(const ProfileQuality& q) {
  Json j = {{"held_out_tokens", q.held_out_tokens},
            {"windows", q.windows},
            {"kld_mean", q.kld_mean},
            {"kld_stderr", q.kld_stderr},
            {"kld_p99", q.kld_p99},
            {"floor_kld_mean", q.floor_kld_mean},
            {"same_top", q.same_top},
            {"ppl_ratio", q.ppl_ratio}};
  if (!q.device.empty()) j["device"] = q.device;
  if (q.gate_kld_mean > 0) j["gate"] = {{"kld_mean", q.gate_kld_mean}};
  j["passed"] = q.passed;
  return j;
}

Status ReadProvenance(Fields& top, const std::string& name, Profile* p) {
  if (const Json* calibration = top.Get("calibration")) {
    Fields c(*calibration, StrCat(name, ": calibration"));
    TQ_RETURN_IF_ERROR(c.CheckObject());
    ProfileCalibration& out = p->calibration.emplace();
    TQ_RETURN_IF_ERROR(c.Hash("corpus_xxh3", &out.corpus_hash));
    TQ_RETURN_IF_ERROR(c.Int("sequences", 0, INT64_MAX, &out.sequences));
    TQ_RETURN_IF_ERROR(c.Int("tokens", 0, INT64_MAX, &out.tokens));
    TQ_RETURN_IF_ERROR(c.Int("context_len", 0, INT64_MAX, &out.context_len));
    TQ_RETURN_IF_ERROR(c.String("objective", &out.objective));
    TQ_RETURN_IF_ERROR(c.Number("budget_bits", &out.budget_bits));
    TQ_RETURN_IF_ERROR(c.Number("target_kld", &out.target_kld));
    TQ_RETURN_IF_ERROR(c.String("date", &out.date));
    std::string sketch;
    TQ_RETURN_IF_ERROR(c.String("text_sketch", &sketch));
    Result<TextSketch> text = TextSketch::Parse(sketch);
    if (!text.ok()) return text.status().WithContext(StrCat(name, ": calibration.text_sketch"));
    out.text = *std::move(text);
  }
  if (const Json* quality = top.Get("quality")) {
    Fields q(*quality, StrCat(name, ": quality"));
    TQ_RETURN_IF_ERROR(q.CheckObject());
    ProfileQuality& out = p->quality.emplace();
    TQ_RETURN_IF_ERROR(q.Int("held_out_tokens", 0, INT64_MAX, &out.held_out_tokens));
    TQ_RETURN_IF_ERROR(q.Int("windows", 0, INT64_MAX, &out.windows));
    TQ_RETURN_IF_ERROR(q.Number("kld_mean", &out.kld_mean));
    TQ_RETURN_IF_ERROR(q.Number("kld_stderr", &out.kld_stderr));
    TQ_RETURN_IF_ERROR(q.Number("kld_p99", &out.kld_p99));
    TQ_RETURN_IF_ERROR(q.Number("floor_kld_mean", &out.floor_kld_mean));
    TQ_RETURN_IF_ERROR(q.Number("same_top", &out.same_top));
    TQ_RETURN_IF_ERROR(q.Number("ppl_ratio", &out.ppl_ratio));
    TQ_RETURN_IF_ERROR(q.String("device", &out.device));
    if (const Json* gate = q.Get("gate")) {
      Fields g(*gate, StrCat(name, ": quality.gate"));
      TQ_RETURN_IF_ERROR(g.CheckObject());
      TQ_RETURN_IF_ERROR(g.Number("kld_mean", &out.gate_kld_mean));
    }
    TQ_RETURN_IF_ERROR(q.Bool("passed", &out.passed));
  }
  if (const Json* sensitivity = top.Get("sensitivity")) {
    TQ_RETURN_IF_ERROR(ReadSensitivity(*sensitivity, StrCat(name, ": sensitivity"), p));
  }
  if (const Json* bits = top.Get("bits_all_counted")) {
    if (!bits->is_object()) return InvalidArgument(name, ": bits_all_counted is not an object");
    for (const auto& [context, value] : bits->items()) {
      int64_t tokens = 0;
      const auto r = std::from_chars(context.data(), context.data() + context.size(), tokens);
      if (r.ec != std::errc() || r.ptr != context.data() + context.size() || !value.is_number()) {
        return InvalidArgument(name, ": bits_all_counted.", context,
                               " is not a number of bits for a number of tokens");
      }
      p->bits_all_counted.emplace_back(tokens, value.get<double>());
    }
  }
  top.Get("bits_per_value");  // of the formats: they say it themselves
  return OkStatus();
}

void AddProvenance(const Profile& p, Json* j) {
  if (p.calibration) (*j)["calibration"] = ProvenanceToJson(*p.calibration);
  if (p.quality) (*j)["quality"] = QualityToJson(*p.quality);
  if (p.sensitivity) (*j)["sensitivity"] = SensitivityToJson(*p.sensitivity, p.model.num_layers);
}

}  // namespace tq
