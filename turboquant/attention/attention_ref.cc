// Specification of attention over one block, in plain loops.
#include <cmath>
#include <limits>
#include <vector>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"

namespace tq {
namespace {

float SideScale(const BlockSide& side, int token) {
  if (side.log8 != nullptr) return side.base * Log8Table()[side.log8[token]];
  return side.scales != nullptr ? side.scales[token] : 1.f;
}

// Integer level of (lane, depth): codes through their book, 8-bit values as they are.
std::vector<int> Levels(const BlockSide& side, Side which, int padded_dim) {
  const int lanes = which == Side::kK ? kPageLen : padded_dim;
  const int depth = which == Side::kK ? padded_dim : kPageLen;
  std::vector<int> levels(static_cast<size_t>(lanes) * depth);
  std::vector<uint8_t> codes;
  if (side.bits <= 4) {
    uint8_t identity[kMaxLevels];
    for (int i = 0; i < kMaxLevels; ++i) identity[i] = static_cast<uint8_t>(i);
    codes.resize(levels.size());
    UnpackCodesRef(side.bits, side.values, padded_dim, identity, codes.data());
  }
  const auto* int8 = reinterpret_cast<const int8_t*>(side.values);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int d = 0; d < depth; ++d) {
      levels[static_cast<size_t>(lane) * depth + d] =
          side.bits <= 4 ? side.book->levels[codes[CodeIndex(lane, d, depth)]]
                         : int8[Int8Index(lane, d, lanes)];
    }
  }
  return levels;
}

}  // namespace

QueryDigits MakeDigitsRef(const float* q, int padded_dim, int8_t* q8, int16_t* q16) {
  QueryDigits digits;
  float largest = 0;
  for (int c = 0; c < padded_dim; ++c) largest = std::fmax(largest, std::fabs(q[c]));
  for (int c = 0; c < padded_dim; ++c) q8[c] = 0, q16[c] = 0;
  if (!(largest > 1e-30f)) return digits;
  digits.scale8 = largest / kMaxKDigit;
  digits.scale16 = largest / kMaxQDigit16;
  for (int c = 0; c < padded_dim; ++c) {
    q8[c] = static_cast<int8_t>(std::nearbyint(q[c] * (kMaxKDigit / largest)));
    q16[c] = static_cast<int16_t>(std::nearbyint(q[c] * (kMaxQDigit16 / largest)));
    digits.sum8 += q8[c];
  }
  return digits;
}

void AttendBlockRef(const BlockArgs& args, SoftmaxState state, BlockScratch*) {
  const QueryRows& rows = *args.rows;
  const int dim = rows.padded_dim;
  const std::vector<int> k_levels =
      args.k.bits == 16 ? std::vector<int>() : Levels(args.k, Side::kK, dim);
  const std::vector<int> v_levels =
      args.v.bits == 16 ? std::vector<int>() : Levels(args.v, Side::kV, dim);
  for (int r = 0; r < rows.num_rows; ++r) {
    const int visible = args.num_visible == nullptr ? kPageLen : args.num_visible[r];
    float score[kPageLen];
    float block_max = -std::numeric_limits<float>::infinity();
    for (int t = 0; t < visible; ++t) {
      float s = 0;
      if (args.k.bits == 16) {
        const auto* k = reinterpret_cast<const f16_t*>(args.k.values);
        for (int c = 0; c < dim; ++c) {
          s += rows.q[r * dim + c] * F32FromF16(k[F16Index(t, c, kPageLen)]);
        }
      } else {
        int32_t sum = 0;
        for (int c = 0; c < dim; ++c) {
          const int digit = args.k.bits == 8 ? rows.q16[r * dim + c] : rows.q8[r * dim + c];
          sum += digit * k_levels[static_cast<size_t>(t) * dim + c];
        }
        s = static_cast<float>(sum) * (args.k.bits == 8 ? rows.q16_scale[r] : rows.q8_scale[r]) *
            SideScale(args.k, t);
      }
      if (rows.center != nullptr) {
        const size_t num_pairs = rows.center->pairs.size();
        const float* start = args.center_table->BlockStart(args.block);
        for (size_t p = 0; p < num_pairs; ++p) {
          const int freq = rows.center->pairs[p].freq;
          const size_t slot = args.center_table->Slot(freq);
          const float c0 = start[2 * slot], s0 = start[2 * slot + 1];
          const float a = rows.center_ab[(r * num_pairs + p) * 2];
          const float b = rows.center_ab[(r * num_pairs + p) * 2 + 1];
          s += (a * c0 + b * s0) * args.center_table->CosOffsets(freq)[t] +
               (b * c0 - a * s0) * args.center_table->SinOffsets(freq)[t];
        }
      }
      score[t] = s;
      block_max = std::fmax(block_max, s);
    }

    const float m = std::fmax(state.m[r], block_max);
    const float alpha = std::exp2(state.m[r] - m);
    float weight[kPageLen];  // times the scale of V
    float sum = 0, largest = 0;
    for (int t = 0; t < kPageLen; ++t) {
      const float p = t < visible ? std::exp2(score[t] - m) : 0.f;
      sum += p;
      weight[t] = p * SideScale(args.v, t);
      largest = std::fmax(largest, weight[t]);
    }
    state.m[r] = m;
    state.l[r] = state.l[r] * alpha + sum;

    float* o = state.o + static_cast<size_t>(r) * dim;
    const float limit = static_cast<float>(args.v.bits == 8 ? kMaxPDigit16 : kMaxVDigit);
    for (int c = 0; c < dim; ++c) {
      float block_sum = 0;
      if (args.v.bits == 16) {
        const auto* v = reinterpret_cast<const f16_t*>(args.v.values);
        for (int t = 0; t < kPageLen; ++t) {
          block_sum += weight[t] * F32FromF16(v[F16Index(c, t, dim)]);
        }
      } else if (largest > 0) {
        int32_t exact = 0;
        for (int t = 0; t < kPageLen; ++t) {
          const int digit = static_cast<int>(std::nearbyint(weight[t] * (limit / largest)));
          exact += digit * v_levels[static_cast<size_t>(c) * kPageLen + t];
        }
        block_sum = static_cast<float>(exact) * (largest / limit);
      }
      o[c] = o[c] * alpha + block_sum;
    }
  }
}

}  // namespace tq
