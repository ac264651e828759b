#include "turboquant/calibrate/profile.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"
#include "turboquant/calibrate/head_selection.h"
#include "turboquant/calibrate/profile_fields.h"
#include "turboquant/calibrate/profile_provenance.h"
#include "turboquant/calibrate/profile_tensors.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

// Changes *codec by the axes that the object names. A new bit width brings its defaults first.
Status ReadCodec(const Json& json, const std::string& where, Side side, Codec* codec,
                 std::vector<std::string>* notes) {
  Fields f(json, where);
  TQ_RETURN_IF_ERROR(f.CheckObject());
  if (const Json* bits = f.Get("bits")) {
    Result<Codec> fresh = Codec{};
    if (bits->is_string()) {
      const std::string name = bits->get<std::string>();
      const auto formats = RegisteredFormats();
      const auto it = std::find_if(formats.begin(), formats.end(), [&](const FormatInfo& info) {
        return info.type != ValueType::kInt && name == info.name;
      });
      if (it == formats.end()) {
        return Unsupported(where, ".bits '", name,
                           "' has no kernel; supported: 2, 3, 4, 5, 6, 8, \"fp8\", \"bf16\", "
                           "\"f16\"");
      }
      fresh = it->codec();
    } else {
      int n = 0;
      TQ_RETURN_IF_ERROR(f.Int("bits", 1, 16, &n));
      fresh = DefaultCodec(n);
    }
    if (!fresh.ok()) return fresh.status().WithContext(where);
    *codec = WithCenter(*fresh, codec->center);
  }
  int choice = static_cast<int>(codec->center);
  TQ_RETURN_IF_ERROR(f.Choice("center", {"none", "rope_mean"}, &choice));
  if (static_cast<Center>(choice) != codec->center) {
    *codec = WithCenter(*codec, static_cast<Center>(choice));
  }
  choice = static_cast<int>(codec->rotate);
  TQ_RETURN_IF_ERROR(f.Choice("rotate", {"none", "hadamard", "matrix"}, &choice));
  codec->rotate = static_cast<Rotate>(choice);
  choice = static_cast<int>(codec->codebook);
  TQ_RETURN_IF_ERROR(
      f.Choice("codebook", {"none", "uniform", "lloyd", "calibrated", "trellis"}, &choice));
  codec->codebook = static_cast<Codebook>(choice);
  choice = static_cast<int>(codec->gain);
  TQ_RETURN_IF_ERROR(f.Choice("gain", {"none", "norm", "unbiased"}, &choice));
  codec->gain = static_cast<Gain>(choice);
  choice = static_cast<int>(codec->scale);
  TQ_RETURN_IF_ERROR(f.Choice("scale", {"none", "log8", "f16"}, &choice));
  codec->scale = static_cast<ScaleType>(choice);
  choice = static_cast<int>(codec->zero);
  TQ_RETURN_IF_ERROR(f.Choice("zero", {"symmetric", "affine"}, &choice));
  codec->zero = static_cast<Zero>(choice);
  if (const Json* group = f.Get("group_len")) {
    if (group->is_string() && group->get<std::string>() == "head") {
      codec->group_len = kGroupHead;
    } else {
      TQ_RETURN_IF_ERROR(f.Int("group_len", 1, kMaxHeadDim, &codec->group_len));
    }
  }
  f.NoteUnknown(notes);
  return ValidateCodec(*codec, side).WithContext(where);
}

Status ReadAnchors(Fields& f, HeadFormat* format) {
  TQ_RETURN_IF_ERROR(f.Int("anchors_per_page", 0, kMaxAnchors, &format->anchors));
  TQ_RETURN_IF_ERROR(f.Int("anchor_bits", 1, 16, &format->anchor_bits));
  return OkStatus();
}

Json CodecToJson(const Codec& c, Side side) {
  Json j;
  if (c.is_float()) {
    j["bits"] = Name(c.type);
  } else {
    j["bits"] = c.bits;
  }
  j["rotate"] = Name(c.rotate);
  if (c.group_len == kGroupHead) {
    j["group_len"] = "head";
  } else {
    j["group_len"] = c.group_len;
  }
  j["scale"] = Name(c.scale);
  j["zero"] = Name(c.zero);
  j["codebook"] = Name(c.codebook);
  j["gain"] = Name(c.gain);
  if (side == Side::kK) j["center"] = Name(c.center);
  return j;
}

}  // namespace

Result<Profile> Profile::Parse(std::string_view text, std::string_view tensors,
                               const std::string& name) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return DataLoss(name, " is not valid JSON");
  if (!root.is_object() || !root.contains("turboquant")) {
    return InvalidArgument(name, " has no object \"turboquant\": it is not a profile");
  }
  Profile p;
  Fields top(root["turboquant"], StrCat(name, ": turboquant"));
  TQ_RETURN_IF_ERROR(top.CheckObject());
  std::string version;
  TQ_RETURN_IF_ERROR(top.String("version", &version));
  unsigned major = 0, minor = 0;
  const auto r = std::from_chars(version.data(), version.data() + version.size(), major);
  if (r.ec != std::errc() || r.ptr == version.data() + version.size() || *r.ptr != '.' ||
      std::from_chars(r.ptr + 1, version.data() + version.size(), minor).ec != std::errc()) {
    return InvalidArgument(name, ": version is '", version, "'; MAJOR.MINOR was expected");
  }
  if (major != kProfileMajor) {
    return Unsupported(name, ": profile version ", version, "; this build reads version ",
                       kProfileMajor, ".x");
  }

  if (!top.Has("model")) return top.Missing("model");
  Fields model(*top.Get("model"), StrCat(name, ": model"));
  TQ_RETURN_IF_ERROR(model.CheckObject());
  TQ_RETURN_IF_ERROR(model.String("name", &p.model.name));
  TQ_RETURN_IF_ERROR(model.String("architecture", &p.model.architecture));
  TQ_RETURN_IF_ERROR(model.Hash("structure_xxh3", &p.model.structure_hash));
  TQ_RETURN_IF_ERROR(model.Hash("weights_xxh3", &p.model.weights_hash));
  for (const char* key : {"num_layers", "num_kv_heads", "head_dim"}) {
    if (!model.Has(key)) return model.Missing(key);
  }
  TQ_RETURN_IF_ERROR(model.Int("num_layers", 1, 4096, &p.model.num_layers));
  TQ_RETURN_IF_ERROR(model.Int("num_q_heads", 0, 65536, &p.model.num_q_heads));
  TQ_RETURN_IF_ERROR(model.Int("num_kv_heads", 1, 1024, &p.model.num_kv_heads));
  TQ_RETURN_IF_ERROR(model.Int("head_dim", kMinHeadDim, kMaxHeadDim, &p.model.head_dim));
  model.NoteUnknown(&p.notes);
  // Far above any model, and low enough that a damaged file cannot ask for gigabytes.
  constexpr int kMaxHeads = 1 << 16;
  if (p.model.num_layers * p.model.num_kv_heads > kMaxHeads) {
    return InvalidArgument(name, ": model has ", p.model.num_layers, " layers x ",
                           p.model.num_kv_heads, " KV heads; at most ", kMaxHeads,
                           " heads in all are read");
  }

  HeadFormat format;
  if (const Json* defaults_json = top.Get("defaults")) {
    Fields d(*defaults_json, StrCat(name, ": defaults"));
    TQ_RETURN_IF_ERROR(d.CheckObject());
    int page_len = kPageLen;
    TQ_RETURN_IF_ERROR(d.Int("page_len", kPageLen, kPageLen, &page_len));
    TQ_RETURN_IF_ERROR(d.Int("recent_len", 0, 1 << 24, &p.recent_len));
    TQ_RETURN_IF_ERROR(d.Int("sink_len", 0, 1 << 24, &p.sink_len));
    int recent = static_cast<int>(p.recent);
    TQ_RETURN_IF_ERROR(d.Choice("recent", {"q8", "f16"}, &recent));
    p.recent = static_cast<RecentType>(recent);
    int64_t seed = 0;
    TQ_RETURN_IF_ERROR(d.Int("seed", 0, INT64_MAX, &seed));
    p.seed = static_cast<uint64_t>(seed);
    TQ_RETURN_IF_ERROR(ReadAnchors(d, &format));
    if (const Json* k = d.Get("k")) {
      TQ_RETURN_IF_ERROR(
          ReadCodec(*k, StrCat(name, ": defaults.k"), Side::kK, &format.k, &p.notes));
    }
    if (const Json* v = d.Get("v")) {
      TQ_RETURN_IF_ERROR(
          ReadCodec(*v, StrCat(name, ": defaults.v"), Side::kV, &format.v, &p.notes));
    }
    d.NoteUnknown(&p.notes);
  }
  const int heads = p.model.num_kv_heads;
  p.formats.assign(static_cast<size_t>(p.model.num_layers) * heads, format);

  if (const Json* layers = top.Get("layers")) {
    if (!layers->is_array()) return InvalidArgument(name, ": layers is not an array");
    for (size_t i = 0; i < layers->size(); ++i) {
      const std::string where = StrCat(name, ": layers[", i, "]");
      Fields entry((*layers)[i], where);
      TQ_RETURN_IF_ERROR(entry.CheckObject());
      std::string layer_text, head_text = StrCat("0-", heads - 1);
      if (!entry.Has("layers")) return entry.Missing("layers");
      TQ_RETURN_IF_ERROR(entry.String("layers", &layer_text));
      TQ_RETURN_IF_ERROR(entry.String("heads", &head_text));
      const auto layer_list = ParseIndexList(layer_text, p.model.num_layers, "layer");
      if (!layer_list.ok()) return layer_list.status().WithContext(where);
      const auto head_list = ParseIndexList(head_text, heads, "KV head");
      if (!head_list.ok()) return head_list.status().WithContext(where);
      const Json* k = entry.Get("k");
      const Json* v = entry.Get("v");
      for (const int layer : *layer_list) {
        for (const int head : *head_list) {
          HeadFormat& target = p.formats[static_cast<size_t>(layer) * heads + head];
          std::vector<std::string> notes;  // once for the entry, not for each head
          if (k != nullptr) {
            TQ_RETURN_IF_ERROR(ReadCodec(*k, where + ".k", Side::kK, &target.k, &notes));
          }
          if (v != nullptr) {
            TQ_RETURN_IF_ERROR(ReadCodec(*v, where + ".v", Side::kV, &target.v, &notes));
          }
          TQ_RETURN_IF_ERROR(ReadAnchors(entry, &target));
          if (layer == layer_list->front() && head == head_list->front()) {
            p.notes.insert(p.notes.end(), notes.begin(), notes.end());
          }
        }
      }
      entry.NoteUnknown(&p.notes);
    }
  }

  TQ_RETURN_IF_ERROR(ReadProvenance(top, name, &p));
  top.NoteUnknown(&p.notes);

  if (!tensors.empty()) {
    TQ_ASSIGN_OR_RETURN(const SafetensorsFile file,
                        SafetensorsFile::Parse(std::as_bytes(std::span(tensors)), name));
    TQ_RETURN_IF_ERROR(ReadTensors(file, &p));
  }
  for (size_t i = 0; i < p.formats.size(); ++i) {
    if (p.formats[i].k.center != Center::kNone && p.k_means.empty()) {
      return InvalidArgument(name, ": layer ", i / heads, ", KV head ", i % heads,
                             " has center 'rope_mean', but there is no tensor ",
                             TensorName(static_cast<int>(i) / heads, "k_mean"));
    }
  }
  return p;
}

Result<Profile> Profile::Load(const std::string& folder) {
  TQ_ASSIGN_OR_RETURN(const std::string json, ReadFile(folder + "/profile.json"));
  std::string tensors;
  const std::string tensor_path = folder + "/tensors.safetensors";
  if (FileExists(tensor_path)) {
    TQ_ASSIGN_OR_RETURN(tensors, ReadFile(tensor_path));
    if (tensors.empty()) return DataLoss(tensor_path, " is empty");
  }
  return Parse(json, tensors, folder);
}

std::string Profile::ToJson() const {
  Json j;
  j["version"] = StrCat(kProfileMajor, ".", kProfileMinor);
  Json& m = j["model"];
  m["name"] = model.name;
  m["architecture"] = model.architecture;
  if (model.structure_hash) m["structure_xxh3"] = Hex(*model.structure_hash);
  if (model.weights_hash) m["weights_xxh3"] = Hex(*model.weights_hash);
  m["num_layers"] = model.num_layers;
  m["num_q_heads"] = model.num_q_heads;
  m["num_kv_heads"] = model.num_kv_heads;
  m["head_dim"] = model.head_dim;

  // The most frequent format is the default; the others are listed by layer, then by head.
  std::vector<std::pair<HeadFormat, int>> counts;
  for (const HeadFormat& f : formats) {
    auto it =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == f; });
    if (it == counts.end()) it = counts.insert(counts.end(), {f, 0});
    ++it->second;
  }
  const HeadFormat common =
      counts.empty()
          ? HeadFormat{}
          : std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
              return a.second < b.second;
            })->first;
  Json& d = j["defaults"];
  d["page_len"] = kPageLen;
  d["recent_len"] = recent_len;
  d["recent"] = recent == RecentType::kQ8 ? "q8" : "f16";
  d["sink_len"] = sink_len;
  d["anchors_per_page"] = common.anchors;
  d["anchor_bits"] = common.anchor_bits;
  d["seed"] = seed;
  d["k"] = CodecToJson(common.k, Side::kK);
  d["v"] = CodecToJson(common.v, Side::kV);
  // What deviates, with the layers in which the same heads deviate alike.
  struct Override {
    int first_head, last_head;
    HeadFormat format;
    std::vector<int> layers;
  };
  std::vector<Override> overrides;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    const HeadFormat* row = &formats[static_cast<size_t>(layer) * model.num_kv_heads];
    for (int head = 0, last; head < model.num_kv_heads; head = last + 1) {
      for (last = head; last + 1 < model.num_kv_heads && row[last + 1] == row[head];) ++last;
      if (row[head] == common) continue;
      auto it = std::find_if(overrides.begin(), overrides.end(), [&](const Override& o) {
        return o.first_head == head && o.last_head == last && o.format == row[head];
      });
      if (it == overrides.end()) it = overrides.insert(it, {head, last, row[head], {}});
      it->layers.push_back(layer);
    }
  }
  j["layers"] = Json::array();
  for (const Override& o : overrides) {
    Json e;
    e["layers"] = FormatIndexList(o.layers);
    if (o.last_head - o.first_head + 1 < model.num_kv_heads) {
      e["heads"] = o.last_head > o.first_head ? StrCat(o.first_head, "-", o.last_head)
                                              : std::to_string(o.first_head);
    }
    if (o.format.k != common.k) e["k"] = CodecToJson(o.format.k, Side::kK);
    if (o.format.v != common.v) e["v"] = CodecToJson(o.format.v, Side::kV);
    if (o.format.anchors != common.anchors) e["anchors_per_page"] = o.format.anchors;
    if (o.format.anchor_bits != common.anchor_bits) e["anchor_bits"] = o.format.anchor_bits;
    j["layers"].push_back(e);
  }
  AddProvenance(*this, &j);
  double bits = 0;
  for (const HeadFormat& f : formats) bits += BitsPerValue(f, model.head_dim);
  j["bits_per_value"] = formats.empty() ? 0.0 : bits / static_cast<double>(formats.size());
  for (const auto& [context, value] : bits_all_counted) {
    j["bits_all_counted"][std::to_string(context)] = value;
  }
  Json root;
  root["turboquant"] = j;
  return root.dump(2) + "\n";
}

Status Profile::Save(const std::string& folder) const {
  TQ_RETURN_IF_ERROR(MakeDirectory(folder));
  std::vector<SafetensorsSource> sources;
  AddTensors(*this, &sources);
  if (!sources.empty()) {
    TQ_RETURN_IF_ERROR(WriteSafetensors(folder + "/tensors.safetensors", sources));
  }
  return WriteFileAtomic(folder + "/profile.json", ToJson());
}

Status Profile::SaveQuality(const std::string& folder, const ProfileQuality& quality) {
  TQ_RETURN_IF_ERROR(Load(folder).status());
  const std::string path = folder + "/profile.json";
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("turboquant") || !root["turboquant"].is_object()) {
    return DataLoss("'", path, "' changed while its quality was measured: it is no profile now");
  }
  root["turboquant"]["quality"] = QualityToJson(quality);
  return WriteFileAtomic(path, root.dump(2) + "\n");
}

Status Profile::Apply(uint64_t structure_hash, uint64_t weights_hash, CacheConfig* config,
                      std::string* note) const {
  if (model.num_layers != config->num_layers || model.num_kv_heads != config->num_kv_heads ||
      model.head_dim != config->head_dim) {
    return InvalidArgument("the profile was made for ", model.num_layers, " layers x ",
                           model.num_kv_heads, " KV heads of head_dim ", model.head_dim,
                           model.name.empty() ? "" : " ('" + model.name + "')", "; this model has ",
                           config->num_layers, " x ", config->num_kv_heads, " of ",
                           config->head_dim, "; use a profile of this model");
  }
  if (model.structure_hash && structure_hash != 0 && *model.structure_hash != structure_hash) {
    return InvalidArgument("the profile was made for another model of the same shape (structure ",
                           Hex(*model.structure_hash), ", this model ", Hex(structure_hash),
                           "): RoPE or vocabulary differ; use a profile of this model");
  }
  note->clear();
  if (model.weights_hash && weights_hash != 0 && *model.weights_hash != weights_hash) {
    *note =
        "the profile was made with other weights of this model: its quality is not verified for "
        "these";
  } else if (!quality) {
    *note = "the profile has no quality block: it was not verified on held-out text";
  }
  config->formats = formats;
  config->recent_len = recent_len;
  config->sink_len = sink_len;
  config->recent = recent;
  config->seed = seed;
  config->tensors = tensors;
  config->centers.clear();
  if (!k_means.empty()) {
    for (const std::vector<float>& mean : k_means) {
      config->centers.push_back(MakeHeadCenter(mean, config->rope));
    }
  }
  return config->Validate();
}

std::string Profile::Describe() const {
  std::map<std::string, int> counts;
  bool centred = false;
  for (const HeadFormat& f : formats) {
    ++counts[PresetName(f)];
    centred |= f.k.center == Center::kRopeMean;
  }
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [preset, n] : counts) order.emplace_back(-n, preset);
  std::sort(order.begin(), order.end());
  std::string list;
  for (const auto& [n, preset] : order)
    list += (list.empty() ? "" : ", ") + StrCat(-n, " ", preset);
  return StrCat(model.num_layers, " layers x ", model.num_kv_heads, " KV heads: ", list,
                centred ? "; centred K" : "", "; window ", recent_len, ", sinks ", sink_len);
}

}  // namespace tq
