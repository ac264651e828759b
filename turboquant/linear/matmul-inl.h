// Products of packed weights for the current target: the same bits as matmul_ref.cc. Included once
// for every target, without a guard; with TQ_MATMUL_VNNI for AVX-512 with its dot products.
//
// Lanes are output rows. One row of activations is multiplied while codes are unpacked; for more, a
// panel is unpacked into a tile that stays in cache (WeightTile) and multiplied with kTileRows rows
// at a time. Pair products add up in 32 bits over a block, at most 255 * 32767 * 32 < 2^28.
#include "turboquant/base/hwy_compat-inl.h"

// HWY_BEFORE_NAMESPACE and, for lambdas, HWY_ATTR, with one set more where that is asked for.
#undef TQ_MATMUL_ATTR
#if TQ_MATMUL_VNNI
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#define TQ_MATMUL_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vnni")))
#else
HWY_BEFORE_NAMESPACE();
#define TQ_MATMUL_ATTR HWY_ATTR
#endif
namespace tq {
namespace HWY_NAMESPACE {
namespace {  // two files include this for AVX-512

using DF = hn::CappedTag<float, kPanelRows>;
using DI32 = hn::RebindToSigned<DF>;
using DI16 = hn::Repartition<int16_t, DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI32 = hn::Vec<DI32>;
using VI16 = hn::Vec<DI16>;
using VU16 = hn::Vec<DU16>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kPanelVecs = kPanelRows / kLanes;
constexpr int kVecs = kPanelVecs < 2 ? kPanelVecs : 2;  // of a panel that are summed together
// Rows of activations that are multiplied together: what the registers hold.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 4;
constexpr int kPairs = kBlockLen / 2;

HWY_INLINE VF LoadF16(const uint8_t* p) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE VF LoadU8(const uint8_t* p) {
  const hn::Rebind<uint8_t, DI32> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI32(), hn::LoadU(d8, p)));
}
HWY_INLINE VF LoadI8(const uint8_t* p) {
  const hn::Rebind<int8_t, DI32> d8;
  return hn::ConvertTo(DF(),
                       hn::PromoteTo(DI32(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}

// Float4Scale of each.
HWY_INLINE VF LoadFloat4Scale(const uint8_t* p) {
  const hn::Rebind<uint8_t, DI32> d8;
  const VI32 bits = hn::ShiftLeft<23>(hn::PromoteTo(DI32(), hn::LoadU(d8, p)));
  const VI32 least = hn::Set(DI32(), 0x00400000);
  return hn::Mul(hn::BitCast(DF(), hn::Max(bits, least)), hn::Set(DF(), 0.5f));
}

// Ranks of 4-bit floats in 16-bit numbers become levels, 12 added. Rank 0 has level 0 then, so that
// the upper bytes, which are 0, stay so.
HWY_INLINE VU16 Float4Levels(VU16 ranks) {
  static_assert(kFloat4Levels[0] == -12);
  HWY_ALIGN static constexpr uint8_t kTable[16] = {0,  4,  6,  8,  9,  10, 11, 12,
                                                   12, 13, 14, 15, 16, 18, 20, 24};
  const hn::Repartition<uint8_t, DU16> d8;
  const auto table = hn::LoadDup128(d8, kTable);
  return hn::BitCast(DU16(), hn::TableLookupBytes(table, hn::BitCast(d8, ranks)));
}

// Two activation codes in every 32-bit lane.
HWY_INLINE VI16 BroadcastPair(const int16_t* a) {
  int32_t pair;
  std::memcpy(&pair, a, sizeof pair);
  return hn::BitCast(DI16(), hn::Set(DI32(), pair));
}

// acc + products of adjacent 16-bit numbers.
HWY_INLINE VI32 AddDots(VI16 a, VI16 b, VI32 acc) {
#if TQ_MATMUL_VNNI
  return VI32{_mm512_dpwssd_epi32(acc.raw, a.raw, b.raw)};
#else
  return MulAddPairs(DI32(), a, b, acc);
#endif
}

// Where the parts of 32 inputs lie, for the lanes of a panel from `lane` on.
template <WeightType kType>
struct Part {
  static constexpr WeightLayout kLayout = LayoutOf(kType);
  static constexpr int kGroups = kBlockLen / kLayout.group_len;
  static constexpr int kParts = kLayout.block_len / kBlockLen;
  static constexpr int kGroupPairs = kLayout.group_len / 2;
  static constexpr int kOffset = kLayout.offset;
  static constexpr bool kHasMin = kLayout.has_min;
  static constexpr bool kBothInOneByte = kLayout.has_min && kLayout.scale_bytes == 1;

  const uint8_t* part;
  VF d, m;  // of the block

  Part() = default;
  // Part `index` of a panel.
  HWY_INLINE Part(const uint8_t* panel, int64_t index, int lane) {
    const uint8_t* block = panel + index / kParts * PackedBlockBytes(kType);
    part = block + PackedHeaderBytes(kLayout) + index % kParts * PackedPartBytes(kLayout);
    d = kLayout.is_float4 ? LoadFloat4Scale(block + lane) : LoadF16(block + 2 * lane);
    m = d;
    if constexpr (kLayout.has_min) m = LoadF16(block + 2 * (kPanelRows + lane));
  }

  HWY_INLINE VF Scale(int group, int lane) const {
    const uint8_t* p = part + group * kPanelRows + lane;
    if constexpr (kLayout.scale_bytes == 0) {
      return d;
    } else if constexpr (kBothInOneByte) {
      const hn::Rebind<uint8_t, DI32> d8;
      const auto both = hn::PromoteTo(DI32(), hn::LoadU(d8, p));
      return hn::Mul(d, hn::ConvertTo(DF(), hn::And(both, hn::Set(DI32(), 15))));
    } else {
      return hn::Mul(d, LoadI8(p));
    }
  }

  HWY_INLINE VF Minimum(int group, int lane) const {
    const uint8_t* p = part + group * kPanelRows + lane;
    if constexpr (kLayout.scale_bytes == 0) {
      return m;
    } else if constexpr (kBothInOneByte) {
      const hn::Rebind<uint8_t, DI32> d8;
      const auto both = hn::PromoteTo(DI32(), hn::LoadU(d8, p));
      return hn::Neg(hn::Mul(m, hn::ConvertTo(DF(), hn::ShiftRight<4>(both))));
    } else {
      return hn::Neg(hn::Mul(m, LoadU8(p + kGroups * kPanelRows)));
    }
  }

  // Field `kPair` of a plane of kBits a code, at bit kTo of the result.
  template <int kBits, int kPair, int kTo>
  static HWY_INLINE VU16 Field(const uint8_t* plane, int lane) {
    constexpr int kFields = 16 / kBits, kField = kPair % kFields;
    const auto* at =
        reinterpret_cast<const uint16_t*>(plane + (kPair / kFields * kPanelRows + lane) * 4);
    const VU16 chunk = hn::LoadU(DU16(), at);
    constexpr int kRight = kField * kBits - kTo;
    if constexpr (kTo == 0 && kField == kFields - 1) {
      return hn::ShiftRight<kRight>(chunk);
    } else {
      const VU16 mask = hn::Set(DU16(), static_cast<uint16_t>(((1 << kBits) - 1) << kTo));
      if constexpr (kRight > 0) {
        return hn::And(hn::ShiftRight<kRight>(chunk), mask);
      } else {
        return hn::And(hn::ShiftLeft<-kRight>(chunk), mask);
      }
    }
  }

  // Codes of inputs 2 kPair and 2 kPair + 1, offset not taken off.
  template <int kPair>
  HWY_INLINE VI16 Codes(int lane) const {
    const uint8_t* low = part + PackedScaleBytes(kLayout);
    VU16 codes = Field<kLayout.low_bits, kPair, 0>(low, lane);
    if constexpr (kLayout.high_bits > 0) {
      const uint8_t* high = low + PackedCodeBytes(kLayout.low_bits);
      codes = hn::Or(codes, Field<kLayout.high_bits, kPair, kLayout.low_bits>(high, lane));
    }
    if constexpr (kLayout.is_float4) codes = Float4Levels(codes);
    return hn::BitCast(DI16(), codes);
  }

  // All codes, offset taken off, into a tile.
  template <int... kI>
  HWY_INLINE void Unpack(std::integer_sequence<int, kI...>, int lane, int16_t* to) const {
    const VI16 offset = hn::Set(DI16(), static_cast<int16_t>(kOffset));
    (hn::Store(kOffset == 0 ? Codes<kI>(lane) : hn::Sub(Codes<kI>(lane), offset), DI16(),
               to + (kI * kPanelRows + lane) * 2),
     ...);
  }
};

HWY_INLINE int RowsOfPanel(const PackedMatrix& w, int64_t p) {
  return static_cast<int>(std::min<int64_t>(kPanelRows, w.out_dim() - p * kPanelRows));
}

// Stores the lanes of a panel that exist.
HWY_INLINE void StoreLanes(VF values, int lane, int lanes, float* HWY_RESTRICT y) {
  if (lane + kLanes <= lanes) {
    hn::StoreU(values, DF(), y + lane);
  } else if (lane < lanes) {
    HWY_ALIGN float tail[kLanes];
    hn::Store(values, DF(), tail);
    std::copy(tail, tail + (lanes - lane), y + lane);
  }
}

// sums[i] += codes of part i times activations, for pairs kFirst, kFirst + 1, ... Odd pairs add up
// apart, so that one addition need not wait for the last.
template <int kFirst, class P, int... kI>
HWY_INLINE void AddPairs(std::integer_sequence<int, kI...>, const P (&parts)[kVecs], int first_lane,
                         const int16_t* HWY_RESTRICT a, VI32 (&sums)[kVecs]) {
  VI32 odd[kVecs];
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) odd[v] = hn::Zero(DI32());
  const auto add = [&](const auto pair) TQ_MATMUL_ATTR {
    constexpr int kPair = decltype(pair)::value;
    const VI16 two = BroadcastPair(a + 2 * kPair);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const VI16 codes = parts[v].template Codes<kPair>(first_lane + v * kLanes);
      VI32& sum = kPair % 2 == 0 ? sums[v] : odd[v];
      sum = AddDots(codes, two, sum);
    }
  };
  (add(std::integral_constant<int, kFirst + kI>()), ...);
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) sums[v] = hn::Add(sums[v], odd[v]);
}

// One row of activations times a panel. (Two panels at once would be two short streams of memory
// for one long: slower.)
template <WeightType kType>
void BlockRow(const uint8_t* HWY_RESTRICT panel, const QuantizedRows& q, int row, int rows_of_panel,
              float* HWY_RESTRICT y) {
  using P = Part<kType>;
  using Pairs = std::make_integer_sequence<int, P::kGroupPairs>;
  const int64_t first = row * q.num_blocks;
  for (int first_lane = 0; first_lane < kPanelRows; first_lane += kVecs * kLanes) {
    const int16_t* HWY_RESTRICT a = q.codes.data() + first * kBlockLen;
    const float* HWY_RESTRICT scales = q.scales.data() + first;
    const int32_t* HWY_RESTRICT a_sums = q.sums.data() + 2 * first;
    VF acc[kVecs];
    for (int v = 0; v < kVecs; ++v) acc[v] = hn::Zero(DF());
    for (int64_t b = 0; b < q.num_blocks; ++b, a += kBlockLen, a_sums += 2) {
      P parts[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) parts[v] = P(panel, b, first_lane + v * kLanes);
#pragma GCC unroll 2
      for (int g = 0; g < P::kGroups; ++g) {
        const int32_t a_sum = P::kGroups == 1 ? a_sums[0] + a_sums[1] : a_sums[g];
        VI32 sums[kVecs];
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sums[v] = hn::Set(DI32(), -P::kOffset * a_sum);
        if (g == 0) {
          AddPairs<0>(Pairs(), parts, first_lane, a, sums);
        } else {
          AddPairs<kPairs - P::kGroupPairs>(Pairs(), parts, first_lane, a, sums);
        }
        const VF a_scale = hn::Set(DF(), scales[b]);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const int lane = first_lane + v * kLanes;
          const VF scale = hn::Mul(parts[v].Scale(g, lane), a_scale);
          acc[v] = hn::Add(acc[v], hn::Mul(scale, hn::ConvertTo(DF(), sums[v])));
          if constexpr (P::kHasMin) {
            const float a_scaled =
                P::kGroups == 1 ? q.scaled_sums[first + b] : scales[b] * static_cast<float>(a_sum);
            const VF minimum = parts[v].Minimum(g, lane);
            acc[v] = hn::Add(acc[v], hn::Mul(minimum, hn::Set(DF(), a_scaled)));
          }
        }
      }
    }
    for (int v = 0; v < kVecs; ++v) {
      StoreLanes(acc[v], first_lane + v * kLanes, rows_of_panel, y);
    }
  }
}

// Blocks first_block .. first_block + num_blocks - 1 of a panel.
template <WeightType kType>
void UnpackBlocks(const uint8_t* HWY_RESTRICT panel, int64_t first_block, int num_blocks,
                  WeightTile* HWY_RESTRICT tile) {
  using P = Part<kType>;
  for (int b = 0; b < num_blocks; ++b) {
    for (int lane = 0; lane < kPanelRows; lane += kLanes) {
      const P part(panel, first_block + b, lane);
      part.Unpack(std::make_integer_sequence<int, kPairs>(), lane,
                  tile->codes + b * kBlockLen * kPanelRows);
      for (int g = 0; g < P::kGroups; ++g) {
        const int at = (b * P::kGroups + g) * kPanelRows + lane;
        hn::Store(part.Scale(g, lane), DF(), tile->scales + at);
        if constexpr (P::kHasMin) hn::Store(part.Minimum(g, lane), DF(), tile->mins + at);
      }
    }
  }
}

// Sums of kRows rows [16 values each], lanes first_lane ... of them.
template <int kRows>
HWY_INLINE void LoadSums(const float* HWY_RESTRICT y, VF (&acc)[kRows][kVecs]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Load(DF(), y + r * kPanelRows + v * kLanes);
  }
}
template <int kRows>
HWY_INLINE void StoreSums(const VF (&acc)[kRows][kVecs], float* HWY_RESTRICT y) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) hn::Store(acc[r][v], DF(), y + r * kPanelRows + v * kLanes);
  }
}

// Keeps the compiler from computing many products ahead of their additions: it would run out of
// registers. (AVX-512 has enough of them, and is faster without.)
template <class V>
HWY_INLINE void KeepInRegister([[maybe_unused]] V& v) {
#if HWY_TARGET == HWY_AVX2
  asm("" : "+x"(v.raw));
#endif
}

// sums = products of a group of inputs with kRows rows, `a_stride` codes apart.
template <int kGroups, int kRows>
HWY_INLINE void GroupSums(const int16_t* HWY_RESTRICT codes, const int16_t* HWY_RESTRICT a,
                          int64_t a_stride, VI32 (&sums)[kRows][kVecs]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sums[r][v] = hn::Zero(DI32());
  }
  for (int pair = 0; pair < kPairs / kGroups; ++pair, a += 2, codes += 2 * kPanelRows) {
    VI16 w[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) w[v] = hn::Load(DI16(), codes + 2 * v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const VI16 two = BroadcastPair(a + r * a_stride);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v] = AddDots(w[v], two, sums[r][v]);
        KeepInRegister(sums[r][v]);
      }
    }
  }
}

// y [kRows][16] += the tile's blocks, the first of which is first_block of the activations.
template <int kGroups, bool kHasMin, int kRows>
void TileTimesRows(const WeightTile& tile, int num_blocks, const QuantizedRows& q, int row,
                   int64_t first_block, float* HWY_RESTRICT y) {
  for (int first_lane = 0; first_lane < kPanelRows; first_lane += kVecs * kLanes) {
    const int64_t at = row * q.num_blocks + first_block;
    const int16_t* HWY_RESTRICT codes = tile.codes + 2 * first_lane;
    const float* HWY_RESTRICT scales = tile.scales + first_lane;
    const float* HWY_RESTRICT mins = tile.mins + first_lane;
    VF acc[kRows][kVecs];
    LoadSums<kRows>(y + first_lane, acc);
    for (int b = 0; b < num_blocks; ++b) {
      for (int g = 0; g < kGroups; ++g) {
        const int first_input = b * kBlockLen + g * kBlockLen / kGroups;
        VI32 sums[kRows][kVecs];
        GroupSums<kGroups, kRows>(codes + first_input * kPanelRows,
                                  q.codes.data() + at * kBlockLen + first_input,
                                  q.num_blocks * kBlockLen, sums);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const int64_t a_block = at + r * q.num_blocks + b;
          const VF a_scale = hn::Set(DF(), q.scales[a_block]);
          VF a_sum = a_scale;
          if constexpr (kHasMin) {
            a_sum = hn::Set(DF(), kGroups == 1 ? q.scaled_sums[a_block]
                                               : q.scales[a_block] *
                                                     static_cast<float>(q.sums[2 * a_block + g]));
          }
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            const VF scale = hn::Mul(hn::Load(DF(), scales + v * kLanes), a_scale);
            acc[r][v] = hn::Add(acc[r][v], hn::Mul(scale, hn::ConvertTo(DF(), sums[r][v])));
            if constexpr (kHasMin) {
              const VF minimum = hn::Load(DF(), mins + v * kLanes);
              acc[r][v] = hn::Add(acc[r][v], hn::Mul(minimum, a_sum));
            }
          }
        }
        scales += kPanelRows;
        mins += kPanelRows;
      }
    }
    StoreSums<kRows>(acc, y + first_lane);
  }
}

// Input k of a float panel.
template <WeightType kType>
HWY_INLINE VF LoadWeights(const uint8_t* panel, int64_t k, int lane) {
  const int64_t i = k * kPanelRows + lane;
  if constexpr (kType == WeightType::kF32) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(panel) + i);
  } else if constexpr (kType == WeightType::kF16) {
    return LoadF16(panel + 2 * i);
  } else {
    const hn::Rebind<hwy::bfloat16_t, DF> dh;
    return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::bfloat16_t*>(panel) + i));
  }
}

template <WeightType kType>
void FloatRow(const uint8_t* HWY_RESTRICT panel, const float* HWY_RESTRICT x, int64_t in_dim,
              int rows_of_panel, float* HWY_RESTRICT y) {
  VF acc[kPanelVecs];
  for (int v = 0; v < kPanelVecs; ++v) acc[v] = hn::Zero(DF());
  for (int64_t k = 0; k < in_dim; ++k) {
    const VF input = hn::Set(DF(), x[k]);
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVecs; ++v) {
      acc[v] = hn::Add(acc[v], hn::Mul(LoadWeights<kType>(panel, k, v * kLanes), input));
    }
  }
  for (int v = 0; v < kPanelVecs; ++v) StoreLanes(acc[v], v * kLanes, rows_of_panel, y);
}

// y [kRows][16] += the tile's inputs times x [kRows][stride].
template <int kRows>
void FloatTileTimesRows(const WeightTile& tile, int num_inputs, const float* HWY_RESTRICT x,
                        int64_t stride, float* HWY_RESTRICT y) {
  for (int first_lane = 0; first_lane < kPanelRows; first_lane += kVecs * kLanes) {
    const float* HWY_RESTRICT weights = tile.weights + first_lane;
    VF acc[kRows][kVecs];
    LoadSums<kRows>(y + first_lane, acc);
    for (int k = 0; k < num_inputs; ++k, weights += kPanelRows) {
      VF w[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) w[v] = hn::Load(DF(), weights + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const VF input = hn::Set(DF(), x[r * stride + k]);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          acc[r][v] = hn::Add(acc[r][v], hn::Mul(w[v], input));
          KeepInRegister(acc[r][v]);
        }
      }
    }
    StoreSums<kRows>(acc, y + first_lane);
  }
}

// fn with the largest number of rows that registers hold and that are left, until none is.
template <class Fn>
void ForRows(int rows, const Fn& fn) {
  int row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) {
    fn(std::integral_constant<int, kTileRows>(), row);
  }
  if constexpr (kTileRows > 8) {
    if (row + 8 <= rows) {
      fn(std::integral_constant<int, 8>(), row);
      row += 8;
    }
  }
  for (; row + 4 <= rows; row += 4) fn(std::integral_constant<int, 4>(), row);
  for (; row + 2 <= rows; row += 2) fn(std::integral_constant<int, 2>(), row);
  for (; row < rows; ++row) fn(std::integral_constant<int, 1>(), row);
}

// Inputs of a tile so that no tile is short: `inputs` in equal parts of at most `most`.
int64_t TileInputs(int64_t inputs, int64_t most) {
  return DivCeil(inputs, DivCeil(inputs, most));
}

// Rows first .. end - 1 of the activations times panel p.
template <WeightType kType>
void PanelTimesRows(const PanelRange& range, int64_t p, int first, int end) {
  const PackedMatrix& w = *range.weight;
  const auto* panel = reinterpret_cast<const uint8_t*>(w.panel(p));
  const int rows = end - first, rows_of_panel = RowsOfPanel(w, p);
  float* const y = range.y + first * range.y_stride + p * kPanelRows;
  if (rows == 1) {
    if constexpr (IsBlockType(kType)) {
      BlockRow<kType>(panel, *range.quantized, first, rows_of_panel, y);
    } else {
      FloatRow<kType>(panel, range.x + first * w.in_dim(), w.in_dim(), rows_of_panel, y);
    }
    return;
  }
  WeightTile& tile = *range.tile;
  std::fill_n(tile.sums, rows * kPanelRows, 0.0f);
  if constexpr (IsBlockType(kType)) {
    using P = Part<kType>;
    const int64_t blocks = w.in_dim() / kBlockLen;
    const int64_t step = TileInputs(blocks, WeightTile::kBlocks);
    for (int64_t b = 0; b < blocks; b += step) {
      const int count = static_cast<int>(std::min(step, blocks - b));
      UnpackBlocks<kType>(panel, b, count, &tile);
      ForRows(rows, [&](auto n, int row) {
        TileTimesRows<P::kGroups, P::kHasMin, decltype(n)::value>(
            tile, count, *range.quantized, first + row, b, tile.sums + row * kPanelRows);
      });
    }
  } else {
    const int64_t step = TileInputs(w.in_dim(), WeightTile::kFloatInputs);
    for (int64_t k = 0; k < w.in_dim(); k += step) {
      const int count = static_cast<int>(std::min(step, w.in_dim() - k));
      for (int i = 0; i < count; ++i) {
        for (int v = 0; v < kPanelVecs; ++v) {
          hn::Store(LoadWeights<kType>(panel, k + i, v * kLanes), DF(),
                    tile.weights + i * kPanelRows + v * kLanes);
        }
      }
      ForRows(rows, [&](auto n, int row) {
        FloatTileTimesRows<decltype(n)::value>(tile, count,
                                               range.x + (first + row) * w.in_dim() + k, w.in_dim(),
                                               tile.sums + row * kPanelRows);
      });
    }
  }
  for (int r = 0; r < rows; ++r) {
    std::copy_n(tile.sums + r * kPanelRows, rows_of_panel, y + r * range.y_stride);
  }
}

// Rows in equal runs whose activations stay in cache while the panels pass by: a run of a row of
// tiles reads 4 bytes a cycle of them, so that the last-level cache will do.
template <WeightType kType>
void MultiplyType(const PanelRange& range) {
  constexpr int64_t kRunBytes = 1 << 20;
  const int64_t row_bytes = range.weight->in_dim() * (IsBlockType(kType) ? 2 : 4);
  const int64_t most = std::clamp<int64_t>(kRunBytes / row_bytes, 4 * kTileRows, WeightTile::kRows);
  const int64_t rows = range.end_row - range.first_row;
  const int64_t runs = DivCeil(rows, most);
  for (int64_t run = 0; run < runs; ++run) {
    const int first = range.first_row + static_cast<int>(rows * run / runs);
    const int end = range.first_row + static_cast<int>(rows * (run + 1) / runs);
    for (int64_t p = range.first_panel; p < range.end_panel; ++p) {
      PanelTimesRows<kType>(range, p, first, end);
    }
  }
}

void MultiplyPanels(const PanelRange& range) {
  switch (range.weight->type()) {
    case WeightType::kF32: return MultiplyType<WeightType::kF32>(range);
    case WeightType::kF16: return MultiplyType<WeightType::kF16>(range);
    case WeightType::kBF16: return MultiplyType<WeightType::kBF16>(range);
    case WeightType::kQ4_0: return MultiplyType<WeightType::kQ4_0>(range);
    case WeightType::kQ4_1: return MultiplyType<WeightType::kQ4_1>(range);
    case WeightType::kQ5_0: return MultiplyType<WeightType::kQ5_0>(range);
    case WeightType::kQ5_1: return MultiplyType<WeightType::kQ5_1>(range);
    case WeightType::kQ8_0: return MultiplyType<WeightType::kQ8_0>(range);
    case WeightType::kQ2_K: return MultiplyType<WeightType::kQ2_K>(range);
    case WeightType::kQ3_K: return MultiplyType<WeightType::kQ3_K>(range);
    case WeightType::kQ4_K: return MultiplyType<WeightType::kQ4_K>(range);
    case WeightType::kQ5_K: return MultiplyType<WeightType::kQ5_K>(range);
    case WeightType::kQ6_K: return MultiplyType<WeightType::kQ6_K>(range);
    case WeightType::kMXFP4: return MultiplyType<WeightType::kMXFP4>(range);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();
