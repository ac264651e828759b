// The Viterbi pass of the trellis on vectors, and the decoder as a function of its own.
#include <cstddef>
#include <cstring>

#include "turboquant/codec/trellis_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/codec/trellis_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/codec/trellis-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// The costs of an overlap go to its 2^bits states, which are neighbours: 16 bytes of `least` are
// spread over so many vectors by one byte shuffle each. Its indices for every one of them.
template <int kBits>
struct Spread {
  static constexpr int kMaxBytes = (8 << kBits) * 2;
  HWY_ALIGN uint8_t idx[kMaxBytes];
  Spread() {
    for (int i = 0; i < kMaxBytes; ++i) {
      idx[i] = static_cast<uint8_t>((i / 2 >> kBits) * 2 + i % 2);
    }
  }
};

template <int kBits>
void Costs(const TrellisTable& table, const int16_t* HWY_RESTRICT targets, int num_steps,
           int overlap, int16_t* HWY_RESTRICT costs) {
  using Search = TrellisSearch<kBits>;
  constexpr int kOverlaps = Search::kOverlaps;
  const hn::CappedTag<int16_t, HWY_MIN(kOverlaps, 32)> d;
  const hn::Repartition<uint8_t, decltype(d)> d8;
  using V = hn::Vec<decltype(d)>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  constexpr int kVecs = kOverlaps / kLanes;                         // of the overlaps
  constexpr int kVecsPerChunk = HWY_MAX((8 << kBits) / kLanes, 1);  // of the states, for 16 bytes
  static const Spread<kBits> spread;

  HWY_ALIGN int16_t levels[kTrellisStates];
  const int shift = TargetShift(table);
  for (int s = 0; s < kTrellisStates; ++s) {
    levels[s] = static_cast<int16_t>(table.level[s] * (1 << shift));
  }
  HWY_ALIGN int16_t least[2][kOverlaps];
  for (int k = 0; k < kOverlaps; ++k) {
    least[0][k] =
        overlap < 0 || k == overlap ? int16_t{0} : static_cast<int16_t>(Search::kForbidden);
  }
  const V max_error = hn::Set(d, static_cast<int16_t>(Search::kMaxError));
  int now = 0;
  const auto step = [&](V target, bool counts, int16_t* HWY_RESTRICT cost) HWY_ATTR {
    const int16_t* HWY_RESTRICT before = least[now];
    int16_t* HWY_RESTRICT after = least[1 - now];
    V base = hn::Zero(d);
    for (int j = 0; j < kVecs; ++j) {
      V best = hn::Zero(d);
      for (int t = 0; t < Search::kBranches; ++t) {
        const int v = t * kVecs + j;
        const auto chunk =
            hn::LoadDup128(d8, reinterpret_cast<const uint8_t*>(before + v / kVecsPerChunk * 8));
        const auto idx = hn::Load(d8, spread.idx + v % kVecsPerChunk * kLanes * 2);
        V c = hn::BitCast(d, hn::TableLookupBytes(chunk, idx));
        if (counts) {
          const V diff = hn::SaturatedSub(target, hn::Load(d, levels + v * kLanes));
          c = hn::SaturatedAdd(c, hn::Min(hn::MulHigh(diff, diff), max_error));
        }
        hn::Store(c, d, cost + v * kLanes);
        best = t == 0 ? c : hn::Min(best, c);
      }
      if (j == 0) base = hn::Set(d, hn::GetLane(best));
      hn::Store(hn::SaturatedSub(best, base), d, after + j * kLanes);
    }
    now = 1 - now;
  };
  for (int i = num_steps - 1; i >= 0; --i) {
    int16_t* cost = costs + static_cast<size_t>(i) * kTrellisStates;
    if (targets[i] == kDontCare) {
      step(hn::Zero(d), false, cost);
    } else {
      step(hn::Set(d, targets[i]), true, cost);
    }
  }
}

void CostsOfBits(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
                 int16_t* costs) {
  switch (table.bits) {
    case 2: return Costs<2>(table, targets, num_steps, overlap, costs);
    case 3: return Costs<3>(table, targets, num_steps, overlap, costs);
    default: return Costs<4>(table, targets, num_steps, overlap, costs);
  }
}

void LevelsOfTile(int bits, uint8_t* tile, int num_groups, int num_quads, int add) {
  TrellisLevels(bits, tile, num_groups, num_quads, add);
}

void UnpackLevels(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                  uint8_t* tile) {
  UnpackTrellis(bits, packed, num_groups, num_quads, add, tile);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {
HWY_EXPORT(CostsOfBits);
HWY_EXPORT(LevelsOfTile);
HWY_EXPORT(UnpackLevels);
void TrellisCostsSimd(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
                      int16_t* costs) {
  HWY_DYNAMIC_DISPATCH(CostsOfBits)(table, targets, num_steps, overlap, costs);
}
void TrellisLevelsSimd(int bits, uint8_t* tile, int num_groups, int num_quads, int add) {
  HWY_DYNAMIC_DISPATCH(LevelsOfTile)(bits, tile, num_groups, num_quads, add);
}
void UnpackTrellisSimd(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                       uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(UnpackLevels)(bits, packed, num_groups, num_quads, add, tile);
}
}  // namespace tq
#endif
