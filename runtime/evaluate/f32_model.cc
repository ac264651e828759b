#include "runtime/evaluate/f32_model.h"

#include <algorithm>
#include <cmath>

#include "turboquant/base/numeric.h"

namespace tq {

F32Model::F32Model(Model& inner, ThreadPool& pool)
    : inner_(inner),
      pool_(pool),
      heads_(static_cast<size_t>(inner.arch().num_layers) * inner.arch().num_kv_heads),
      scores_(static_cast<size_t>(pool.num_threads())) {
  arch_ = inner.arch();
}

Status F32Model::Forward(KvCache& cache, std::span<const ForwardItem> items,
                         std::vector<float>* logits) {
  if (items.size() != 1) {
    return Unsupported("keys of 32 bits: ", items.size(), " sequences at once; one is supported");
  }
  const int64_t there = cache.VisibleLength(items[0].seq);
  if (there == 0) {
    for (Head& h : heads_) h = {};
    tokens_ = 0;
  }
  if (there != tokens_) {
    return Unsupported("keys of 32 bits: the sequence has ", there, " tokens, of which ", tokens_,
                       " were read here; read it from its beginning");
  }
  const auto count = static_cast<int>(items[0].tokens.size());
  inner_.set_row_probe(
      [&](int layer, const float* k, const float* v) { Keep(layer, count, k, v); });
  inner_.set_output_probe([&](int layer, const KvCache& c, const AttentionParams& params,
                              std::span<const AttentionItem> seen) {
    Attend(layer, params, seen.front());
    if (output_probe_) output_probe_(layer, c, params, seen);
  });
  const Status status = inner_.Forward(cache, items, logits);
  inner_.set_row_probe({});
  inner_.set_output_probe({});
  // Of a call that failed nothing is kept: the next one begins anew or is refused.
  tokens_ = status.ok() ? there + count : -1;
  return status;
}

void F32Model::Keep(int layer, int count, const float* k, const float* v) {
  const auto dim = static_cast<size_t>(arch_.head_dim);
  const auto num_heads = static_cast<size_t>(arch_.num_kv_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    Head& head = heads_[static_cast<size_t>(layer) * num_heads + h];
    head.keys.resize(static_cast<size_t>(DivCeil<int64_t>(tokens_ + count, kBlock) * kBlock) * dim);
    for (int t = 0; t < count; ++t) {
      const int64_t position = tokens_ + t;
      const float* key = k + (static_cast<size_t>(t) * num_heads + h) * dim;
      float* block = &head.keys[static_cast<size_t>(position / kBlock * kBlock) * dim];
      for (size_t c = 0; c < dim; ++c) block[c * kBlock + position % kBlock] = key[c];
      const float* value = v + (static_cast<size_t>(t) * num_heads + h) * dim;
      head.values.insert(head.values.end(), value, value + dim);
    }
  }
}

void F32Model::Attend(int layer, const AttentionParams& params, const AttentionItem& item) {
  const auto dim = static_cast<size_t>(arch_.head_dim);
  const auto num_q = static_cast<size_t>(params.num_q_heads);
  const size_t group = num_q / static_cast<size_t>(arch_.num_kv_heads);
  const float scale =
      params.scale > 0 ? params.scale : 1 / std::sqrt(static_cast<float>(arch_.head_dim));
  const int64_t window = arch_.window(layer);
  const auto attend = [&](size_t task, int worker) {
    const size_t t = task / num_q, q_head = task % num_q;
    const int64_t position = item.first_pos + static_cast<int64_t>(t);
    const int64_t lowest = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    const Head& head = heads_[static_cast<size_t>(layer) * static_cast<size_t>(arch_.num_kv_heads) +
                              q_head / group];
    const float* q = item.q + task * dim;
    std::vector<float>& scores = scores_[static_cast<size_t>(worker)];
    scores.assign(static_cast<size_t>(DivCeil<int64_t>(position + 1, kBlock) * kBlock), 0.f);
    for (int64_t b = lowest / kBlock; b <= position / kBlock; ++b) {
      const float* keys = &head.keys[static_cast<size_t>(b * kBlock) * dim];
      float* s = &scores[static_cast<size_t>(b * kBlock)];
      for (size_t c = 0; c < dim; ++c) {
        for (int64_t i = 0; i < kBlock; ++i) {
          s[i] += q[c] * keys[c * kBlock + static_cast<size_t>(i)];
        }
      }
    }
    const float* sink = params.sinks == nullptr ? nullptr : params.sinks + q_head;
    float top = sink == nullptr ? -INFINITY : *sink;
    for (int64_t key = lowest; key <= position; ++key) {
      float& s = scores[static_cast<size_t>(key)];
      s *= scale;
      if (params.softcap > 0) s = params.softcap * std::tanh(s / params.softcap);
      top = std::max(top, s);
    }
    double sum = sink == nullptr ? 0 : std::exp(*sink - top);
    float* out = item.out + task * dim;
    std::fill_n(out, dim, 0.f);
    for (int64_t key = lowest; key <= position; ++key) {
      const float p = std::exp(scores[static_cast<size_t>(key)] - top);
      sum += p;
      const float* value = &head.values[static_cast<size_t>(key) * dim];
      for (size_t c = 0; c < dim; ++c) out[c] += p * value[c];
    }
    for (size_t c = 0; c < dim; ++c) out[c] = static_cast<float>(out[c] / sum);
  };
  pool_.ParallelFor(static_cast<size_t>(item.num_tokens) * num_q, attend);
}

}  // namespace tq
