#include "turboquant/calibrate/profile_tensors.h"

namespace tq {

std::string TensorName(int layer, const char* what) {
  return StrCat("layers.", layer, ".", what);
}

namespace {

// What a profile stores for each KV head, and how the tensor of a layer is shaped behind its first
// dimension, the KV heads.
struct TensorKind {
  const char* name;
  std::vector<float> HeadTensors::*member;
  // Numbers of one head: of a matrix or of a book, by the head's format. 0: not used.
  std::vector<int64_t> (*shape)(const Profile& p, const HeadFormat& f);
};
std::vector<int64_t> MatrixShape(const Profile& p, const Codec& c) {
  if (c.rotate != Rotate::kMatrix) return {};
  return {p.model.head_dim, p.model.head_dim};
}
std::vector<int64_t> LevelShape(const Codec& c) {
  if (c.codebook != Codebook::kCalibrated) return {};
  return {int64_t{1} << c.bits};
}
const TensorKind kTensorKinds[] = {
    {"k_matrix", &HeadTensors::k_matrix,
     [](const Profile& p, const HeadFormat& f) { return MatrixShape(p, f.k); }},
    {"v_matrix", &HeadTensors::v_matrix,
     [](const Profile& p, const HeadFormat& f) { return MatrixShape(p, f.v); }},
    {"k_levels", &HeadTensors::k_levels,
     [](const Profile&, const HeadFormat& f) { return LevelShape(f.k); }},
    {"v_levels", &HeadTensors::v_levels,
     [](const Profile&, const HeadFormat& f) { return LevelShape(f.v); }},
};

// Books of heads with different widths differ in length: those tensors are one for each head.
std::string HeadTensorName(int layer, int head, const char* what) {
  return StrCat("layers.", layer, ".heads.", head, ".", what);
}

}  // namespace

Status ReadTensors(const SafetensorsFile& file, Profile* p) {
  const int heads = p->model.num_kv_heads, dim = p->model.head_dim;
  const size_t all = static_cast<size_t>(p->model.num_layers) * heads;
  std::vector<HeadTensors> tensors(all);
  bool any = false, any_mean = false;
  std::vector<std::vector<float>> means(all, std::vector<float>(static_cast<size_t>(dim), 0.f));
  for (int layer = 0; layer < p->model.num_layers; ++layer) {
    const size_t first = static_cast<size_t>(layer) * heads;
    const std::string mean = TensorName(layer, "k_mean");
    if (file.Find(mean) != nullptr) {
      TQ_ASSIGN_OR_RETURN(const std::vector<float> values, file.GetFloats(mean, {heads, dim}));
      for (int h = 0; h < heads; ++h) {
        means[first + h].assign(values.begin() + h * dim, values.begin() + (h + 1) * dim);
      }
      any_mean = true;
    }
    const std::string query = TensorName(layer, "q_mean");
    if (file.Find(query) != nullptr) {
      const int q_heads = p->model.num_q_heads;
      if (q_heads <= 0 || q_heads % heads != 0) {
        return InvalidArgument(query, ": model.num_q_heads is ", q_heads,
                               "; a multiple of num_kv_heads = ", heads, " was expected");
      }
      const int group = q_heads / heads;
      TQ_ASSIGN_OR_RETURN(const std::vector<float> values, file.GetFloats(query, {q_heads, dim}));
      TQ_ASSIGN_OR_RETURN(const std::vector<float> rms,
                          file.GetFloats(TensorName(layer, "q_rms"), {heads}));
      for (int h = 0; h < heads; ++h) {
        QueryStatistics& q = tensors[first + h].queries;
        q.rms = rms[static_cast<size_t>(h)];
        for (int g = 0; g < group; ++g) {
          const auto from = values.begin() + (static_cast<std::ptrdiff_t>(h) * group + g) * dim;
          q.means.emplace_back(from, from + dim);
        }
      }
      any = true;
    }
    for (int h = 0; h < heads; ++h) {
      for (const TensorKind& kind : kTensorKinds) {
        const std::vector<int64_t> shape = kind.shape(*p, p->formats[first + h]);
        const std::string name = HeadTensorName(layer, h, kind.name);
        if (shape.empty() || file.Find(name) == nullptr) continue;
        TQ_ASSIGN_OR_RETURN(tensors[first + h].*kind.member, file.GetFloats(name, shape));
        any = true;
      }
    }
  }
  if (any_mean) p->k_means = std::move(means);
  if (any) p->tensors = std::move(tensors);
  return OkStatus();
}

void AddTensors(const Profile& p, std::vector<SafetensorsSource>* sources) {
  const int heads = p.model.num_kv_heads, dim = p.model.head_dim;
  for (int layer = 0; layer < p.model.num_layers; ++layer) {
    const size_t first = static_cast<size_t>(layer) * heads;
    if (!p.k_means.empty()) {
      SafetensorsSource s{TensorName(layer, "k_mean"), {heads, dim}, {}};
      for (int h = 0; h < heads; ++h) {
        s.values.insert(s.values.end(), p.k_means[first + h].begin(), p.k_means[first + h].end());
      }
      sources->push_back(std::move(s));
    }
    if (p.tensors.empty()) continue;
    if (!p.tensors[first].queries.empty()) {
      SafetensorsSource mean{TensorName(layer, "q_mean"), {p.model.num_q_heads, dim}, {}};
      SafetensorsSource rms{TensorName(layer, "q_rms"), {heads}, {}};
      for (int h = 0; h < heads; ++h) {
        const QueryStatistics& q = p.tensors[first + h].queries;
        rms.values.push_back(q.rms);
        for (const auto& m : q.means) mean.values.insert(mean.values.end(), m.begin(), m.end());
      }
      sources->push_back(std::move(mean));
      sources->push_back(std::move(rms));
    }
    for (int h = 0; h < heads; ++h) {
      for (const TensorKind& kind : kTensorKinds) {
        const std::vector<int64_t> shape = kind.shape(p, p.formats[first + h]);
        if (shape.empty()) continue;
        sources->push_back(
            {HeadTensorName(layer, h, kind.name), shape, p.tensors[first + h].*kind.member});
      }
    }
  }
}

}  // namespace tq
