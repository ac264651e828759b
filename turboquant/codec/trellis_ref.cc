// Specification of the trellis: the Viterbi pass and both decoders in plain loops.
#include <algorithm>
#include <cstring>

#include "turboquant/codec/pack.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/trellis_kernels.h"

namespace tq {
namespace {

int Saturate(int v) {
  return std::clamp(v, -32768, 32767);
}

template <int kBits>
void Costs(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
           int16_t* costs) {
  using Search = TrellisSearch<kBits>;
  const int shift = TargetShift(table);
  int least[Search::kOverlaps];
  for (int k = 0; k < Search::kOverlaps; ++k) {
    least[k] = overlap < 0 || k == overlap ? 0 : Search::kForbidden;
  }
  for (int i = num_steps - 1; i >= 0; --i) {
    int16_t* cost = costs + static_cast<size_t>(i) * kTrellisStates;
    for (int s = 0; s < kTrellisStates; ++s) {
      const int d = Saturate(targets[i] - (table.level[s] * (1 << shift)));
      const int error = targets[i] == kDontCare ? 0 : std::min(d * d >> 16, Search::kMaxError);
      cost[s] = static_cast<int16_t>(Saturate(least[s >> kBits] + error));
    }
    for (int k = 0; k < Search::kOverlaps; ++k) {
      least[k] = cost[k];
      for (int t = 1; t < Search::kBranches; ++t) {
        least[k] = std::min<int>(least[k], cost[k + t * Search::kOverlaps]);
      }
    }
    const int base = least[0];
    for (int k = 0; k < Search::kOverlaps; ++k) least[k] = Saturate(least[k] - base);
  }
}

}  // namespace

void TrellisCostsRef(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
                     int16_t* costs) {
  switch (table.bits) {
    case 2: return Costs<2>(table, targets, num_steps, overlap, costs);
    case 3: return Costs<3>(table, targets, num_steps, overlap, costs);
    default: return Costs<4>(table, targets, num_steps, overlap, costs);
  }
}

void TrellisDecodeRef(int bits, const uint8_t* symbols, int n, int8_t* levels) {
  const TrellisTable& table = GetTrellis(bits);
  for (int i = 0; i < n; ++i) {
    int state = 0;
    for (int j = 0; j * bits < 8; ++j) {
      state |= symbols[TrellisDepth((i + j) % n, n)] << (j * bits);
    }
    levels[TrellisDepth(i, n)] = table.level[state & (kTrellisStates - 1)];
  }
}

void TrellisLevelsRef(int bits, uint8_t* tile, int num_groups, int num_quads, int add) {
  const int n = num_quads * 4;
  uint8_t symbols[kMaxHeadDim];
  int8_t levels[kMaxHeadDim];
  for (int lane = 0; lane < num_groups * 16; ++lane) {
    for (int i = 0; i < n; ++i) symbols[i] = tile[CodeIndex(lane, i, n)];
    TrellisDecodeRef(bits, symbols, n, levels);
    for (int i = 0; i < n; ++i) {
      tile[CodeIndex(lane, i, n)] = static_cast<uint8_t>(levels[i] + add);
    }
  }
}

void UnpackTrellisRef(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                      uint8_t* tile) {
  uint8_t identity[16];
  for (int i = 0; i < 16; ++i) identity[i] = static_cast<uint8_t>(i);
  UnpackCodesRef(bits, packed, num_groups * num_quads, identity, tile);
  TrellisLevelsRef(bits, tile, num_groups, num_quads, add);
}

}  // namespace tq
