// A tokenizer and a model small enough for tests of everything above them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/numeric.h"

namespace tq {

// One token a byte; token 256 ends a generation.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    vocab_size_ = 257;
    eos_ = 256;
    stop_tokens_ = {256};
    description_ = "bytes";
  }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string TokenBytes(TokenId id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : "<end>";
  }
  bool IsSpecial(TokenId id) const override { return id == 256; }
};

// Two layers of attention over random embeddings: its logits depend on the whole cache, as a real
// model's do, and so on the format of the cache.
class TinyModel : public Model {
 public:
  static constexpr int kVocab = 257, kLayers = 2, kHeads = 2, kDim = 32;

  explicit TinyModel(ThreadPool& pool, uint64_t seed = 7) : pool_(pool), seed_(seed) {
    arch_.name = "tiny";
    arch_.model_name = "Tiny";
    arch_.num_layers = kLayers;
    arch_.hidden_dim = arch_.ffn_dim = kHeads * kDim;
    arch_.vocab_size = kVocab;
    arch_.num_q_heads = arch_.num_kv_heads = kHeads;
    arch_.head_dim = kDim;
    arch_.context_len = 8192;
    for (int l = 0; l < kLayers; ++l) {
      for (std::vector<float>* table : {&q_[l], &k_[l], &v_[l], &out_[l]}) {
        table->resize(static_cast<size_t>(kVocab) * kHeads * kDim);
        for (float& x : *table)
          x = 4 * (static_cast<float>(SplitMix64(seed_) >> 40) * 0x1p-24f) - 2;
      }
    }
  }
  WeightInfo weights() const override { return {1024, "F32 (8)"}; }
  std::vector<std::vector<float>> KBias() const override { return {}; }
  CacheConfig Config(const std::string& preset) const {
    CacheConfig c;
    c.num_layers = kLayers;
    c.num_kv_heads = kHeads;
    c.head_dim = kDim;
    const Result<HeadFormat> format = ParsePreset(preset);
    if (format.ok()) c.formats.assign(kLayers * kHeads, *format);
    return c;
  }

  Status Forward(KvCache& cache, std::span<const ForwardItem> items,
                 std::vector<float>* logits) override {
    if (logits != nullptr) logits->clear();
    for (const ForwardItem& item : items) {
      const int n = static_cast<int>(item.tokens.size());
      const int64_t first_pos = cache.VisibleLength(item.seq);
      TQ_RETURN_IF_ERROR(cache.BeginAppend(item.seq, n));
      std::vector<float> state(static_cast<size_t>(n) * kRow, 0.0f);
      std::vector<float> sums(static_cast<size_t>(n) * kVocab, 0.0f);
      for (int l = 0; l < kLayers; ++l) {
        const std::vector<float> q = Rows(q_[l], item.tokens), k = Rows(k_[l], item.tokens),
                                 v = Rows(v_[l], item.tokens);
        TQ_RETURN_IF_ERROR(cache.AppendLayer(item.seq, l, k.data(), v.data(), pool_));
        if (row_probe_) row_probe_(l, k.data(), v.data());
        const AttentionItem attention{item.seq, first_pos, n, q.data(), state.data()};
        if (attention_probe_) attention_probe_(l, cache, {.num_q_heads = kHeads}, {&attention, 1});
        TQ_RETURN_IF_ERROR(Attend(cache, l, {kHeads, 0}, {&attention, 1}, pool_));
        if (output_probe_) output_probe_(l, cache, {.num_q_heads = kHeads}, {&attention, 1});
        for (int t = 0; t < n; ++t) {
          for (int id = 0; id < kVocab; ++id) {
            float dot = 0;
            for (int i = 0; i < kRow; ++i) dot += state[t * kRow + i] * out_[l][id * kRow + i];
            sums[static_cast<size_t>(t) * kVocab + id] += 0.5f * dot;
          }
        }
      }
      TQ_RETURN_IF_ERROR(cache.CommitAppend(item.seq));
      if (logits == nullptr) continue;
      logits->insert(logits->end(), item.all_logits ? sums.begin() : sums.end() - kVocab,
                     sums.end());
    }
    return OkStatus();
  }

 private:
  static constexpr int kRow = kHeads * kDim;
  static std::vector<float> Rows(const std::vector<float>& table, std::span<const int32_t> ids) {
    std::vector<float> rows;
    for (const int32_t id : ids) {
      rows.insert(rows.end(), table.begin() + id * kRow, table.begin() + (id + 1) * kRow);
    }
    return rows;
  }

  ThreadPool& pool_;
  uint64_t seed_;
  std::vector<float> q_[kLayers], k_[kLayers], v_[kLayers], out_[kLayers];  // [vocab][heads][dim]
};

}  // namespace tq
