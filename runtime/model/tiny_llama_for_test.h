// A llama of two layers with random weights, as GGUF bytes and as plain floats to check against.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/model/llama.h"
#include "turboquant/base/numeric.h"

namespace tq {

struct TinyLlama {
  int num_layers = 2, hidden = 64, ffn = 96, q_heads = 4, kv_heads = 2, head_dim = 16, vocab = 50;
  GgmlType type = GgmlType::kF32;  // of the matrices in the layers
  bool tied = true, bias = false;
  uint64_t seed = 1;
  std::string architecture = "llama", first_token = "<s>";
  float rope_base = 10000;
  // Called before the file is put together: adds or replaces (a later key wins nothing: it is a
  // duplicate, so use `skip` to leave one out first).
  std::function<void(GgufBuilder&)> extra;
  std::string skip;  // a metadata key or a tensor that is left out

  // Weights in Hugging Face order, filled by Build: [out][in], by tensor name.
  std::map<std::string, std::vector<float>> floats;

  std::string Build() {
    GgufBuilder b;
    const auto u32 = [&](const std::string& key, int v) {
      if (key != skip) b.U32(key, static_cast<uint32_t>(v));
    };
    if (skip != "general.architecture") b.Text("general.architecture", architecture);
    b.Text("general.name", "Tiny");
    u32("llama.block_count", num_layers);
    u32("llama.context_length", 4096);
    u32("llama.embedding_length", hidden);
    u32("llama.feed_forward_length", ffn);
    u32("llama.attention.head_count", q_heads);
    u32("llama.attention.head_count_kv", kv_heads);
    if (hidden != q_heads * head_dim) u32("llama.attention.key_length", head_dim);
    if (skip != "llama.attention.layer_norm_rms_epsilon") {
      b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    }
    if (skip != "llama.rope.freq_base") b.F32("llama.rope.freq_base", rope_base);
    std::vector<std::string> tokens = {first_token};
    for (int t = 1; t < vocab; ++t) tokens.push_back(StrCat("t", t));
    b.Texts("tokenizer.ggml.tokens", tokens);
    if (extra) extra(b);

    Matrix(b, "token_embd.weight", vocab, hidden, GgmlType::kF32, 1.0f, 0);
    if (!tied) Matrix(b, "output.weight", vocab, hidden, GgmlType::kF32, 0.3f, 0);
    Vector(b, "output_norm.weight", hidden, 1.0f, 0);
    for (int l = 0; l < num_layers; ++l) {
      const std::string blk = "blk." + std::to_string(l) + ".";
      const int q_dim = q_heads * head_dim, kv_dim = kv_heads * head_dim;
      Vector(b, blk + "attn_norm.weight", hidden, 1.0f, 0);
      Matrix(b, blk + "attn_q.weight", q_dim, hidden, type, 0.3f, q_heads);
      Matrix(b, blk + "attn_k.weight", kv_dim, hidden, type, 0.3f, kv_heads);
      Matrix(b, blk + "attn_v.weight", kv_dim, hidden, type, 0.2f, 0);
      Matrix(b, blk + "attn_output.weight", hidden, q_dim, type, 0.2f, 0);
      if (bias) {
        Vector(b, blk + "attn_q.bias", q_dim, 0.5f, q_heads);
        Vector(b, blk + "attn_k.bias", kv_dim, 2.0f, kv_heads);
        Vector(b, blk + "attn_v.bias", kv_dim, 0.5f, 0);
      }
      Vector(b, blk + "ffn_norm.weight", hidden, 1.0f, 0);
      Matrix(b, blk + "ffn_gate.weight", ffn, hidden, type, 0.2f, 0);
      Matrix(b, blk + "ffn_up.weight", ffn, hidden, type, 0.2f, 0);
      Matrix(b, blk + "ffn_down.weight", hidden, ffn, type, 0.2f, 0);
    }
    return b.Build();
  }

  // The model; `bytes` must outlive it.
  Result<std::unique_ptr<LlamaModel>> Make(const std::string& bytes, ThreadPool& pool,
                                           const ProgressSink& progress = {}) const {
    TQ_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny"));
    return LlamaModel::Create(std::make_unique<GgufFile>(std::move(file)), MakeCpuBackend(pool),
                              progress);
  }

 private:
  float Random() {
    return static_cast<float>(SplitMix64(seed) >> 40) * 0x1p-23f - 1;  // [-1, 1)
  }
  // Where row i of a head lies in a file: RoPE pairs side by side.
  int FileRow(int row, int heads) const {
    if (heads == 0) return row;
    const int h = row / head_dim, i = row % head_dim, half = head_dim / 2;
    return h * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
  }
  void Vector(GgufBuilder& b, const std::string& name, int n, float scale, int heads) {
    std::vector<float>& v = floats[name];
    v.resize(static_cast<size_t>(n));
    std::string data(static_cast<size_t>(n) * 4, '\0');
    for (int i = 0; i < n; ++i) {
      v[i] = scale * (Random() + (scale == 1.0f ? 1.5f : 0.0f));
      std::memcpy(data.data() + 4 * FileRow(i, heads), &v[i], 4);
    }
    if (name != skip) b.Tensor(name, GgmlType::kF32, {static_cast<uint64_t>(n)}, data);
  }
  // F32, or 4-bit blocks of random codes whose values end up in `floats` too.
  void Matrix(GgufBuilder& b, const std::string& name, int out, int in, GgmlType t, float scale,
              int heads) {
    std::vector<float>& v = floats[name];
    v.resize(static_cast<size_t>(out) * in);
    const GgmlTypeShape shape = GgmlShape(t);
    const size_t row_bytes = static_cast<size_t>(in / shape.block_len) * shape.block_bytes;
    std::string data(row_bytes * static_cast<size_t>(out), '\0');
    for (int r = 0; r < out; ++r) {
      char* row = data.data() + row_bytes * static_cast<size_t>(FileRow(r, heads));
      float* x = v.data() + static_cast<size_t>(r) * in;
      if (t == GgmlType::kF32) {
        for (int k = 0; k < in; ++k) x[k] = scale * Random();
        std::memcpy(row, x, row_bytes);
        continue;
      }
      TQ_CHECK(t == GgmlType::kQ4_1);
      for (int block = 0; block < in / 32; ++block, row += 20) {
        const f16_t d = F16FromF32(scale / 8 * (1.1f + Random())), m = F16FromF32(-scale);
        std::memcpy(row, &d, 2);
        std::memcpy(row + 2, &m, 2);
        for (int i = 0; i < 16; ++i) {
          const auto byte = static_cast<uint8_t>(SplitMix64(seed));
          row[4 + i] = static_cast<char>(byte);
          x[block * 32 + i] = F32FromF16(d) * (byte & 15) + F32FromF16(m);
          x[block * 32 + 16 + i] = F32FromF16(d) * (byte >> 4) + F32FromF16(m);
        }
      }
    }
    if (name != skip) {
      b.Tensor(name, t, {static_cast<uint64_t>(in), static_cast<uint64_t>(out)}, data);
    }
  }
};

}  // namespace tq
