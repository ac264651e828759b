// What a configuration must be before a cache is made from it.
#include "turboquant/cache/cache.h"

namespace tq {

Status CacheConfig::Validate() const {
  const auto range = [](const char* what, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return OkStatus();
    return InvalidArgument("cache: ", what, " = ", value, "; it must be ", low, " to ", high);
  };
  TQ_RETURN_IF_ERROR(range("num_layers", num_layers, 1, 4096));
  TQ_RETURN_IF_ERROR(range("num_kv_heads", num_kv_heads, 1, 1024));
  TQ_RETURN_IF_ERROR(range("head_dim", head_dim, kMinHeadDim, kMaxHeadDim));
  TQ_RETURN_IF_ERROR(range("recent_len", recent_len, 0, 1 << 24));
  TQ_RETURN_IF_ERROR(range("sink_len", sink_len, 0, 1 << 24));
  TQ_RETURN_IF_ERROR(range("rollback_len", rollback_len, 0, 1 << 24));
  if (!(v_skip >= 0 && v_skip < 1)) {
    return InvalidArgument("cache: v_skip = ", v_skip, "; it must be 0 (off) to below 1");
  }
  const size_t heads = static_cast<size_t>(num_layers) * num_kv_heads;
  if (formats.size() != heads) {
    return InvalidArgument("cache: ", formats.size(), " head formats for ", num_layers,
                           " layers x ", num_kv_heads, " KV heads = ", heads);
  }
  if (!tensors.empty() && tensors.size() != heads) {
    return InvalidArgument("cache: tensors of ", tensors.size(), " heads for ", num_layers,
                           " layers x ", num_kv_heads, " KV heads = ", heads);
  }
  if (!centers.empty() && centers.size() != heads) {
    return InvalidArgument("cache: ", centers.size(), " centres for ", num_layers, " layers x ",
                           num_kv_heads, " KV heads = ", heads);
  }
  TQ_RETURN_IF_ERROR(ValidateWindows());
  if (rope.rope_dim() > head_dim) {
    return InvalidArgument("cache: RoPE turns ", rope.rope_dim(), " channels of head_dim ",
                           head_dim);
  }
  for (size_t i = 0; i < heads; ++i) {
    const std::string where = StrCat("layer ", i / num_kv_heads, ", KV head ", i % num_kv_heads);
    TQ_RETURN_IF_ERROR(ValidateFormat(formats[i]).WithContext(where));
    TQ_RETURN_IF_ERROR(ValidateTensors(i).WithContext(where));
    if (formats[i].k.center != Center::kNone && centers.empty()) {
      return InvalidArgument(where,
                             ": center 'rope_mean' needs a mean; give centers, from a k bias "
                             "or a profile");
    }
    if (centers.empty()) continue;
    if (static_cast<int>(centers[i].pairs.size()) > head_dim) {
      return InvalidArgument(where, ": a centre of ", centers[i].pairs.size(),
                             " pairs; head_dim is ", head_dim);
    }
    for (const HeadCenter::Pair& p : centers[i].pairs) {
      if (p.i < 0 || p.j < 0 || p.i >= head_dim || p.j >= head_dim || p.freq < -1 ||
          p.freq >= rope.rope_dim() / 2) {
        return InvalidArgument(where, ": centre pair (", p.i, ", ", p.j, ") at frequency ", p.freq,
                               " is outside head_dim ", head_dim, " or RoPE dimension ",
                               rope.rope_dim());
      }
    }
  }
  return OkStatus();
}

Status CacheConfig::ValidateWindows() const {
  if (windows.empty()) return OkStatus();
  if (static_cast<int>(windows.size()) != num_layers) {
    return InvalidArgument("cache: windows of ", windows.size(), " layers; there are ", num_layers);
  }
  int length = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    const int w = window(layer);
    if (w == 0) continue;
    if (w < 0 || w > 1 << 30) {
      return InvalidArgument("cache: layer ", layer, " has a window of ", w,
                             " tokens; it must be 0 (none) to ", 1 << 30);
    }
    if (length != 0 && w != length) {
      return Unsupported("cache: layers have windows of ", length, " and ", w,
                         " tokens; one length is supported");
    }
    length = w;
    for (int head = 0; head < num_kv_heads; ++head) {
      const HeadFormat& f = formats[static_cast<size_t>(layer) * num_kv_heads + head];
      const auto kept = [](const Codec& c) { return c.is_float() || c.bits == 8; };
      if (!kept(f.k) || !kept(f.v) || f.k.center != Center::kNone || f.anchors > 0) {
        return InvalidArgument("cache: layer ", layer, " has a sliding window of ", w,
                               " tokens and the format ", PresetName(f),
                               "; such layers are kept in 16 or 8 bits, without centre and "
                               "anchors: f16 or k8v8");
      }
    }
  }
  return OkStatus();
}

Status CacheConfig::ValidateTensors(size_t i) const {
  static const HeadTensors none;
  const HeadFormat& f = formats[i];
  const HeadTensors& t = tensors.empty() ? none : tensors[i];
  const size_t matrix_size = static_cast<size_t>(head_dim) * head_dim;
  const auto check = [&](const Codec& c, const char* side, const std::vector<float>& matrix,
                         const std::vector<float>& levels) -> Status {
    if (c.rotate == Rotate::kMatrix) {
      if (matrix.size() != matrix_size) {
        return InvalidArgument(side, ": rotate 'matrix' needs a matrix of ", head_dim, " x ",
                               head_dim, " from a profile; found ", matrix.size(), " numbers");
      }
      const auto rotation = Rotation::FromMatrix(matrix, head_dim);
      if (!rotation.ok()) return rotation.status().WithContext(side);
    }
    if (c.codebook == Codebook::kCalibrated) {
      if (levels.size() != size_t{1} << c.bits) {
        return InvalidArgument(side, ": codebook 'calibrated' of ", c.bits, " bits needs ",
                               1 << c.bits, " levels from a profile; found ", levels.size());
      }
      const auto book = MakeCodebook(levels);
      if (!book.ok()) return book.status().WithContext(side);
    }
    return OkStatus();
  };
  TQ_RETURN_IF_ERROR(check(f.k, "K", t.k_matrix, t.k_levels));
  TQ_RETURN_IF_ERROR(check(f.v, "V", t.v_matrix, t.v_levels));
  if (f.anchors > 0) {
    if (t.queries.empty()) {
      return InvalidArgument(f.anchors, f.anchors == 1 ? " anchor" : " anchors",
                             " a block: that takes the mean query of this head from a profile; "
                             "calibrate one, or use a format without anchors");
    }
    for (const std::vector<float>& mean : t.queries.means) {
      if (static_cast<int>(mean.size()) != head_dim) {
        return InvalidArgument("a mean query has ", mean.size(), " channels; head_dim is ",
                               head_dim);
      }
    }
  }
  return OkStatus();
}

}  // namespace tq
