#include "turboquant/attention/device_prefill.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "turboquant/codec/fragment_layout.h"
#include "turboquant/codec/log8.h"

namespace tq {
namespace {

struct PrefillLevels {
  DecodeCodes kind = DecodeCodes::kTable4;
  DecodeTable table;
  float unit = 1;
};

PrefillLevels LevelsOf(const Codec& codec, const CodebookTable* calibrated) {
  PrefillLevels out;
  if (IsInPlaceCodec(codec)) {  // no table
    out.kind = DecodeCodes::kInPlace2;
    return out;
  }
  out.kind = codec.bits == 2   ? DecodeCodes::kTable2
             : codec.bits == 3 ? DecodeCodes::kTable3
                               : DecodeCodes::kTable4;
  const bool wide = codec.bits == 4;
  const CodebookTable& book = BookOf(codec, calibrated);
  for (int i = 0; i < 16; ++i) {
    const auto level = static_cast<uint8_t>(book.levels[i % book.num_levels]);
    out.table.words[i / 4] |= static_cast<uint32_t>(wide ? level & 0x7f : level) << (i % 4 * 8);
  }
  if (wide) out.unit = 0.5f;
  return out;
}

PrefillHead MakeHead(const DeviceCache& cache, int layer, int head) {
  const KvCache::HeadLayout& l = cache.layout(layer, head);
  const DeviceCache::HeadView view = cache.head(layer, head);
  PrefillHead h;
  h.record_offset = static_cast<uint32_t>(view.record_offset);
  h.side_offset = static_cast<uint32_t>(view.side_offset);
  h.open_offset = static_cast<uint32_t>(view.open_offset);
  h.record_bytes = static_cast<uint32_t>(l.record.bytes);
  h.open_bytes = static_cast<uint32_t>(l.open.bytes);
  h.k_scales = static_cast<uint32_t>(l.record.k_scales);
  h.v_scales = static_cast<uint32_t>(l.record.v_scales);
  h.v_codes = static_cast<uint32_t>(l.record.v_codes);
  h.open_k_scales = static_cast<uint32_t>(l.open.k_scales);
  h.open_v_values = static_cast<uint32_t>(l.open.v_values);
  h.open_v_scales = static_cast<uint32_t>(l.open.v_scales);
  const PrefillLevels k = LevelsOf(l.format.k, &l.k_book), v = LevelsOf(l.format.v, &l.v_book);
  h.k_kind = k.kind, h.k_table = k.table, h.k_unit = k.unit;
  h.v_kind = v.kind, h.v_table = v.table, h.v_unit = v.unit;
  h.k_anchors = static_cast<uint32_t>(l.record.k_anchors);
  h.v_anchors = static_cast<uint32_t>(l.record.v_anchors);
  h.num_anchors = l.format.anchors;
  h.anchor_bits = l.format.anchor_bits;
  PackSigns(l.k_rotation, h.k_signs);
  PackSigns(l.v_rotation, h.v_signs);
  return h;
}

PrefillCenter MakeCenter(const HeadCenter& center, const CenterTable& table) {
  PrefillCenter out;
  for (size_t p = 0; p < center.pairs.size(); ++p) {
    const HeadCenter::Pair& pair = center.pairs[p];
    out.i[p] = pair.i;
    out.j[p] = pair.j;
    out.mu_i[p] = pair.mu_i;
    out.mu_j[p] = pair.j == pair.i ? 0.f : pair.mu_j;  // a channel without a partner
    out.slot[p] = static_cast<int32_t>(table.Slot(pair.freq));
    for (int token = 0; token < kPageLen; ++token) {
      const float parts[2] = {table.CosOffsets(pair.freq)[token],
                              table.SinOffsets(pair.freq)[token]};
      // Depth 2 c, 2 c + 1 of the 16 is pair c, and 8 further pair c + 4.
      const int pair_of_8 = static_cast<int>(p % 8), lane = token % 8 * 4 + pair_of_8 % 4;
      auto& tile = out.table[token / 8][p / 8];
      for (int e = 0; e < 2; ++e) {
        const f16_t high = F16FromF32(parts[e]);
        const f16_t low = F16FromF32(parts[e] - F32FromF16(high));
        tile[0][lane][pair_of_8 / 4] |= static_cast<uint32_t>(high) << (16 * e);
        tile[1][lane][pair_of_8 / 4] |= static_cast<uint32_t>(low) << (16 * e);
      }
    }
  }
  return out;
}

}  // namespace

Status CheckDevicePrefill(const HeadFormat& format, int head_dim, RecentType recent) {
  const auto fits = [](const Codec& c) {
    return c.type == ValueType::kInt && c.bits <= 4 && !c.is_grouped() &&
           c.scale == ScaleType::kLog8 && c.rotate == Rotate::kHadamard && IsDeviceCodec(c);
  };
  if (fits(format.k) && fits(format.v) && recent == RecentType::kQ8 &&
      (head_dim == 64 || head_dim == 128 || head_dim == 256)) {
    return OkStatus();
  }
  return Unsupported(
      "cuda prefill attention: ", PresetName(format), " at head_dim ", head_dim,
      recent == RecentType::kQ8 ? "" : " with a 16-bit window",
      "; supported: k<a>v<b> with a and b in 2, 3, 4 (Hadamard rotation, one log8 scale a token; "
      "uniform, lloyd or calibrated books), with centre and anchors, an 8-bit window, head_dim 64, "
      "128 and 256");
}

Result<std::unique_ptr<DevicePrefill>> DevicePrefill::Create(const DeviceCache& cache,
                                                             const DevicePrefillConfig& config,
                                                             const DeviceStream& stream) {
  const CacheConfig& c = cache.config();
  if (config.num_q_heads <= 0 || config.num_q_heads % c.num_kv_heads != 0) {
    return InvalidArgument("cuda prefill attention: ", config.num_q_heads,
                           " query heads are not a multiple of ", c.num_kv_heads, " KV heads");
  }
  if (config.max_tokens < 1 || config.max_items < 1 || config.softcap < 0 ||
      config.sliding_window < 0) {
    return InvalidArgument("cuda prefill attention: ", config.max_tokens, " tokens of ",
                           config.max_items, " items, softcap ", config.softcap,
                           ", sliding window of ", config.sliding_window,
                           "; at least 1 token and item, and nothing negative");
  }
  std::unique_ptr<DevicePrefill> a(new DevicePrefill);
  a->cache_ = &cache;
  a->config_ = config;
  std::vector<PrefillHead> heads;
  std::vector<PrefillCenter> centers;
  const CenterTable table(c.rope);
  bool extras = false;
  for (int layer = 0; layer < c.num_layers; ++layer) {
    for (int h = 0; h < c.num_kv_heads; ++h) {
      const Status fits = CheckDevicePrefill(cache.layout(layer, h).format, c.head_dim, c.recent);
      TQ_RETURN_IF_ERROR(fits.WithContext(StrCat("layer ", layer, ", KV head ", h)));
      heads.push_back(MakeHead(cache, layer, h));
      const HeadCenter& center = cache.layout(layer, h).center;
      extras |= !center.empty() || heads.back().num_anchors > 0;
      if (center.empty()) continue;
      if (center.pairs.size() > kDecodePairs) {
        return Unsupported("cuda prefill attention: layer ", layer, ", KV head ", h,
                           ": a centre of ", center.pairs.size(), " pairs; at most ", kDecodePairs,
                           " are supported");
      }
      heads.back().center = static_cast<int32_t>(centers.size());
      centers.push_back(MakeCenter(center, table));
    }
  }
  TQ_ASSIGN_OR_RETURN(a->kernel_, PreparePrefillKernel(c.head_dim, config.plain_kernel, extras));
  const int group = config.num_q_heads / c.num_kv_heads;
  // An item's first and last block may be parts of one.
  const size_t max_units =
      static_cast<size_t>(DivCeil(config.max_tokens, kPageLen) + config.max_items) * group;
  a->max_tiles_ = DivCeil(max_units, static_cast<size_t>(a->kernel_.units)) +
                  static_cast<size_t>(config.max_items);
  const size_t head_bytes = RoundUp<size_t>(heads.size() * sizeof(PrefillHead), 256);
  const size_t log8 = 256 * sizeof(float);
  const size_t center_bytes = centers.size() * sizeof(PrefillCenter);
  TQ_ASSIGN_OR_RETURN(a->heads_, DeviceBuffer::Allocate(head_bytes + log8 + center_bytes));
  TQ_ASSIGN_OR_RETURN(a->tiles_, DeviceBuffer::Allocate(a->max_tiles_ * sizeof(PrefillTile)));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(heads.data(), heads.size() * sizeof(PrefillHead), 0, stream));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(Log8Table(), log8, head_bytes, stream));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(centers.data(), center_bytes, head_bytes + log8, stream));
  TQ_RETURN_IF_ERROR(stream.Synchronize());

  PrefillParams& p = a->params_;
  p.sealed_table = cache.sealed_table();
  p.open_table = cache.open_table();
  p.table_stride = static_cast<int32_t>(cache.table_stride());
  p.sink_blocks = cache.rule().sink_blocks;
  p.recent_blocks = cache.rule().recent_blocks;
  p.num_kv_heads = c.num_kv_heads;
  p.group = group;
  p.log8 = reinterpret_cast<const float*>(a->heads_.data() + head_bytes);
  p.centers = reinterpret_cast<const PrefillCenter*>(a->heads_.data() + head_bytes + log8);
  p.center_table = cache.center_table();
  p.tiles = a->tiles_.as<const PrefillTile>();
  p.io = config.io;
  const float log2e = std::numbers::log2e_v<float>;
  p.scale =
      (config.scale > 0 ? config.scale : 1.f / std::sqrt(static_cast<float>(c.head_dim))) * log2e;
  p.softcap = config.softcap * log2e;
  p.sliding_window = config.sliding_window;
  return a;
}

Status DevicePrefill::Plan(std::span<const DevicePrefillItem> items, const DeviceStream& stream) {
  if (items.size() > static_cast<size_t>(config_.max_items)) {
    return InvalidArgument("cuda prefill attention: ", items.size(), " items; at most ",
                           config_.max_items);
  }
  const int units = kernel_.units;
  std::vector<PrefillTile> tiles;
  int64_t rows = 0;
  for (const DevicePrefillItem& item : items) {
    if (item.sequence < 0 || item.sequence >= cache_->options().max_sequences) {
      return NotFound("cuda prefill attention: there is no sequence ", item.sequence, " of ",
                      cache_->options().max_sequences);
    }
    const int64_t length = cache_->length(item.sequence), first = length - item.num_tokens;
    if (item.num_tokens < 1 || first < 0 || rows + item.num_tokens > config_.max_tokens) {
      return InvalidArgument("cuda prefill attention: ", item.num_tokens, " queries of sequence ",
                             item.sequence, " of ", length, " tokens, behind ", rows,
                             " of other items; at least 1, no more than there are, and ",
                             config_.max_tokens, " in all");
    }
    if (const int64_t from = cache_->first_query(item.sequence); first < from) {
      return FailedPrecondition(
          "cuda prefill attention: a query at position ", first, " of sequence ", item.sequence,
          " reads open rows that are gone; they are there from position ", from, " on");
    }
    const int64_t num_units = ((length - 1) / kPageLen - first / kPageLen + 1) * params_.group;
    for (int64_t unit = 0; unit < num_units; unit += units) {
      tiles.push_back({item.sequence, static_cast<int32_t>(first), item.num_tokens,
                       static_cast<int32_t>(rows), static_cast<int32_t>(unit)});
    }
    rows += item.num_tokens;
  }
  const auto last_block = [&](const PrefillTile& t) {
    return t.first_pos / kPageLen + t.first_unit / params_.group;
  };
  std::stable_sort(tiles.begin(), tiles.end(), [&](const PrefillTile& a, const PrefillTile& b) {
    return last_block(a) > last_block(b);
  });
  TQ_CHECK(tiles.size() <= max_tiles_);
  params_.num_tiles = static_cast<int32_t>(tiles.size());
  TQ_RETURN_IF_ERROR(tiles_.Upload(tiles.data(), tiles.size() * sizeof(PrefillTile), 0, stream));
  return stream.Synchronize();  // the source goes
}

Status DevicePrefill::Run(int layer, const void* q, void* out, const DeviceStream& stream) const {
  const CacheConfig& c = cache_->config();
  if (layer < 0 || layer >= c.num_layers) {
    return InvalidArgument("cuda prefill attention: layer ", layer, " of ", c.num_layers);
  }
  if (reinterpret_cast<uintptr_t>(q) % 16 != 0) {
    return InvalidArgument("cuda prefill attention: queries at ", q,
                           "; they begin at a multiple of 16 bytes");
  }
  if (params_.num_tiles == 0) return OkStatus();
  const DeviceCache::LayerView view = cache_->layer(layer);
  PrefillParams p = params_;
  p.sealed = reinterpret_cast<const uint8_t*>(view.sealed);
  p.sides = reinterpret_cast<const uint8_t*>(view.sides);
  p.open = reinterpret_cast<const uint8_t*>(view.open);
  p.sealed_stride = static_cast<uint32_t>(view.sealed_stride);
  p.side_stride = static_cast<uint32_t>(view.side_stride);
  p.open_stride = static_cast<uint32_t>(view.open_stride);
  p.heads = heads_.as<const PrefillHead>() + static_cast<size_t>(layer) * c.num_kv_heads;
  p.q = q;
  p.out = out;
  return LaunchPrefillKernel(c.head_dim, kernel_.kind, p, stream.handle());
}

}  // namespace tq
