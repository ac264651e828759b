#include "turboquant/plan/cache_plan.h"

#include <algorithm>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

// Heads of `count` that device `device` of `num_devices` holds: contiguous; fewer heads than
// devices are replicated.
std::pair<int, int> HeadsOf(int count, int device, int num_devices) {
  const int64_t n = num_devices, d = device;
  const int first = static_cast<int>(d * count / n);
  const int end = static_cast<int>(DivCeil<int64_t>((d + 1) * count, n));
  return {first, std::max(end, first + 1)};
}

bool HasHeads(const LayerSpec& l) {
  return l.kind == LayerKind::kFull || l.kind == LayerKind::kWindow;
}
}  // namespace

Result<CacheFormat> CacheFormat::FromPreset(const std::string& preset, const CacheWindow& window) {
  CacheFormat format;
  TQ_ASSIGN_OR_RETURN(const HeadFormat f, ParsePreset(preset));
  format.name = PresetName(f);
  format.formats = {f};
  format.window = window;
  return format;
}

Result<CachePlan> CachePlan::Create(const ModelSpec& spec, const CacheFormat& format,
                                    int num_devices) {
  TQ_RETURN_IF_ERROR(spec.Validate());
  if (num_devices < 1 || num_devices > 1024) {
    return InvalidArgument("devices = ", num_devices, "; expected 1 to 1024");
  }
  size_t heads = 0;
  for (const LayerSpec& l : spec.layers) {
    if (HasHeads(l)) heads += static_cast<size_t>(l.num_kv_heads);
  }
  if (format.formats.size() != 1 && format.formats.size() != heads) {
    return InvalidArgument("cache format '", format.name, "' is for ", format.formats.size(),
                           " KV heads; the model has ", heads, " in layers with keys and values");
  }
  const auto format_of = [&](size_t head) -> const HeadFormat& {
    return format.formats[format.formats.size() == 1 ? 0 : head];
  };
  const RecentType recent = format.window.recent;

  CachePlan plan;
  plan.window_ = format.window;
  bool center = false;
  size_t most = 0;
  for (int device = 0; device < num_devices; ++device) {
    BlockBytes block;
    size_t f16_token = 0, first_head = 0;
    for (const LayerSpec& l : spec.layers) {
      if (l.kind == LayerKind::kFull) {
        const auto [first, end] = HeadsOf(l.num_kv_heads, device, num_devices);
        for (int h = first; h < end; ++h) {
          block.Add(format_of(first_head + static_cast<size_t>(h)), recent, l.head_dim);
        }
        f16_token += static_cast<size_t>(end - first) * 4 * static_cast<size_t>(l.head_dim);
      } else if (l.kind == LayerKind::kLatent) {
        // Every device needs the whole latent for its own query heads.
        const HeadFormat both = {format_of(0).k, format_of(0).k};
        block.Add(both, recent, DivCeil(l.latent_dim, 2));
        if (l.rope_dim > 0) block.Add(HeadFormat{}, recent, DivCeil(l.rope_dim, 2));
        f16_token += 2 * static_cast<size_t>(l.latent_dim + l.rope_dim);
      }
      if (HasHeads(l)) first_head += static_cast<size_t>(l.num_kv_heads);
    }
    // Long sequences: the device whose sealed blocks are the largest.
    if (device == 0 || block.sealed > most) {
      most = block.sealed;
      plan.block_ = block;
      plan.f16_token_bytes_ = f16_token;
    }
  }
  size_t head = 0;
  for (const LayerSpec& l : spec.layers) {
    switch (l.kind) {
      case LayerKind::kFull: {
        bool quantized = false;
        for (int h = 0; h < l.num_kv_heads; ++h, ++head) {
          const HeadFormat& f = format_of(head);
          quantized |= !(f.k.is_float() && f.v.is_float());
          center |= !f.k.is_float();
          BlockBytes one;
          one.Add(f, recent, l.head_dim);
          plan.sealed_all_ += one.sealed;
        }
        plan.values_ += int64_t{2} * l.num_kv_heads * l.head_dim;
        plan.quantized_layers_ += quantized ? 1 : 0;
        break;
      }
      case LayerKind::kLatent: {
        BlockBytes one;
        one.Add({format_of(0).k, format_of(0).k}, recent, DivCeil(l.latent_dim, 2));
        if (l.rope_dim > 0) one.Add(HeadFormat{}, recent, DivCeil(l.rope_dim, 2));
        plan.sealed_all_ += one.sealed;
        plan.values_ += int64_t{l.latent_dim} + l.rope_dim;
        plan.quantized_layers_ += format_of(0).k.is_f16() ? 0 : 1;
        break;
      }
      case LayerKind::kWindow: {
        const auto [first, end] = HeadsOf(l.num_kv_heads, 0, num_devices);
        BlockBytes one;
        for (int h = first; h < end; ++h) {
          one.Add(
              format.formats.size() == 1 ? HeadFormat{} : format_of(head + static_cast<size_t>(h)),
              recent, l.head_dim);
        }
        head += static_cast<size_t>(l.num_kv_heads);
        auto same = std::find_if(plan.windowed_.begin(), plan.windowed_.end(),
                                 [&](const Windowed& w) { return w.window == l.window; });
        if (same == plan.windowed_.end()) {
          plan.windowed_.push_back({l.window});
          same = plan.windowed_.end() - 1;
        }
        same->block_bytes += one.open;
        same->f16_token_bytes +=
            static_cast<size_t>(end - first) * 4 * static_cast<size_t>(l.head_dim);
        break;
      }
      case LayerKind::kState:
        plan.states_ += DivCeil<size_t>(l.state_bytes, static_cast<size_t>(num_devices));
        break;
    }
  }
  plan.num_center_freq_ = center ? spec.num_center_freq : 0;
  return plan;
}

CacheParts CachePlan::At(int64_t tokens, int chunk_len) const {
  CacheParts parts;
  if (tokens <= 0) return parts;
  const BlockCounts n = CountBlocks(window_, tokens);
  parts.payload = static_cast<size_t>(n.sealed) * (block_.sealed - block_.sealed_scales);
  parts.scales = static_cast<size_t>(n.sealed) * block_.sealed_scales;
  parts.recent =
      static_cast<size_t>(n.recent) * block_.open + static_cast<size_t>(n.ahead) * block_.ahead();
  parts.sinks = static_cast<size_t>(n.sinks) * block_.open;
  for (const Windowed& w : windowed_) {
    const int64_t held = CountWindowBlocks(w.window, window_.rollback_len, tokens);
    const int64_t peak = CountWindowBlocksPeak(w.window, window_.rollback_len, tokens, chunk_len);
    parts.windows += static_cast<size_t>(held) * w.block_bytes;
    parts.in_flight += static_cast<size_t>(peak - held) * w.block_bytes;
  }
  parts.states = states_;
  if (num_center_freq_ > 0) {
    parts.tables = CenterTableBytes(static_cast<size_t>(num_center_freq_), tokens);
  }
  const BlockCounts peak = CountBlocksPeak(window_, tokens, chunk_len, block_);
  const size_t held = parts.payload + parts.scales + parts.recent + parts.sinks;
  parts.in_flight += static_cast<size_t>(peak.sealed) * block_.sealed +
                     static_cast<size_t>(peak.open()) * block_.open +
                     static_cast<size_t>(peak.ahead) * block_.ahead() - held;
  return parts;
}

CacheParts CachePlan::Shared(int64_t prefix, int64_t tokens) const {
  CacheParts parts;
  const BlockCounts n = CountBlocks(window_, tokens);
  const int64_t whole = std::clamp<int64_t>(prefix, 0, tokens) / kPageLen;
  const int64_t sinks = std::min(n.sinks, whole);
  const int64_t sealed = std::clamp<int64_t>(whole - n.sinks, 0, n.sealed);
  parts.payload = static_cast<size_t>(sealed) * (block_.sealed - block_.sealed_scales);
  parts.scales = static_cast<size_t>(sealed) * block_.sealed_scales;
  parts.sinks = static_cast<size_t>(sinks) * block_.open;
  return parts;
}

double CachePlan::ReadBytes(int64_t tokens) const {
  const BlockCounts n = CountBlocksRead(window_, tokens);
  double bytes = static_cast<double>(n.sealed) * static_cast<double>(block_.sealed) +
                 static_cast<double>(n.open()) * static_cast<double>(block_.open);
  for (const Windowed& w : windowed_) {
    bytes += static_cast<double>(std::min<int64_t>(tokens, w.window)) / kPageLen *
             static_cast<double>(w.block_bytes);
  }
  return bytes + 2.0 * static_cast<double>(states_);  // a state is read and written
}

size_t CachePlan::F16Bytes(int64_t tokens) const {
  const auto n = static_cast<size_t>(std::max<int64_t>(tokens, 0));
  size_t bytes = n * f16_token_bytes_ + states_;
  for (const Windowed& w : windowed_) {
    bytes += std::min(n, static_cast<size_t>(w.window)) * w.f16_token_bytes;
  }
  return bytes;
}

double CachePlan::bits_per_value() const {
  if (values_ == 0) return 0;
  return 8.0 * static_cast<double>(sealed_all_) / (kPageLen * static_cast<double>(values_));
}

}  // namespace tq
