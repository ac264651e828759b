#include "turboquant/cache/append_tables.h"

#include <algorithm>

#include "turboquant/codec/fragment_layout.h"
#include "turboquant/codec/group_scales.h"

namespace tq {
namespace {

AppendSide MakeSide(const Codec& codec, ValueType row_type, const CodebookTable* calibrated,
                    const Rotation& rotation, int head_dim) {
  AppendSide side;
  side.bits = codec.bits;
  side.row_type = row_type == ValueType::kInt    ? AppendRowType::kInt8
                  : row_type == ValueType::kF16  ? AppendRowType::kF16
                  : row_type == ValueType::kBF16 ? AppendRowType::kBF16
                                                 : AppendRowType::kFP8;
  side.rotated = codec.rotate == Rotate::kNone ? 0 : 1;
  if (side.rotated != 0) PackSigns(rotation, side.signs);
  if (codec.is_float()) {
    side.kind = AppendKind::kFloat;
    return side;
  }
  if (codec.is_grouped()) {
    side.kind = AppendKind::kGroup;
    side.group_len = std::min(GroupLen(codec, head_dim), head_dim);
    side.num_groups = NumGroups(codec, head_dim);
    side.log8 = codec.scale == ScaleType::kLog8 ? 1 : 0;
    side.affine = codec.zero == Zero::kAffine ? 1 : 0;
    side.level_step = static_cast<float>(LevelStep(codec));
    side.top_level = static_cast<float>(LargestLevel(codec));
  }
  if (codec.bits == 8) {
    if (side.kind == AppendKind::kBook) side.kind = AppendKind::kInt8;
    return side;
  }
  side.in_place = IsInPlaceCodec(codec) ? 1 : 0;
  side.gain = codec.gain == Gain::kNone   ? AppendGain::kNone
              : codec.gain == Gain::kNorm ? AppendGain::kNorm
                                          : AppendGain::kUnbiased;
  const CodebookTable& book = BookOf(codec, calibrated);
  side.unit = book.unit;
  side.num_levels = book.num_levels;
  std::copy_n(book.thresholds, book.num_levels - 1, side.thresholds);
  std::copy_n(book.levels, book.num_levels, side.levels);
  return side;
}

// CenterTable::Subtract, channel by channel.
void AddCenter(const HeadCenter& center, const CenterTable& table, int head_dim,
               std::vector<AppendCenter>* centers) {
  const size_t first = centers->size();
  centers->resize(first + static_cast<size_t>(head_dim));
  for (const HeadCenter::Pair& p : center.pairs) {
    const auto slot = static_cast<int32_t>(table.Slot(p.freq));
    (*centers)[first + static_cast<size_t>(p.i)] = {p.mu_i, -p.mu_j, slot};
    if (p.j != p.i) (*centers)[first + static_cast<size_t>(p.j)] = {p.mu_j, p.mu_i, slot};
  }
}

}  // namespace

bool CanAppend(const HeadFormat& format, RecentType recent) {
  const auto fits = [&](const Codec& codec) {
    if (!IsDeviceCodec(codec) || (!codec.is_float() && recent != RecentType::kQ8)) return false;
    return format.anchors == 0 ||
           (codec.bits < 8 && !codec.is_grouped() && codec.gain != Gain::kNone);
  };
  return fits(format.k) && fits(format.v);
}

AppendTables MakeAppendTables(const DeviceCache& cache) {
  const CacheConfig& config = cache.config();
  const CenterTable table(config.rope);
  AppendTables tables;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int h = 0; h < config.num_kv_heads; ++h) {
      const KvCache::HeadLayout& l = cache.layout(layer, h);
      const DeviceCache::HeadView view = cache.head(layer, h);
      AppendHead head;
      head.open_offset = static_cast<uint32_t>(view.open_offset);
      head.record_offset = static_cast<uint32_t>(view.record_offset);
      head.side_offset = static_cast<uint32_t>(view.side_offset);
      AppendSide& k = head.sides[0];
      AppendSide& v = head.sides[1];
      k = MakeSide(l.format.k, l.open.k_type, &l.k_book, l.k_rotation, config.head_dim);
      v = MakeSide(l.format.v, l.open.v_type, &l.v_book, l.v_rotation, config.head_dim);
      k.open_values = static_cast<uint32_t>(l.open.k_values);
      k.open_scales = static_cast<uint32_t>(l.open.k_scales);
      k.codes = static_cast<uint32_t>(l.record.k_codes);
      k.scales = static_cast<uint32_t>(l.record.k_scales);
      k.anchors = static_cast<uint32_t>(l.record.k_anchors);
      v.open_values = static_cast<uint32_t>(l.open.v_values);
      v.open_scales = static_cast<uint32_t>(l.open.v_scales);
      v.codes = static_cast<uint32_t>(l.record.v_codes);
      v.scales = static_cast<uint32_t>(l.record.v_scales);
      v.anchors = static_cast<uint32_t>(l.record.v_anchors);
      if (!l.center.empty()) {
        head.center =
            static_cast<int32_t>(tables.centers.size() / static_cast<size_t>(config.head_dim));
        AddCenter(l.center, table, config.head_dim, &tables.centers);
      }
      head.anchors = l.format.anchors;
      head.anchor_bits = l.format.anchor_bits;
      if (l.format.anchors > 0) {
        const AnchorScorer& s = l.scorer;
        const auto n = static_cast<size_t>(s.num_scored());
        head.num_probes = s.num_scored();
        head.first_probe = static_cast<int32_t>(tables.probes.size());
        head.error_weight = s.query_rms() * s.query_rms() / static_cast<float>(config.head_dim);
        const std::span<const float> probes =
            s.probes().first(n * static_cast<size_t>(config.head_dim));
        tables.probes.insert(tables.probes.end(), probes.begin(), probes.end());
        tables.probes.insert(tables.probes.end(), s.offsets().begin(),
                             s.offsets().begin() + s.num_scored());
      }
      tables.heads.push_back(head);
    }
  }
  return tables;
}

}  // namespace tq
