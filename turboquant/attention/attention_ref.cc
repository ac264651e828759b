// Specification of attention over one block, in plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/codec/anchor.h"
#include "turboquant/codec/decode.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/trellis.h"

namespace tq {
namespace {

float SideScale(const BlockSide& side, int token) {
  if (side.log8 != nullptr) return side.base * Log8Table()[side.log8[token]];
  return side.scales != nullptr ? side.scales[token] : 1.f;
}

// Integer levels [token][channel]: codes through their book, 8-bit values as they are.
std::vector<int> Levels(const BlockSide& side, Side which, int padded_dim) {
  const int lanes = which == Side::kK ? kPageLen : padded_dim;
  const int depth = which == Side::kK ? padded_dim : kPageLen;
  std::vector<uint8_t> bytes(static_cast<size_t>(lanes) * depth);
  if (side.is_int8()) {
    std::copy_n(side.values, bytes.size(), bytes.data());
  } else if (side.trellis) {
    UnpackTrellisRef(side.bits, side.values, lanes / 16, depth / 4, 0, bytes.data());
  } else {
    uint8_t table[kMaxLevels];
    LevelTable(*side.book, 0, table);
    UnpackCodesRef(side.bits, side.values, padded_dim, table, bytes.data());
  }
  std::vector<int> levels(bytes.size());
  for (int lane = 0; lane < lanes; ++lane) {
    for (int d = 0; d < depth; ++d) {
      const int token = which == Side::kK ? lane : d, channel = which == Side::kK ? d : lane;
      const size_t i = side.is_int8() ? Int8Index(lane, d, lanes) : CodeIndex(lane, d, depth);
      levels[static_cast<size_t>(token) * padded_dim + channel] = static_cast<int8_t>(bytes[i]);
    }
  }
  return levels;
}

// Values [token][channel] of a side that is multiplied as floats.
std::vector<float> Floats(const BlockSide& side, Side which, int head_dim, int padded_dim) {
  std::vector<float> compact(static_cast<size_t>(kPageLen) * head_dim);
  if (side.grouped != nullptr) {
    DecodeSealedSide(*side.grouped, side.book, which, head_dim, side.values, side.group_scales,
                     BF16FromF32(side.base), compact.data());
  } else {
    DecodeOpenSide(
        {which, head_dim, side.type, reinterpret_cast<const std::byte*>(side.values), nullptr},
        compact.data());
  }
  std::vector<float> values(static_cast<size_t>(kPageLen) * padded_dim, 0.f);
  for (int t = 0; t < kPageLen; ++t) {
    std::copy_n(&compact[static_cast<size_t>(t) * head_dim], head_dim,
                &values[static_cast<size_t>(t) * padded_dim]);
  }
  return values;
}

// Which rows skip the block: those of a query whose masses are all within their limits. Sums up
// what is skipped.
std::vector<bool> SkippedRows(const BlockArgs& args, const std::vector<float>& scores,
                              SoftmaxState state) {
  const int num_rows = args.rows->num_rows, group = args.skip.rows_of_query;
  std::vector<bool> skips(static_cast<size_t>(num_rows), false);
  if (args.skip.limit == nullptr) return skips;
  for (int first = 0; first < num_rows; first += group) {
    std::vector<float> masses;
    bool small = true;
    for (int r = first; r < first + group; ++r) {
      float mass = 0;
      for (int t = 0; t < kPageLen; ++t) {
        mass += std::exp2(scores[static_cast<size_t>(r) * kPageLen + t] - args.skip.reference[r]);
      }
      masses.push_back(mass);
      small &= mass <= args.skip.limit[r];
    }
    for (int r = first; small && r < first + group; ++r) {
      const float mass = masses[static_cast<size_t>(r - first)];
      skips[static_cast<size_t>(r)] = true;
      state.skipped[r].share += mass;
      state.skipped[r].bound += mass * args.skip.v_bound;
      ++state.skipped[r].blocks;
    }
  }
  return skips;
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
  const auto at = [dim](int t, int c) { return static_cast<size_t>(t) * dim + c; };
  const auto first_of = [&](int r) {
    return args.first_visible == nullptr ? 0 : args.first_visible[r];
  };
  const auto end_of = [&](int r) {
    return args.num_visible == nullptr ? kPageLen : args.num_visible[r];
  };
  std::vector<int> k_levels, v_levels;
  std::vector<float> k_floats, v_floats;
  if (args.k.is_float()) {
    k_floats = Floats(args.k, Side::kK, rows.head_dim, dim);
  } else {
    k_levels = Levels(args.k, Side::kK, dim);
  }
  std::vector<float> anchor(static_cast<size_t>(dim));
  const size_t anchor_bytes = static_cast<size_t>(dim) * args.anchor_bits / 8;
  std::vector<float> scores(static_cast<size_t>(rows.num_rows) * kPageLen);
  for (int r = 0; r < rows.num_rows; ++r) {
    float* score = &scores[static_cast<size_t>(r) * kPageLen];
    for (int t = 0; t < end_of(r); ++t) {
      float s = 0;
      if (args.k.is_float()) {
        for (int c = 0; c < dim; ++c) s += rows.q[at(r, c)] * k_floats[at(t, c)];
      } else {
        int32_t sum = 0;
        for (int c = 0; c < dim; ++c) {
          const int digit = args.k.is_int8() ? rows.q16[at(r, c)] : rows.q8[at(r, c)];
          sum += digit * k_levels[at(t, c)];
        }
        s = static_cast<float>(sum) * (args.k.is_int8() ? rows.q16_scale[r] : rows.q8_scale[r]) *
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
    }
    for (int a = 0; a < args.num_anchors; ++a) {
      DecodeAnchorRow(args.anchor_bits, args.k_anchors + a * anchor_bytes, args.anchors[a].k_scale,
                      dim, anchor.data());
      for (int c = 0; c < dim; ++c) {
        score[args.anchors[a].token] += rows.q[at(r, c)] * anchor[static_cast<size_t>(c)];
      }
    }
    for (int t = 0; args.softcap > 0 && t < end_of(r); ++t) {
      score[t] = args.softcap * std::tanh(score[t] / args.softcap);
    }
  }
  const std::vector<bool> skips = SkippedRows(args, scores, state);
  if (std::find(skips.begin(), skips.end(), false) == skips.end()) return;

  if (args.v.is_float()) {
    v_floats = Floats(args.v, Side::kV, rows.head_dim, dim);
  } else {
    v_levels = Levels(args.v, Side::kV, dim);
  }
  for (int r = 0; r < rows.num_rows; ++r) {
    const int visible = end_of(r), first = first_of(r);
    if (skips[static_cast<size_t>(r)] || first >= visible) continue;
    const float* score = &scores[static_cast<size_t>(r) * kPageLen];
    float block_max = -std::numeric_limits<float>::infinity();
    for (int t = first; t < visible; ++t) block_max = std::fmax(block_max, score[t]);

    const float m = std::fmax(state.m[r], block_max);
    const float alpha = std::exp2(state.m[r] - m);
    float p[kPageLen], weight[kPageLen];  // weight: times the scale of V
    float sum = 0, largest = 0;
    for (int t = 0; t < kPageLen; ++t) {
      p[t] = t >= first && t < visible ? std::exp2(score[t] - m) : 0.f;
      sum += p[t];
      weight[t] = p[t] * SideScale(args.v, t);
      largest = std::fmax(largest, weight[t]);
    }
    state.m[r] = m;
    state.l[r] = state.l[r] * alpha + sum;

    float* o = state.o + static_cast<size_t>(r) * dim;
    const float limit = static_cast<float>(args.v.is_int8() ? kMaxPDigit16 : kMaxVDigit);
    for (int c = 0; c < dim; ++c) {
      float block_sum = 0;
      if (args.v.is_float()) {
        for (int t = 0; t < kPageLen; ++t) block_sum += weight[t] * v_floats[at(t, c)];
      } else if (largest > 0) {
        int32_t exact = 0;
        for (int t = 0; t < kPageLen; ++t) {
          const int digit = static_cast<int>(std::nearbyint(weight[t] * (limit / largest)));
          exact += digit * v_levels[at(t, c)];
        }
        block_sum = static_cast<float>(exact) * (largest / limit);
      }
      o[c] = o[c] * alpha + block_sum;
    }
    for (int a = 0; a < args.num_anchors; ++a) {
      DecodeAnchorRow(args.anchor_bits, args.v_anchors + a * anchor_bytes, args.anchors[a].v_scale,
                      dim, anchor.data());
      for (int c = 0; c < dim; ++c) {
        o[c] += p[args.anchors[a].token] * anchor[static_cast<size_t>(c)];
      }
    }
  }
}

}  // namespace tq
