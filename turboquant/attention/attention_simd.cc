// Attention over one block on vectors.
//
// Codes are unpacked once to bytes (the tile stays in L1) and multiplied with all query rows:
//   K: tile of level + offset (u8) x query digits (s8); V: weight digits (u8) x levels (s8).
// A vector holds 4 consecutive depths for each lane, so a digit quad is one 32-bit broadcast and
// sums need no shuffles. Products are summed in int16 as far as the book allows, then in int32.
#include <cstddef>
#include <cstring>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/codec/log8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/attention/attention_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/base/hwy_compat-inl.h"
#include "turboquant/codec/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kRowsAtOnce = 4;  // accumulators of 4 rows x 2 vectors fit 16 registers

// out[r][lane] = sum over depth of tile x digits, for kRows rows. kSums products in int16 at once.
// The loops are ordered so that what stays live fits 16 registers: with few sums the cells stay and
// each row widens at once; with many, the int16 sums of all rows stay.
template <int kRows, int kSums, bool kTileUnsigned>
HWY_INLINE void MultiplyCells(const uint8_t* HWY_RESTRICT tile, int num_groups, int num_quads,
                              const uint8_t* HWY_RESTRICT digits, int digit_stride,
                              int32_t* HWY_RESTRICT out, int out_stride) {
  const hn::CappedTag<uint8_t, 64> du8;
  const hn::RebindToSigned<decltype(du8)> di8;
  const hn::RepartitionToWide<decltype(di8)> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  using V8 = hn::Vec<decltype(du8)>;
  using V16 = hn::Vec<decltype(d16)>;
  using V32 = hn::Vec<decltype(d32)>;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(du8));
  constexpr int kVecs = 64 / kBytes;
  constexpr int kVecsAtOnce = kVecs < 2 || kSums == 4 ? 1 : 2;
  const V16 ones = hn::Set(d16, int16_t{1});
  const auto broadcast = [&](int r, int quad) HWY_ATTR {
    int32_t four;
    std::memcpy(&four, digits + r * digit_stride + quad * 4, 4);
    return hn::BitCast(du8, hn::Set(d32, four));
  };
  const auto multiply = [&](V8 cell, V8 digit) HWY_ATTR {
    return kTileUnsigned ? MulPairs(d16, cell, hn::BitCast(di8, digit))
                         : MulPairs(d16, digit, hn::BitCast(di8, cell));
  };
  for (int g = 0; g < num_groups; ++g) {
    const uint8_t* HWY_RESTRICT group = tile + static_cast<size_t>(g) * num_quads * 64;
    for (int v0 = 0; v0 < kVecs; v0 += kVecsAtOnce) {
      const auto load = [&](int quad, int v) HWY_ATTR {
        return hn::LoadU(du8, group + quad * 64 + (v0 + v) * kBytes);
      };
      V32 acc[kRows][kVecsAtOnce];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecsAtOnce; ++v) acc[r][v] = hn::Zero(d32);
      }
      // Unrolled: otherwise a quarter of the loop is copies between registers.
#pragma GCC unroll 4
      for (int quad = 0; quad < num_quads; quad += kSums) {
        if constexpr (kSums <= 2) {
          V8 cell[kSums][kVecsAtOnce];
          for (int s = 0; s < kSums; ++s) {
            for (int v = 0; v < kVecsAtOnce; ++v) cell[s][v] = load(quad + s, v);
          }
          for (int r = 0; r < kRows; ++r) {
            V16 sum[kVecsAtOnce];
            for (int s = 0; s < kSums; ++s) {
              const V8 digit = broadcast(r, quad + s);
              for (int v = 0; v < kVecsAtOnce; ++v) {
                const V16 product = multiply(cell[s][v], digit);
                sum[v] = s == 0 ? product : hn::Add(sum[v], product);
              }
            }
            for (int v = 0; v < kVecsAtOnce; ++v) {
              acc[r][v] = MulAddPairs(d32, sum[v], ones, acc[r][v]);
            }
          }
        } else {
          V16 sum[kRows][kVecsAtOnce];
          for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVecsAtOnce; ++v) sum[r][v] = hn::Zero(d16);
          }
#pragma GCC unroll 4
          for (int s = 0; s < kSums; ++s) {
            V8 cell[kVecsAtOnce];
            for (int v = 0; v < kVecsAtOnce; ++v) cell[v] = load(quad + s, v);
            for (int r = 0; r < kRows; ++r) {
              const V8 digit = broadcast(r, quad + s);
              for (int v = 0; v < kVecsAtOnce; ++v) {
                sum[r][v] = hn::Add(sum[r][v], multiply(cell[v], digit));
              }
            }
          }
          for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVecsAtOnce; ++v) {
              acc[r][v] = MulAddPairs(d32, sum[r][v], ones, acc[r][v]);
            }
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecsAtOnce; ++v) {
          hn::StoreU(acc[r][v], d32, out + r * out_stride + g * 16 + (v0 + v) * kBytes / 4);
        }
      }
    }
  }
}

// The same for 8-bit values in pairs of depth, with 16-bit digits.
template <int kRows>
HWY_INLINE void MultiplyPairs(const int8_t* HWY_RESTRICT values, int num_lanes, int num_pairs,
                              const int16_t* HWY_RESTRICT digits, int digit_stride,
                              int32_t* HWY_RESTRICT out, int out_stride) {
  const hn::CappedTag<int32_t, 16> d32;
  const hn::RepartitionToNarrow<decltype(d32)> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d32));
  constexpr int kVecsAtOnce = kLanes == 16 ? 1 : 2;  // lanes are a multiple of 16
  for (int lane = 0; lane < num_lanes; lane += kVecsAtOnce * kLanes) {
    hn::Vec<decltype(d32)> acc[kRows][kVecsAtOnce];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecsAtOnce; ++v) acc[r][v] = hn::Zero(d32);
    }
    for (int pair = 0; pair < num_pairs; ++pair) {
      hn::Vec<decltype(d16)> value[kVecsAtOnce];
      for (int v = 0; v < kVecsAtOnce; ++v) {
        value[v] = hn::PromoteTo(
            d16, hn::LoadU(
                     d8, values + (static_cast<size_t>(pair) * num_lanes + lane + v * kLanes) * 2));
      }
      for (int r = 0; r < kRows; ++r) {
        int32_t two;
        std::memcpy(&two, digits + r * digit_stride + pair * 2, 4);
        const auto digit = hn::BitCast(d16, hn::Set(d32, two));
        for (int v = 0; v < kVecsAtOnce; ++v) {
          acc[r][v] = MulAddPairs(d32, value[v], digit, acc[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecsAtOnce; ++v) {
        hn::StoreU(acc[r][v], d32, out + r * out_stride + lane + v * kLanes);
      }
    }
  }
}

// The same for f16 values with float digits; sums over depth in order.
template <int kRows>
HWY_INLINE void MultiplyF16(const f16_t* HWY_RESTRICT values, int num_lanes, int num_depth,
                            const float* HWY_RESTRICT digits, int digit_stride,
                            float* HWY_RESTRICT out, int out_stride) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int kVecsAtOnce = kLanes == 16 ? 1 : 2;
  const auto* HWY_RESTRICT halves = reinterpret_cast<const hwy::float16_t*>(values);
  for (int lane = 0; lane < num_lanes; lane += kVecsAtOnce * kLanes) {
    hn::Vec<decltype(d)> acc[kRows][kVecsAtOnce];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecsAtOnce; ++v) acc[r][v] = hn::Zero(d);
    }
    for (int i = 0; i < num_depth; ++i) {
      hn::Vec<decltype(d)> value[kVecsAtOnce];
      for (int v = 0; v < kVecsAtOnce; ++v) {
        value[v] = hn::PromoteTo(
            d, hn::LoadU(d16, halves + static_cast<size_t>(i) * num_lanes + lane + v * kLanes));
      }
      for (int r = 0; r < kRows; ++r) {
        const auto digit = hn::Set(d, digits[r * digit_stride + i]);
        for (int v = 0; v < kVecsAtOnce; ++v) acc[r][v] = hn::MulAdd(value[v], digit, acc[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecsAtOnce; ++v) {
        hn::StoreU(acc[r][v], d, out + r * out_stride + lane + v * kLanes);
      }
    }
  }
}

// kSums must divide the number of quads: a multiple of 4 for K, 16 for V. Few cases, as each is
// compiled for every number of rows and instruction set.
template <int kRows, bool kTileUnsigned>
HWY_INLINE void MultiplyCodes(const uint8_t* tile, int num_groups, int num_quads, int max_sums,
                              const uint8_t* digits, int digit_stride, int32_t* out,
                              int out_stride) {
  constexpr int kMany = kTileUnsigned ? 4 : 16;
  if (max_sums >= kMany) {
    MultiplyCells<kRows, kMany, kTileUnsigned>(tile, num_groups, num_quads, digits, digit_stride,
                                               out, out_stride);
  } else if (max_sums >= 2) {
    MultiplyCells<kRows, 2, kTileUnsigned>(tile, num_groups, num_quads, digits, digit_stride, out,
                                           out_stride);
  } else {
    MultiplyCells<kRows, 1, kTileUnsigned>(tile, num_groups, num_quads, digits, digit_stride, out,
                                           out_stride);
  }
}

// 2^x for x <= 0, relative error below 2e-7; 0 below -126 and for NaN.
template <class D, class V>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto n = hn::Round(x);
  const auto f = hn::Sub(x, n);
  auto y = hn::Set(d, 1.5403530e-4f);  // ln(2)^k / k!
  y = hn::MulAdd(y, f, hn::Set(d, 1.3333558e-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6181291e-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5504109e-2f));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022651e-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314718e-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.f)), hn::Mul(y, hn::BitCast(d, exponent)));
}

// Scales of a side as floats.
HWY_INLINE void LoadScales(const BlockSide& side, float* HWY_RESTRICT out) {
  if (side.scales != nullptr) {
    std::memcpy(out, side.scales, kPageLen * sizeof(float));
    return;
  }
  const float* HWY_RESTRICT table = Log8Table();
  for (int t = 0; t < kPageLen; ++t) {
    out[t] = side.log8 == nullptr ? 1.f : side.base * table[side.log8[t]];
  }
}

// Adds the centre term of one row to its 64 scores.
HWY_INLINE void AddCenter(const BlockArgs& args, int row, float* HWY_RESTRICT score) {
  const hn::CappedTag<float, 16> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const std::vector<HeadCenter::Pair>& pairs = args.rows->center->pairs;
  const float* start = args.center_table->BlockStart(args.block);
  const float* ab = args.rows->center_ab + static_cast<size_t>(row) * pairs.size() * 2;
  float turned[2 * kMaxHeadDim];
  for (size_t p = 0; p < pairs.size(); ++p) {
    const size_t slot = args.center_table->Slot(pairs[p].freq);
    const float c0 = start[2 * slot], s0 = start[2 * slot + 1];
    turned[2 * p] = ab[2 * p] * c0 + ab[2 * p + 1] * s0;
    turned[2 * p + 1] = ab[2 * p + 1] * c0 - ab[2 * p] * s0;
  }
  for (int t = 0; t < kPageLen; t += 2 * kLanes) {
    auto s0 = hn::LoadU(d, score + t), s1 = hn::LoadU(d, score + t + kLanes);
    for (size_t p = 0; p < pairs.size(); ++p) {
      const float* HWY_RESTRICT cos = args.center_table->CosOffsets(pairs[p].freq) + t;
      const float* HWY_RESTRICT sin = args.center_table->SinOffsets(pairs[p].freq) + t;
      const auto a = hn::Set(d, turned[2 * p]), b = hn::Set(d, turned[2 * p + 1]);
      s0 = hn::MulAdd(b, hn::LoadU(d, sin), hn::MulAdd(a, hn::LoadU(d, cos), s0));
      s1 = hn::MulAdd(b, hn::LoadU(d, sin + kLanes), hn::MulAdd(a, hn::LoadU(d, cos + kLanes), s1));
    }
    hn::StoreU(s0, d, score + t);
    hn::StoreU(s1, d, score + t + kLanes);
  }
}

// Digits of the weights of one row, in the type that its V format multiplies.
struct WeightDigits {
  HWY_ALIGN uint8_t u8[kRowsAtOnce][kPageLen];
  HWY_ALIGN int16_t i16[kRowsAtOnce][kPageLen];
  HWY_ALIGN float f32[kRowsAtOnce][kPageLen];
  float scale[kRowsAtOnce];
  float alpha[kRowsAtOnce];
};

// One softmax step: scores (log2) of row r to weights, state and digits. i = row within the chunk.
HWY_INLINE void SoftmaxStep(const BlockArgs& args, int r, int i, float* HWY_RESTRICT score,
                            const float* HWY_RESTRICT v_scale, SoftmaxState state,
                            WeightDigits* HWY_RESTRICT w) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  const hn::Rebind<int16_t, decltype(d)> d16;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const int visible = args.num_visible == nullptr ? kPageLen : args.num_visible[r];
  for (int t = visible; t < kPageLen; ++t) score[t] = -__builtin_inff();
  auto top = hn::LoadU(d, score);
  for (int t = kLanes; t < kPageLen; t += kLanes) top = hn::Max(top, hn::LoadU(d, score + t));
  top = hn::Max(hn::MaxOfLanes(d, top), hn::Set(d, state.m[r]));
  const float alpha = hn::GetLane(Exp2(d, hn::Sub(hn::Set(d, state.m[r]), top)));
  auto sum = hn::Zero(d), largest = hn::Zero(d);
  float* HWY_RESTRICT weight = w->f32[i];
  for (int t = 0; t < kPageLen; t += kLanes) {
    const auto p = Exp2(d, hn::Sub(hn::LoadU(d, score + t), top));
    sum = hn::Add(sum, p);
    const auto scaled = hn::Mul(p, hn::LoadU(d, v_scale + t));
    largest = hn::Max(largest, scaled);
    hn::StoreU(scaled, d, weight + t);
  }
  w->alpha[i] = alpha;
  state.m[r] = hn::GetLane(top);
  state.l[r] = state.l[r] * alpha + hn::GetLane(hn::SumOfLanes(d, sum));
  if (args.v.bits == 16) return;
  const float limit = static_cast<float>(args.v.bits == 8 ? kMaxPDigit16 : kMaxVDigit);
  const float top_weight = hn::GetLane(hn::MaxOfLanes(d, largest));
  w->scale[i] = top_weight / limit;
  const auto factor = hn::Set(d, top_weight > 0 ? limit / top_weight : 0.f);
  for (int t = 0; t < kPageLen; t += kLanes) {
    const hn::Vec<decltype(di)> digit = hn::NearestInt(hn::Mul(hn::LoadU(d, weight + t), factor));
    if (args.v.bits == 8) {
      hn::StoreU(hn::DemoteTo(d16, digit), d16, w->i16[i] + t);
    } else {
      hn::StoreU(hn::DemoteTo(du8, digit), du8, w->u8[i] + t);
    }
  }
}

template <int kRows>
HWY_INLINE void AttendRows(const BlockArgs& args, int r0, const uint8_t* HWY_RESTRICT k_tile,
                           const uint8_t* HWY_RESTRICT v_tile, const float* HWY_RESTRICT k_scale,
                           const float* HWY_RESTRICT v_scale, SoftmaxState state) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const QueryRows& rows = *args.rows;
  const int dim = rows.padded_dim;
  HWY_ALIGN float score[kRows * kPageLen];
  HWY_ALIGN int32_t exact[kRows * kMaxHeadDim];

  if (args.k.bits == 16) {
    MultiplyF16<kRows>(reinterpret_cast<const f16_t*>(args.k.values), kPageLen, dim,
                       rows.q + static_cast<size_t>(r0) * dim, dim, score, kPageLen);
  } else {
    if (args.k.bits == 8) {
      MultiplyPairs<kRows>(reinterpret_cast<const int8_t*>(args.k.values), kPageLen, dim / 2,
                           rows.q16 + static_cast<size_t>(r0) * dim, dim, exact, kPageLen);
    } else {
      MultiplyCodes<kRows, true>(
          k_tile, kPageLen / 16, dim / 4, args.k.book->max_k_sums,
          reinterpret_cast<const uint8_t*>(rows.q8 + static_cast<size_t>(r0) * dim), dim, exact,
          kPageLen);
    }
    for (int i = 0; i < kRows; ++i) {
      const bool codes = args.k.bits <= 4;
      const auto shift = hn::Set(di, codes ? args.k.book->offset * rows.q8_sum[r0 + i] : 0);
      const auto scale = hn::Set(d, codes ? rows.q8_scale[r0 + i] : rows.q16_scale[r0 + i]);
      for (int t = 0; t < kPageLen; t += kLanes) {
        const auto sum = hn::ConvertTo(d, hn::Sub(hn::LoadU(di, exact + i * kPageLen + t), shift));
        hn::StoreU(hn::Mul(hn::Mul(sum, scale), hn::LoadU(d, k_scale + t)), d,
                   score + i * kPageLen + t);
      }
    }
  }
  WeightDigits w;
  for (int i = 0; i < kRows; ++i) {
    if (rows.center != nullptr) AddCenter(args, r0 + i, score + i * kPageLen);
    SoftmaxStep(args, r0 + i, i, score + i * kPageLen, v_scale, state, &w);
  }

  float* HWY_RESTRICT o = state.o + static_cast<size_t>(r0) * dim;
  if (args.v.bits == 16) {
    HWY_ALIGN float block_sum[kRows * kMaxHeadDim];
    MultiplyF16<kRows>(reinterpret_cast<const f16_t*>(args.v.values), dim, kPageLen, w.f32[0],
                       kPageLen, block_sum, dim);
    for (int i = 0; i < kRows; ++i) {
      const auto alpha = hn::Set(d, w.alpha[i]);
      for (int c = 0; c < dim; c += kLanes) {
        const auto v =
            hn::MulAdd(hn::LoadU(d, o + i * dim + c), alpha, hn::LoadU(d, block_sum + i * dim + c));
        hn::StoreU(v, d, o + i * dim + c);
      }
    }
    return;
  }
  if (args.v.bits == 8) {
    MultiplyPairs<kRows>(reinterpret_cast<const int8_t*>(args.v.values), dim, kPageLen / 2,
                         w.i16[0], kPageLen, exact, dim);
  } else {
    MultiplyCodes<kRows, false>(v_tile, dim / 16, kPageLen / 4, args.v.book->max_v_sums, w.u8[0],
                                kPageLen, exact, dim);
  }
  for (int i = 0; i < kRows; ++i) {
    const auto alpha = hn::Set(d, w.alpha[i]), scale = hn::Set(d, w.scale[i]);
    for (int c = 0; c < dim; c += kLanes) {
      const auto sum = hn::Mul(hn::ConvertTo(d, hn::LoadU(di, exact + i * dim + c)), scale);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, o + i * dim + c), alpha, sum), d, o + i * dim + c);
    }
  }
}

void AttendBlock(const BlockArgs& args, SoftmaxState state, BlockScratch* scratch) {
  const QueryRows& rows = *args.rows;
  const int dim = rows.padded_dim;
  HWY_ALIGN float k_scale[kPageLen];
  HWY_ALIGN float v_scale[kPageLen];
  LoadScales(args.k, k_scale);
  LoadScales(args.v, v_scale);
  const size_t tile_bytes = static_cast<size_t>(dim) * kPageLen;
  HWY_ALIGN uint8_t table[kMaxLevels];
  if (args.k.bits <= 4) {
    scratch->k_tile.Reserve(tile_bytes);
    for (int i = 0; i < kMaxLevels; ++i) {
      table[i] = static_cast<uint8_t>(args.k.book->levels[i] + args.k.book->offset);
    }
    UnpackCodes(args.k.bits, args.k.values, dim, table, scratch->k_tile.data());
  }
  if (args.v.bits <= 4) {
    scratch->v_tile.Reserve(tile_bytes);
    for (int i = 0; i < kMaxLevels; ++i) table[i] = static_cast<uint8_t>(args.v.book->levels[i]);
    UnpackCodes(args.v.bits, args.v.values, dim, table, scratch->v_tile.data());
  }
  const uint8_t* k_tile = scratch->k_tile.data();
  const uint8_t* v_tile = scratch->v_tile.data();
  int r = 0;
  for (; r + kRowsAtOnce <= rows.num_rows; r += kRowsAtOnce) {
    AttendRows<kRowsAtOnce>(args, r, k_tile, v_tile, k_scale, v_scale, state);
  }
  switch (rows.num_rows - r) {
    case 1: AttendRows<1>(args, r, k_tile, v_tile, k_scale, v_scale, state); break;
    case 2: AttendRows<2>(args, r, k_tile, v_tile, k_scale, v_scale, state); break;
    case 3: AttendRows<3>(args, r, k_tile, v_tile, k_scale, v_scale, state); break;
    default: break;
  }
}

QueryDigits MakeDigits(const float* q, int padded_dim, int8_t* q8, int16_t* q16) {
  const hn::CappedTag<float, kDimMultiple> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::Rebind<int16_t, decltype(d)> d16;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  QueryDigits digits;
  auto largest = hn::Zero(d);
  for (int c = 0; c < padded_dim; c += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, q + c)));
  }
  const float top = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (!(top > 1e-30f)) {
    std::memset(q8, 0, static_cast<size_t>(padded_dim));
    std::memset(q16, 0, static_cast<size_t>(padded_dim) * 2);
    return digits;
  }
  digits.scale8 = top / kMaxKDigit;
  digits.scale16 = top / kMaxQDigit16;
  const auto f8 = hn::Set(d, kMaxKDigit / top), f16 = hn::Set(d, kMaxQDigit16 / top);
  auto sum = hn::Zero(di);
  for (int c = 0; c < padded_dim; c += kLanes) {
    const auto v = hn::LoadU(d, q + c);
    const auto v8 = hn::NearestInt(hn::Mul(v, f8));
    sum = hn::Add(sum, v8);
    hn::StoreU(hn::DemoteTo(d8, v8), d8, q8 + c);
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(v, f16))), d16, q16 + c);
  }
  digits.sum8 = hn::GetLane(hn::SumOfLanes(di, sum));
  return digits;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {
HWY_EXPORT(AttendBlock);
HWY_EXPORT(MakeDigits);
void AttendBlockSimd(const BlockArgs& args, SoftmaxState state, BlockScratch* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendBlock)(args, state, scratch);
}
QueryDigits MakeDigitsSimd(const float* q, int padded_dim, int8_t* q8, int16_t* q16) {
  return HWY_DYNAMIC_DISPATCH(MakeDigits)(q, padded_dim, q8, q16);
}
}  // namespace tq
#endif
