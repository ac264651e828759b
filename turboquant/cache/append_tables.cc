#include "turboquant/cache/append_tables.h"

#include <algorithm>

#include "turboquant/codec/fragment_layout.h"

namespace tq {
namespace {

AppendSide MakeSide(const Codec& codec, const CodebookTable* calibrated, const Rotation& rotation) {
  AppendSide side;
  side.bits = codec.bits;
  side.in_place = IsInPlaceCodec(codec) ? 1 : 0;
  side.unbiased = codec.gain == Gain::kUnbiased ? 1 : 0;
  const CodebookTable& book = BookOf(codec, calibrated);
  side.num_levels = book.num_levels;
  std::copy_n(book.thresholds, book.num_levels - 1, side.thresholds);
  std::copy_n(book.levels, book.num_levels, side.levels);
  PackSigns(rotation, side.signs);
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

bool CanAppend(const Codec& codec) {
  return IsDeviceCodec(codec) && codec.gain != Gain::kNone;
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
      k = MakeSide(l.format.k, &l.k_book, l.k_rotation);
      v = MakeSide(l.format.v, &l.v_book, l.v_rotation);
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
