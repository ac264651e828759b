// Attention over one block on vectors.
//
// Codes are unpacked once to bytes (the tile stays in L1) and multiplied with all query rows:
//   K: tile of level + offset (u8) x query digits (s8); V: weight digits (u8) x levels (s8).
// A vector holds 4 consecutive depths for each lane, so a digit quad is one 32-bit broadcast and
// sums need no shuffles. Products are summed in int16 as far as the book allows, then in int32.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/attention/multiply_vnni.h"
#include "turboquant/codec/anchor.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/trellis.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/attention/attention_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/attention/float_tile-inl.h"
#include "turboquant/base/hwy_compat-inl.h"
#include "turboquant/codec/trellis-inl.h"
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
                              int32_t* HWY_RESTRICT out, int out_stride,
                              [[maybe_unused]] bool use_vnni) {
#if HWY_TARGET == HWY_AVX3
  if (use_vnni) {
    MultiplyPairsVnni(values, num_lanes, num_pairs, digits, digit_stride, kRows, out, out_stride);
    return;
  }
#endif
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

HWY_INLINE hn::Vec<hn::CappedTag<float, 16>> LoadFloats(const f16_t* p) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE hn::Vec<hn::CappedTag<float, 16>> LoadFloats(const float* p) {
  return hn::LoadU(hn::CappedTag<float, 16>(), p);
}

// The same for f16 or f32 values with float digits; sums over depth in order.
template <int kRows, class T>
HWY_INLINE void MultiplyFloats(const T* HWY_RESTRICT values, int num_lanes, int num_depth,
                               const float* HWY_RESTRICT digits, int digit_stride,
                               float* HWY_RESTRICT out, int out_stride) {
  const hn::CappedTag<float, 16> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int kVecsAtOnce = kLanes == 16 ? 1 : 2;
  for (int lane = 0; lane < num_lanes; lane += kVecsAtOnce * kLanes) {
    hn::Vec<decltype(d)> acc[kRows][kVecsAtOnce];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecsAtOnce; ++v) acc[r][v] = hn::Zero(d);
    }
    for (int i = 0; i < num_depth; ++i) {
      hn::Vec<decltype(d)> value[kVecsAtOnce];
      for (int v = 0; v < kVecsAtOnce; ++v) {
        value[v] = LoadFloats(values + static_cast<size_t>(i) * num_lanes + lane + v * kLanes);
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

// Levels of one side that attention multiplies as codes.
struct CodeLevels {
  const uint8_t* tile = nullptr;  // unpacked; nullptr: multiplied from the packed codes
  HWY_ALIGN uint8_t table[kMaxLevels];
  int offset = 0, max_sums = 1;
};

// Unpacks one side to bytes, offset added, in the order of its cells; or leaves that to the product
// where the machine can and too few rows would share the bytes.
HWY_INLINE void PrepareLevels(const BlockSide& side, Side which, int dim, bool stay_packed,
                              AlignedBuffer<uint8_t>* buffer, CodeLevels* levels) {
  const bool is_k = which == Side::kK;
  if (side.trellis) {
    const TrellisTable& trellis = GetTrellis(side.bits);
    levels->offset = is_k ? trellis.offset : 0;
    levels->max_sums = is_k ? trellis.max_k_sums : trellis.max_v_sums;
    const int lanes = is_k ? kPageLen : dim;
    buffer->Reserve(static_cast<size_t>(dim) * kPageLen);
    UnpackTrellis(side.bits, side.values, lanes / 16, dim * kPageLen / lanes / 4, levels->offset,
                  buffer->data());
    levels->tile = buffer->data();
    return;
  }
  levels->offset = is_k ? side.book->offset : 0;
  levels->max_sums = is_k ? side.book->max_k_sums : side.book->max_v_sums;
  LevelTable(*side.book, levels->offset, levels->table);
  if (stay_packed && CanMultiplyPacked(side.bits, dim)) return;
  buffer->Reserve(static_cast<size_t>(dim) * kPageLen);
  UnpackCodes(side.bits, side.values, dim, levels->table, buffer->data());
  levels->tile = buffer->data();
}

// kSums must divide the number of quads: a multiple of 4 for K, 16 for V. Few cases, as each is
// compiled for every number of rows and instruction set.
template <int kRows, bool kTileUnsigned>
HWY_INLINE void MultiplyCodes([[maybe_unused]] const BlockArgs& args,
                              [[maybe_unused]] const BlockSide& side, const CodeLevels& levels,
                              int num_groups, int num_quads, const uint8_t* digits,
                              int digit_stride, int32_t* out, int out_stride) {
#if HWY_TARGET == HWY_AVX3
  if (levels.tile == nullptr) {
    MultiplyPackedVnni(side.bits, side.values, levels.table, kTileUnsigned, num_groups, num_quads,
                       digits, digit_stride, kRows, out, out_stride);
    return;
  }
  if (args.use_vnni) {
    MultiplyCodesVnni(levels.tile, kTileUnsigned, num_groups, num_quads, digits, digit_stride,
                      kRows, out, out_stride);
    return;
  }
#endif
  constexpr int kMany = kTileUnsigned ? 4 : 16;
  if (levels.max_sums >= kMany) {
    MultiplyCells<kRows, kMany, kTileUnsigned>(levels.tile, num_groups, num_quads, digits,
                                               digit_stride, out, out_stride);
  } else if (levels.max_sums >= 2) {
    MultiplyCells<kRows, 2, kTileUnsigned>(levels.tile, num_groups, num_quads, digits, digit_stride,
                                           out, out_stride);
  } else {
    MultiplyCells<kRows, 1, kTileUnsigned>(levels.tile, num_groups, num_quads, digits, digit_stride,
                                           out, out_stride);
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
  const auto exponent = hn::ShiftLeft<23>(hn::Add(NearestInRange(d, n), hn::Set(di, 127)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.f)), hn::Mul(y, hn::BitCast(d, exponent)));
}

// table[index] of 16 floats.
template <class D, class VI>
HWY_INLINE hn::Vec<D> LookUpSixteen(D d, const float* HWY_RESTRICT table, VI index) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(hn::LoadU(d, table), hn::IndicesFromVec(d, index));
  } else if constexpr (kLanes == 8) {
    const hn::RebindToSigned<D> di;
    const auto lanes = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 7)));
    return hn::IfThenElse(hn::RebindMask(d, hn::Gt(index, hn::Set(di, 7))),
                          hn::TableLookupLanes(hn::LoadU(d, table + 8), lanes),
                          hn::TableLookupLanes(hn::LoadU(d, table), lanes));
  } else {
    const hn::RebindToSigned<D> di;
    HWY_ALIGN int32_t i[kLanes];
    HWY_ALIGN float found[kLanes];
    hn::Store(index, di, i);
    for (int lane = 0; lane < kLanes; ++lane) found[lane] = table[i[lane]];
    return hn::Load(d, found);
  }
}

// Scales of a side as floats.
HWY_INLINE void LoadScales(const BlockSide& side, float* HWY_RESTRICT out) {
  if (side.scales != nullptr) {
    std::memcpy(out, side.scales, kPageLen * sizeof(float));
    return;
  }
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const auto base = hn::Set(d, side.base);
  for (int t = 0; t < kPageLen; t += kLanes) {
    if (side.log8 == nullptr) {
      hn::StoreU(hn::Set(d, 1.f), d, out + t);
      continue;
    }
    const auto code = hn::PromoteTo(di, hn::LoadU(du8, side.log8 + t));
    const auto next = hn::Add(code, hn::Set(di, 1));
    const auto octave = hn::Sub(hn::ShiftRight<4>(next), hn::Set(di, 16));
    const auto part = LookUpSixteen(d, Log8Parts(), hn::And(next, hn::Set(di, 15)));
    const auto scale = hn::BitCast(d, hn::Add(hn::BitCast(di, part), hn::ShiftLeft<23>(octave)));
    hn::StoreU(
        hn::Mul(base, hn::IfThenZeroElse(hn::RebindMask(d, hn::Eq(code, hn::Zero(di))), scale)), d,
        out + t);
  }
}

// Adds the centre term to the 64 scores of each row; rows share the loads of the table.
template <int kRows>
HWY_INLINE void AddCenter(const BlockArgs& args, int r0, float* HWY_RESTRICT score) {
  const hn::CappedTag<float, 16> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const std::vector<HeadCenter::Pair>& pairs = args.rows->center->pairs;
  const size_t num_pairs = pairs.size();
  const float* start = args.center_table->BlockStart(args.block);
  float turned[kMaxHeadDim][2 * kRows];  // a pair has at least one channel
  for (size_t p = 0; p < num_pairs; ++p) {
    const size_t slot = args.center_table->Slot(pairs[p].freq);
    const float c0 = start[2 * slot], s0 = start[2 * slot + 1];
    for (int r = 0; r < kRows; ++r) {
      const float* ab = args.rows->center_ab + (static_cast<size_t>(r0 + r) * num_pairs + p) * 2;
      turned[p][2 * r] = ab[0] * c0 + ab[1] * s0;
      turned[p][2 * r + 1] = ab[1] * c0 - ab[0] * s0;
    }
  }
  for (int t = 0; t < kPageLen; t += kLanes) {
    hn::Vec<decltype(d)> sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = hn::LoadU(d, score + r * kPageLen + t);
    for (size_t p = 0; p < num_pairs; ++p) {
      const auto cos = hn::LoadU(d, args.center_table->CosOffsets(pairs[p].freq) + t);
      const auto sin = hn::LoadU(d, args.center_table->SinOffsets(pairs[p].freq) + t);
      for (int r = 0; r < kRows; ++r) {
        sum[r] = hn::MulAdd(hn::Set(d, turned[p][2 * r]), cos, sum[r]);
        sum[r] = hn::MulAdd(hn::Set(d, turned[p][2 * r + 1]), sin, sum[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, score + r * kPageLen + t);
  }
}

HWY_INLINE float DotFloats(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int dim) {
  const hn::CappedTag<float, 16> d;
  auto sum = hn::Zero(d);
  for (int c = 0; c < dim; c += static_cast<int>(hn::MaxLanes(d))) {
    sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// cap * tanh(score / cap) of the 64 scores of a row; tanh |x| = (1 - e) / (1 + e), e = e^(-2 |x|).
HWY_NOINLINE void SoftcapScores(float cap, float* HWY_RESTRICT score) {
  const hn::CappedTag<float, 16> d;
  const auto factor = hn::Set(d, -2 * 1.44269504f / cap), one = hn::Set(d, 1.f);
  for (int t = 0; t < kPageLen; t += static_cast<int>(hn::MaxLanes(d))) {
    const auto x = hn::LoadU(d, score + t);
    const auto e = Exp2(d, hn::Mul(hn::Abs(x), factor));
    const auto tanh = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    hn::StoreU(hn::CopySignToAbs(hn::Mul(hn::Set(d, cap), tanh), x), d, score + t);
  }
}

// Digits of the weights of one row, in the type that its V format multiplies.
struct WeightDigits {
  HWY_ALIGN uint8_t u8[kRowsAtOnce][kPageLen];
  HWY_ALIGN int16_t i16[kRowsAtOnce][kPageLen];
  HWY_ALIGN float f32[kRowsAtOnce][kPageLen];
  float scale[kRowsAtOnce];
  HWY_ALIGN float alpha[kRowsAtOnce];
  float anchor[kRowsAtOnce][kMaxAnchors];  // weights of the anchors' tokens
};

// One softmax step: scores (log2) of rows from r0 on to weights, state and digits. The rows go side
// by side, as each alone is a chain of waits.
template <int kRows>
HWY_INLINE void SoftmaxStep(const BlockArgs& args, int r0, const float* HWY_RESTRICT score,
                            const float* HWY_RESTRICT v_scale, SoftmaxState state,
                            WeightDigits* HWY_RESTRICT w) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int16_t, decltype(d)> d16;
  using V = hn::Vec<decltype(d)>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  V top[kRows];
  for (int i = 0; i < kRows; ++i) top[i] = hn::LoadU(d, score + i * kPageLen);
  for (int t = kLanes; t < kPageLen; t += kLanes) {
    for (int i = 0; i < kRows; ++i) {
      top[i] = hn::Max(top[i], hn::LoadU(d, score + i * kPageLen + t));
    }
  }
  const hn::CappedTag<float, kRowsAtOnce> rows_tag;
  HWY_ALIGN float change[kRowsAtOnce] = {};  // of the running maximum
  for (int i = 0; i < kRows; ++i) {
    top[i] = hn::Max(hn::MaxOfLanes(d, top[i]), hn::Set(d, state.m[r0 + i]));
    change[i] = state.m[r0 + i] - hn::GetLane(top[i]);
    state.m[r0 + i] = hn::GetLane(top[i]);
  }
  hn::Store(Exp2(rows_tag, hn::Load(rows_tag, change)), rows_tag, w->alpha);
  V sum[kRows], largest[kRows];
  for (int i = 0; i < kRows; ++i) sum[i] = largest[i] = hn::Zero(d);
  for (int t = 0; t < kPageLen; t += kLanes) {
    const V scale = hn::LoadU(d, v_scale + t);
    for (int i = 0; i < kRows; ++i) {
      const V p = Exp2(d, hn::Sub(hn::LoadU(d, score + i * kPageLen + t), top[i]));
      sum[i] = hn::Add(sum[i], p);
      const V scaled = hn::Mul(p, scale);
      largest[i] = hn::Max(largest[i], scaled);
      hn::StoreU(scaled, d, w->f32[i] + t);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int a = 0; a < args.num_anchors; ++a) {
      const float s = score[i * kPageLen + args.anchors[a].token];  // -inf: the row skips the block
      w->anchor[i][a] = s == -__builtin_inff() ? 0.f : std::exp2(s - state.m[r0 + i]);
    }
    float& l = state.l[r0 + i];
    l = l * w->alpha[i] + hn::GetLane(hn::SumOfLanes(d, sum[i]));
  }
  if (args.v.is_float()) return;
  const bool is_int8 = args.v.is_int8();
  const float limit = static_cast<float>(is_int8 ? kMaxPDigit16 : kMaxVDigit);
  V factor[kRows];
  for (int i = 0; i < kRows; ++i) {
    const float top_weight = hn::GetLane(hn::MaxOfLanes(d, largest[i]));
    w->scale[i] = top_weight / limit;
    factor[i] = hn::Set(d, top_weight > 0 ? limit / top_weight : 0.f);
  }
  for (int t = 0; t < kPageLen; t += kLanes) {
    for (int i = 0; i < kRows; ++i) {
      const auto digit = NearestInRange(d, hn::Mul(hn::LoadU(d, w->f32[i] + t), factor[i]));
      if (is_int8) {
        hn::StoreU(hn::DemoteTo(d16, digit), d16, w->i16[i] + t);
      } else {
        StoreAsBytes(di, digit, w->u8[i] + t);
      }
    }
  }
}

// What the rows of a block share: scales, and the values in the form that is multiplied.
struct BlockTiles {
  HWY_ALIGN float k_scale[kPageLen];
  HWY_ALIGN float v_scale[kPageLen];
  CodeLevels k_levels, v_levels;
  const float* k_floats = nullptr;
  const float* v_floats = nullptr;
};

// o = o * alpha + block_sum, for floats or integers with a scale.
template <int kRows>
HWY_INLINE void AddValues(const float* HWY_RESTRICT block_sum, const WeightDigits& w, int dim,
                          float* HWY_RESTRICT o) {
  const hn::CappedTag<float, 16> d;
  for (int i = 0; i < kRows; ++i) {
    const auto alpha = hn::Set(d, w.alpha[i]);
    for (int c = 0; c < dim; c += static_cast<int>(hn::MaxLanes(d))) {
      const auto v =
          hn::MulAdd(hn::LoadU(d, o + i * dim + c), alpha, hn::LoadU(d, block_sum + i * dim + c));
      hn::StoreU(v, d, o + i * dim + c);
    }
  }
}

// Fetches a quarter of the next record to L2. All at once would take every miss buffer of L1 and
// hold up the loads of this block.
HWY_INLINE void FetchAhead(const BlockArgs& args, size_t quarter) {
  const size_t end = args.ahead_bytes * (quarter + 1) / 4;
  for (size_t i = RoundUp(args.ahead_bytes * quarter / 4, kCacheLine); i < end; i += kCacheLine) {
    __builtin_prefetch(args.ahead + i, 0, 2);
  }
}

// Scores of rows from r0 on, [kRows][64]; -inf where a row does not see a token.
template <int kRows>
HWY_INLINE void ScoreRows(const BlockArgs& args, int r0, const BlockTiles& tiles,
                          const BlockScratch& scratch, float* HWY_RESTRICT score) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const QueryRows& rows = *args.rows;
  const int dim = rows.padded_dim;
  HWY_ALIGN int32_t exact[kRows * kPageLen];
  const float* q = rows.q + static_cast<size_t>(r0) * dim;

  if (args.k.type == ValueType::kF16) {
    MultiplyFloats<kRows>(reinterpret_cast<const f16_t*>(args.k.values), kPageLen, dim, q, dim,
                          score, kPageLen);
  } else if (args.k.is_float()) {
    MultiplyFloats<kRows>(tiles.k_floats, kPageLen, dim, q, dim, score, kPageLen);
  } else {
    const bool codes = args.k.is_codes();
    if (!codes) {
      MultiplyPairs<kRows>(reinterpret_cast<const int8_t*>(args.k.values), kPageLen, dim / 2,
                           rows.q16 + static_cast<size_t>(r0) * dim, dim, exact, kPageLen,
                           args.use_vnni);
    } else {
      MultiplyCodes<kRows, true>(
          args, args.k, tiles.k_levels, kPageLen / 16, dim / 4,
          reinterpret_cast<const uint8_t*>(rows.q8 + static_cast<size_t>(r0) * dim), dim, exact,
          kPageLen);
    }
    for (int i = 0; i < kRows; ++i) {
      const auto shift = hn::Set(di, codes ? tiles.k_levels.offset * rows.q8_sum[r0 + i] : 0);
      const auto scale = hn::Set(d, codes ? rows.q8_scale[r0 + i] : rows.q16_scale[r0 + i]);
      for (int t = 0; t < kPageLen; t += kLanes) {
        const auto sum = hn::ConvertTo(d, hn::Sub(hn::LoadU(di, exact + i * kPageLen + t), shift));
        hn::StoreU(hn::Mul(hn::Mul(sum, scale), hn::LoadU(d, tiles.k_scale + t)), d,
                   score + i * kPageLen + t);
      }
    }
  }
  if (r0 == 0) FetchAhead(args, 1);
  if (rows.center != nullptr) AddCenter<kRows>(args, r0, score);
  for (int i = 0; i < kRows; ++i) {
    for (int a = 0; a < args.num_anchors; ++a) {
      score[i * kPageLen + args.anchors[a].token] +=
          DotFloats(q + i * dim, &scratch.k_anchors[static_cast<size_t>(a) * dim], dim);
    }
  }
  for (int i = 0; args.softcap > 0 && i < kRows; ++i) {
    SoftcapScores(args.softcap, score + i * kPageLen);
  }
  if (args.num_visible != nullptr) {
    for (int i = 0; i < kRows; ++i) {
      for (int t = args.num_visible[r0 + i]; t < kPageLen; ++t) {
        score[i * kPageLen + t] = -__builtin_inff();
      }
    }
  }
  if (args.first_visible != nullptr) {
    for (int i = 0; i < kRows; ++i) {
      for (int t = 0; t < args.first_visible[r0 + i]; ++t) {
        score[i * kPageLen + t] = -__builtin_inff();
      }
    }
  }
}

// A softmax step over the scores of rows from r0 on, and their weights x V.
template <int kRows>
HWY_INLINE void AddRows(const BlockArgs& args, int r0, const BlockTiles& tiles,
                        const BlockScratch& scratch, const float* HWY_RESTRICT score,
                        SoftmaxState state) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const int dim = args.rows->padded_dim;
  HWY_ALIGN int32_t exact[kRows * kMaxHeadDim];
  WeightDigits w;
  SoftmaxStep<kRows>(args, r0, score, tiles.v_scale, state, &w);

  if (r0 == 0) FetchAhead(args, 2);
  float* HWY_RESTRICT o = state.o + static_cast<size_t>(r0) * dim;
  if (args.v.is_float()) {
    HWY_ALIGN float block_sum[kRows * kMaxHeadDim];
    if (args.v.type == ValueType::kF16) {
      MultiplyFloats<kRows>(reinterpret_cast<const f16_t*>(args.v.values), dim, kPageLen, w.f32[0],
                            kPageLen, block_sum, dim);
    } else {
      MultiplyFloats<kRows>(tiles.v_floats, dim, kPageLen, w.f32[0], kPageLen, block_sum, dim);
    }
    AddValues<kRows>(block_sum, w, dim, o);
  } else {
    if (args.v.is_int8()) {
      MultiplyPairs<kRows>(reinterpret_cast<const int8_t*>(args.v.values), dim, kPageLen / 2,
                           w.i16[0], kPageLen, exact, dim, args.use_vnni);
    } else {
      MultiplyCodes<kRows, false>(args, args.v, tiles.v_levels, dim / 16, kPageLen / 4, w.u8[0],
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
  if (r0 == 0) FetchAhead(args, 3);
  for (int i = 0; i < kRows; ++i) {
    for (int a = 0; a < args.num_anchors; ++a) {
      const auto p = hn::Set(d, w.anchor[i][a]);
      const float* v = &scratch.v_anchors[static_cast<size_t>(a) * dim];
      for (int c = 0; c < dim; c += kLanes) {
        hn::StoreU(hn::MulAdd(p, hn::LoadU(d, v + c), hn::LoadU(d, o + i * dim + c)), d,
                   o + i * dim + c);
      }
    }
  }
}

// fn(rows at once as a constant, first row) over all rows.
template <class Fn>
HWY_INLINE void ForRows(int num_rows, const Fn& fn) {
  int r = 0;
  for (; r + kRowsAtOnce <= num_rows; r += kRowsAtOnce) {
    fn(std::integral_constant<int, kRowsAtOnce>(), r);
  }
  switch (num_rows - r) {
    case 1: fn(std::integral_constant<int, 1>(), r); break;
    case 2: fn(std::integral_constant<int, 2>(), r); break;
    case 3: fn(std::integral_constant<int, 3>(), r); break;
    default: break;
  }
}

// Which rows skip the block: those of a query whose masses are all within their limits. Their
// scores become -inf, what they skip is summed up. Returns whether any row is left.
bool MarkSkipped(const BlockArgs& args, float* HWY_RESTRICT score, SoftmaxState state,
                 uint8_t* HWY_RESTRICT skips) {
  const hn::CappedTag<float, 16> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const int group = args.skip.rows_of_query;
  bool any = false;
  float masses[kRowsAtOnce];  // of the first rows of a query; others are summed up again
  const auto mass_of = [&](int r) HWY_ATTR {
    const auto reference = hn::Set(d, args.skip.reference[r]);
    // A score may be far above the reference: what matters of its mass is that it is above a limit.
    const auto most = hn::Set(d, 100.f);
    auto sum = hn::Zero(d);
    for (int t = 0; t < kPageLen; t += kLanes) {
      const auto x = hn::Sub(hn::LoadU(d, score + r * kPageLen + t), reference);
      sum = hn::Add(sum, Exp2(d, hn::Min(x, most)));
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  };
  for (int first = 0; first < args.rows->num_rows; first += group) {
    bool small = true;
    for (int i = 0; small && i < group; ++i) {
      const float mass = mass_of(first + i);
      if (i < kRowsAtOnce) masses[i] = mass;
      small = mass <= args.skip.limit[first + i];
    }
    for (int i = 0; i < group; ++i) {
      const int r = first + i;
      skips[r] = small;
      if (!small) continue;
      const float mass = i < kRowsAtOnce ? masses[i] : mass_of(r);
      state.skipped[r].share += mass;
      state.skipped[r].bound += mass * args.skip.v_bound;
      ++state.skipped[r].blocks;
      for (int t = 0; t < kPageLen; ++t) score[r * kPageLen + t] = -__builtin_inff();
    }
    any |= !small;
  }
  return any;
}

// One side's rows of the anchors, from `packed`.
HWY_INLINE void DecodeAnchors(const BlockArgs& args, const uint8_t* packed,
                              bf16_t AnchorInfo::*scale, AlignedBuffer<float>* rows) {
  const auto dim = static_cast<size_t>(args.rows->padded_dim);
  if (args.num_anchors > 0) rows->Reserve(static_cast<size_t>(args.num_anchors) * dim);
  for (int a = 0; a < args.num_anchors; ++a) {
    DecodeAnchorRow(args.anchor_bits, packed + a * (dim * args.anchor_bits / 8),
                    args.anchors[a].*scale, static_cast<int>(dim),
                    &(*rows)[static_cast<size_t>(a) * dim]);
  }
}

// Gets the values ready to be multiplied.
HWY_INLINE void PrepareValues(const BlockArgs& args, bool stay_packed, BlockTiles* tiles,
                              BlockScratch* scratch) {
  const int dim = args.rows->padded_dim;
  LoadScales(args.v, tiles->v_scale);
  DecodeAnchors(args, args.v_anchors, &AnchorInfo::v_scale, &scratch->v_anchors);
  if (args.v.is_codes()) {
    PrepareLevels(args.v, Side::kV, dim, stay_packed, &scratch->v_tile, &tiles->v_levels);
  } else if (args.v.is_float() && args.v.type != ValueType::kF16) {
    FillFloats(args.v, Side::kV, dim, &scratch->v_tile, &scratch->v_floats);
    tiles->v_floats = scratch->v_floats.data();
  }
}

// All scores first, then which rows read V, then V, if any does.
HWY_NOINLINE void AttendOrSkip(const BlockArgs& args, bool stay_packed, BlockTiles* tiles,
                               SoftmaxState state, BlockScratch* scratch) {
  const int num_rows = args.rows->num_rows;
  scratch->scores.Reserve(static_cast<size_t>(num_rows) * kPageLen);
  scratch->skips.resize(static_cast<size_t>(num_rows));
  float* const scores = scratch->scores.data();
  uint8_t* const skips = scratch->skips.data();
  ForRows(num_rows, [&](auto rows, int r) HWY_ATTR {
    ScoreRows<rows()>(args, r, *tiles, *scratch, scores + r * kPageLen);
  });
  FetchAhead(args, 2);
  FetchAhead(args, 3);
  if (!MarkSkipped(args, scores, state, skips)) return;
  PrepareValues(args, stay_packed, tiles, scratch);
  BlockArgs rest = args;
  rest.ahead_bytes = 0;  // fetched
  ForRows(num_rows, [&](auto rows, int r) HWY_ATTR {
    bool all = true;
    for (int i = 0; i < rows(); ++i) all &= skips[r + i] != 0;
    if (!all) AddRows<rows()>(rest, r, *tiles, *scratch, scores + r * kPageLen, state);
  });
}

void AttendBlock(const BlockArgs& args, SoftmaxState state, BlockScratch* scratch) {
  const QueryRows& rows = *args.rows;
  const int dim = rows.padded_dim;
  if (args.ahead != nullptr) __builtin_prefetch(args.ahead_info, 0, 2);
  FetchAhead(args, 0);
  BlockTiles tiles;
  LoadScales(args.k, tiles.k_scale);
#if HWY_TARGET == HWY_AVX3
  const bool stay_packed = args.use_vnni && rows.num_rows <= kRowsAtOnce;
#else
  constexpr bool stay_packed = false;
#endif
  if (args.k.is_codes()) {
    PrepareLevels(args.k, Side::kK, dim, stay_packed, &scratch->k_tile, &tiles.k_levels);
  } else if (args.k.is_float() && args.k.type != ValueType::kF16) {
    FillFloats(args.k, Side::kK, dim, &scratch->k_tile, &scratch->k_floats);
    tiles.k_floats = scratch->k_floats.data();
  }
  const bool may_skip = args.skip.limit != nullptr;
  if (!may_skip) PrepareValues(args, stay_packed, &tiles, scratch);
  DecodeAnchors(args, args.k_anchors, &AnchorInfo::k_scale, &scratch->k_anchors);
  if (may_skip) {
    AttendOrSkip(args, stay_packed, &tiles, state, scratch);
    return;
  }
  ForRows(rows.num_rows, [&](auto count, int r) HWY_ATTR {
    HWY_ALIGN float score[count() * kPageLen];
    ScoreRows<count()>(args, r, tiles, *scratch, score);
    AddRows<count()>(args, r, tiles, *scratch, score, state);
  });
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
