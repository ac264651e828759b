#include "turboquant/attention/device_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numbers>
#include <optional>

#include "turboquant/codec/fp8.h"
#include "turboquant/codec/fragment_layout.h"
#include "turboquant/codec/group_scales.h"
#include "turboquant/codec/log8.h"

namespace tq {
namespace {

// The limit of every integer sum: a float keeps it exactly beside 1.5 x 2^23.
constexpr float kSumLimit = 4194303.f;
constexpr int kWideOffset = 64;  // of 4-bit levels, see decode_cuda.cu

DecodeCodes KindOf(ValueType type) {
  switch (type) {
    case ValueType::kInt: break;
    case ValueType::kF16: return DecodeCodes::kF16;
    case ValueType::kBF16: return DecodeCodes::kBF16;
    case ValueType::kFP8: return DecodeCodes::kFP8;
  }
  return DecodeCodes::kInt8;
}

DecodeCodes KindOf(const Codec& codec) {
  if (codec.is_float() || codec.bits == 8) return KindOf(codec.type);
  if (IsInPlaceCodec(codec)) return DecodeCodes::kInPlace2;
  return codec.bits == 2   ? DecodeCodes::kTable2
         : codec.bits == 3 ? DecodeCodes::kTable3
                           : DecodeCodes::kTable4;
}

struct Levels {
  DecodeTable table;
  float top = 0;     // largest |number| that is multiplied
  float offset = 0;  // of a digit in a sum
};

Levels LevelsOf(const Codec& codec, const CodebookTable* calibrated) {
  Levels out;
  if (codec.bits >= 8) {  // no table
    out.top = 127;
    return out;
  }
  if (IsInPlaceCodec(codec)) {
    out.top = 12;  // code 3 in bits 2 and 3
    return out;
  }
  const CodebookTable& book = BookOf(codec, calibrated);
  const bool wide = codec.bits == 4;
  const int offset = wide ? kWideOffset : 0;
  for (int i = 0; i < 16; ++i) {
    const int level = book.levels[i % book.num_levels] + offset;
    out.table.words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(level)) << (i % 4 * 8);
    out.top = std::max(out.top, std::fabs(static_cast<float>(level)));
  }
  out.offset = static_cast<float>(offset);
  return out;
}

// Formats that the plain kernels read.
bool IsPlain(const Codec& codec) {
  return codec.type == ValueType::kInt && codec.bits <= 4 && !codec.is_grouped() &&
         codec.rotate == Rotate::kHadamard;
}
bool IsPlain(const HeadFormat& format, const OpenLayout& open) {
  return IsPlain(format.k) && IsPlain(format.v) && open.k_type == ValueType::kInt &&
         open.v_type == ValueType::kInt;
}

// Scales of 8-bit codes and of groups; none for what the plain kernels multiply, and for floats.
DecodeGroups GroupsOf(const Codec& codec, int head_dim, float bias) {
  DecodeGroups g;
  if (codec.is_float() || (codec.bits < 8 && !codec.is_grouped())) return g;
  g.len = std::min(GroupLen(codec, head_dim), head_dim);
  g.log_len = std::countr_zero(static_cast<unsigned>(g.len));
  g.log_count = std::countr_zero(static_cast<unsigned>(NumGroups(codec, head_dim)));
  g.log8 = codec.scale == ScaleType::kLog8 ? 1 : 0;
  g.affine = codec.zero == Zero::kAffine ? 1 : 0;
  g.eighth = static_cast<float>(LevelStep(codec)) / 8.f;
  g.bias = bias;
  return g;
}

DecodeHead MakeHead(const DeviceCache& cache, int layer, int head) {
  const KvCache::HeadLayout& l = cache.layout(layer, head);
  const DeviceCache::HeadView view = cache.head(layer, head);
  DecodeHead h;
  h.k_scales = static_cast<uint32_t>(l.record.k_scales);
  h.v_scales = static_cast<uint32_t>(l.record.v_scales);
  h.v_codes = static_cast<uint32_t>(l.record.v_codes);
  h.open_offset = static_cast<uint32_t>(view.open_offset);
  h.open_k_scales = static_cast<uint32_t>(l.open.k_scales);
  h.open_v_values = static_cast<uint32_t>(l.open.v_values);
  h.open_v_scales = static_cast<uint32_t>(l.open.v_scales);
  h.k_kind = KindOf(l.format.k);
  h.v_kind = KindOf(l.format.v);
  const Levels k = LevelsOf(l.format.k, &l.k_book), v = LevelsOf(l.format.v, &l.v_book);
  h.k_table = k.table;
  h.v_table = v.table;
  h.k_top = k.top;
  const bool k_in_place = h.k_kind == DecodeCodes::kInPlace2;
  const bool v_in_place = h.v_kind == DecodeCodes::kInPlace2;
  // In place, 4 x (sum of codes x digits) is summed; level = 2 code - 3.
  h.k_offset = k_in_place ? 6.f : k.offset;
  h.v_offset = v_in_place ? 1.5f : v.offset;
  const float per_digit = static_cast<float>(kPageLen) * v.top;
  h.p_limit = std::min(65000.f, std::floor(kSumLimit / per_digit) - 1);
  h.p_unit = 1.f / h.p_limit / (v_in_place ? 2.f : 1.f);
  h.k_open = KindOf(l.open.k_type);
  h.v_open = KindOf(l.open.v_type);
  h.k_groups = GroupsOf(l.format.k, cache.config().head_dim, k.offset);
  h.v_groups = GroupsOf(l.format.v, cache.config().head_dim, v.offset);
  h.k_rotated = l.format.k.rotate == Rotate::kNone ? 0 : 1;
  h.v_rotated = l.format.v.rotate == Rotate::kNone ? 0 : 1;
  if (IsFloat(h.v_kind) || h.v_groups.len > 0) {  // weights have no digits, or those of a group
    h.v_offset = 0;
    h.p_unit = h.v_kind == DecodeCodes::kFP8 ? kFP8ToHalf : 1.f;
  }
  h.k_anchors = static_cast<uint32_t>(l.record.k_anchors);
  h.v_anchors = static_cast<uint32_t>(l.record.v_anchors);
  h.num_anchors = l.format.anchors;
  h.anchor_bits = l.format.anchor_bits;
  if (h.k_rotated != 0) PackSigns(l.k_rotation, h.k_signs);
  if (h.v_rotated != 0) PackSigns(l.v_rotation, h.v_signs);
  return h;
}

DecodeCenter MakeCenter(const HeadCenter& center, const RopeFrequencies& rope,
                        const CenterTable& table) {
  DecodeCenter out;
  for (size_t p = 0; p < center.pairs.size(); ++p) {
    const HeadCenter::Pair& pair = center.pairs[p];
    out.i[p] = pair.i;
    out.j[p] = pair.j;
    const float scale = pair.freq < 0 ? 1.f : rope.attention_scale;
    out.mu_i[p] = scale * pair.mu_i;
    out.mu_j[p] = pair.j == pair.i ? 0.f : scale * pair.mu_j;  // a channel without a partner
    if (pair.freq >= 0) {
      const double turns = static_cast<double>(rope.inv_freq[static_cast<size_t>(pair.freq)]) *
                           kPageLen / (2 * std::numbers::pi);
      out.turns[p] = static_cast<uint32_t>(std::llround((turns - std::floor(turns)) * 4294967296.));
    }
    for (int token = 0; token < kPageLen; ++token) {
      for (const bool sine : {false, true}) {
        const float value =
            (sine ? table.SinOffsets(pair.freq) : table.CosOffsets(pair.freq))[token];
        const int digit = static_cast<int>(std::nearbyint(value * kCenterDigit));
        const auto low = static_cast<int8_t>(digit & 0xff);
        const FragmentSlot at =
            FragmentOf(Side::kK, 32, token, 2 * static_cast<int>(p) + (sine ? 1 : 0));
        auto& fragment = out.digits[token / 16];
        fragment[0][at.lane][at.reg % 4][at.byte] = static_cast<int8_t>((digit - low) / 256);
        fragment[1][at.lane][at.reg % 4][at.byte] = low;
      }
    }
  }
  return out;
}

DecodeHeadIndex MakeIndex(const DeviceCache& cache, int layer, int head,
                          const DecodeHeadIndex* before) {
  const KvCache::HeadLayout& l = cache.layout(layer, head);
  DecodeHeadIndex i;
  i.record_offset = static_cast<uint32_t>(cache.head(layer, head).record_offset);
  i.record_bytes = static_cast<uint32_t>(l.record.bytes);
  i.v_codes = static_cast<uint32_t>(l.record.v_codes);
  i.side_offset = static_cast<uint32_t>(cache.head(layer, head).side_offset);
  i.side_bytes = static_cast<uint32_t>(RoundUp(SideInfoBytes(l.format), kDeviceSideAlign));
  static_assert(sizeof(RecordSideInfo) + kMaxAnchors * sizeof(AnchorInfo) <= kSideBytes);
  i.sealed_cost = i.record_bytes / 64;
  // Open rows are read without a ring and take longer than their bytes say. Measured: 3/4 of this
  // is 6 % slower with one sequence of 32 KV heads.
  i.open_cost = static_cast<uint32_t>(l.open.bytes / 2 / 64 * 3 / 2);
  if (before != nullptr) {
    i.sealed_before = before->sealed_before + before->sealed_cost;
    i.open_before = before->open_before + before->open_cost;
  }
  return i;
}

}  // namespace

Status CheckDeviceFormat(const HeadFormat& format, int head_dim, RecentType recent) {
  if (IsDeviceCodec(format.k) && IsDeviceCodec(format.v) &&
      (head_dim == 64 || head_dim == 128 || head_dim == 256)) {
    return OkStatus();
  }
  return Unsupported("cuda decode attention: ", PresetName(format), " at head_dim ", head_dim,
                     recent == RecentType::kQ8 ? "" : " with a 16-bit window",
                     "; supported: ", kDeviceFormats,
                     ", with centre and anchors, head_dim 64, 128 and 256");
}

Result<std::unique_ptr<DeviceAttention>> DeviceAttention::Create(
    const DeviceCache& cache, const DeviceAttentionConfig& config, const DeviceStream& stream) {
  const CacheConfig& c = cache.config();
  if (config.num_q_heads <= 0 || config.num_q_heads % c.num_kv_heads != 0) {
    return InvalidArgument("cuda decode attention: ", config.num_q_heads,
                           " query heads are not a multiple of ", c.num_kv_heads, " KV heads");
  }
  if (config.num_tokens < 1 || config.num_tokens > 8 || config.max_batch < 1) {
    return InvalidArgument("cuda decode attention: ", config.num_tokens, " queries of each of ",
                           config.max_batch, " sequences; 1 to 8 queries and at least 1 sequence");
  }
  if (config.num_tokens > std::max(1, c.rollback_len)) {
    return InvalidArgument(
        "cuda decode attention: ", config.num_tokens,
        " queries of a sequence read blocks that a cache with rollback_len = ", c.rollback_len,
        " no longer holds open; at most ", std::max(1, c.rollback_len), " queries");
  }
  const int group = config.num_q_heads / c.num_kv_heads;
  const int rows = config.num_tokens * group;
  const bool skips = config.v_skip > 0;
  if (!(config.v_skip >= 0 && config.v_skip < 1)) {
    return InvalidArgument("cuda decode attention: v_skip = ", config.v_skip,
                           "; it must be 0 (off) to below 1");
  }
  if (skips && rows > kMaxSkipRows) {
    return Unsupported("cuda decode attention: skipping of V with ", config.num_tokens,
                       " queries x ", group, " heads of a KV head; at most ", kMaxSkipRows,
                       " are supported, or v_skip = 0");
  }
  std::unique_ptr<DeviceAttention> a(new DeviceAttention);
  a->cache_ = &cache;
  a->config_ = config;
  std::vector<DecodeHead> heads;
  std::vector<DecodeHeadIndex> index;
  std::vector<DecodeCenter> centers;
  const CenterTable table(c.rope);
  uint32_t largest_record = 0;
  std::optional<HeadFormat> wide;  // one that the plain kernels do not read
  for (int layer = 0; layer < c.num_layers; ++layer) {
    Layer costs;
    for (int h = 0; h < c.num_kv_heads; ++h) {
      const Status fits = CheckDeviceFormat(cache.layout(layer, h).format, c.head_dim, c.recent);
      TQ_RETURN_IF_ERROR(fits.WithContext(StrCat("layer ", layer, ", KV head ", h)));
      heads.push_back(MakeHead(cache, layer, h));
      if (!IsPlain(cache.layout(layer, h).format, cache.layout(layer, h).open)) {
        wide = cache.layout(layer, h).format;
      }
      const HeadCenter& center = cache.layout(layer, h).center;
      if (center.pairs.size() > kDecodePairs) {
        return Unsupported("cuda decode attention: layer ", layer, ", KV head ", h,
                           ": a centre of ", center.pairs.size(), " pairs; at most ", kDecodePairs,
                           " are supported");
      }
      if (!center.empty()) {
        heads.back().center = static_cast<int32_t>(centers.size());
        centers.push_back(MakeCenter(center, c.rope, table));
      }
      index.push_back(MakeIndex(cache, layer, h, h > 0 ? &index.back() : nullptr));
      index.back().center = heads.back().center;
      const DecodeHeadIndex& i = index.back();
      const DecodeHeadIndex& first = index[index.size() - 1 - static_cast<size_t>(h)];
      costs.even_heads &= i.sealed_cost == first.sealed_cost && i.open_cost == first.open_cost;
      costs.sealed_cost += i.sealed_cost;
      costs.open_cost += i.open_cost;
      largest_record = std::max(largest_record, i.record_bytes);
      // A few warps of a thread block have at least a page; and no range is shorter than an item.
      costs.min_range_cost = std::max<int64_t>(
          {costs.min_range_cost, kFewDecodeWarps * i.sealed_cost, 2 * i.open_cost});
    }
    a->layers_.push_back(costs);
  }
  if (wide && skips) {
    return Unsupported(
        "cuda decode attention: skipping of V in a cache with ", PresetName(*wide),
        "; supported: k<a>v<b> with a and b in 2, 3, 4 and an 8-bit window in all heads, or v_skip "
        "= 0");
  }
  a->variant_ = wide ? DecodeVariant::kWide : skips ? DecodeVariant::kSkip : DecodeVariant::kPlain;
  a->rows_ = *std::find_if(std::begin(kDecodeRows), std::end(kDecodeRows) - 1,
                           [rows](int at_once) { return rows <= at_once; });
  if (wide) a->rows_ = std::min(a->rows_, kMaxWideRows);
  const int num_row_groups = DivCeil(rows, a->rows_);

  DecodeParams& p = a->params_;
  // A stage also takes the state of a warp.
  p.side_at =
      std::max<uint32_t>(largest_record, static_cast<uint32_t>(a->rows_ * (c.head_dim + 8) * 4));
  const size_t num_units = static_cast<size_t>(config.max_batch) * (config.num_tokens > 1 ? 2 : 1) *
                           c.num_kv_heads * num_row_groups;
  TQ_RETURN_IF_ERROR(PrepareDecodeKernel(c.head_dim, a->rows_, a->variant_, p.side_at,
                                         c.num_kv_heads, !centers.empty(), rows == 1,
                                         static_cast<int64_t>(num_units), &a->kernel_));
  p.center_bytes = a->kernel_.center_bytes;
  p.stage_bytes = a->kernel_.stage_bytes;
  p.center_pages = a->kernel_.center_pages;
  p.inverse_num_blocks = 1. / a->kernel_.num_blocks;
  const size_t num_parts = static_cast<size_t>(a->kernel_.num_blocks) + num_units;
  const size_t arrivals = RoundUp<size_t>(num_units * sizeof(uint32_t), 256);
  const size_t log8 = 256 * sizeof(float);
  const size_t states =
      RoundUp<size_t>(num_parts * a->rows_ * (skips ? 4 : 2) * sizeof(float), 256);
  const size_t outs = num_parts * a->rows_ * c.head_dim * sizeof(float);
  TQ_ASSIGN_OR_RETURN(a->workspace_, DeviceBuffer::Allocate(arrivals + log8 + states + outs));
  TQ_RETURN_IF_ERROR(a->workspace_.Fill(0, stream));
  TQ_RETURN_IF_ERROR(a->workspace_.Upload(Log8Table(), log8, arrivals, stream));
  const size_t head_bytes = heads.size() * sizeof(DecodeHead);
  const size_t index_bytes = index.size() * sizeof(DecodeHeadIndex);
  const size_t centers_at = RoundUp<size_t>(head_bytes + index_bytes, 256);
  const size_t center_bytes = centers.size() * sizeof(DecodeCenter);
  TQ_ASSIGN_OR_RETURN(a->heads_, DeviceBuffer::Allocate(centers_at + center_bytes));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(centers.data(), center_bytes, centers_at, stream));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(heads.data(), head_bytes, 0, stream));
  TQ_RETURN_IF_ERROR(a->heads_.Upload(index.data(), index_bytes, head_bytes, stream));
  a->index_offset_ = head_bytes;
  TQ_RETURN_IF_ERROR(stream.Synchronize());

  std::byte* const base = a->workspace_.data();
  p.centers = reinterpret_cast<const DecodeCenter*>(a->heads_.data() + centers_at);
  p.arrivals = reinterpret_cast<uint32_t*>(base);
  p.log8 = reinterpret_cast<const float*>(base + arrivals);
  p.partial_state = reinterpret_cast<float*>(base + arrivals + log8);
  p.partial_out = reinterpret_cast<float*>(base + arrivals + log8 + states);
  p.sealed_table = cache.sealed_table();
  p.open_table = cache.open_table();
  p.table_stride = static_cast<int32_t>(cache.table_stride());
  p.num_sequences = cache.options().max_sequences;
  p.lengths = cache.lengths();
  p.num_kv_heads = c.num_kv_heads;
  p.sink_blocks = cache.rule().sink_blocks;
  p.recent_blocks = cache.rule().recent_blocks;
  p.num_tokens = config.num_tokens;
  p.group = group;
  p.num_row_groups = num_row_groups;
  p.io = config.io;
  const float log2e = std::numbers::log2e_v<float>;
  p.scale =
      (config.scale > 0 ? config.scale : 1.f / std::sqrt(static_cast<float>(c.head_dim))) * log2e;
  p.softcap = config.softcap * log2e;
  p.sliding_window = config.sliding_window;
  p.v_skip = config.v_skip;
  return a;
}

Status DeviceAttention::Run(int layer, const int32_t* sequences, int batch, const void* q,
                            void* out, const DeviceStream& stream, float* skipped) const {
  const CacheConfig& c = cache_->config();
  if (layer < 0 || layer >= c.num_layers || batch < 1 || batch > config_.max_batch) {
    return InvalidArgument("cuda decode attention: layer ", layer, " of ", c.num_layers,
                           ", batch of ", batch, "; at most ", config_.max_batch);
  }
  if (skipped != nullptr && config_.v_skip == 0) {
    return InvalidArgument(
        "cuda decode attention: v_skip = 0 skips nothing that could be reported");
  }
  const DeviceCache::LayerView view = cache_->layer(layer);
  const Layer& costs = layers_[static_cast<size_t>(layer)];
  DecodeParams p = params_;
  p.sealed = reinterpret_cast<const uint8_t*>(view.sealed);
  p.sides = reinterpret_cast<const uint8_t*>(view.sides);
  p.open = reinterpret_cast<const uint8_t*>(view.open);
  p.sealed_stride = static_cast<uint32_t>(view.sealed_stride);
  p.side_stride = static_cast<uint32_t>(view.side_stride);
  p.open_stride = static_cast<uint32_t>(view.open_stride);
  p.heads = heads_.as<const DecodeHead>() + static_cast<size_t>(layer) * c.num_kv_heads;
  p.head_index = reinterpret_cast<const DecodeHeadIndex*>(heads_.data() + index_offset_) +
                 static_cast<size_t>(layer) * c.num_kv_heads;
  p.sealed_cost = costs.sealed_cost;
  p.open_cost = costs.open_cost;
  p.even_heads = costs.even_heads ? 1 : 0;
  // Measured on an H200: a block that has its multiprocessor for itself loses about the time of two
  // pages of each warp in the midst of its range; where others go on meanwhile it is less.
  const int pages = kernel_.warps_per_block * (kernel_.blocks_per_multiprocessor == 1 ? 2 : 1);
  p.most_longer = static_cast<float>(pages) * static_cast<float>(costs.sealed_cost) /
                  static_cast<float>(c.num_kv_heads);
  // Rounded down, so that no range is shorter.
  p.inverse_min_range_cost = (1.f - 0x1p-20f) / static_cast<float>(costs.min_range_cost);
  p.sequences = sequences;
  p.batch = batch;
  p.q = q;
  p.out = out;
  p.skipped = skipped;
  return LaunchDecodeKernel(c.head_dim, rows_, variant_, p, kernel_, stream.handle());
}

}  // namespace tq
