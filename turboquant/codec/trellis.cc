// Tables of the trellis, and the search for the symbols of a stream around its Viterbi passes.
#include "turboquant/codec/trellis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "turboquant/base/aligned.h"
#include "turboquant/base/isa.h"
#include "turboquant/base/status.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/trellis_kernels.h"

namespace tq {
namespace {

TrellisTable Make(int bits, float unit, const std::array<int, 16>& next,
                  const std::array<int, 16>& mix) {
  TrellisTable t;
  t.bits = bits;
  t.unit = unit;
  for (int i = 0; i < 16; ++i) {
    t.next[i] = static_cast<int8_t>(next[i]);
    t.mix[i] = static_cast<int8_t>(mix[i]);
  }
  for (int s = 0; s < kTrellisStates; ++s) {
    const int level = next[(s >> bits) & 15] + mix[(s ^ (s >> 4)) & 15];
    TQ_CHECK(std::abs(level) <= kMaxTrellisLevel);
    t.level[s] = static_cast<int8_t>(level);
    t.offset = std::max(t.offset, std::abs(level));
  }
  constexpr int kMaxInt16 = 32767;
  t.max_k_sums = kMaxInt16 / (2 * t.offset * 2 * kMaxKDigit);
  t.max_v_sums = kMaxInt16 / (t.offset * 2 * kMaxVDigit);
  return t;
}

// Walks the cheapest path through `num_steps` steps of costs and writes the symbol and level of
// each (unless null). Starts at the best state of those whose overlap with their predecessor is
// `overlap`
// (-1: of all) and returns the overlap that the last state passes on. Of equals, the first wins.
template <int kBits>
int Trace(const TrellisTable& table, const int16_t* costs, int num_steps, int overlap,
          uint8_t* symbols, int8_t* levels) {
  using Search = TrellisSearch<kBits>;
  if (overlap < 0) {
    const auto best = std::min_element(costs, costs + kTrellisStates);
    overlap = static_cast<int>(best - costs) % Search::kOverlaps;
  }
  for (int i = 0; i < num_steps; ++i) {
    const int16_t* cost = costs + static_cast<size_t>(i) * kTrellisStates + overlap;
    int branch = 0;
    for (int t = 1; t < Search::kBranches; ++t) {
      if (cost[t * Search::kOverlaps] < cost[branch * Search::kOverlaps]) branch = t;
    }
    const int state = overlap + branch * Search::kOverlaps;
    if (symbols != nullptr) {
      symbols[i] = static_cast<uint8_t>(state & (Search::kBranches - 1));
      levels[i] = table.level[state];
    }
    overlap = state >> kBits;
  }
  return overlap;
}

template <int kBits>
void Encode(TrellisCosts pass, const float* x, int num_valid, int n, uint8_t* symbols,
            int8_t* levels) {
  using Search = TrellisSearch<kBits>;
  const TrellisTable& table = GetTrellis(kBits);
  const float scale = static_cast<float>(1 << TargetShift(table)) / table.unit;
  const float limit = static_cast<float>((table.offset << TargetShift(table)) + Search::kMaxBeyond);
  // In the order of the trellis.
  int16_t targets[kMaxHeadDim];
  for (int i = 0; i < n; ++i) {
    const int depth = TrellisDepth(i, n);
    const float target = std::clamp(x[depth] * scale, -limit, limit);
    targets[i] = depth < num_valid ? static_cast<int16_t>(std::nearbyint(target)) : kDontCare;
  }
  thread_local AlignedBuffer<int16_t> costs;
  constexpr int kSeam = Search::kSeam;
  costs.Reserve(static_cast<size_t>(std::max(n, 2 * kSeam)) * kTrellisStates);

  // Where to cut the ring: the best path over the last elements and then the first ones.
  int16_t seam[2 * kSeam];
  for (int i = 0; i < 2 * kSeam; ++i) seam[i] = targets[(i + (kSeam / n + 1) * n - kSeam) % n];
  pass(table, seam, 2 * kSeam, -1, costs.data());
  const int overlap = Trace<kBits>(table, costs.data(), kSeam, -1, nullptr, nullptr);

  pass(table, targets, n, overlap, costs.data());
  uint8_t path[kMaxHeadDim];
  int8_t path_levels[kMaxHeadDim];
  const int closed = Trace<kBits>(table, costs.data(), n, overlap, path, path_levels);
  TQ_DCHECK(closed == overlap);
  static_cast<void>(closed);
  for (int i = 0; i < n; ++i) {
    const int depth = TrellisDepth(i, n);
    symbols[depth] = path[i];
    levels[depth] = path_levels[i];
  }
}

}  // namespace

const TrellisTable& GetTrellis(int bits) {
  static const std::array<TrellisTable, 3> tables = {
      Make(2, 0.69492f, {-1, 1, 1, 1, 0, 0, 1, 2, 1, 0, 0, 0, 0, 1, 0, 1},
           {-1, -2, 0, 2, 1, -1, -2, 0, 0, 1, -1, -3, -2, 0, 1, -1}),
      Make(3, 0.21054f, {-1, 0, 1, -6, 6, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2},
           {9, 4, -2, -4, 2, 0, -1, -7, 0, -2, -4, -10, -6, 7, 4, 2}),
      Make(4, 0.20679f, {-2, -1, 0, 5, -3, 0, -2, 2, 3, 0, 0, -1, 3, 1, 1, 2},
           {-1, -5, -8, 11, 5, 0, -12, -4, -3, 4, 1, 2, 7, 3, -2, -6}),
  };
  TQ_CHECK(bits >= 2 && bits <= 4);
  return tables[static_cast<size_t>(bits - 2)];
}

void TrellisEncodeWith(TrellisCosts pass, int bits, const float* x, int num_valid, int n,
                       uint8_t* symbols, int8_t* levels) {
  TQ_CHECK(bits >= 2 && bits <= 4 && num_valid >= 0 && num_valid <= n);
  TQ_CHECK(n > 0 && n % kDimMultiple == 0 && n <= kMaxHeadDim);
  switch (bits) {
    case 2: return Encode<2>(pass, x, num_valid, n, symbols, levels);
    case 3: return Encode<3>(pass, x, num_valid, n, symbols, levels);
    default: return Encode<4>(pass, x, num_valid, n, symbols, levels);
  }
}

void TrellisEncode(int bits, const float* x, int num_valid, int n, uint8_t* symbols,
                   int8_t* levels) {
  TrellisEncodeWith(UseReferenceKernels() ? TrellisCostsRef : TrellisCostsSimd, bits, x, num_valid,
                    n, symbols, levels);
}

void TrellisLevels(int bits, uint8_t* tile, int num_groups, int num_quads, int add) {
  (UseReferenceKernels() ? TrellisLevelsRef : TrellisLevelsSimd)(bits, tile, num_groups, num_quads,
                                                                 add);
}

void UnpackTrellis(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                   uint8_t* tile) {
  (UseReferenceKernels() ? UnpackTrellisRef : UnpackTrellisSimd)(bits, packed, num_groups,
                                                                 num_quads, add, tile);
}

}  // namespace tq
