// One forward pass of the llama architecture, from token ids to logits.
#include <algorithm>
#include <cmath>
#include <new>

#include "runtime/model/llama.h"

namespace tq {
namespace {

// Scratch buffers of the backend, [rows][...].
enum BufferIndex { kHidden, kNormed, kQ, kK, kV, kGate, kUp, kAttention, kMixed };

Status CheckShape(const Architecture& a, const CacheConfig& c) {
  if (c.num_layers == a.num_layers && c.num_kv_heads == a.num_kv_heads &&
      c.head_dim == a.head_dim) {
    for (int l = 0; l < a.num_layers; ++l) {
      if (c.window(l) != a.window(l)) {
        return InvalidArgument("the cache has a window of ", c.window(l), " tokens in layer ", l,
                               " (0 = none); the model has ", a.window(l));
      }
    }
    return OkStatus();
  }
  return InvalidArgument("the cache has ", c.num_layers, " layers of ", c.num_kv_heads,
                         " KV heads of ", c.head_dim, "; the model has ", a.num_layers, " of ",
                         a.num_kv_heads, " of ", a.head_dim);
}

}  // namespace

Result<LlamaModel::Batch> LlamaModel::CheckItems(const KvCache& cache,
                                                 std::span<const ForwardItem> items) const {
  TQ_RETURN_IF_ERROR(CheckShape(arch_, cache.config()));
  Batch batch;
  if (items.empty()) return InvalidArgument("a forward pass over no items");
  for (size_t i = 0; i < items.size(); ++i) {
    const ForwardItem& item = items[i];
    TQ_ASSIGN_OR_RETURN(const int64_t length, cache.Length(item.seq));
    if (item.tokens.empty())
      return InvalidArgument("item ", i, " of the forward pass has no tokens");
    for (size_t j = 0; j < i; ++j) {
      if (items[j].seq == item.seq) {
        return InvalidArgument("sequence ", item.seq, " appears twice in one forward pass: items ",
                               j, " and ", i);
      }
    }
    if (item.tokens.size() + batch.tokens.size() > kMaxForwardTokens) {
      return InvalidArgument("a forward pass over more than ", kMaxForwardTokens, " tokens (",
                             item.tokens.size() + batch.tokens.size(),
                             "): cut it into several calls");
    }
    batch.first_positions.push_back(length);
    for (size_t t = 0; t < item.tokens.size(); ++t) {
      const int32_t token = item.tokens[t];
      if (token < 0 || token >= arch_.vocab_size) {
        return InvalidArgument("token ", token, " at position ", length + static_cast<int64_t>(t),
                               ": the vocabulary has ", arch_.vocab_size);
      }
      if (item.all_logits || t + 1 == item.tokens.size()) {
        batch.logit_rows.push_back(static_cast<int>(batch.tokens.size()));
      }
      batch.tokens.push_back(token);
      batch.positions.push_back(length + static_cast<int64_t>(t));
    }
  }
  return batch;
}

Status LlamaModel::Forward(KvCache& cache, std::span<const ForwardItem> items,
                           std::vector<float>* logits) {
  TQ_ASSIGN_OR_RETURN(const Batch batch, CheckItems(cache, items));
  return Run(cache, items, batch, {}, logits);
}

Status LlamaModel::ForwardFrom(int first_layer, std::span<const float> hidden, KvCache& cache,
                               const ForwardItem& item, std::vector<float>* logits) {
  TQ_ASSIGN_OR_RETURN(const Batch batch, CheckItems(cache, {&item, 1}));
  const size_t expected = item.tokens.size() * static_cast<size_t>(arch_.hidden_dim);
  if (first_layer < 0 || first_layer >= arch_.num_layers || hidden.size() != expected) {
    return InvalidArgument("a pass from layer ", first_layer, " of ", arch_.num_layers, " with ",
                           hidden.size(), " values; ", item.tokens.size(), " tokens have ",
                           expected);
  }
  return Run(cache, {&item, 1}, batch, {first_layer, hidden.data()}, logits);
}

Status LlamaModel::Run(KvCache& cache, std::span<const ForwardItem> items, const Batch& batch,
                       const Start& start, std::vector<float>* logits) {
  Status status;
  size_t begun = 0;
  for (; begun < items.size() && status.ok(); ++begun) {
    status = cache.BeginAppend(items[begun].seq, static_cast<int>(items[begun].tokens.size()));
    if (!status.ok()) break;
  }
  if (status.ok()) {
    try {
      status = RunLayers(cache, items, batch, start, logits);
    } catch (const std::bad_alloc&) {
      status = ResourceExhausted("no memory for a forward pass over ", batch.tokens.size(),
                                 " tokens; use shorter chunks");
    }
  }
  for (size_t i = 0; i < begun; ++i) {
    const Status end =
        status.ok() ? cache.CommitAppend(items[i].seq) : cache.AbortAppend(items[i].seq);
    TQ_CHECK(end.ok());  // both only end what BeginAppend began
  }
  return status;
}

Status LlamaModel::RunLayers(KvCache& cache, std::span<const ForwardItem> items, const Batch& batch,
                             const Start& start, std::vector<float>* logits) {
  const Architecture& a = arch_;
  Backend& b = *backend_;
  const int rows = static_cast<int>(batch.tokens.size());
  const int64_t hidden = a.hidden_dim, ffn = a.ffn_dim;
  const int64_t q_dim = int64_t{a.num_q_heads} * a.head_dim;
  const int64_t kv_dim = int64_t{a.num_kv_heads} * a.head_dim;
  const auto n = static_cast<size_t>(rows);
  TQ_ASSIGN_OR_RETURN(float* const x, b.Buffer(kHidden, n * hidden));
  TQ_ASSIGN_OR_RETURN(float* const normed, b.Buffer(kNormed, n * hidden));
  TQ_ASSIGN_OR_RETURN(float* const q, b.Buffer(kQ, n * q_dim));
  TQ_ASSIGN_OR_RETURN(float* const k, b.Buffer(kK, n * kv_dim));
  TQ_ASSIGN_OR_RETURN(float* const v, b.Buffer(kV, n * kv_dim));
  TQ_ASSIGN_OR_RETURN(float* const gate, b.Buffer(kGate, n * ffn));
  TQ_ASSIGN_OR_RETURN(float* const up, b.Buffer(kUp, n * ffn));
  TQ_ASSIGN_OR_RETURN(float* const attended, b.Buffer(kAttention, n * q_dim));
  TQ_ASSIGN_OR_RETURN(float* const mixed, b.Buffer(kMixed, a.num_experts > 0 ? n * hidden : 0));

  std::vector<AppendItem> appends;
  std::vector<AttentionItem> queries;
  int64_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    appends.push_back({.seq = items[i].seq, .k = k + row * kv_dim, .v = v + row * kv_dim});
    queries.push_back({.seq = items[i].seq,
                       .first_pos = batch.first_positions[i],
                       .num_tokens = static_cast<int>(items[i].tokens.size()),
                       .q = q + row * q_dim,
                       .out = attended + row * q_dim});
    row += static_cast<int64_t>(items[i].tokens.size());
  }
  AttentionParams params = {
      .num_q_heads = a.num_q_heads, .scale = a.attention_scale, .softcap = a.attention_softcap};
  params.v_skip = cache.config().v_skip;
  std::vector<SkippedV> skipped;
  if (params.v_skip > 0 && output_probe_) {
    skipped.resize(n * static_cast<size_t>(a.num_q_heads));
    for (AttentionItem& item : queries) {
      item.skipped = &skipped[static_cast<size_t>((item.q - q) / a.head_dim)];
    }
  }

  b.SetPositions(0, a.rope, batch.positions);
  if (!a.window_rope.inv_freq.empty()) b.SetPositions(1, a.window_rope, batch.positions);
  if (start.hidden == nullptr) {
    b.Embed(embedding_, batch.tokens,
            a.traits->scaled_embedding ? std::sqrt(static_cast<float>(hidden)) : 1.f, x);
  } else {
    std::copy_n(start.hidden, n * static_cast<size_t>(hidden), x);
    std::fill_n(k, n * static_cast<size_t>(kv_dim), 0.f);
    std::fill_n(v, n * static_cast<size_t>(kv_dim), 0.f);
    for (int l = 0; l < start.layer; ++l) TQ_RETURN_IF_ERROR(b.Append(cache, l, appends));
  }
  const auto add_to_stream = [&](float* part, VectorId norm) {
    if (norm != VectorId::kNone) b.RmsNorm(part, norm, rows, hidden, a.norm_eps, part);
    b.Add(x, part, rows, hidden);
  };
  const auto see = [&](ProductInput input, int layer, const float* in, int count, int64_t width) {
    if (input_probe_) input_probe_(input, layer, 0, in, count, width);
  };
  for (int l = start.layer; l < a.num_layers; ++l) {
    const Layer& w = layers_[static_cast<size_t>(l)];
    if (layer_probe_) layer_probe_(l, {x, n * static_cast<size_t>(hidden)});
    b.RmsNorm(x, w.attention_norm, rows, hidden, a.norm_eps, normed);
    const LinearPart qkv[] = {{w.q, w.q_bias, q}, {w.k, w.k_bias, k}, {w.v, w.v_bias, v}};
    see(ProductInput::kAttention, l, normed, rows, hidden);
    b.Linear(qkv, normed, rows);
    if (w.q_norm != VectorId::kNone) {
      b.RmsNorm(q, w.q_norm, rows * a.num_q_heads, a.head_dim, a.norm_eps, q);
      b.RmsNorm(k, w.k_norm, rows * a.num_kv_heads, a.head_dim, a.norm_eps, k);
    }
    const int rope = &a.rope_of(l) == &a.rope ? 0 : 1;
    b.ApplyRope(rope, q, a.num_q_heads, a.head_dim);
    b.ApplyRope(rope, k, a.num_kv_heads, a.head_dim);
    if (row_probe_) row_probe_(l, k, v);
    TQ_RETURN_IF_ERROR(b.Append(cache, l, appends));
    params.sinks = w.sinks.empty() ? nullptr : w.sinks.data();
    if (attention_probe_) attention_probe_(l, cache, params, queries);
    TQ_RETURN_IF_ERROR(b.Attend(cache, l, params, queries));
    if (output_probe_) output_probe_(l, cache, params, queries);
    const LinearPart o[] = {{w.o, w.o_bias, normed}};
    see(ProductInput::kAttentionOutput, l, attended, rows, q_dim);
    b.Linear(o, attended, rows);
    add_to_stream(normed, w.post_attention_norm);

    b.RmsNorm(x, w.ffn_norm, rows, hidden, a.norm_eps, normed);
    see(ProductInput::kFfn, l, normed, rows, hidden);
    if (w.experts.num_used > 0) {
      if (input_probe_) {
        ExpertLayer seen = w.experts;
        seen.down_probe = [&](int expert, const float* in, int count) {
          input_probe_(ProductInput::kFfnDown, l, expert, in, count, a.expert_ffn_dim);
        };
        TQ_RETURN_IF_ERROR(b.MixExperts(seen, normed, rows, mixed));
      } else {
        TQ_RETURN_IF_ERROR(b.MixExperts(w.experts, normed, rows, mixed));
      }
      add_to_stream(mixed, w.post_ffn_norm);
      continue;
    }
    const LinearPart gate_up[] = {{w.gate, VectorId::kNone, gate}, {w.up, VectorId::kNone, up}};
    b.Linear(gate_up, normed, rows);
    b.GatedMul(a.traits->activation, gate, up, rows, ffn);
    const LinearPart down[] = {{w.down, VectorId::kNone, normed}};
    see(ProductInput::kFfnDown, l, gate, rows, ffn);
    b.Linear(down, gate, rows);
    add_to_stream(normed, w.post_ffn_norm);
  }

  if (logits == nullptr) return OkStatus();
  const int out_rows = static_cast<int>(batch.logit_rows.size());
  b.GatherRows(x, batch.logit_rows, hidden, normed);
  b.RmsNorm(normed, output_norm_, out_rows, hidden, a.norm_eps, normed);
  logits->resize(static_cast<size_t>(out_rows) * static_cast<size_t>(a.vocab_size));
  see(ProductInput::kHead, -1, normed, out_rows, hidden);
  b.Logits(head_, normed, out_rows, a.logit_softcap, logits->data());
  return OkStatus();
}

}  // namespace tq
